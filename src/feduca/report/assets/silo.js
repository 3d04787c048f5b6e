// ------------------------------------------------------------------------------------------------- one silo in one round
const sentence = () => {
  const r = run(), e = entry();
  if (!e) return "No details of single silos are kept for this run.";
  const [why, used, announced, gamma, u, r2, own, offered, concession] = e, at = r.details.rounds[snapshot()];
  const t = nearest(r.strip_rounds, at), letter = r.strip[silo]?.[t], word = STATUS[letter]?.word ?? "absent", because = worded(why.startsWith(word + ": ") ? why.slice(word.length + 2) : why);
  const parts = [`${r.silos[silo]}, round ${at}: ${word}${because ? " (" + because + ")" : ""}.`], n = r.validation?.[silo];
  if (letter === "l") return parts[0]; // nothing is offered or promised to whoever has left
  if (own !== null && offered !== null) parts.push(`The offered model scored ${beside(real(offered), n)} on its validation data, its own ${beside(real(own), n)}.`);
  if (concession) parts.push(`The offer conceded c = ${real(concession).toFixed(2)}.`);
  if (used !== null) parts.push(`Its weight in the new model is ${real(used).toFixed(3)}.`);
  if (gamma !== null && u !== null && announced !== null) {
    parts.push(`For the next decision it is promised u(${real(announced).toFixed(3)}) = ${real(u).toFixed(3)} and asks for ${real(gamma).toFixed(3)}: ${u >= gamma - 1 ? "met" : "not met"}.`);
  }
  if (r2 !== null) parts.push(`R² of the fit: ${real(r2).toFixed(2)}.`);
  return parts.join(" ");
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
$("silo-choice").addEventListener("change", (event) => { silo = Number(event.target.value); look(); });
$("round").addEventListener("input", (event) => { round = run().details.rounds[Number(event.target.value)] ?? null; look(); });
