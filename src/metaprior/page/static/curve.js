// The curve: points, steps and methods live here, in this browser; the server is asked what priors think of them.

import { asker } from "/static/server.js";
import { X, Y, clamp, drawAnswer, drawCross, drawTruth, element, makeChart, place, toX, toY } from "/static/chart.js";

const get = (id) => document.getElementById(id);

export function startCurve(known) {
  const state = { points: [], steps: known.most_steps, truth: null, held: null };
  const charts = known.methods.map(({ name, summary }) => ({ name, ...makeChart(name, summary) }));
  const shown = new Set(known.methods.map(({ name }) => name));
  const truth = (x) => state.truth.amplitude * Math.sin(state.truth.frequency * x + state.truth.phase);
  const ask = asker("/api/curve", (reply) => {
    for (const chart of charts) if (reply.answers[chart.name]) drawAnswer(chart, known.grid, reply.answers[chart.name]);
    get("charts").dataset.answered = String(Number(get("charts").dataset.answered ?? 0) + 1);
  });

  function refresh() {
    for (const chart of charts) {
      drawTruth(chart, known.grid, get("reveal").checked ? truth : null);
      drawPoints(chart);
      drawCross(chart);
      chart.box.hidden = !shown.has(chart.name);
    }
    get("steps").value = state.steps;
    get("steps-value").textContent = state.steps;
    get("points-said").textContent = state.points.length === 0 ? "No points yet: what you see is the prior."
      : `${state.points.length} of at most ${known.most_points} points.`;
    const methods = charts.map(({ name }) => name).filter((name) => shown.has(name));
    if (methods.length) ask({ tasks: get("tasks").value, methods, points: state.points.map(rounded), steps: state.steps, truth: state.truth });
  }

  function drawPoints(chart) {
    const group = chart.parts.points;
    while (group.children.length > state.points.length) group.lastChild.remove();
    while (group.children.length < state.points.length) group.append(makePoint(chart, group.children.length));
    state.points.forEach(([x, y], i) => {
      const dot = group.children[i];
      dot.setAttribute("cx", toX(x));
      dot.setAttribute("cy", toY(y));
      dot.setAttribute("aria-label", `Point ${i + 1} at ${x.toFixed(1)}, ${y.toFixed(1)}: arrow keys move it, Delete removes it`);
    });
  }

  function makePoint(chart, index) {
    const dot = element("circle", { class: "point", r: 8, tabindex: 0, role: "button" });
    dot.addEventListener("pointerdown", (event) => {
      event.stopPropagation();
      dot.setPointerCapture(event.pointerId);
      dot.classList.add("held");
      state.held = index;
    });
    dot.addEventListener("pointermove", (event) => {
      if (state.held === index) move(index, place(chart.svg, event));
    });
    for (const end of ["pointerup", "pointercancel"]) {
      dot.addEventListener(end, () => {
        state.held = null;
        dot.classList.remove("held");
      });
    }
    dot.addEventListener("dblclick", (event) => {
      event.stopPropagation();
      remove(index);
    });
    dot.addEventListener("keydown", (event) => {
      const shift = arrow(event);
      if (shift) move(index, [state.points[index][0] + shift[0], state.points[index][1] + shift[1]]);
      else if (["Delete", "Backspace"].includes(event.key)) remove(index);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    return dot;
  }

  const onCurve = ([x, y]) => [clamp(x, X), get("on-curve").checked ? truth(clamp(x, X)) : clamp(y, Y)];

  function add(point) {
    if (state.points.length >= known.most_points) {
      get("points-said").textContent = `At most ${known.most_points} points: remove one before you add another.`;
      return;
    }
    state.points.push(onCurve(point));
    refresh();
  }

  function move(index, point) {
    state.points[index] = onCurve(point);
    refresh();
  }

  function remove(index) {
    state.points.splice(index, 1);
    refresh();
  }

  function anotherCurve() {
    const ranges = known.curves[get("tasks").value].ranges;
    const between = ([low, high]) => low + Math.random() * (high - low);
    const [low, high] = ranges.amplitude;
    state.truth = { amplitude: between([Math.max(1.5, low), high]), frequency: between(ranges.frequency), phase: between(ranges.phase) };
    state.points = [];
    refresh();
  }

  for (const chart of charts) {
    get("charts").append(chart.box);
    chart.svg.addEventListener("pointerdown", (event) => {
      if (event.button === 0) add(place(chart.svg, event));
    });
    chart.svg.addEventListener("keydown", (event) => {
      const shift = arrow(event);
      if (shift) chart.cross = [clamp(chart.cross[0] + shift[0], X), clamp(chart.cross[1] + shift[1], Y)];
      else if (event.key === "Enter") add(chart.cross);
      else return;
      event.preventDefault();
      drawCross(chart);
    });
    get("methods").append(checkbox(chart.name, (on) => {
      if (on) shown.add(chart.name);
      else shown.delete(chart.name);
      refresh();
    }));
  }

  const setSteps = (steps) => {
    state.steps = clamp(steps, [0, known.most_steps]);
    refresh();
  };
  get("steps").max = known.most_steps;
  get("steps").addEventListener("input", (event) => setSteps(Number(event.target.value)));
  get("step-back").addEventListener("click", () => setSteps(state.steps - 1));
  get("step-on").addEventListener("click", () => setSteps(state.steps + 1));
  get("play").addEventListener("click", () => play(known.most_steps, setSteps, get("play")));
  get("reveal").addEventListener("change", refresh);
  get("on-curve").addEventListener("change", () => {
    state.points = state.points.map(onCurve);
    refresh();
  });
  get("tasks").addEventListener("change", anotherCurve);
  get("new-curve").addEventListener("click", anotherCurve);
  get("clear-points").addEventListener("click", () => {
    state.points = [];
    refresh();
  });
  get("some-points").addEventListener("click", () => {
    for (let i = 0; i < 3; i++) add([X[0] + Math.random() * (X[1] - X[0]), 0]);
  });
  anotherCurve();
}

function play(most, setSteps, button) {
  let step = 0;
  button.disabled = true;
  const tick = () => {
    setSteps(step);
    if (step++ < most) setTimeout(tick, 300);
    else button.disabled = false;
  };
  tick();
}

function checkbox(name, changed) {
  const label = document.createElement("label"), box = document.createElement("input");
  box.type = "checkbox";
  box.checked = true;
  box.value = name;
  box.addEventListener("change", () => changed(box.checked));
  label.append(box, ` ${name}`);
  return label;
}

function arrow(event) {
  const size = event.shiftKey ? 1 : 0.2;
  return { ArrowLeft: [-size, 0], ArrowRight: [size, 0], ArrowUp: [0, size], ArrowDown: [0, -size] }[event.key];
}

const rounded = (point) => point.map((value) => Number(value.toFixed(4)));
