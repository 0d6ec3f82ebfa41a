// A sheet to draw on with mouse, finger or arrow keys. Strokes are lists of points between 0 and 1.

const SIZE = 280, MOST_POINTS = 400, STEP = 0.02;

export function makePad(name, hint, changed) {
  const box = document.createElement("div");
  box.className = "pad";
  box.dataset.name = name;
  box.innerHTML = `<div class="pad-head"><h2></h2><canvas class="seen" width="28" height="28" role="img"></canvas></div>
    <canvas class="sheet" width="${SIZE}" height="${SIZE}" tabindex="0" role="application"></canvas>
    <div class="pad-foot"><button class="undo">Undo</button><button class="clear">Clear</button></div>`;
  const [sheet, seen] = [box.querySelector(".sheet"), box.querySelector(".seen")];
  box.querySelector("h2").textContent = name;
  sheet.setAttribute("aria-label", `${hint}: arrow keys move the pen, Space lowers and lifts it, Backspace takes back a stroke`);
  seen.setAttribute("aria-label", `${name} as the network sees it`);
  const pad = { box, sheet, strokes: [], clear, show: (text) => showSeen(seen, text) };
  let drawing = null, pen = [0.5, 0.5], down = false;

  function at(event) {
    const edges = sheet.getBoundingClientRect();
    return [inside((event.clientX - edges.left) / edges.width), inside((event.clientY - edges.top) / edges.height)];
  }
  function begin(point) {
    pad.strokes.push([point]);
    paint();
  }
  function extend(point) {
    const stroke = pad.strokes.at(-1);
    const [x, y] = stroke.at(-1);
    if (Math.hypot(point[0] - x, point[1] - y) < 0.004 || count(pad) >= MOST_POINTS) return;
    stroke.push(point);
    paint();
    changed();
  }
  function clear() {
    pad.strokes = [];
    down = false;
    showSeen(seen, null);
    paint();
  }
  function undo() {
    pad.strokes.pop();
    down = false;
    if (!pad.strokes.length) showSeen(seen, null);
    paint();
    changed();
  }
  function paint() {
    const style = getComputedStyle(sheet), context = sheet.getContext("2d");
    context.clearRect(0, 0, SIZE, SIZE);
    Object.assign(context, { lineWidth: 12, lineCap: "round", lineJoin: "round", strokeStyle: style.color });
    for (const stroke of pad.strokes) {
      context.beginPath();
      stroke.forEach(([x, y], i) => context[i ? "lineTo" : "moveTo"](x * SIZE, y * SIZE));
      if (stroke.length === 1) context.lineTo(stroke[0][0] * SIZE + 0.1, stroke[0][1] * SIZE);
      context.stroke();
    }
    if (document.activeElement === sheet && sheet.matches(":focus-visible")) {
      Object.assign(context, { lineWidth: 2, fillStyle: style.color });
      context.beginPath();
      context.arc(pen[0] * SIZE, pen[1] * SIZE, 7, 0, 7);
      if (down) context.fill();
      else context.stroke();
    }
  }

  sheet.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    event.preventDefault();
    sheet.setPointerCapture(event.pointerId);
    drawing = event.pointerId;
    begin(at(event));
  });
  sheet.addEventListener("pointermove", (event) => {
    if (drawing !== event.pointerId) return;
    // A quick pen has been at more places than the browser tells at once.
    const events = event.getCoalescedEvents?.() ?? [];
    for (const one of events.length ? events : [event]) extend(at(one));
  });
  for (const end of ["pointerup", "pointercancel"]) {
    sheet.addEventListener(end, (event) => {
      if (drawing !== event.pointerId) return;
      drawing = null;
      changed();
    });
  }
  sheet.addEventListener("keydown", (event) => {
    const size = event.shiftKey ? 0.1 : STEP;
    const shift = { ArrowLeft: [-size, 0], ArrowRight: [size, 0], ArrowUp: [0, -size], ArrowDown: [0, size] }[event.key];
    if (shift) {
      pen = [inside(pen[0] + shift[0]), inside(pen[1] + shift[1])];
      if (down) extend(pen);
    } else if (event.key === " ") {
      down = !down;
      if (down) begin(pen);
      changed();
    } else if (event.key === "Backspace") undo();
    else return;
    event.preventDefault();
    paint();
  });
  sheet.addEventListener("focus", paint);
  sheet.addEventListener("blur", paint);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  box.querySelector(".undo").addEventListener("click", undo);
  box.querySelector(".clear").addEventListener("click", () => {
    clear();
    changed();
  });
  showSeen(seen, null);
  return pad;
}

const inside = (value) => Math.min(1, Math.max(0, value));
const count = (pad) => pad.strokes.reduce((sum, stroke) => sum + stroke.length, 0);
export const sent = (pad) => pad.strokes.map((stroke) => stroke.map((point) => point.map((value) => Number(value.toFixed(4)))));

function showSeen(canvas, text) {
  const context = canvas.getContext("2d"), image = context.createImageData(28, 28);
  const bytes = text ? Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)) : new Uint8Array(28 * 28);
  bytes.forEach((value, i) => image.data.set([value, value, value, 255], 4 * i));
  context.putImageData(image, 0, 0);
}
