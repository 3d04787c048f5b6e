// What every part of the page uses: the data, what is looked at, and how things are worded. Names and reasons come from a run
// directory that a stranger may have written: they reach the document as text only, never as markup.
const STATUS = {
  j: { word: "joined", colour: "--in" }, d: { word: "declined", colour: "--declined" },
  a: { word: "absent", colour: "--absent" }, r: { word: "refused", colour: "--refused" },
  l: { word: "left for good", colour: "--left" }, n: { word: "not asked", colour: "--line" },
};
const SCALE = 1e-4;
let data = null;
let chosen = 0, silo = 0, round = null; // the run, silo and round looked at; null = the latest
let front = ""; // the method brought forward

const fill = (element, children) => element.replaceChildren(...children);
const nothing = (x) => x === null || x === undefined;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dark = () => colour("--mode") === "dark";
const percent = (x) => (nothing(x) ? "–" : (100 * x).toFixed(1) + " %");
const share = () => data.score === "accuracy";
const scored = (x) => (share() || nothing(x) ? percent(x) : x.toFixed(3));
const unit = () => (share() ? ", points" : "");
const minus = (text) => String(text).replace(/^-(?=\d)/, "−");
const points = (x) => {
  if (nothing(x)) return "–";
  const text = share() ? (100 * x).toFixed(1) : x.toFixed(3);
  return Number(text) === 0 ? text.replace("-", "") : x > 0 ? "+" + text : minus(text);
};
const brief = (x) => (nothing(x) ? "–" : String(+x.toPrecision(3)));
const plain = (x) => (nothing(x) ? "–" : Math.abs(x) >= 0.001 || x === 0 ? x.toFixed(4) : x.toExponential(1));
const real = (x) => (nothing(x) ? null : x * SCALE);
const cases = (score, n) => { // a score in cases: 19 of 21
  if (!share() || nothing(score) || !n) return "";
  const right = score * n, near = Math.round(right);
  return `${Math.abs(right - near) < 0.05 ? near : right.toFixed(1)} of ${n}`;
};
const bold = (text) => text.split(/(\d+(?:\.\d+)? of \d+)/).map((part, i) => (i % 2 ? make("strong", part) : document.createTextNode(part)));
const withCode = (text) => { // `commands` in a sentence look like commands
  const p = make("p");
  text.split("`").forEach((part, i) => p.append(i % 2 ? make("code", part) : part));
  return p;
};
const tight = (text) => text.replace(/(\d+) of (\d+)/g, "$1\u00a0of\u00a0$2").replace(/(\d) %/g, "$1\u00a0%");
const utility = (u) => (share() && run().metric === "accuracy" ? percent(Number(u)) : u);
const worded = (why) => why // a record's reason, its scores as the page has them
  .replace(/^u\([^)]*\) = (\S+) (meets|is below) gamma = (\S+)$/, (_, u, how, gamma) => `its curve promises ${utility(u)}, it asks for ${utility(gamma)}`)
  .replace(/^(offered|deployed) (\S+) (beats|does not beat) (.+) (\S+)$/, (_, what, x, how, whose, y) => `${what} ${scored(Number(x))} ${how} ${whose} ${scored(Number(y))}`);
const run = () => data.runs[chosen];
const many = () => data.runs.length > 1;
const title = (r) => r.label + (data.runs.some((o) => o !== r && o.label === r.label) ? ", seed " + r.seed : "");
const save = (name, url) => { const a = make("a", "", { href: url, download: name }); document.body.append(a); a.click(); a.remove(); };
const nearest = (rounds, wanted) => {
  let best = 0;
  rounds.forEach((r, i) => { if (Math.abs(r - wanted) < Math.abs(rounds[best] - wanted)) best = i; });
  return best;
};
const latest = () => { const d = run().details.rounds; return d.length ? d[d.length - 1] : 0; };
const snapshot = () => nearest(run().details.rounds, round ?? latest());
const entry = () => { const d = run().details; return d.rounds.length ? d.silos[snapshot()][silo] : null; };

// A table whose cells know their column's name, so that it can stand as cards on a phone.
const stacked = (table, columns, rows) => {
  const top = make("tr");
  columns.forEach((name) => top.append(name instanceof Node ? name : make("th", name, { scope: "col" })));
  const names = columns.map((name) => (name instanceof Node ? name.dataset.name : name));
  const head = make("thead"), body = make("tbody");
  head.append(top);
  rows.forEach((row) => {
    const tr = make("tr");
    row.forEach((cell, i) => {
      const td = make("td", cell instanceof Node ? null : cell, { "data-name": names[i] });
      if (cell instanceof Node) td.append(cell);
      tr.append(td);
    });
    body.append(tr);
  });
  fill(table, [head, body]);
};

const frame = (figure, caption, exports) => {
  const old = figure.querySelector("figcaption");
  if (old) { old.querySelector("strong").textContent = caption; return; }
  const bar = make("figcaption");
  bar.append(make("strong", caption));
  for (const [kind, act] of exports) {
    const button = make("button", kind, { type: "button", "aria-label": `Save “${caption}” as ${kind}` });
    button.addEventListener("click", act);
    bar.append(button);
  }
  figure.prepend(bar);
};
