// ------------------------------------------------------------------------------------------------- methods side by side
const PATHS = { circle: "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z", square: "M-4.5-4.5h9v9h-9z", "triangle-up": "M0-5.5L5.5 4.5h-11z", diamond: "M0-6L5 0L0 6L-5 0z", cross: "M-5.5-2h3.5v-3.5h4v3.5h3.5v4h-3.5v3.5h-4v-3.5h-3.5z", "triangle-down": "M0 5.5L5.5-4.5h-11z" };
const swatch = (i) => { // line, dash and mark of the i-th method, as the charts have them
  const { base, dashes, shapes } = data.looks, svg = document.createElementNS(SVG, "svg"), ink = looks()[i % base.length];
  const add = (tag, attributes) => { const e = document.createElementNS(SVG, tag); for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v); svg.append(e); };
  for (const [k, v] of Object.entries({ width: 34, height: 14, viewBox: "-17 -7 34 14", "aria-hidden": "true" })) svg.setAttribute(k, v);
  add("path", { d: "M-17 0H17", stroke: ink, "stroke-width": 2, "stroke-dasharray": dashes[Math.floor(i / base.length) % dashes.length].join(" "), fill: "none" });
  add("path", { d: PATHS[shapes[i % shapes.length]], fill: ink });
  return svg;
};
const drawLegends = () => {
  document.querySelectorAll("[data-legend]").forEach((list) => {
    list.hidden = data.table.length < 2;
    fill(list, list.hidden ? [] : data.table.map((row, i) => {
      const li = make("li"), button = make("button", null, { type: "button", "aria-pressed": String(front === row.method) });
      button.append(swatch(i), make("b", row.number), make("span", row.method));
      button.addEventListener("click", () => bring(row.method));
      li.append(button);
      return li;
    }));
  });
};
const bring = async (method) => {
  front = front === method ? "" : method;
  document.querySelectorAll("[data-legend] button").forEach((button) => button.setAttribute("aria-pressed", String(button.querySelector("span").textContent === front)));
  for (const name of ["accuracy", "participation"]) if (views[name]) await views[name].signal("front", front).runAsync();
  const at = data.runs.findIndex((r) => r.label === front);
  if (at >= 0) await pick(at);
};
let sorted = ["number", 1]; // by which column, and which way
const spread = (row) => (nothing(row.accuracy_std) ? "" : ` ± ${share() ? (100 * row.accuracy_std).toFixed(1) : row.accuracy_std.toFixed(3)}`);
const methodColumns = () => {
  const some = (key) => data.table.some((row) => !nothing(row[key]));
  return [
    ["number", "no.", (row) => row.number, true], ["method", "method", (row) => row.method + (row.seeds > 1 ? ` (${row.seeds} seeds)` : ""), true],
    ["participation", "in", (row) => percent(row.participation), true], ["ended", "in at the end", (row) => percent(row.ended), true],
    ["accuracy", "shared model", (row) => scored(row.accuracy) + spread(row), some("accuracy")], ["deployed", "deployed", (row) => scored(row.deployed), some("deployed")],
    ["alone", "alone", (row) => scored(row.alone), some("alone")], ["better_off", "better off", (row) => (nothing(row.better_off) ? "–" : `${+(row.better_off * row.silos).toFixed(1)} of ${row.silos}`), some("better_off")],
    ["gain_worst", "worst silo" + unit(), (row) => points(row.gain_worst), some("gain_worst")], ["judged", "surely better / worse / no different / undecided", (row) => row.judged ?? "–", some("judged")],
  ].filter(([, , , there]) => there);
};
const drawMethods = () => {
  $("compare").hidden = $("compare-link").hidden = !many();
  if (!many()) return;
  const columns = methodColumns(), [by, way] = sorted;
  $("compare-title").textContent = `${data.runs[0].name}: ${data.table.length > 1 ? `${data.table.length} methods` : `${data.runs.length} seeds of ${data.table[0].method}`}`;
  $("compare-sentence").textContent = data.verdict.join(" ");
  document.querySelector("#compare .beside").hidden = data.table.length < 2;
  const key = (row) => (by === "judged" ? parseFloat(row.judged) : row[by]);
  const rows = [...data.table].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (nothing(x) || nothing(y) || x === y) return nothing(x) - nothing(y);
    return way * (typeof x === "string" ? x.localeCompare(y) : x - y);
  });
  const heads = columns.map(([name, words]) => {
    const th = make("th", null, { scope: "col", "data-name": words, "aria-sort": by === name ? (way > 0 ? "ascending" : "descending") : "none" });
    const button = make("button", words + (by === name ? (way > 0 ? " ↑" : " ↓") : ""), { type: "button", "data-sort": name });
    button.addEventListener("click", () => {
      sorted = [name, by === name ? -way : name === "number" || name === "method" ? 1 : -1];
      drawMethods();
      document.querySelector(`#methods [data-sort="${name}"]`).focus();
    });
    th.append(button);
    return th;
  });
  stacked($("methods"), heads, rows.map((row) => columns.map(([, , say]) => say(row))));
};
const drawResearchTable = () => {
  const columns = [["method", (row) => row.method], ["promise kept", (row) => plain(row.promise_kept)], ["Jensen gaps", (row) => plain(row.jensen)], ["discrepancy", (row) => plain(row.discrepancy)], ["R² of fits", (row) => plain(row.r2)], ["fallbacks", (row) => String(row.fallbacks ?? 0)], ["seconds", (row) => (row.seconds ?? 0).toFixed(1)]];
  stacked($("summary"), columns.map(([name]) => name), data.table.map((row) => columns.map(([, say]) => say(row))));
};
