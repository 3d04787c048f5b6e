// ------------------------------------------------------------------------------------------------- the page as a whole
const drawChoices = () => {
  const keep = (select, options, value) => {
    const wanted = options.join("\n");
    if (select.dataset.options !== wanted) { fill(select, options.map((text, i) => make("option", text, { value: i }))); select.dataset.options = wanted; }
    select.value = value;
  };
  keep($("run"), data.runs.map((r) => title(r)), chosen);
  $("run-control").hidden = !many();
  keep($("silo-choice"), run().silos, silo);
};
const drawHints = () => {
  const r = run(), out = leftOut($("curves")), more = leftOut($("research"));
  const lines = data.runs.length > data.table.length ? "Lines are means over seeds; bands reach from the lowest to the highest seed. " : "";
  $("band-hint").textContent = lines + (out.length ? `Left out, because they do not change: ${out.join(", ")}.` : "");
  fill($("research-said"), r.research.map((text) => make("p", text)));
  $("program-hint").textContent = hasData("slack") || hasData("promise") || r.series.promise_kept ? "" : "This run's mechanism solves no program and its rule needs no utility curve, so there is nothing promised that could be kept. ";
  if (more.length) $("program-hint").textContent += `Left out, because they do not change: ${more.join(", ")}.`;
  $("directory").textContent = `${r.directory}: ${r.state}, ${r.done}${r.planned ? " of " + r.planned : ""} rounds.`;
  $("config").textContent = r.config;
  fill($("environment"), r.environment.map(([key, value]) => { const tr = make("tr"); tr.append(make("td", key), make("td", value)); return tr; }));
  fill($("notes"), data.notes.map((text) => make("li", text)));
};
const drawRun = () => { drawAnswer(); drawStanding(); drawHints(); };
const look = async () => { drawChoices(); drawSlider(); cursor(); await update("curve"); };
const pick = async (i) => {
  chosen = i; silo = Math.min(silo, Math.max(0, run().silos.length - 1)); round = null;
  drawChoices(); drawRun(); drawMultiples(); drawStrip(); drawSlider();
  await all((name) => (ofAll(name) ? null : update(name)));
};
$("run").addEventListener("change", (event) => pick(Number(event.target.value)));
$("research").addEventListener("toggle", () => { if ($("research").open && data) all(draw, Object.keys(data.charts).filter((name) => $("research").contains(figureOf(name)))); });
document.querySelector('nav a[href="#research"]').addEventListener("click", () => { $("research").open = true; });

const repaint = async () => { drawKey(); drawLegends(); drawStrip(); drawMultiples(); await all(draw); };
$("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = dark() ? "light" : "dark";
  repaint();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
let resizing = 0;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(() => { if (data) drawStrip(); }, 150); });

// ------------------------------------------------------------------------------------------------- start, and stay current
const BADGES = { running: "live", silent: "no sign of life", finished: "finished", interrupted: "interrupted", failed: "failed", damaged: "damaged" };
const current = () => { // what the badge says of the runs shown
  const states = data ? data.runs.map((r) => r.state) : ["running"];
  const state = states.includes("running") ? "running" : states.find((s) => s !== "finished") ?? "finished";
  badge(BADGES[state] ?? state, !["running", "finished"].includes(state));
};
const show = async (fresh) => {
  if (fresh.error) { fill($("verdict"), [make("p", fresh.error)]); return; } // what is drawn stays
  const before = data && JSON.stringify(data.charts);
  data = fresh;
  if (!before && many()) chosen = Math.max(0, data.runs.findIndex((r) => r.label === best()));
  chosen = Math.min(chosen, data.runs.length - 1);
  silo = Math.min(silo, Math.max(0, run().silos.length - 1));
  drawChoices(); drawMethods(); drawLegends(); drawResearchTable(); drawRun(); drawKey(); drawStrip(); drawMultiples(); drawSlider();
  const act = before === JSON.stringify(data.charts) ? update : draw, first = ["trade", "accuracy", "participation"];
  for (const name of first) await act(name);
  document.documentElement.dataset.ready = "yes"; // what is on top is there; the rest follows, and lets the reader in between
  document.documentElement.dataset.round = String(run().done);
  await all((name) => (first.includes(name) ? null : act(name)));
  document.documentElement.dataset.complete = "yes";
};
const best = () => { // the method to look at first: that of the best score, and among those of most silos in
  const key = (row) => [row[data.compared_by] ?? -Infinity, row.participation ?? 0];
  return [...data.table].sort((a, b) => key(b)[0] - key(a)[0] || key(b)[1] - key(a)[1])[0].method;
};
const poll = async (address, pause) => {
  let version = "", showing = Promise.resolve();
  for (;;) {
    try {
      const answer = await fetch(`${address}${address.includes("?") ? "&" : "?"}version=${version}`, { cache: "no-store" });
      if (answer.status === 200) { version = answer.headers.get("X-Version") ?? ""; const fresh = await answer.json(); await showing; showing = show(fresh); await showing; }
      if (answer.ok) current(); else badge("refused", true);
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // the server is gone: keep what is shown, keep trying
      badge("disconnected", true);
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
};
const start = JSON.parse($("data").textContent);
if (start.back) { $("back").hidden = false; $("back").href = start.back + location.search; }
if (start.live) { $("live").hidden = false; poll(start.live + location.search, 500); } else show(start);
