// The list of runs in a folder, refreshed every second. Names come from the folder: text only, never markup.
const percent = (x) => (x === null || x === undefined ? "–" : Math.round(100 * x) + "\u00a0%");
const scored = (x, score) => (score === "accuracy" || x === null || x === undefined ? percent(x) : x.toFixed(3));
const lapse = (s) => (s < 90 ? `${Math.round(s)} s` : s < 5400 ? `${Math.round(s / 60)} min` : s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} days`);
const STATES = { // what a state is called, how its badge looks, and in which order states come
  running: ["running", "", 0], silent: ["no sign of life", "stale", 1], interrupted: ["interrupted", "stale", 2], failed: ["failed", "bad", 3],
  damaged: ["damaged", "bad", 3], unreadable: ["unreadable", "bad", 4], finished: ["finished", "done", 5],
};
const state = (run) => STATES[run.state] ?? [run.state, "stale", 4];
const line = (values, low, high, kind) => {
  const path = document.createElementNS(SVG, "path"), span = high - low || 1;
  const known = values.map((v, i) => [i, v]).filter(([, v]) => v !== null);
  path.setAttribute("d", known.map(([i, v], n) => `${n ? "L" : "M"}${(100 * i) / Math.max(1, values.length - 1)} ${32 - (30 * (v - low)) / span}`).join(""));
  path.setAttribute("class", "spark " + kind);
  return path;
};
const sparkline = (run) => {
  const svg = document.createElementNS(SVG, "svg"), scores = run.scores.filter((v) => v !== null);
  svg.setAttribute("viewBox", "0 0 100 34");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `the last ${run.rounds} rounds: ${run.score} ${scores.length ? `from ${scored(scores[0], run.score)} to ${scored(scores.at(-1), run.score)}` : "not known"}, silos in from ${percent(run.shares[0])} to ${percent(run.shares.at(-1))}`);
  if (run.shares.length > 1) svg.append(line(run.shares, 0, 1, "share"));
  if (scores.length > 1) svg.append(run.score === "accuracy" ? line(run.scores, 0, 1, "score") : line(run.scores, Math.min(...scores), Math.max(...scores), "score"));
  return svg;
};
const item = (run) => {
  const li = make("li", null, { "data-state": run.state }), about = make("div", null, { class: "about" });
  const [word, kind] = state(run), badge = make("span", word, { class: "badge " + kind });
  if (run.error) {
    const name = make("div", run.key, { class: "name" });
    name.append(badge);
    about.append(name, make("div", run.error, { class: "where" }));
    li.append(about);
    return li;
  }
  const link = make("a", `${run.method.split(", ")[0] === run.name ? "" : `${run.name}: `}${run.method}, seed ${run.seed}`, { class: "name", href: `run/${encodeURIComponent(run.key)}/${location.search}` });
  about.append(link, badge, make("div", [run.differs, run.key].filter(Boolean).join(" · "), { class: "where" }));
  if (run.state === "silent") about.append(make("div", `Its record says running, but nothing was written for ${lapse(run.age)}: it was probably killed. feduca resume goes on.`, { class: "where" }));
  if (run.state === "interrupted") about.append(make("div", "feduca resume goes on.", { class: "where" }));
  const progress = make("div", null, { class: "figure" });
  if (run.planned) progress.append(make("progress", null, { max: run.planned, value: Math.min(run.done, run.planned), "aria-label": `round ${run.done} of ${run.planned}` }));
  progress.append(make("div", `round ${run.done}${run.planned ? ` of ${run.planned}` : ""}`), make("div", `${lapse(run.age)} ago`, { class: "where" }));
  const figures = make("div", null, { class: "figure" });
  figures.append(sparkline(run), make("div", `${scored(run.accuracy, run.score)}${run.score === "accuracy" ? " right" : ` ${run.score}`}, ${percent(run.participation)} in`));
  li.append(about, progress, figures);
  return li;
};
const draw = ({ runs, together, folder }) => {
  const order = [...runs].sort((a, b) => state(a)[2] - state(b)[2] || (a.age ?? 0) - (b.age ?? 0));
  const focused = document.activeElement?.getAttribute?.("href"); // the list is drawn anew: keep who had the focus
  $("runs").replaceChildren(...order.map(item));
  if (focused) document.querySelectorAll("#runs a").forEach((a) => { if (a.getAttribute("href") === focused) a.focus(); });
  const counts = Object.entries(STATES).map(([name, [word]]) => [runs.filter((run) => run.state === name).length, word]).filter(([n]) => n);
  $("said").textContent = runs.length ? `${runs.length} ${runs.length === 1 ? "run" : "runs"}: ${counts.map(([n, word]) => `${n} ${word}`).join(", ")}.` : "No run directory here yet.";
  $("key").hidden = !runs.some((run) => run.shares?.length > 1);
  $("where").textContent = folder;
  $("together").hidden = !together;
  $("together").href = "together/" + location.search;
};
poll("list.json" + location.search, draw);
