// ------------------------------------------------------------------------------------------------- who was in, on a canvas
let geometry = null; // of the strip: cell width and height, header, in canvas pixels
const mark = (context, letter, x, y, w, h) => { // shape as well as colour, where a cell is large enough for one
  if (w < 7 || h < 7 || letter === "j" || letter === "n") return;
  context.strokeStyle = letter === "d" ? "#000000" : colour("--paper");
  context.lineWidth = 1.5;
  context.beginPath();
  const cx = x + w / 2, cy = y + h / 2, s = Math.min(w, h) / 4;
  if (letter === "d") { context.moveTo(cx - s, cy); context.lineTo(cx + s, cy); }
  if (letter === "a") context.arc(cx, cy, s, 0, 7);
  if (letter === "l") { context.moveTo(cx - s, cy + s); context.lineTo(cx + s, cy - s); }
  if (letter === "r") { context.moveTo(cx - s, cy - s); context.lineTo(cx + s, cy + s); context.moveTo(cx + s, cy - s); context.lineTo(cx - s, cy + s); }
  context.stroke();
};
const paint = (canvas, strip, fallbacks, rounds, cell, tall, header, marks) => {
  const columns = rounds.length;
  canvas.width = Math.max(1, columns * cell);
  canvas.height = Math.max(1, header + strip.length * tall);
  const context = canvas.getContext("2d"), gap = cell >= 4 && tall >= 4 ? 1 : 0;
  const colours = Object.fromEntries(Object.entries(STATUS).map(([k, v]) => [k, colour(v.colour)]));
  strip.forEach((letters, k) => {
    for (let t = 0; t < columns;) {
      let end = t + 1;
      if (!gap) while (end < columns && letters[end] === letters[t]) end += 1;
      context.fillStyle = colours[letters[t]] ?? colours.a;
      context.fillRect(t * cell, header + k * tall, (end - t) * cell - gap, tall - gap);
      if (marks) mark(context, letters[t], t * cell, header + k * tall, cell - gap, tall - gap);
      t = end;
    }
  });
  if (!header) return;
  context.fillStyle = colour("--worse");
  for (const [at] of fallbacks) {
    const x = (nearest(rounds, at) + 0.5) * cell, w = Math.max(3, Math.min(cell, 10)) / 2;
    context.beginPath(); context.moveTo(x - w, 1); context.lineTo(x + w, 1); context.lineTo(x, header - 2); context.fill();
  }
};
const asSvg = (r, strip, fallbacks) => {
  const cell = 8, tall = 12, escape = (s) => s.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
  const left = 110, width = left + r.strip_rounds.length * cell, height = 14 + strip.length * tall, out = [];
  strip.forEach((letters, k) => {
    out.push(`<text x="${left - 6}" y="${14 + k * tall + 9}" text-anchor="end" font-size="9" font-family="sans-serif">${escape(r.silos[k].slice(0, 18))}</text>`);
    for (let t = 0; t < letters.length;) {
      let end = t + 1;
      while (end < letters.length && letters[end] === letters[t]) end += 1;
      out.push(`<rect x="${left + t * cell}" y="${14 + k * tall}" width="${(end - t) * cell}" height="${tall - 1}" fill="${colour(STATUS[letters[t]].colour)}"><title>${STATUS[letters[t]].word}</title></rect>`);
      t = end;
    }
  });
  for (const [at] of fallbacks) { const x = left + (nearest(r.strip_rounds, at) + 0.5) * cell; out.push(`<path d="M${x - 4} 2h8l-4 9z" fill="${colour("--worse")}"/>`); }
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}">${out.join("")}</svg>`;
};
const sizes = (frame, r, silos) => {
  const width = Math.max(100, frame.clientWidth), columns = r.strip_rounds.length;
  return { cell: Math.max(1, Math.min(40, Math.floor(width / columns))), tall: silos <= 12 ? 22 : silos <= 40 ? 15 : silos <= 150 ? 6 : 3, header: 11, columns, silos, width };
};
const drawOne = (id, strip, fallbacks, caption) => {
  const r = run(), canvas = $(id), figure = document.querySelector(`figure[data-strip="${id}"]`), names = figure.querySelector(".strip-names");
  figure.hidden = !strip.length;
  if (figure.hidden) return null;
  frame(figure, caption, [
    ["SVG", () => save(`${id}.svg`, URL.createObjectURL(new Blob([asSvg(run(), id === "strip" ? run().strip : run().before, id === "strip" ? run().fallbacks : [])], { type: "image/svg+xml" })))],
    ["PNG", () => save(`${id}.png`, canvas.toDataURL("image/png"))],
  ]);
  names.hidden = strip.length > 40;
  const tall = strip.length <= 12 ? 22 : 15;
  fill(names, names.hidden ? [] : r.silos.map((name) => make("div", name, { style: `height:${tall}px;line-height:${tall}px` })));
  const g = sizes(figure.querySelector(".strip-frame"), r, strip.length);
  names.style.paddingTop = g.header + "px";
  paint(canvas, strip, fallbacks, r.strip_rounds, g.cell, g.tall, g.header, true);
  canvas.style.width = g.columns * g.cell > g.width ? "100%" : g.columns * g.cell + "px";
  canvas.style.height = g.header + g.silos * g.tall + "px";
  const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000].find((n) => (g.columns / n) * 34 <= g.width) ?? g.columns;
  const scale = Math.min(1, g.width / (g.columns * g.cell));
  fill(figure.querySelector(".strip-rounds"), r.strip_rounds.flatMap((number, t) => {
    if (t !== 0 && (number % step || t * g.cell * scale < 24)) return [];
    const label = make("span", number);
    label.style.left = (t + 0.5) * g.cell * scale + "px";
    return [label];
  }));
  const joined = strip.reduce((n, s) => n + s.split("j").length - 1, 0);
  canvas.setAttribute("aria-label", `${caption}. ${g.silos} silos by ${g.columns} rounds; yes in ${percent(joined / (g.silos * g.columns))} of cells; ${fallbacks.length} fallbacks.${id === "strip" ? " Arrow keys move from cell to cell." : ""}`);
  return g;
};
const drawStrip = () => {
  const r = run(), before = r.answer.before;
  $("strips").classList.toggle("two", Boolean(before) && r.before.length > 0);
  drawOne("before", before ? r.before : [], [], before ? before.title : "");
  $("before-hint").textContent = before ? before.hint : "";
  geometry = drawOne("strip", r.strip, r.fallbacks, r.answer.strip);
  $("strip-section").hidden = !geometry;
  if (!geometry) return;
  $("strip").dataset.cells = geometry.columns * geometry.silos;
  $("strip").dataset.geometry = JSON.stringify(geometry);
  cursor();
};
const cursor = () => {
  const r = run(), at = $("strip-cursor");
  at.hidden = !geometry;
  if (!geometry) return;
  const t = nearest(r.strip_rounds, round ?? latest()), canvas = $("strip"), scale = canvas.clientWidth / canvas.width || 1;
  at.style.left = t * geometry.cell * scale - 2 + "px";
  at.style.top = geometry.header + silo * geometry.tall - 2 + "px";
  at.style.width = Math.max(6, geometry.cell * scale + 3) + "px";
  at.style.height = geometry.tall + 3 + "px";
  const letter = r.strip[silo]?.[t], here = r.strip_rounds[t], fallback = r.fallbacks.find(([f]) => f === here);
  const kept = r.details.rounds.indexOf(here), why = kept >= 0 ? r.details.silos[kept][silo][0] : "";
  const word = STATUS[letter]?.word ?? "absent", because = worded(why.startsWith(word + ": ") ? why.slice(word.length + 2) : why);
  $("strip-readout").textContent = `${r.silos[silo]}, round ${here}: ${word}${because ? " – " + because : ""}.` + (fallback ? ` The server fell back: ${fallback[1]}.` : "");
};
const drawKey = () => {
  const seen = new Set(data.runs.flatMap((r) => [...r.strip, ...r.before]).join(""));
  const entries = Object.entries(STATUS).filter(([letter]) => seen.has(letter)).map(([letter, { word }]) => {
    const item = make("li"), canvas = make("canvas", "", { width: 16, height: 16, "aria-hidden": "true" }), context = canvas.getContext("2d");
    context.fillStyle = colour(STATUS[letter].colour);
    context.fillRect(0, 0, 16, 16);
    mark(context, letter, 0, 0, 16, 16);
    item.append(canvas, word);
    return item;
  });
  if (data.runs.some((r) => r.fallbacks.length)) {
    const item = make("li"), canvas = make("canvas", "", { width: 16, height: 12, "aria-hidden": "true" }), context = canvas.getContext("2d");
    context.fillStyle = colour("--worse");
    context.moveTo(2, 1); context.lineTo(14, 1); context.lineTo(8, 11); context.fill();
    item.append(canvas, "the server fell back in this round");
    entries.push(item);
  }
  fill($("strip-key"), entries);
};
const drawMultiples = () => {
  if (!many()) { fill($("multiples"), []); return; }
  fill($("multiples"), data.runs.map((r, i) => {
    const button = make("button", "", { type: "button", "aria-pressed": String(i === chosen) }), canvas = make("canvas", "", { "aria-hidden": "true" });
    paint(canvas, r.strip, [], r.strip_rounds, 1, 1, 0, false);
    button.append(canvas, make("span", `${title(r)} (${percent(r.figures.participation)})`));
    button.addEventListener("click", () => pick(i));
    return button;
  }));
};
$("strip").addEventListener("click", (event) => {
  const box = $("strip").getBoundingClientRect(), r = run();
  const t = Math.floor((event.clientX - box.left) / box.width * geometry.columns);
  const k = Math.floor((event.clientY - box.top - geometry.header) / geometry.tall);
  if (k < 0 || k >= r.strip.length) return;
  silo = k; round = r.strip_rounds[Math.max(0, Math.min(geometry.columns - 1, t))];
  look();
});
$("strip").addEventListener("keydown", (event) => {
  const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-1e9, 0], End: [1e9, 0] }[event.key];
  if (!move) return;
  event.preventDefault();
  const r = run(), t = nearest(r.strip_rounds, round ?? latest());
  const clamp = (x, most) => Math.max(0, Math.min(most, x));
  round = r.strip_rounds[clamp(t + move[0], r.strip_rounds.length - 1)];
  silo = clamp(silo + move[1], r.strip.length - 1);
  look();
});
