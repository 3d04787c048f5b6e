// ------------------------------------------------------------------------------------------------- the charts drawn by Vega
const views = {}; // by chart name
const rowsOf = (r, names) => r.series.round.map((value, i) => {
  const row = { round: value };
  for (const name of names) if (name in r.series) row[name] = r.series[name][i];
  return row;
});
const folded = (kind) => Object.entries(data.kinds[kind]).flatMap(([name, kind]) => rowsOf(run(), [name])
  .filter((row) => !nothing(row[name])).map((row) => ({ round: row.round, kind, value: row[name] })));
const sets = {
  all: () => data.runs.flatMap((r) => rowsOf(r, ["accuracy", "participation"]).map((row) => ({ method: r.label, seed: r.seed, ...row }))),
  one: () => rowsOf(run(), Object.keys(run().series)),
  bounds: () => folded("bounds"),
  weighed: () => folded("weighed"),
  worth: () => folded("worth"),
  methods: () => data.table.map((row) => ({ method: row.method, number: row.number, participation: row.participation, score: row[data.compared_by], alone: data.compared_by === "deployed" ? data.alone : null })),
  seeds: () => (data.runs.length > data.table.length ? data.runs.map((r) => ({ method: r.label, seed: r.seed, participation: r.figures.participation, score: r.figures[data.compared_by] })) : []),
  curve: () => { const e = entry(); return e ? e[9].map((u, i) => ({ r: data.grid[i], u: real(u) })) : []; },
  points: () => { const e = entry(); return e ? e[10].map((u, i) => ({ r: run().details.places[i], u: real(u) })).filter((p) => p.u !== null) : []; },
  marks: () => { const e = entry(); return e ? [{ r: real(e[2]), gamma: real(e[3]), u: real(e[4]) }] : []; },
};
const CHART_SETS = { trade: ["methods", "seeds"], accuracy: ["all"], participation: ["all"], curve: ["curve", "points", "marks"], discrepancy: ["bounds"], weighed: ["weighed"], worth: ["worth"] };
const setsOf = (name) => CHART_SETS[name] ?? ["one"];
const COLUMNS = { promise: ["promise_kept"], weighed: ["own", "offered"], worth: ["alone", "deployed"] };
const columnsOf = (name) => COLUMNS[name] ?? [name];
const ofAll = (name) => name === "accuracy" || name === "participation" || name === "trade";

const valuesOf = (r, name) => columnsOf(name).flatMap((column) => (r.series[column] ?? []).filter((v) => !nothing(v)));
// A chart says something if what it shows changes, or differs between runs.
const hasData = (name) => {
  if (name === "curve") return run().details.silos.some((s) => s.some((e) => e[9].length));
  if (name === "trade") return data.table.filter((row) => !nothing(row[data.compared_by]) && !nothing(row.participation)).length > 1;
  const values = (ofAll(name) ? data.runs : [run()]).flatMap((r) => valuesOf(r, name));
  if (name === "worth" && !(run().series.deployed && run().series.alone)) return false;
  return values.length > 1 && Math.max(...values) - Math.min(...values) > 1e-9 * Math.max(1, ...values.map(Math.abs));
};
const format = (name) => (["accuracy", "weighed", "worth"].includes(name) ? scored : name === "participation" ? percent : brief);
const leftOut = (section) => Object.keys(data.charts).filter((name) => name !== "trade" && section.contains(figureOf(name)) && !hasData(name)).map((name) => {
  const values = (ofAll(name) ? data.runs : [run()]).flatMap((r) => valuesOf(r, name));
  return values.length ? `${data.titles[name].split(":")[0]} (always ${format(name)(values[0])})` : null;
}).filter((said) => said);

const describe = (name) => { // the text alternative: what the picture says
  const head = data.titles[name] + ". ";
  if (name === "curve") return head + sentence();
  if (name === "trade") return head + sets.methods().map((row) => `${row.number}, ${row.method}: ${percent(row.participation)} in, ${scored(row.score)}.`).join(" ");
  const say = format(name), over = ofAll(name) ? data.runs : [run()];
  return head + over.slice(0, 12).flatMap((r) => columnsOf(name).map((column) => {
    const values = (r.series[column] ?? []).filter((v) => !nothing(v)), who = columnsOf(name).length > 1 ? column : title(r);
    if (!values.length) return who + ": nothing recorded.";
    return `${who}: from ${say(values[0])} to ${say(values[values.length - 1])} over ${r.done} rounds, lowest ${say(Math.min(...values))}, highest ${say(Math.max(...values))}.`;
  })).join(" ");
};

