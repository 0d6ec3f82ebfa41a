// Characters: sheets for examples and one for a new drawing; the server says which it is taken for.

import { asker } from "/static/server.js";
import { makePad, sent } from "/static/pad.js";
import { drawReliability, trustWords } from "/static/reliability.js";

const get = (id) => document.getElementById(id);
const NAMES = ["A", "B", "C", "D", "E"];

export function startDraw(known) {
  const state = { classes: 3 };
  const examples = NAMES.map((name) => makePad(name, `Sheet for character ${name}`, refresh));
  const fresh = makePad("Another one", "Sheet for another drawing of one of the characters", refresh);
  const ask = asker("/api/drawing", (reply, question) => {
    if (question.examples.length !== state.classes || !complete()) return; // what was asked is no longer there
    reply.seen.slice(0, -1).forEach((text, i) => examples[i].show(text));
    fresh.show(reply.seen.at(-1));
    showAnswer(reply);
  });

  const used = () => examples.slice(0, state.classes);
  const complete = () => used().every((pad) => pad.strokes.length) && fresh.strokes.length > 0;

  function refresh() {
    const missing = used().filter((pad) => !pad.strokes.length).map((pad) => pad.box.dataset.name);
    if (complete()) {
      ask({ examples: used().map(sent), new: sent(fresh) });
      return;
    }
    showBars(null);
    get("verdict").className = "";
    get("verdict").textContent = missing.length ? `Draw ${missing.join(", ")} once each.` : "Now draw one of them again.";
  }

  function showAnswer({ probabilities, best, sure, sure_from }) {
    showBars(probabilities);
    const percent = (100 * probabilities[best]).toFixed(1);
    get("verdict").className = sure ? "sure" : "unsure";
    get("verdict").textContent = sure ? `This is ${NAMES[best]} (${percent} %).`
      : `Not sure. Perhaps ${NAMES[best]}, but ${percent} % is below the ${Math.round(100 * sure_from)} % that “sure” takes.`;
  }

  function showBars(probabilities) {
    get("bars").replaceChildren(...NAMES.slice(0, state.classes).map((name, i) => {
      const value = probabilities ? probabilities[i] : null;
      const row = document.createElement("div");
      row.className = "bar";
      row.innerHTML = `<span></span><span class="track"><span class="fill"></span></span><span class="number"></span>`;
      row.children[0].textContent = name;
      row.querySelector(".fill").style.display = "block";
      row.querySelector(".fill").style.width = `${100 * (value ?? 0)}%`;
      row.children[2].textContent = value === null ? "–" : `${(100 * value).toFixed(1)} %`;
      return row;
    }));
  }

  function setClasses(classes) {
    state.classes = classes;
    examples.forEach((pad, i) => { pad.box.hidden = i >= classes; });
    drawReliability(get("reliability"), known.classes[classes]);
    get("trust").textContent = trustWords(classes, known.classes[classes]);
    refresh();
  }

  get("examples").append(...examples.map((pad) => pad.box));
  get("new").append(fresh.box);
  get("classes").addEventListener("change", (event) => setClasses(Number(event.target.value)));
  get("clear-all").addEventListener("click", () => {
    for (const pad of [...examples, fresh]) pad.clear();
    refresh();
  });
  get("classes").value = String(state.classes);
  setClasses(state.classes);
}
