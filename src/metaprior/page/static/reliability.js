// The reliability diagram of the prior in use: how often answers of a confidence were right, on characters it never saw.

import { element } from "/static/chart.js";

const SIDE = 260, LEFT = 46, TOP = 8, BOTTOM = 40;

export function drawReliability(where, { reliability }) {
  const to = (x, y) => [LEFT + x * SIDE, TOP + (1 - y) * SIDE];
  const svg = element("svg", { viewBox: `0 0 ${LEFT + SIDE + 12} ${TOP + SIDE + BOTTOM}`, role: "img",
    "aria-label": "Reliability diagram: share of right answers against stated probability" });
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    const [x] = to(tick, 0), [, y] = to(0, tick);
    element("line", { class: "grid", x1: x, x2: x, y1: TOP, y2: TOP + SIDE }, svg);
    element("line", { class: "grid", x1: LEFT, x2: LEFT + SIDE, y1: y, y2: y }, svg);
    element("text", { class: "axis", x, y: TOP + SIDE + 16, "text-anchor": "middle" }, svg).textContent = `${100 * tick}`;
    element("text", { class: "axis", x: LEFT - 6, y: y + 4, "text-anchor": "end" }, svg).textContent = `${100 * tick}`;
  }
  reliability.count.forEach((count, i) => {
    if (!count) return;
    const [x, y] = to(reliability.edges[i], reliability.accuracy[i]);
    const width = (reliability.edges[i + 1] - reliability.edges[i]) * SIDE - 2;
    const bar = element("rect", { class: "bin", x: x + 1, y, width, height: Math.max(0, TOP + SIDE - y) }, svg);
    element("title", {}, bar).textContent = `${count} answers at ${percent(reliability.confidence[i])}: ${percent(reliability.accuracy[i])} right`;
    const [dx, dy] = to(reliability.confidence[i], reliability.accuracy[i]);
    element("circle", { class: "dot", cx: dx, cy: dy, r: 3.5 }, svg);
  });
  const [[x1, y1], [x2, y2]] = [to(0, 0), to(1, 1)];
  element("line", { class: "ideal", x1, y1, x2, y2 }, svg);
  element("text", { class: "axis", x: LEFT + SIDE / 2, y: TOP + SIDE + 34, "text-anchor": "middle" }, svg).textContent = "stated probability, %";
  element("text", { class: "axis", transform: `translate(12 ${TOP + SIDE / 2}) rotate(-90)`, "text-anchor": "middle" }, svg).textContent = "right, %";
  where.replaceChildren(svg);
}

export function trustWords(classes, known) {
  return `On ${known.tasks} tasks of ${classes} Omniglot characters that it never saw, one drawing of each, this prior is right in `
    + `${percent(known.accuracy)} ± ${percent(known.accuracy_ci95)} of ${known.predictions.toLocaleString("en-GB")} answers; stated and true `
    + `frequencies differ by ${percent(known.ece)} on average (ECE). It is “sure” from ${Math.round(100 * known.sure_from)} % on: ${percent(known.share_sure)} of `
    + `answers, of which ${percent(known.accuracy_where_sure)} are right. Drawings of a further character, which it was not shown, are called sure in `
    + `${percent(known.strangers_called_sure)} of cases. Your drawings by mouse or finger are not Omniglot's: there it may be less right.`;
}

const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(1)} %`);
