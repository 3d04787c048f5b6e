"use strict";
// Draws the page from the data embedded in it (a report) or fetched beside it (feduca watch). Names and reasons come from a run
// directory that a stranger may have written: they reach the document as text only, never as markup.
(() => {
  const $ = (id) => document.getElementById(id);
  const STATUS = {
    j: { word: "joined", colour: "--in" }, d: { word: "declined", colour: "--declined" },
    a: { word: "absent", colour: "--absent" }, r: { word: "refused", colour: "--refused" },
    l: { word: "left for good", colour: "--left" },
  };
  const SCALE = 1e-4;
  let data = null;
  let chosen = 0, silo = 0, round = null; // the run, silo and round looked at; null = the latest
  let geometry = null; // of the strip: cell width and height, header, in canvas pixels
  const views = {}; // Vega views by chart name

  // ------------------------------------------------------------------------------------------------- small helpers
  const make = (tag, text, attributes = {}) => {
    const element = document.createElement(tag);
    if (text !== undefined && text !== null) element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const fill = (element, children) => element.replaceChildren(...children);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const percent = (x) => (x === null || x === undefined ? "–" : (100 * x).toFixed(1) + " %");
  const scored = (x) => (data.score === "accuracy" || x === null || x === undefined ? percent(x) : x.toFixed(3));
  const unit = () => (data.score === "accuracy" ? ", points" : "");
  const points = (x) => (x === null || x === undefined ? "–" : (x > 0 ? "+" : "") + (data.score === "accuracy" ? (100 * x).toFixed(1) : x.toFixed(3)));
  const plain = (x) => (x === null || x === undefined ? "–" : Math.abs(x) >= 0.001 || x === 0 ? x.toFixed(4) : x.toExponential(1));
  const real = (x) => (x === null || x === undefined ? null : x * SCALE);
  const run = () => data.runs[chosen];
  const title = (r) => r.label + (data.runs.some((o) => o !== r && o.label === r.label) ? ", seed " + r.seed : "");
  const save = (name, url) => { const a = make("a", "", { href: url, download: name }); document.body.append(a); a.click(); a.remove(); };
  const nearest = (rounds, wanted) => {
    let best = 0;
    rounds.forEach((r, i) => { if (Math.abs(r - wanted) < Math.abs(rounds[best] - wanted)) best = i; });
    return best;
  };
  const latest = () => { const d = run().details.rounds; return d.length ? d[d.length - 1] : 0; };
  const snapshot = () => nearest(run().details.rounds, round ?? latest());

  // ------------------------------------------------------------------------------------------------- data sets
  const rowsOf = (r, names) => r.series.round.map((value, i) => {
    const row = { round: value };
    for (const name of names) if (name in r.series) row[name] = r.series[name][i];
    return row;
  });
  const sets = {
    all: () => data.runs.flatMap((r) => rowsOf(r, ["accuracy", "participation"]).map((row) => ({ method: r.label, seed: r.seed, ...row }))),
    one: () => rowsOf(run(), Object.keys(run().series)),
    bounds: () => Object.entries(data.bounds).flatMap(([name, kind]) => rowsOf(run(), [name])
      .filter((row) => row[name] !== null && row[name] !== undefined).map((row) => ({ round: row.round, kind, value: row[name] }))),
    curve: () => { const e = entry(); return e ? e[9].map((u, i) => ({ r: data.grid[i], u: real(u) })) : []; },
    points: () => { const e = entry(); return e ? e[10].map((u, i) => ({ r: run().details.places[i], u: real(u) })).filter((p) => p.u !== null) : []; },
    marks: () => { const e = entry(); return e ? [{ r: real(e[2]), gamma: real(e[3]), u: real(e[4]) }] : []; },
  };
  const CHART_SETS = { accuracy: ["all"], participation: ["all"], curve: ["curve", "points", "marks"], discrepancy: ["bounds"] };
  const setsOf = (name) => CHART_SETS[name] ?? ["one"];
  const entry = () => { const d = run().details; return d.rounds.length ? d.silos[snapshot()][silo] : null; };

  const COLUMN = { promise: "promise_kept" };
  const hasData = (name) => {
    if (name === "curve") return run().details.silos.some((s) => s.some((e) => e[9].length));
    if (name === "concession") return (run().series.concession ?? []).some((c) => c > 0);
    const column = COLUMN[name] ?? name;
    return (name === "accuracy" || name === "participation" ? data.runs : [run()]).some((r) => (r.series[column] ?? []).some((v) => v !== null));
  };

  const describe = (name) => { // the text alternative: what the picture says
    const head = data.titles[name] + ". ";
    if (name === "curve") return head + sentence();
    const column = COLUMN[name] ?? name;
    const format = name === "accuracy" ? scored : name === "participation" ? percent : plain;
    const over = name === "accuracy" || name === "participation" ? data.runs : [run()];
    return head + over.slice(0, 12).map((r) => {
      const values = (r.series[column] ?? []).filter((v) => v !== null);
      if (!values.length) return title(r) + ": nothing recorded.";
      return `${title(r)}: from ${format(values[0])} to ${format(values[values.length - 1])} over ${r.done} rounds, lowest ${format(Math.min(...values))}, highest ${format(Math.max(...values))}.`;
    }).join(" ");
  };

  // ------------------------------------------------------------------------------------------------- charts
  const theme = () => {
    const ink = colour("--ink"), soft = colour("--soft"), line = colour("--line");
    return {
      background: "transparent", font: "system-ui, DejaVu Sans, sans-serif", view: { stroke: line },
      axis: { labelColor: ink, titleColor: ink, gridColor: line, domainColor: soft, tickColor: soft, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal" },
      legend: { labelColor: ink, titleColor: ink, labelFontSize: 12 }, rule: { color: ink }, title: { color: ink },
    };
  };
  const withSets = (name) => {
    const spec = structuredClone(data.charts[name]);
    spec.datasets = { ...spec.datasets };
    for (const set of setsOf(name)) spec.datasets[set] = sets[set]();
    spec.description = describe(name);
    return spec;
  };
  const numbers = (name) => { // the same once more as a table, made when it is opened
    const rows = sets[setsOf(name)[0]]();
    if (!rows.length) return make("p", "No numbers.");
    const every = Math.max(1, Math.ceil(rows.length / 200));
    const shown = rows.filter((_, i) => i % every === 0), columns = Object.keys(shown[0]);
    const table = make("table"), top = make("tr");
    columns.forEach((c) => top.append(make("th", c, { scope: "col" })));
    table.append(top);
    shown.forEach((row) => {
      const tr = make("tr");
      columns.forEach((c) => tr.append(make("td", typeof row[c] === "number" ? String(+row[c].toPrecision(5)) : row[c] ?? "–")));
      table.append(tr);
    });
    return table;
  };
  const frame = (figure, name, caption, exports) => {
    if (figure.querySelector("figcaption")) return;
    const bar = make("figcaption");
    bar.append(make("strong", caption));
    for (const [kind, act] of exports) {
      const button = make("button", kind, { type: "button", "aria-label": `Save “${caption}” as ${kind}` });
      button.addEventListener("click", act);
      bar.append(button);
    }
    figure.prepend(bar);
  };
  const draw = async (name) => {
    const figure = document.querySelector(`figure[data-chart="${name}"]`);
    figure.hidden = !hasData(name);
    if (figure.hidden) { delete views[name]; return; }
    frame(figure, name, data.titles[name], [
      ["SVG", async () => save(`${name}.svg`, URL.createObjectURL(new Blob([await views[name].toSVG()], { type: "image/svg+xml" })))],
      ["PNG", async () => save(`${name}.png`, await views[name].toImageURL("png", 2))],
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
    const spec = withSets(name), inner = make("div", "", { "aria-hidden": "true", style: "width:100%" });
    fill(box, [inner]);
    const dark = colour("--paper") !== "#ffffff" && colour("--paper") !== "#fff";
    const result = await vegaEmbed(inner, spec, { actions: false, renderer: "svg", ast: true, config: theme(), tooltip: { theme: dark ? "dark" : "light" }, logLevel: name === "curve" ? 1 : 2 }); // errors only there: a silo may have no points
    views[name] = result.view;
  };
  const update = async (name) => { // new data in a chart that stands
    if (!views[name] || !hasData(name)) return draw(name);
    for (const set of setsOf(name)) views[name].data(set, sets[set]());
    document.querySelector(`figure[data-chart="${name}"] .chart`).setAttribute("aria-label", describe(name));
    const more = document.querySelector(`figure[data-chart="${name}"] .numbers`);
    if (more.open) fill(more.querySelector("div"), [numbers(name)]);
    await views[name].runAsync();
  };
  const breath = () => new Promise((resolve) => setTimeout(resolve));
  const all = async (act) => { for (const name of Object.keys(data.charts)) { await breath(); await act(name); } };

  // ------------------------------------------------------------------------------------------------- the strip
  const mark = (context, letter, x, y, w, h) => { // shape as well as colour, where a cell is large enough for one
    if (w < 7 || h < 7 || letter === "j") return;
    context.strokeStyle = letter === "a" ? colour("--soft") : letter === "l" ? colour("--paper") : "#000000";
    context.lineWidth = 1.5;
    context.beginPath();
    const cx = x + w / 2, cy = y + h / 2, s = Math.min(w, h) / 4;
    if (letter === "d") { context.moveTo(cx - s, cy); context.lineTo(cx + s, cy); }
    if (letter === "a") context.arc(cx, cy, s, 0, 7);
    if (letter === "l") { context.moveTo(cx - s, cy + s); context.lineTo(cx + s, cy - s); }
    if (letter === "r") { context.moveTo(cx - s, cy - s); context.lineTo(cx + s, cy + s); context.moveTo(cx + s, cy - s); context.lineTo(cx - s, cy + s); }
    context.stroke();
  };
  const paint = (canvas, r, cell, tall, header, marks) => {
    const columns = r.strip_rounds.length, silos = r.strip.length;
    canvas.width = Math.max(1, columns * cell);
    canvas.height = Math.max(1, header + silos * tall);
    const context = canvas.getContext("2d"), gap = cell >= 4 && tall >= 4 ? 1 : 0;
    const colours = Object.fromEntries(Object.entries(STATUS).map(([k, v]) => [k, colour(v.colour)]));
    r.strip.forEach((letters, k) => {
      for (let t = 0; t < columns;) {
        let end = t + 1;
        if (!gap) while (end < columns && letters[end] === letters[t]) end += 1;
        context.fillStyle = colours[letters[t]] ?? colours.a;
        context.fillRect(t * cell, header + k * tall, (end - t) * cell - gap, tall - gap);
        if (marks) mark(context, letters[t], t * cell, header + k * tall, cell - gap, tall - gap);
        t = end;
      }
    });
    if (header) {
      context.fillStyle = colour("--fallback");
      for (const [at] of r.fallbacks) {
        const x = (nearest(r.strip_rounds, at) + 0.5) * cell, w = Math.max(3, Math.min(cell, 10)) / 2;
        context.beginPath(); context.moveTo(x - w, 1); context.lineTo(x + w, 1); context.lineTo(x, header - 2); context.fill();
      }
    }
  };
  const drawStrip = () => {
    const r = run(), canvas = $("strip"), columns = r.strip_rounds.length, silos = r.strip.length;
    const figure = document.querySelector("figure[data-strip]");
    figure.hidden = columns === 0;
    if (figure.hidden) return;
    frame(figure, "strip", "Who was in, round by round", [
      ["SVG", () => save("strip.svg", URL.createObjectURL(new Blob([stripSvg()], { type: "image/svg+xml" })))],
      ["PNG", () => save("strip.png", canvas.toDataURL("image/png"))],
    ]);
    const tall = silos <= 12 ? 22 : silos <= 40 ? 15 : silos <= 150 ? 6 : 3, header = 11;
    const named = silos <= 40;
    $("strip-names").hidden = !named;
    fill($("strip-names"), named ? r.silos.map((name) => make("div", name, { style: `height:${tall}px;line-height:${tall}px` })) : []);
    $("strip-names").style.paddingTop = header + "px";
    const width = Math.max(100, $("strip-frame").clientWidth);
    const cell = Math.max(1, Math.min(40, Math.floor(width / columns)));
    geometry = { cell, tall, header, columns, silos };
    paint(canvas, r, cell, tall, header, true);
    canvas.style.width = columns * cell > width ? "100%" : columns * cell + "px";
    canvas.style.height = header + silos * tall + "px";
    canvas.dataset.cells = columns * silos;
    canvas.dataset.geometry = JSON.stringify(geometry);
    const joined = r.strip.reduce((n, s) => n + s.split("j").length - 1, 0);
    canvas.setAttribute("aria-label", `${silos} silos by ${columns} rounds; joined in ${percent(joined / (silos * columns))} of cells; ${r.fallbacks.length} fallbacks. Arrow keys move from cell to cell.`);
    cursor();
  };
  const cursor = () => {
    const r = run(), at = $("strip-cursor");
    if (!geometry || !r.strip_rounds.length) { at.hidden = true; return; }
    const t = nearest(r.strip_rounds, round ?? latest()), canvas = $("strip"), scale = canvas.clientWidth / canvas.width || 1;
    at.hidden = false;
    at.style.left = t * geometry.cell * scale - 2 + "px";
    at.style.top = geometry.header + silo * geometry.tall - 2 + "px";
    at.style.width = Math.max(6, geometry.cell * scale + 3) + "px";
    at.style.height = geometry.tall + 3 + "px";
    const letter = r.strip[silo]?.[t], here = r.strip_rounds[t], fallback = r.fallbacks.find(([f]) => f === here);
    const kept = r.details.rounds.indexOf(here), why = kept >= 0 ? r.details.silos[kept][silo][0] : "";
    const word = STATUS[letter]?.word ?? "absent", because = why.startsWith(word + ": ") ? why.slice(word.length + 2) : why;
    $("strip-readout").textContent = `${r.silos[silo]}, round ${here}: ${word}${because ? " – " + because : ""}.` + (fallback ? ` The server fell back: ${fallback[1]}.` : "");
  };
  const stripSvg = () => {
    const r = run(), cell = 8, tall = 12, escape = (s) => s.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
    const left = 110, width = left + r.strip_rounds.length * cell, height = 14 + r.strip.length * tall, out = [];
    r.strip.forEach((letters, k) => {
      out.push(`<text x="${left - 6}" y="${14 + k * tall + 9}" text-anchor="end" font-size="9" font-family="sans-serif">${escape(r.silos[k].slice(0, 18))}</text>`);
      for (let t = 0; t < letters.length;) {
        let end = t + 1;
        while (end < letters.length && letters[end] === letters[t]) end += 1;
        out.push(`<rect x="${left + t * cell}" y="${14 + k * tall}" width="${(end - t) * cell}" height="${tall - 1}" fill="${colour(STATUS[letters[t]].colour)}"><title>${STATUS[letters[t]].word}</title></rect>`);
        t = end;
      }
    });
    for (const [at] of r.fallbacks) { const x = left + (nearest(r.strip_rounds, at) + 0.5) * cell; out.push(`<path d="M${x - 4} 2h8l-4 9z" fill="${colour("--fallback")}"/>`); }
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}">${out.join("")}</svg>`;
  };
  const drawKey = () => {
    const entries = Object.entries(STATUS).map(([letter, { word }]) => {
      const item = make("li"), canvas = make("canvas", "", { width: 16, height: 16, "aria-hidden": "true" }), context = canvas.getContext("2d");
      context.fillStyle = colour(STATUS[letter].colour);
      context.fillRect(0, 0, 16, 16);
      mark(context, letter, 0, 0, 16, 16);
      item.append(canvas, word);
      return item;
    });
    const item = make("li"), canvas = make("canvas", "", { width: 16, height: 12, "aria-hidden": "true" }), context = canvas.getContext("2d");
    context.fillStyle = colour("--fallback");
    context.moveTo(2, 1); context.lineTo(14, 1); context.lineTo(8, 11); context.fill();
    item.append(canvas, "the server fell back in this round");
    fill($("strip-key"), [...entries, item]);
  };
  const drawMultiples = () => {
    if (data.runs.length < 2) { fill($("multiples"), []); return; }
    fill($("multiples"), data.runs.map((r, i) => {
      const button = make("button", "", { type: "button", "aria-pressed": String(i === chosen) }), canvas = make("canvas", "", { "aria-hidden": "true" });
      const share = data.table.find((row) => row.method === r.label)?.participation;
      paint(canvas, r, 1, 1, 0, false);
      button.append(canvas, make("span", `${title(r)} (${percent(share)})`));
      button.addEventListener("click", () => pick(i));
      return button;
    }));
  };

  // ------------------------------------------------------------------------------------------------- words
  const sentence = () => {
    const r = run(), e = entry();
    if (!e) return "No details of single silos are kept for this run.";
    const [why, used, announced, gamma, u, r2, own, offered, concession] = e, at = r.details.rounds[snapshot()];
    const t = nearest(r.strip_rounds, at), letter = r.strip[silo]?.[t], word = STATUS[letter]?.word ?? "absent", because = why.startsWith(word + ": ") ? why.slice(word.length + 2) : why;
    const parts = [`${r.silos[silo]}, round ${at}: ${word}${because ? " (" + because + ")" : ""}.`];
    if (letter === "l") return parts[0]; // nothing is offered or promised to whoever has left
    if (own !== null && offered !== null) parts.push(`The offered model scored ${scored(real(offered))} on its validation data, its own ${scored(real(own))}.`);
    if (concession) parts.push(`The offer conceded c = ${real(concession).toFixed(2)}.`);
    if (used !== null) parts.push(`Its weight in the new model is ${real(used).toFixed(3)}.`);
    if (gamma !== null && u !== null && announced !== null) {
      parts.push(`For the next decision it is promised u(${real(announced).toFixed(3)}) = ${real(u).toFixed(3)} and asks for ${real(gamma).toFixed(3)}: ${u >= gamma - 1 ? "met" : "not met"}.`);
    }
    if (r2 !== null) parts.push(`R² of the fit: ${real(r2).toFixed(2)}.`);
    return parts.join(" ");
  };
  const drawHead = () => {
    const many = data.runs.length > 1;
    document.title = (many ? `${data.runs.length} runs` : run().name) + " – feduca";
    $("title").textContent = many ? `${data.runs[0].name}: ${data.runs.length} runs` : `${run().name}: ${run().label}`;
    const wanted = data.verdict.join("\n");
    if ($("verdict").dataset.said !== wanted) { fill($("verdict"), data.verdict.map((text) => make("p", text))); $("verdict").dataset.said = wanted; }
    const columns = [["method", "method"], ["accuracy", data.score], ["participation", "participation"], ...(data.table.some((row) => row.better_off !== null) ? [["better_off", "better off than alone"], ["gain_worst", "worst silo" + unit()]] : []), ...(data.table.some((row) => row.judged) ? [["judged", "surely better / worse / undecided"]] : []), ["promise_kept", "promise kept"], ["jensen", "Jensen gaps"], ["discrepancy", "discrepancy"], ["r2", "R² of fits"], ["fallbacks", "fallbacks"], ["seconds", "seconds"]];
    const head = make("tr");
    columns.forEach(([, name]) => head.append(make("th", name, { scope: "col" })));
    const rows = data.table.map((row) => {
      const tr = make("tr");
      columns.forEach(([key]) => {
        let text = key === "judged" ? row.judged ?? "–" : key === "method" ? row.method + (row.seeds > 1 ? ` (${row.seeds} seeds)` : "") : key === "accuracy" ? scored(row[key]) : key === "participation" || key === "better_off" ? percent(row[key]) : key === "gain_worst" ? points(row[key]) : key === "fallbacks" ? String(row[key] ?? 0) : key === "seconds" ? (row[key] ?? 0).toFixed(1) : plain(row[key]);
        if (key === "accuracy" && row.accuracy_std !== null) text += ` ± ${data.score === "accuracy" ? (100 * row.accuracy_std).toFixed(1) : row.accuracy_std.toFixed(3)}`;
        tr.append(make("td", text));
      });
      return tr;
    });
    fill($("summary"), [head, ...rows]);
    $("band-hint").textContent = data.table.some((row) => row.seeds > 1) ? "Lines are means over seeds; bands reach from the lowest to the highest seed. Choose a method in the legend to bring it forward." : "One seed each. Choose a method in the legend to bring it forward.";
  };
  const drawChoices = () => {
    const keep = (select, options, value) => {
      const wanted = options.join("\n");
      if (select.dataset.options !== wanted) { fill(select, options.map((text, i) => make("option", text, { value: i }))); select.dataset.options = wanted; }
      select.value = value;
    };
    keep($("run"), data.runs.map((r) => title(r)), chosen);
    $("run-control").hidden = data.runs.length < 2;
    keep($("silo-choice"), run().silos, silo);
  };
  const chance = (p) => (p === null ? "" : p < 0.001 ? "p < 0.001" : `p = ${p.toFixed(3)}`);
  const certain = ([word, p, gained, lost, byLoss, lossP, gain]) => [ // a verdict, its figures, and the same by log-loss
    word ? `${word} (${chance(p)})` : "–", gained === null || lost === null ? "–" : `${+gained.toPrecision(3)} : ${+lost.toPrecision(3)}`,
    byLoss ? `${byLoss} (${gain > 0 ? "+" : ""}${gain.toFixed(3)}, ${chance(lossP)})` : "–"];
  const drawStanding = () => { // every silo against the model it would have had alone, where the run knows
    const r = run(), stands = r.standing;
    $("better").hidden = $("better-link").hidden = !stands;
    if (!stands) return;
    $("better-sentence").textContent = stands.sentence;
    $("better-hint").textContent = `${data.runs.length > 1 ? title(r) + ". " : ""}On data that no decision ever saw, mean over the last ${Math.min(10, r.done)} rounds: the model a silo deploys (the offer it took, else its own) and the one it would have had if it had never taken part.${stands.judged ? " Judged: paired tests on the models of the last round, at 5 % after correction for the number of silos; no different means within 5 points (0.05 of log-loss), undecided that there are too few examples to say." : ""}`;
    const head = make("tr");
    const sure = stands.judged ? ["judged", "right only deployed : alone", "by log-loss"] : [];
    ["silo", "alone", "deployed", "gain" + unit(), "test examples", ...sure, "in the end"].forEach((name) => head.append(make("th", name, { scope: "col" })));
    fill($("standing"), [head, ...stands.rows.map(([k, alone, deployed, gain, tested, end], i) => {
      const tr = make("tr");
      [r.silos[k] ?? `silo-${k}`, scored(alone), scored(deployed), points(gain), tested ?? "–", ...(stands.judged ? certain(stands.judged[i]) : []), end].forEach((text) => tr.append(make("td", text)));
      return tr;
    })]);
  };
  const drawRun = () => {
    const r = run();
    drawStanding();
    fill($("run-verdict"), data.runs.length > 1 ? r.verdict.map((text) => make("p", text)) : []);
    $("program-hint").textContent = hasData("slack") || hasData("promise") ? "" : "This run's mechanism solves no program and its rule needs no utility curve, so there is nothing promised that could be kept.";
    $("directory").textContent = `${r.directory}: ${r.state}, ${r.done}${r.planned ? " of " + r.planned : ""} rounds.`;
    $("config").textContent = r.config;
    fill($("environment"), r.environment.map(([key, value]) => { const tr = make("tr"); tr.append(make("td", key), make("td", value)); return tr; }));
    fill($("notes"), data.notes.map((text) => make("li", text)));
  };
  const drawSlider = () => {
    const kept = run().details.rounds, slider = $("round");
    slider.max = Math.max(0, kept.length - 1);
    slider.value = kept.length ? snapshot() : 0;
    slider.disabled = kept.length === 0;
    $("curve-key").hidden = !hasData("curve");
    const shown = kept.length ? `${kept[snapshot()]} of ${run().done}` : "–";
    $("round-shown").textContent = shown;
    slider.setAttribute("aria-valuetext", `round ${shown}`);
    $("silo-sentence").textContent = sentence() + (hasData("curve") ? "" : " This run estimates no utility curves.");
  };

  // ------------------------------------------------------------------------------------------------- moving about
  const look = async () => { drawChoices(); drawSlider(); cursor(); await update("curve"); };
  const pick = async (i) => {
    chosen = i; silo = Math.min(silo, Math.max(0, run().silos.length - 1)); round = null;
    drawChoices(); drawRun(); drawMultiples(); drawStrip(); drawSlider();
    await all((name) => (name === "accuracy" || name === "participation" ? null : update(name)));
  };
  $("run").addEventListener("change", (event) => pick(Number(event.target.value)));
  $("silo-choice").addEventListener("change", (event) => { silo = Number(event.target.value); look(); });
  $("round").addEventListener("input", (event) => { round = run().details.rounds[Number(event.target.value)] ?? null; look(); });
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
  const repaint = async () => { drawKey(); drawStrip(); drawMultiples(); await all(draw); };
  $("theme").addEventListener("click", () => {
    const root = document.documentElement, dark = root.dataset.theme === "dark" || (root.dataset.theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
    root.dataset.theme = dark ? "light" : "dark";
    repaint();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  let resizing = 0;
  addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(drawStrip, 150); });

  // ------------------------------------------------------------------------------------------------- start, and stay current
  const show = async (fresh) => {
    if (fresh.error) { fill($("verdict"), [make("p", fresh.error)]); return; } // what is drawn stays
    const before = data && JSON.stringify(data.charts);
    data = fresh;
    if (!before) chosen = Math.max(0, data.runs.findIndex((r) => r.details.silos.some((s) => s.some((e) => e[9].length))));
    chosen = Math.min(chosen, data.runs.length - 1);
    silo = Math.min(silo, Math.max(0, run().silos.length - 1));
    drawHead(); drawChoices(); drawRun(); drawKey(); drawStrip(); drawMultiples(); drawSlider();
    const act = before === JSON.stringify(data.charts) ? update : draw, first = ["accuracy", "participation"];
    for (const name of first) await act(name);
    document.documentElement.dataset.ready = "yes"; // what is on top is there; the rest follows, and lets the reader in between
    document.documentElement.dataset.round = String(run().done);
    await all((name) => (first.includes(name) ? null : act(name)));
    document.documentElement.dataset.complete = "yes";
  };
  const poll = async (address, pause) => {
    let version = "", showing = Promise.resolve();
    for (;;) {
      try {
        const answer = await fetch(`${address}${address.includes("?") ? "&" : "?"}version=${version}`, { cache: "no-store" });
        if (answer.status === 200) { version = answer.headers.get("X-Version") ?? ""; const fresh = await answer.json(); await showing; showing = show(fresh); await showing; }
        $("live").textContent = "live"; $("live").classList.toggle("stale", !answer.ok && answer.status !== 204);
      } catch (error) {
        if (!(error instanceof TypeError)) throw error; // the server is gone: keep what is shown, keep trying
        $("live").textContent = "disconnected"; $("live").classList.add("stale");
      }
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  };
  const start = JSON.parse($("data").textContent);
  if (start.live) { $("live").hidden = false; poll(start.live + location.search, 500); } else show(start);
})();
