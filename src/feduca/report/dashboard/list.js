"use strict";
// The list of runs in a folder, refreshed every second. Names come from the folder: text only, never markup.
(() => {
  const $ = (id) => document.getElementById(id);
  const make = (tag, text) => { const element = document.createElement(tag); element.textContent = text ?? ""; return element; };
  const percent = (x) => (x === null ? "–" : (100 * x).toFixed(1) + " %");
  const ago = (s) => (s < 90 ? `${Math.round(s)} s` : s < 5400 ? `${Math.round(s / 60)} min` : s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} days`) + " ago";
  const columns = ["run", "method", "seed", "state", "round", "accuracy", "joined", "last change"];
  const draw = ({ runs, together }) => {
    const head = document.createElement("tr");
    columns.forEach((name) => { const th = make("th", name); th.scope = "col"; head.append(th); });
    const rows = runs.map((run) => {
      const tr = document.createElement("tr"), first = document.createElement("td");
      if (run.error) first.append(make("span", `${run.key}: ${run.error}`)); else {
        const link = make("a", run.key);
        link.href = `run/${encodeURIComponent(run.key)}/${location.search}`;
        first.append(link);
      }
      tr.append(first);
      if (!run.error) [run.method, run.seed, run.state, `${run.done}${run.planned ? " / " + run.planned : ""}`, percent(run.accuracy), percent(run.participation), ago(run.age)].forEach((text) => tr.append(make("td", text)));
      return tr;
    });
    $("runs").replaceChildren(head, ...rows);
    const count = (state) => runs.filter((run) => run.state === state).length;
    $("said").textContent = runs.length ? `${runs.length} runs: ${count("running")} running, ${count("finished")} finished, ${count("failed")} failed.` : "No run directory here yet.";
    $("together").hidden = !together;
    $("together").href = "together/" + location.search;
  };
  const poll = async () => {
    for (;;) {
      try {
        const answer = await fetch("list.json" + location.search, { cache: "no-store" });
        if (answer.ok) draw(await answer.json());
        $("live").textContent = answer.ok ? "live" : "refused"; $("live").classList.toggle("stale", !answer.ok);
      } catch (error) {
        if (!(error instanceof TypeError)) throw error;
        $("live").textContent = "disconnected"; $("live").classList.add("stale");
      }
      document.documentElement.dataset.ready = document.documentElement.dataset.complete = "yes";
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  };
  poll();
})();
