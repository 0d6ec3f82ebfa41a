// One chart: bands, functions, the points and the hidden curve, as SVG. It knows nothing of the server.

const NAMESPACE = "http://www.w3.org/2000/svg";
export const WIDTH = 560, HEIGHT = 340;
const LEFT = 34, RIGHT = 8, TOP = 8, BOTTOM = 24;
export const X = [-5, 5], Y = [-6, 6];

export const toX = (x) => LEFT + ((x - X[0]) / (X[1] - X[0])) * (WIDTH - LEFT - RIGHT);
export const toY = (y) => TOP + ((Y[1] - y) / (Y[1] - Y[0])) * (HEIGHT - TOP - BOTTOM);
export const clamp = (value, [low, high]) => Math.min(high, Math.max(low, value));

const signed = (value) => String(value).replace("-", "−");

export function element(name, attributes = {}, parent = null) {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (parent) parent.append(made);
  return made;
}

export function place(svg, event) {
  // From the screen to the coordinates of the curve, in the chart's range.
  const box = svg.getBoundingClientRect();
  const across = ((event.clientX - box.left) / box.width) * WIDTH, down = ((event.clientY - box.top) / box.height) * HEIGHT;
  const x = X[0] + ((across - LEFT) / (WIDTH - LEFT - RIGHT)) * (X[1] - X[0]);
  const y = Y[1] - ((down - TOP) / (HEIGHT - TOP - BOTTOM)) * (Y[1] - Y[0]);
  return [clamp(x, X), clamp(y, Y)];
}

export function makeChart(method, summary) {
  const box = document.createElement("div");
  box.className = "chart";
  box.dataset.method = method;
  const title = document.createElement("h2");
  title.textContent = method;
  title.title = summary;
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "application", tabindex: 0,
    "aria-label": `Chart of ${method}: arrow keys move a cross, Enter adds a point there` });
  for (let x = X[0]; x <= X[1]; x += 2.5) {
    element("line", { class: "grid", x1: toX(x), x2: toX(x), y1: TOP, y2: HEIGHT - BOTTOM }, svg);
    element("text", { class: "axis", x: toX(x), y: HEIGHT - 6, "text-anchor": "middle" }, svg).textContent = signed(x);
  }
  for (let y = Y[0]; y <= Y[1]; y += 3) {
    element("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: toY(y), y2: toY(y) }, svg);
    element("text", { class: "axis", x: LEFT - 6, y: toY(y) + 4, "text-anchor": "end" }, svg).textContent = signed(y);
  }
  const clip = element("clipPath", { id: `clip-${method.replace(/\W/g, "-")}` }, svg);
  element("rect", { x: LEFT, y: TOP, width: WIDTH - LEFT - RIGHT, height: HEIGHT - TOP - BOTTOM }, clip);
  const inside = element("g", { "clip-path": `url(#${clip.id})` }, svg);
  const parts = {
    band90: element("path", { class: "band90" }, inside), band50: element("path", { class: "band50" }, inside),
    functions: element("g", {}, inside), truth: element("path", { class: "truth" }, inside),
    mean: element("path", { class: "mean" }, inside),
    crossX: element("line", { class: "cross" }, inside), crossY: element("line", { class: "cross" }, inside),
    points: element("g", {}, svg),
  };
  const scores = document.createElement("dl");
  scores.className = "scores";
  box.append(title, svg, scores);
  return { box, svg, parts, scores, cross: [0, 0] };
}

export function drawAnswer(chart, grid, answer) {
  const { parts } = chart;
  const lines = [answer.mean, answer.low90, answer.high90, answer.low50, answer.high50, ...answer.functions];
  const lost = lines.some((line) => line.some((value) => value === null));
  parts.band90.setAttribute("d", lost ? "" : band(grid, answer.low90, answer.high90));
  parts.band50.setAttribute("d", lost ? "" : band(grid, answer.low50, answer.high50));
  parts.mean.setAttribute("d", lost ? "" : path(grid, answer.mean));
  parts.functions.replaceChildren(...(lost ? [] : answer.functions.map((f) => element("path", { class: "function", d: path(grid, f) }))));
  const percent = answer.coverage === null ? "–" : `${Math.round(100 * answer.coverage)} %`;
  showScores(chart, lost ? [["adaptation", "ran away"]] : [["NLL", number(answer.nll)], ["coverage of 90 % band", percent], ["MSE", number(answer.mse)]]);
}

export function drawTruth(chart, grid, truth) {
  chart.parts.truth.setAttribute("d", truth ? path(grid, grid.map(truth)) : "");
}

export function drawCross(chart) {
  const [x, y] = chart.cross;
  const set = (line, values) => Object.entries(values).forEach(([key, value]) => line.setAttribute(key, value));
  set(chart.parts.crossX, { x1: toX(x), x2: toX(x), y1: TOP, y2: HEIGHT - BOTTOM });
  set(chart.parts.crossY, { x1: LEFT, x2: WIDTH - RIGHT, y1: toY(y), y2: toY(y) });
}

export function path(xs, ys) {
  const far = [3 * Y[0], 3 * Y[1]];
  return xs.map((x, i) => `${i ? "L" : "M"}${toX(x).toFixed(1)} ${toY(clamp(ys[i], far)).toFixed(1)}`).join("");
}

function band(xs, low, high) {
  return `${path(xs, high)}${path([...xs].reverse(), [...low].reverse()).replace("M", "L")}Z`;
}

function showScores(chart, pairs) {
  chart.scores.replaceChildren(...pairs.map(([name, value]) => {
    const pair = document.createElement("div"), dt = document.createElement("dt"), dd = document.createElement("dd");
    dt.textContent = name;
    dd.textContent = value;
    dd.dataset.score = name.split(" ")[0];
    pair.append(dt, dd);
    return pair;
  }));
}

function number(value) {
  if (value === null) return "–";
  const size = Math.abs(value);
  return (size >= 1000 ? value.toExponential(1) : value.toFixed(size >= 10 ? 1 : size >= 0.1 ? 2 : 4)).replace("-", "−");
}
