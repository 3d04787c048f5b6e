// What a silo's operator sees, refreshed every second. Reasons may come from an app that a server sent: text only, never markup.
const SHOWN = 60; // rounds and messages in the tables
const known = (x) => x !== null && x !== undefined;
const score = (x) => (known(x) ? x.toFixed(4) : "–");
const signed = (x) => (known(x) ? (x < 0 ? "−" : "+") + Math.abs(x).toFixed(4) : "–");
const size = (n) => (!known(n) ? "–" : n < 1e4 ? `${n} bytes` : n < 1e7 ? `${(n / 1e3).toFixed(1)} kB` : `${(n / 1e6).toFixed(1)} MB`);
const count = (n, one, many) => `${n} ${n === 1 ? one : many}`;
const table = (element, columns, rows) => {
  const head = make("thead"), top = make("tr"), body = make("tbody");
  columns.forEach((name) => top.append(make("th", name, { scope: "col" })));
  head.append(top);
  rows.forEach((row) => {
    const tr = make("tr");
    row.forEach((cell, i) => tr.append(make("td", cell, { "data-name": columns[i] })));
    body.append(tr);
  });
  element.replaceChildren(...(rows.length ? [head, body] : []));
};
const tile = (value, label) => {
  const li = make("li");
  li.append(make("span", label, { class: "label" }), make("span", value, { class: "value" }));
  return li;
};
const line = (rounds, name, low, high, style) => {
  const path = document.createElementNS(SVG, "path"), span = high - low || 1, last = Math.max(1, rounds.length - 1);
  const points = rounds.map((r, i) => [i, r[name]]).filter(([, v]) => known(v));
  path.setAttribute("d", points.map(([i, v], n) => `${n ? "L" : "M"}${10 + (580 * i) / last} ${150 - (140 * (v - low)) / span}`).join(""));
  path.setAttribute("style", `fill: none; stroke-width: 2; vector-effect: non-scaling-stroke; ${style}`);
  return path;
};
const chart = (all) => {
  const rounds = all.filter((r) => known(r.own) || known(r.offered));
  const values = rounds.flatMap((r) => [r.own, r.offered, r.alone]).filter(known);
  $("scores").hidden = rounds.length < 2;
  if (rounds.length < 2) return;
  const low = Math.min(...values), high = Math.max(...values);
  const lines = [line(rounds, "own", low, high, "stroke: var(--worse); stroke-dasharray: 6 4"), line(rounds, "offered", low, high, "stroke: var(--in)")];
  if (rounds.some((r) => known(r.alone))) lines.push(line(rounds, "alone", low, high, "stroke: #00966D; stroke-dasharray: 2 3"));
  $("alone-key").hidden = lines.length < 3;
  $("drawn").replaceChildren(...lines);
  const at = rounds.at(-1);
  $("drawn").setAttribute("aria-label", `${rounds.length} rounds between ${score(low)} and ${score(high)}; last: own ${score(at.own)}, offered ${score(at.offered)}`);
};
const draw = (silo) => {
  if (silo.error) { $("title").textContent = "This silo cannot be read"; $("said").textContent = silo.error; return; }
  $("title").textContent = `${silo.silo}: ${silo.out ? "out" : silo.in ? "in" : "not in"}`;
  $("where").textContent = `server ${silo.server}`;
  $("said").textContent = silo.out ? `Nothing leaves but “declined: policy”: ${silo.out}.`
    : silo.last.decision ? `Last: ${silo.last.decision}, ${silo.last.reason}.` : "No message has come yet.";
  const waits = silo.waiting.map((what) => make("li", `Waits for your approval: ${what}. “feduca silo approve” shows it.`));
  if (silo.outdated.length) waits.push(make("li", `silo.toml has changed since this silo was started (${silo.outdated.join(", ")}): end start.sh and start it again.`));
  $("waiting").replaceChildren(...waits);
  $("waiting").hidden = !waits.length;
  const model = silo.model;
  $("tiles").replaceChildren(
    tile(String(silo.worked), "rounds worked"),
    tile(known(silo.gain) ? signed(silo.gain) : "–", known(silo.gain) ? "gain over alone" : "gain over alone: not measured (least_gain in policy.toml)"),
    tile(size(silo.totals.bytes), `left this silo, in ${count(silo.totals.messages, "message", "messages")}; ${count(silo.totals.models, "model", "models")}`),
    tile(known(silo.epsilon) ? silo.epsilon.toFixed(2) : "–", known(silo.epsilon) ? "epsilon spent" : "epsilon spent: no differential privacy"),
    tile(model ? score(model.accuracy) : "–", model ? `deploys ${model.what}` : "no model to deploy yet"),
  );
  chart(silo.rounds);
  table($("rounds"), ["round", "decision", "own", "offered", "alone", "gain", "norm sent", "why"],
    silo.rounds.slice(-SHOWN).reverse().map((r) => [String(r.round), r.decision, score(r.own), score(r.offered), score(r.alone), signed(r.gain), known(r.norm) ? r.norm.toPrecision(4) : "–", r.reason]));
  $("left").textContent = silo.sent.length ? "Measured in the SuperNode, on its way out, whatever the app says." : "Nothing yet.";
  table($("sent"), ["when", "round", "what", "size"],
    silo.sent.slice(-SHOWN).reverse().map((s) => [s.time, known(s.round) ? String(s.round) : "–", s.said ? `${s.what}: ${s.said}` : s.what, size(s.bytes)]));
  $("policy").textContent = silo.wrong || silo.policy.join("\n") || "None of its own: the recipe decides.";
};
poll("silo.json", draw);
