// ------------------------------------------------------------------------------------------------- what the page says first
const first = () => ($("bells-figure").hidden ? 8 : 6); // cards shown at once
let allCards = false;
const drawAnswer = () => {
  const r = run(), said = r.answer, head = many() ? "h2" : "h1";
  document.title = (many() ? `${data.runs.length} runs` : `${r.name}: ${said.headline}`) + " – feduca";
  const old = $("title");
  if (old.tagName.toLowerCase() !== head) old.replaceWith(make(head, "", { id: "title" }));
  $("title").textContent = tight(said.headline);
  $("subtitle").textContent = said.subtitle;
  if ($("verdict").dataset.said !== r.notices.join("\n")) { fill($("verdict"), r.notices.map(withCode)); $("verdict").dataset.said = r.notices.join("\n"); }
  fill($("tiles"), said.tiles.map((tile) => {
    const li = make("li");
    li.append(make("span", tile.value === "-" ? "–" : tight(minus(tile.value)), { class: "value" }), make("span", tile.label, { class: "label" }), make("span", tight(tile.hint), { class: "hint" }));
    return li;
  }));
  const caveats = said.caveats.map((text) => make("li", text));
  if (said.missing) {
    const [words, settings] = said.missing.split(/ with (?=--set)/), li = make("li", words + " with ");
    li.append(make("code", settings));
    caveats.push(li);
  }
  fill($("caveats"), caveats);
  drawBells();
  drawCards();
};
const drawBells = () => { // a line per silo from what it would have alone to what it deploys
  const r = run(), figure = $("bells-figure");
  const known = (r.standing?.rows ?? []).filter(([, alone, deployed]) => !nothing(alone) && !nothing(deployed));
  figure.hidden = !known.length;
  document.querySelector("#gains .halves").classList.toggle("one", !known.length);
  if (!known.length) return;
  const order = [...known].sort((a, b) => b[3] - a[3]), shown = order.length > 40 ? [...order.slice(0, 20), ...order.slice(-20)] : order;
  const values = shown.flatMap(([, alone, deployed]) => [alone, deployed]);
  const range = Math.max(...values) - Math.min(...values), step = share() ? [0.01, 0.02, 0.05, 0.1, 0.25].find((s) => range / s <= 3.2) ?? 0.25 : 10 ** Math.ceil(Math.log10(Math.max(range, 1e-9) / 4));
  const low = Math.floor(Math.min(...values) / step + 1e-9) * step, high = Math.max(low + step, Math.ceil(Math.max(...values) / step - 1e-9) * step);
  const place = (x) => (100 * (x - low)) / (high - low) + "%";
  const ticks = [];
  for (let x = low; x <= high + step / 2; x += step) ticks.push(x);
  const tick = (x) => (share() ? (100 * x).toFixed(0) + " %" : String(+x.toPrecision(3)));
  const lines = shown.map(([k, alone, deployed, gain, tested]) => {
    const none = Math.abs(gain) < 0.0005, worse = gain < 0 && !none; // what rounds to nothing is a tie
    const row = make("div", null, { class: "bell" + (worse ? " worse" : none ? " same" : "") }), track = make("span", null, { class: "track" });
    ticks.forEach((x) => { const i = make("i", null, { class: "tick" }); i.style.left = place(x); track.append(i); });
    const bar = make("i", null, { class: "bar" }), from = make("i", null, { class: "dot alone" }), to = make("i", null, { class: "dot" + (worse ? " worse" : "") });
    bar.style.left = place(Math.min(alone, deployed)); bar.style.width = (100 * Math.abs(deployed - alone)) / (high - low) + "%";
    from.style.left = place(alone); to.style.left = place(deployed);
    track.append(bar, to, from);
    row.append(make("span", r.silos[k] ?? `silo-${k}`, { class: "who" }), track, make("span", points(gain), { class: "gain" }), make("span", cases(deployed, tested) || scored(deployed), { class: "cases" }));
    return row;
  });
  const axis = make("div", null, { class: "bell axis" }), scale = make("span", null, { class: "track" });
  ticks.forEach((x, i) => { const label = make("span", tick(x), { class: i === 0 ? "first" : i === ticks.length - 1 ? "last" : "" }); label.style.left = place(x); scale.append(label); });
  axis.append(make("span", "", { class: "who" }), scale, make("span", share() ? "points" : data.score, { class: "gain" }), make("span", "deployed", { class: "cases" }));
  fill($("bells"), [...lines, axis]);
  $("bells-title").textContent = `From alone to deployed${order.length > shown.length ? `: the ${shown.length} silos that gain most and least, of ${order.length}` : ""}`;
  $("bells-hint").textContent = `${share() ? "Right on" : data.score + " on"} data that no decision ever saw, mean of the last ${Math.min(10, r.done)} rounds.`;
  $("bells").setAttribute("aria-label", "From alone to deployed. " + shown.map(([k, alone, deployed, gain, tested]) => `${r.silos[k]}: alone ${scored(alone)}, deployed ${scored(deployed)}${tested && share() ? ` (${cases(deployed, tested)})` : ""}, ${points(gain)}.`).join(" "));
};
const drawCards = () => {
  const r = run(), cards = r.answer.cards, shown = allCards ? cards : cards.slice(0, first());
  fill($("cards"), shown.map((card) => {
    const li = make("li", null, { class: "card " + card.state, "data-silo": card.silo }), words = make("p");
    words.append(...bold(card.words));
    li.append(make("h3", card.title), words);
    if (card.next && card.next[1]) {
      const more = make("details", null, { class: "next" });
      more.append(make("summary", card.next[0]), make("code", card.next[1]));
      li.append(more);
    }
    if (card.exact) {
      const more = make("details", null, { class: "exact" });
      more.append(make("summary", "The record’s words"), make("code", card.exact));
      li.append(more);
    }
    card.feet.forEach((foot) => li.append(make("p", foot, { class: "hint" })));
    return li;
  }));
  const rest = cards.length - first();
  $("all-cards").hidden = rest <= 0;
  $("all-cards").textContent = allCards ? `Show ${first()} silos` : `Show ${r.answer.more ? `${cards.length} of ${cards.length + r.answer.more}` : `all ${cards.length}`} silos`;
};
$("all-cards").addEventListener("click", () => { allCards = !allCards; drawCards(); });

