import { about, say } from "/static/server.js";
import { startCurve } from "/static/curve.js";
import { startDraw } from "/static/draw.js";

const tabs = [...document.querySelectorAll("[role=tab]")];

function select(tab, { focus = false } = {}) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    document.getElementById(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
  if (focus) tab.focus();
}

for (const [place, tab] of tabs.entries()) {
  tab.addEventListener("click", () => select(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    select(tabs[(place + step + tabs.length) % tabs.length], { focus: true });
  });
}

try {
  const known = await about();
  startCurve(known);
  startDraw(known);
  select(tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash) ?? tabs[0]);
  document.body.dataset.ready = "yes";
} catch (error) {
  say(`The page could not be started: ${error.message}`);
}