const theme = () => {
  const ink = colour("--ink"), soft = colour("--soft"), line = colour("--line");
  return {
    background: "transparent", font: "system-ui, DejaVu Sans, sans-serif", view: { stroke: line },
    axis: { labelColor: ink, titleColor: ink, gridColor: line, domainColor: soft, tickColor: soft, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal" },
    legend: { labelColor: ink, titleColor: ink, labelFontSize: 12 }, rule: { color: ink }, text: { color: ink }, title: { color: ink },
  };
};
const looks = () => data.looks[dark() ? "dark" : "light"];
const recoloured = (value) => { // the palette's colours as they stand out from this page
  if (Array.isArray(value)) return value.map(recoloured);
  if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, k === "domain" ? v : recoloured(v)]));
  const at = data.looks.base.indexOf(value);
  return at < 0 ? value : looks()[at];
};
const withoutLegends = (value) => { // the page draws the legend of methods itself: it wraps
  if (Array.isArray(value)) return value.map(withoutLegends);
  if (!value || typeof value !== "object") return value;
  const kept = Object.fromEntries(Object.entries(value).map(([k, v]) => [k, withoutLegends(v)]));
  return kept.field === "method" && "scale" in kept ? { ...kept, legend: null } : kept;
};
const withSets = (name) => {
  const spec = recoloured(structuredClone(data.charts[name]));
  spec.datasets = { ...spec.datasets };
  for (const set of setsOf(name)) spec.datasets[set] = sets[set]();
  spec.description = describe(name);
  return spec;
};
const embed = (element, spec, quiet) => vegaEmbed(element, spec, { actions: false, renderer: "svg", ast: true, config: theme(), tooltip: { theme: dark() ? "dark" : "light" }, logLevel: quiet ? 1 : 2 });
const exported = async (name, act) => { // a file needs its legend inside, and a width of its own
  const spec = withSets(name);
  spec.width = 560;
  const { view } = await embed(make("div"), spec, true);
  try { return await act(view); } finally { view.finalize(); }
};
const numbers = (name) => { // the same once more as a table, made when it is opened
  const rows = sets[setsOf(name)[0]]();
  if (!rows.length) return make("p", "No numbers.");
  const every = Math.max(1, Math.ceil(rows.length / 200));
  const own = setsOf(name)[0] === "one" ? ["round", ...columnsOf(name), ...(name === "promise" ? ["promise_low", "promise_high"] : [])] : null;
  const shown = rows.filter((_, i) => i % every === 0), columns = Object.keys(shown[0]).filter((c) => !own || own.includes(c)), table = make("table");
  stacked(table, columns, shown.map((row) => columns.map((c) => (typeof row[c] === "number" ? String(+row[c].toPrecision(5)) : row[c] ?? "–"))));
  return table;
};
const figureOf = (name) => document.querySelector(`figure[data-chart="${name}"]`);
const folds = (figure) => { const outer = figure.closest("details"); return outer && !outer.open; };
const draw = async (name) => {
  const figure = figureOf(name);
  figure.hidden = !hasData(name);
  if (figure.hidden || folds(figure)) { views[name]?.finalize(); delete views[name]; return; } // it is drawn when it is unfolded
  frame(figure, data.titles[name], [
    ["SVG", async () => save(`${name}.svg`, URL.createObjectURL(new Blob([await exported(name, (view) => view.toSVG())], { type: "image/svg+xml" })))],
    ["PNG", async () => save(`${name}.png`, await exported(name, (view) => view.toImageURL("png", 2)))],
  ]);
  let box = figure.querySelector(".chart");
  if (!box) {
    box = make("div", "", { class: "chart", role: "img", tabindex: "0" });
    const more = make("details", "", { class: "numbers" }), inner = make("div", "", { tabindex: "0" });
    more.append(make("summary", "Numbers"), inner);
    more.addEventListener("toggle", () => { if (more.open) fill(inner, [numbers(name)]); });
    figure.append(box, more);
  }
  box.setAttribute("aria-label", describe(name));
  const inner = make("div", "", { "aria-hidden": "true", style: "width:100%" });
  fill(box, [inner]);
  const result = await embed(inner, withoutLegends(withSets(name)), name === "curve" || name === "trade"); // errors only there: a silo may have no points, a method one seed
  views[name] = result.view;
  if (ofAll(name) && name !== "trade" && front) await views[name].signal("front", front).runAsync();
};
const update = async (name) => { // new data in a chart that stands
  if (!views[name] || !hasData(name)) return draw(name);
  for (const set of setsOf(name)) views[name].data(set, sets[set]());
  const figure = figureOf(name), more = figure.querySelector(".numbers");
  figure.querySelector(".chart").setAttribute("aria-label", describe(name));
  if (more.open) fill(more.querySelector("div"), [numbers(name)]);
  await views[name].runAsync();
};
const breath = () => new Promise((resolve) => setTimeout(resolve));
const all = async (act, names = Object.keys(data.charts)) => { for (const name of names) { await breath(); await act(name); } };