const chance = (p) => (p === null ? "" : p < 0.001 ? "p < 0.001" : `p = ${p.toFixed(3)}`);
const certain = ([word, p, gained, lost, byLoss, lossP, gain]) => [ // a verdict, its figures, and the same by log-loss
  word ? `${word} (${chance(p)})` : "–", gained === null || lost === null ? "–" : `${+gained.toPrecision(3)} : ${+lost.toPrecision(3)}`,
  byLoss ? `${byLoss} (${gain > 0 ? "+" : ""}${gain.toFixed(3)}, ${chance(lossP)})` : "–"];
const drawStanding = () => { // every silo against the model it would have had alone, where the run knows
  const r = run(), stands = r.standing;
  $("better").hidden = !stands;
  if (!stands) return;
  $("better-sentence").textContent = stands.sentence;
  $("better-hint").textContent = `${many() ? title(r) + ". " : ""}On data that no decision ever saw, mean over the last ${Math.min(10, r.done)} rounds: the model a silo deploys (the offer it took, else its own) and the one it would have had if it had never taken part.${stands.judged ? " Judged: paired tests on the models of the last round, at 5 % after correction for the number of silos; no different means within 5 points (0.05 of log-loss), undecided that there are too few examples to say." : ""}`;
  const sure = stands.judged ? ["judged", "right only deployed : alone", "by log-loss"] : [];
  stacked($("standing"), ["silo", "alone", "deployed", "gain" + unit(), "test examples", ...sure, "in the end"], stands.rows.map(([k, alone, deployed, gain, tested, end], i) =>
    [r.silos[k] ?? `silo-${k}`, beside(alone, tested), beside(deployed, tested), points(gain), tested ?? "–", ...(stands.judged ? certain(stands.judged[i]) : []), end]));
};
const beside = (score, n) => scored(score) + (cases(score, n) ? ` (${cases(score, n)})` : "");
