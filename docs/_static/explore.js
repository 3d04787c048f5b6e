/* docs/explore.md: six clinics, one shared model, and who joins. The arithmetic is that of docs/explore.py (tests compare them). */
(function () {
  "use strict";

  function square(upper, size) {
    const full = Array.from({ length: size }, () => new Float64Array(size));
    let at = 0;
    for (let i = 0; i < size; i++) for (let j = i; j < size; j++) full[i][j] = full[j][i] = upper[at++];
    return full;
  }

  /* Least squares with a ridge on everything but the constant: Gauss elimination with pivots. */
  function fit(part, size, ridge) {
    const rows = square(part.xx, size).map((row, i) => [...row, part.xy[i]]);
    for (let i = 1; i < size; i++) rows[i][i] += ridge;
    for (let i = 0; i < size; i++) {
      let pivot = i;
      for (let r = i + 1; r < size; r++) if (Math.abs(rows[r][i]) > Math.abs(rows[pivot][i])) pivot = r;
      [rows[i], rows[pivot]] = [rows[pivot], rows[i]];
      for (let r = 0; r < size; r++) {
        if (r === i) continue;
        const factor = rows[r][i] / rows[i][i];
        if (factor) for (let c = i; c <= size; c++) rows[r][c] -= factor * rows[i][c];
      }
    }
    return rows.map((row, i) => row[size] / row[i]);
  }

  /* The share of the spread that a model explains: below zero, the mean would do better. */
  function explained(model, part) {
    const size = model.length;
    let cross = 0, own = 0, at = 0;
    for (let i = 0; i < size; i++) {
      cross += model[i] * part.xy[i];
      for (let j = i; j < size; j++) own += (i === j ? 1 : 2) * model[i] * model[j] * part.xx[at++];
    }
    return 1 - (part.yy - 2 * cross + own) / part.spread;
  }

  const mixed = (c, shared, own) => shared.map((value, i) => (1 - c) * value + c * own[i]);
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

  function play(data, { concession, asks, share, best }) {
    const silos = data.silos;
    const own = silos.map((silo, k) => fit(silo.train[share[k]], data.size, data.ridge));
    const alone = own.map((model, k) => explained(model, silos[k].validation));
    let inside = silos.map(() => true), shared = new Array(data.size).fill(0);
    const rounds = [], chosen = [...concession], offered = silos.map(() => 0);
    for (let round = 0; round < data.rounds; round++) {
      const members = own.filter((_, k) => inside[k]);
      if (members.length) shared = shared.map((_, i) => mean(members.map((model) => model[i])));
      silos.forEach((silo, k) => {
        const tried = best ? Array.from({ length: data.points }, (_, j) => j / data.points) : [concession[k]];
        const scores = tried.map((c) => explained(mixed(c, shared, own[k]), silo.validation));
        offered[k] = Math.max(...scores);
        chosen[k] = tried[scores.indexOf(offered[k])];
      });
      inside = silos.map((_, k) => offered[k] > alone[k] + asks[k]);
      rounds.push([...inside]);
    }
    const deployed = own.map((model, k) => (inside[k] ? mixed(chosen[k], shared, model) : model));
    return {
      rounds, concession: chosen, alone, offered,
      shared: mean(silos.map((silo) => explained(shared, silo.test))),
      deployed: deployed.map((model, k) => explained(model, silos[k].test)),
      outside: own.map((model, k) => explained(model, silos[k].test)),
    };
  }

  const percent = (value) => `${(100 * value).toFixed(1)} %`;
  const points = (value) => `${value < 0 ? "−" : "+"}${Math.abs(100 * value).toFixed(1)}`;

  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  /* A slider with its label and what it stands at. */
  function slider(id, label, range, at, said, changed) {
    const out = element("output", { for: id });
    const input = element("input", { type: "range", id, ...range, value: at });
    const tell = () => { out.textContent = said(Number(input.value)); input.setAttribute("aria-valuetext", out.textContent); };
    input.addEventListener("input", () => { tell(); changed(); });
    tell();
    const line = element("div", { class: "xp-slider" }, element("label", { for: id }, label), input, out);
    return { line, input, set(value) { input.value = value; tell(); } };
  }

  function start(root, data) {
    const all = (value) => data.silos.map(() => value);
    const best = element("input", { type: "checkbox", id: "xp-best" });
    const cards = data.silos.map((silo, k) => {
      const name = `clinic ${k + 1}`;
      const head = element("div", { class: "xp-head" }, element("strong", {}, name), element("span", { class: "xp-badge" }));
      const concession = slider(`xp-c${k}`, "concession", { min: 0, max: 0.9, step: 0.1 }, 0, (v) => v.toFixed(1), draw);
      const asks = slider(`xp-a${k}`, "asks for", { min: -0.02, max: 0.05, step: 0.005 }, 0, (v) => `${points(v)} points`, draw);
      const last = data.shares.length - 1;
      const share = slider(`xp-s${k}`, "its data", { min: 0, max: last, step: 1 }, last,
        (v) => `${silo.train[v].n} rows`, draw);
      const why = element("p", { class: "xp-why" });
      const card = element("section", { class: "xp-card", "aria-label": name }, head, concession.line, asks.line, share.line, why);
      return { card, badge: head.lastChild, why, concession, asks, share };
    });
    const tiles = {};
    const bar = element("div", { class: "xp-tiles", role: "status", "aria-live": "polite" });
    for (const [key, label] of [["in", "clinics in"], ["shared", "shared model explains"], ["deployed", "deployed"], ["alone", "alone"]]) {
      tiles[key] = element("b", { id: `xp-${key}` });
      bar.append(element("div", {}, tiles[key], element("span", {}, label)));
    }
    const strip = element("div", { class: "xp-strip", role: "img" });
    const preset = (label, ticked, concession, asks, share) => {
      const button = element("button", { type: "button" }, label);
      button.addEventListener("click", () => {
        best.checked = ticked;
        cards.forEach((card) => { card.concession.set(concession); card.asks.set(asks); card.share.set(share); });
        draw();
      });
      return button;
    };
    const full = data.shares.length - 1;
    const choose = element("div", { class: "xp-presets" },
      preset("one model for all", false, 0, 0, full), preset("half way", false, 0.5, 0, full),
      preset("each its own mixture", true, 0, 0, full), preset("little data", false, 0, 0, 1),
      element("label", { for: "xp-best" }, best, " each clinic picks its best concession"));
    best.addEventListener("change", draw);
    root.replaceChildren(choose, bar, strip, element("div", { class: "xp-cards" }, ...cards.map((one) => one.card)));

    function draw() {
      if (!root.contains(strip)) return;
      const value = (key) => cards.map((card) => Number(card[key].input.value));
      const settings = { concession: value("concession"), asks: value("asks"), share: value("share"), best: best.checked };
      const found = play(data, settings);
      const last = found.rounds[found.rounds.length - 1];
      const count = last.filter(Boolean).length;
      tiles.in.textContent = `${count} of ${last.length}`;
      tiles.shared.textContent = percent(found.shared);
      tiles.deployed.textContent = percent(mean(found.deployed));
      tiles.alone.textContent = percent(mean(found.outside));
      strip.setAttribute("aria-label", `who is in, round by round: ${found.rounds.map((r) => r.filter(Boolean).length).join(", ")}`);
      strip.style.setProperty("--rounds", found.rounds.length);
      strip.replaceChildren(...data.silos.flatMap((_, k) => [
        element("span", { class: "xp-name" }, `clinic ${k + 1}`),
        ...found.rounds.map((round) => element("i", { class: round[k] ? "xp-in" : "xp-out" })),
      ]));
      cards.forEach((card, k) => {
        card.card.classList.toggle("xp-joined", last[k]);
        card.badge.textContent = last[k] ? "in" : "out";
        card.concession.input.disabled = best.checked;
        if (best.checked) card.concession.set(found.concession[k]);
        const sense = last[k] ? "beats" : "does not beat";
        const bound = settings.asks[k] ? ` ${points(settings.asks[k])}` : "";
        const gain = found.deployed[k] - found.outside[k];
        card.why.textContent = `Offer ${percent(found.offered[k])} ${sense} own ${percent(found.alone[k])}${bound}. ` +
          `On test data: ${points(gain)} points against alone.`;
      });
      root.dataset.found = JSON.stringify({ settings, found });
    }
    draw();
  }

  window.FeducaExplore = { play };
  const root = document.getElementById("explore");
  if (root && window.FEDUCA_CLINICS) start(root, window.FEDUCA_CLINICS);
})();
