"""What a page says first: tiles, cards, warnings; in words, counted in cases, and honest about what is not known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feduca.report import answer, liveness, reading, reasons, verdict
from feduca.report.cleaning import client_round
from feduca.report.payload import payload
from feduca.report.reading import Run
from run_directories import Written, written


def first(run: Written) -> dict:
    return payload([reading.read(run.path)])["runs"][0]["answer"]


def test_four_tiles_answer_first(tmp_path: Path) -> None:
    run = written(tmp_path, 8, 20, alone=True)
    said = first(run)
    assert said["headline"].endswith("and 6 of 8 silos are better off than alone")
    share = np.mean([letters.count("j") / 8 for letters in run.status[-10:]])
    values = [tile["value"] for tile in said["tiles"]]
    assert values == [f"{100 * share:.0f} %", "56 %", "6 of 8", "-5.0"]
    assert f"{run.status[-1].count('j')} of 8 in the very last" in said["tiles"][0]["hint"]
    assert said["tiles"][1]["hint"].startswith("50 % alone")
    assert said["tiles"][2]["hint"] == "2 worse, on data no decision saw"
    assert said["tiles"][3]["hint"] == "silo-1, on average: 4.2 of 11 deployed, 4.7 of 11 alone"
    assert said["tiles"][1]["label"] == "accuracy of the deployed models"
    assert said["tiles"][3]["label"] == "points, of the silo that loses most"
    assert said["missing"] == ""


def test_what_is_not_known_is_said_with_what_to_add(tmp_path: Path) -> None:
    said = first(written(tmp_path, 4, 12))
    assert [tile["value"] for tile in said["tiles"][2:]] == ["-", "-"]
    assert said["tiles"][1]["hint"] == "on validation data, which the decision saw"
    assert (
        said["missing"] == "To see what each silo gains, run it again with --set alone=true --set task.test_share=0.5"
    )
    assert "better off" not in said["headline"]


def test_a_run_that_is_going_on_says_where_it_is(tmp_path: Path) -> None:
    run = Written(tmp_path, ["a", "b"], 5)
    assert answer.answer(reading.RunReader(run.path).run, "x")["headline"] == "No round has finished yet"
    run.round()
    said = answer.answer(reading.RunReader(run.path).run, "x")
    assert said["headline"] == "Round 1 of 5: 2 of 2 silos are in"
    assert said["missing"] == ""
    run.finish()


def test_headlines_say_the_end(tmp_path: Path) -> None:
    run = reading.read(written(tmp_path, 4, 30).path)
    for line in run.rounds[-10:]:
        line.numbers["participation"] = 0.0  # type: ignore[index]
    assert answer.headline(run) == "Nobody is in at the end"
    assert verdict.verdict(run)[0].startswith(
        "Nobody is in at the end: 0.0 % of silos took part in the last 10 rounds, "
    )
    for share, words in (
        (1.0, "Everybody stays"),
        (0.95, "Almost everybody stays"),
        (0.6, "Most silos are in at the end"),
    ):
        assert verdict.mood(share) == words


def test_few_validation_examples_and_flat_curves_are_warned_of(tmp_path: Path) -> None:
    path = written(tmp_path, 3, 3, points=True).path
    run = reading.read(path)
    assert answer.answer(run, "x")["caveats"] == []
    run.environment = {"task": {"examples": {"validation": [12, 40, 19]}}}
    object.__setattr__(run.clients[-1], "zeta", [[0.001, 0.0, 0.5], [0.0, 0.002, 0.5], [0.4, 0.2, 0.5]])
    few, flat = answer.answer(run, "x")["caveats"]
    assert few.startswith("Few validation examples: silo-0 (12), silo-2 (19) decide on fewer than 20; one case")
    assert "is 8 points" in few
    assert flat.startswith("Flat curves: 2 of 3 fitted curves change by less than one point")


def situation(
    tmp_path: Path, reason: str, own: float, offered: float, letter: str = "declined", **settings: str
) -> reasons.Reason:
    """A silo with 21 validation examples in a run of these participation settings."""
    config: dict[str, dict[str, str]] = {"participation": {"rule": "accuracy"}, "offer": {"kind": "global"}}
    for key, value in settings.items():
        table, _, name = key.partition("_")
        config.setdefault(table, {})[name] = value
    run = Run(tmp_path, config=config, silos=["a"], environment={"task": {"examples": {"validation": [21]}}})
    line = {"round": 3, "status": [letter], "reason": [reason], "own_accuracy": [own], "offered_accuracy": [offered]}
    c = client_round(line, 1)
    assert c is not None
    return reasons.why(run, c, 0)


def test_reasons_are_words_and_counts(tmp_path: Path) -> None:
    own = situation(tmp_path, "offered 0.8095 does not beat own 0.9048", 19 / 21, 17 / 21)
    assert own.words == "Its own model is right in 19 of 21 cases, the offered one in 17."
    assert own.exact == "offered 0.8095 does not beat own 0.9048"
    assert own.next == reasons.MIXTURE
    tie = situation(tmp_path, "equal accuracy 1.0000: no gain", 1.0, 1.0)
    assert (
        tie.words == "The offered model and its own model are both right in 21 of 21 cases. A tie is no reason to join."
    )
    assert tie.next == reasons.LOSS_DECIDES
    broken = situation(tmp_path, "equal accuracy 1.0000, loss 0.1 < 0.2", 1.0, 1.0, "joined")
    assert broken.words.endswith(
        "both right in 21 of 21 cases; the offered one is surer of its answers (a lower loss)."
    )
    joined = situation(tmp_path, "offered 0.9048 beats own 0.5714", 12 / 21, 19 / 21, "joined")
    assert joined == reasons.Reason(
        "The offered model is right in 19 of 21 cases, its own model in 12.", "offered 0.9048 beats own 0.5714"
    )


def test_a_threshold_is_told_in_percent_and_its_figures_stay_at_hand(tmp_path: Path) -> None:
    said = "u(0.0422) = 0.9136 is below gamma = 0.9536"
    low = situation(tmp_path, said, 17 / 21, 19 / 21, participation_rule="utility")
    assert low.words.startswith(
        "Its fitted curve promises 91.4 %, and it asks for 95.4 %. The offered model is right in 19 of 21"
    )
    assert (low.exact, low.next) == (said, reasons.MEASURED)
    hair = situation(tmp_path, "u(0.0422) = 0.9536 is below gamma = 0.9536", 1.0, 0.5, participation_rule="utility")
    assert hair.words.startswith("Its fitted curve promises a hair less than it asks for.")
    much = situation(tmp_path, "u(0.1) = 0.9 is below gamma = 1.05", 1.0, 0.5, participation_rule="utility")
    assert much.words.startswith("It asks for 105.0 %, which no model can give.")
    for reason in (low, hair, much):
        assert "gamma" not in reason.words
        assert "u(" not in reason.words


@pytest.mark.parametrize(
    ("reason", "letter", "words"),
    [
        ("no model of its own yet", "joined", "It has no model of its own yet, so it takes part."),
        ("warm start until round 5", "joined", "Everybody takes part until round 5; then it decides for itself."),
        ("stays alone", "declined", "Nobody is asked to take part: every silo trains alone."),
        ("left for good: 3 rounds without beating its model alone; at last deployed 0.4 does not beat alone 0.5", "left",
         "It has left for good: for 3 rounds running, what it deployed was no better than its model alone."),
        ("", "absent", "It did not answer in this round."),
        ("norm 9.0 is beyond 5.0", "refused", "The server refused what it sent."),
        ("refused: without standing: lost its standing in round 4, and has not yet made up for it", "refused",
         "It has no standing: it lost its standing in round 4, and has not yet made up for it. It is sent no new model, and"
         " what it sends is not counted. It comes back by working on the models that it is sent."),
        ("no point on the way beat its own model: accuracy 0.9048", "declined",
         "No mixture with the shared model beats its own model, right in 19 of 21 cases."),
        ("joins always", "joined",
         "It was not asked, and would have said no. Its own model is right in 19 of 21 cases, the offered one in 17."),
    ],
)  # fmt: skip
def test_every_kind_of_reason_is_worded(tmp_path: Path, reason: str, letter: str, words: str) -> None:
    assert situation(tmp_path, reason, 19 / 21, 17 / 21, letter).words == words


def test_rules_of_ones_own_speak_for_themselves(tmp_path: Path) -> None:
    said = situation(tmp_path, "the moon is full", 0.5, 0.6, participation_rule="moon")
    assert said.words == "It says: the moon is full"


def test_scores_are_counted_only_where_they_are_shares_of_cases() -> None:
    assert reasons.counted(19 / 21, 21) == "19 of 21"
    assert reasons.counted(0.93, 21) == "19.5 of 21"
    assert reasons.counted(0.93, None) == "93.0 %"
    assert reasons.counted(0.93, 21, "auc") == "0.930"


def test_what_would_have_been_stands_beside_what_was(tmp_path: Path) -> None:
    path = written(tmp_path, 4, 6).path
    config = (path / "config.toml").read_text()
    run = reading.read(path)
    assert payload([run])["runs"][0]["answer"]["before"] is None
    (path / "config.toml").write_text(config.replace('kind = "global"', 'kind = "best-mixture"'))
    shown = payload([reading.read(path)])["runs"][0]
    assert shown["answer"]["before"]["title"] == "Offered the shared model, 100 % would join"
    for before, strip in zip(shown["before"], shown["strip"]):  # the shared model scores more than everybody's own
        assert before == strip.replace("d", "j")
    assert shown["series"]["offered"][0] - shown["series"]["own"][0] == pytest.approx(0.1, abs=1e-4)


def test_a_standing_is_shown_where_the_records_have_one(tmp_path: Path) -> None:
    line = {
        "round": 1,
        "status": ["joined", "joined"],
        "standing": [0.25, None],
        "standing_reason": ["two late updates", ""],
    }
    c = client_round(line, 2)
    assert c is not None
    assert (list(c.standing), list(c.standing_reason)) == ([0.25, None], ["two late updates", ""])
    nested = client_round({**line, "standing": [{"value": 0.5, "reason": "fine"}, "?"], "standing_reason": None}, 2)
    assert nested is not None
    assert (list(nested.standing), list(nested.standing_reason)) == ([0.5, None], ["fine", ""])
    run = reading.read(written(tmp_path, 2, 2).path)
    object.__setattr__(run.clients[-1], "standing", [0.25, None])
    object.__setattr__(run.clients[-1], "standing_reason", ["two late updates", ""])
    feet = {card["silo"]: card["feet"] for card in answer.answer(run, "x")["cards"]}
    assert feet[0][-1] == "standing 0.25 of 1 (none at 0.5 or below): two late updates"
    assert len(feet[1]) == 1


def test_methods_that_score_alike_tie(tmp_path: Path) -> None:
    runs = [reading.read(written(tmp_path / str(k), 3, 4).path) for k in range(2)]
    said = verdict.comparison(runs, ["one", "other"])
    assert said == "2 methods side by side."  # nothing tells them apart
    third = reading.read(written(tmp_path / "3", 3, 4).path)
    for line in third.rounds:
        line.numbers["participation"], line.numbers["accuracy"] = 0.1, 0.01  # type: ignore[index]
    said = verdict.comparison([*runs, third], ["one", "other", "third"])
    assert "“one” and “other” keep equally many" in said
    assert "By the shared model, “one” and “other” are best" in said


def test_a_run_whose_process_was_killed_shows_no_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Written(tmp_path, ["a", "b"], 5)
    run.round()
    reader = reading.RunReader(run.path)
    assert reader.run.state_shown == "running"
    now = liveness.time.time()
    monkeypatch.setattr(liveness.time, "time", lambda: now + 700)
    held = liveness._held(run.path)
    assert reader.refresh() != held  # whoever is seen to hold the folder is only slow
    run.directory.__exit__(None, None, None)
    reader.refresh()
    assert reader.run.state_shown == "silent"
    assert "nothing was written for 12 min" in verdict.notices(reader.run)[0]
    run.round()
    monkeypatch.undo()
    assert reader.refresh()
    assert reader.run.state_shown == "running"


def test_stretches_of_time_are_worded() -> None:
    assert [liveness.lapse(s) for s in (5, 600, 7200, 400_000)] == ["5 s", "10 min", "2 h", "5 days"]


def configured(path: Path, **settings: str) -> Run:
    """A run of other settings: text entries of the tables `participation` (rule, against) and `offer` (kind)."""
    run = reading.read(path)
    tables = {"rule": "participation", "against": "participation", "kind": "offer"}
    config: dict[str, Any] = {name: dict(run.config[name]) for name in ("participation", "offer")}
    for key, value in settings.items():
        config[tables[key]][key] = value
    run.config = {**run.config, **config}
    return run


def everybody_in(run: Run) -> Run:
    """The same run with every silo in in every round."""
    for line in run.rounds:
        line.numbers["participation"] = 1.0  # type: ignore[index]
    for seen in run.clients.glimpses:
        object.__setattr__(seen, "status", "j" * len(run.silos))
    for c in run.clients:
        object.__setattr__(c, "status", "j" * len(run.silos))
        object.__setattr__(c, "reason", ["joins always"] * len(run.silos))
    return run


def test_who_trains_along_and_chooses_what_to_deploy_is_not_forced(tmp_path: Path) -> None:
    path = written(tmp_path, 4, 12, alone=True).path
    run = everybody_in(configured(path, rule="always", against="outside", kind="stack"))
    said = answer.answer(run, "tailored")
    assert said["headline"] == "Everybody trains along, and 3 of 4 silos are better off than alone"
    only = "each deploys its mixture only if its own validation data prefer it"
    assert only in said["subtitle"]
    assert said["tiles"][0]["hint"] == only
    assert said["strip"] == f"Who trained along: everybody; {only}"
    assert {card["title"] for card in said["cards"]} == {f"silo-{k} trains along" for k in range(4)}
    assert "It deploys its mixture only if its own validation data prefer it. " in said["cards"][0]["words"]
    assert "forced" not in str(said) + str(said["cards"])
    forced = everybody_in(configured(path, rule="always"))
    assert answer.headline(forced).startswith("Everybody was forced in, ")
    assert answer.answer(forced, "x")["strip"] == "Who was in: everybody, by force"
    both = verdict.comparison([run, forced], ["tailored", "forced in"])
    assert "Of those that let silos choose, “tailored” keeps most of them (100.0 %)" in both


def test_who_has_no_standing_is_named_with_why_also_where_it_declined(tmp_path: Path) -> None:
    path = written(tmp_path, 4, 3).path
    run = reading.read(path)
    assert "standing" not in answer.headline(run)
    said = "u(0.1566) = 0.2224 is below gamma = 0.2233"
    advice = ["", "", "threshold 1.04 is outside the range; without standing: sent nothing new for 20 rounds", "odd"]
    line = {"round": 3, "status": ["joined", "joined", "declined", "joined"], "reason": ["", "", said, ""]}
    last = client_round({**line, "advice": advice, "standing": [1.0, 1.0, 0.0417, 1.0]}, 4)
    assert last is not None
    assert list(last.lost) == ["", "", "sent nothing new for 20 rounds", ""]
    for name in ("status", "reason", "standing", "standing_reason", "lost"):
        object.__setattr__(run.clients[-1], name, getattr(last, name))
    assert answer.headline(run).endswith("; silo-2 has no standing")
    because = (
        "no standing: it sent nothing new for 20 rounds. It is sent no new model, and what it sends is not counted."
    )
    assert f"silo-2 has {because}" in verdict.notices(run)
    assert f"silo-2 has {because}" in verdict.verdict(run)
    card = next(card for card in answer.answer(run, "x")["cards"] if card["silo"] == 2)
    assert card["title"] == "silo-2 has no standing"
    assert card["words"].startswith(f"It has {because} In this round it declined.")
    assert card["exact"] == f"{said}; without standing: sent nothing new for 20 rounds"
    assert card["next"] is None
    assert card["feet"][-1] == "standing 0.04 of 1 (none at 0.5 or below)"
    forced = configured(path, rule="always")
    for k, seen in enumerate(forced.clients.glimpses):
        object.__setattr__(seen, "status", "jjjj" if k < 2 else "jjrj")
    assert answer.headline(forced).startswith("3 of 4 silos were forced in")


def test_the_figure_alone_is_that_of_the_best_row_and_data_sets_are_not_ranked(tmp_path: Path) -> None:
    paths = [written(tmp_path / str(k), 4, 12, alone=True).path for k in range(2)]
    runs = [reading.read(paths[0]), configured(paths[1], rule="accuracy")]
    assert payload(runs)["alone"] == pytest.approx(0.5)
    for c in runs[1].clients:  # the other one's silos have an easier task
        for name, more in (("test_deployed", 0.3), ("test_alone", 0.2)):
            c.numbers[name][:] = [value + more for value in c.numbers[name]]  # type: ignore[index]
    said = verdict.comparison(runs, ["one", "other"])
    assert "By what silos deploy, “other” is best (86.2 %; alone they would have 70.0 %)." in said
    shown = payload(runs)
    assert shown["alone"] is None  # two levels, so none is drawn
    runs[1].config = {**runs[1].config, "own": "df6b579f03328322"}
    said = verdict.comparison(runs, ["one", "other"])
    assert said == (
        "2 methods side by side. They learn from different data (digits, own data df6b57), so they are not ranked."
    )
