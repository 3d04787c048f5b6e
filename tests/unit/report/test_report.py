"""The report without a browser: reading with suspicion, thinning, verdicts, the page's promises, figures."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from feduca.analysis import judging
from feduca.cli.main import app
from feduca.core.utility import Quadratic
from feduca.errors import InputError
from feduca.report import charts, cleaning, figures, page, reading, silos, verdict, write
from feduca.report.payload import SCALE, payload
from feduca.runs import lines
from run_directories import Written, stretched, written


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return written(tmp_path_factory.mktemp("small"), 4, 20, points=True)


def embedded(html: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert found
    return json.loads(found.group(1))


# Reading --------------------------------------------------------------------------------------------------------------


def test_reads_back_what_was_written(small: Written) -> None:
    run = reading.read(small.path)
    assert run.silos == small.silos
    assert [c.status for c in run.clients] == small.status
    assert [line.round for line in run.rounds] == list(range(1, 21))
    assert (run.state, run.unreadable, run.planned) == ("finished", 0, 20)


def test_follows_a_growing_run_and_leaves_half_a_line_for_later(tmp_path: Path) -> None:
    run = Written(tmp_path, ["a", "b"], 5)
    run.round()
    reader = reading.RunReader(run.path)
    assert len(reader.run.rounds) == len(reader.run.clients) == 1
    assert not reader.refresh()
    line = (run.path / "rounds.jsonl").read_text().replace('"round":1,', '"round":2,')
    with (run.path / "rounds.jsonl").open("a") as file:
        file.write(line[:50])
        file.flush()
        reader.refresh()
        assert len(reader.run.rounds) == 1
        file.write(line[50:])
    assert reader.refresh()
    assert [r.round for r in reader.run.rounds] == [1, 2]
    assert reader.run.unreadable == 0


def test_a_run_started_again_is_read_from_its_beginning(tmp_path: Path) -> None:
    run = written(tmp_path, 2, 5)
    reader = reading.RunReader(run.path)
    assert len(reader.run.rounds) == 5
    again = Written(tmp_path, run.silos, 5)
    again.round()
    assert again.path == run.path
    reader.refresh()
    assert len(reader.run.rounds) == len(reader.run.clients) == 1


# Hostile directories --------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(small: Written, tmp_path: Path) -> Path:
    path = tmp_path / small.path.name
    shutil.copytree(small.path, path)
    return path


def test_truncated_and_senseless_lines_are_counted_and_left_out(damaged: Path) -> None:
    for name in ("rounds", "clients"):
        file = damaged / f"{name}.jsonl"
        lines = file.read_text().splitlines()
        lines[3] = lines[3][: len(lines[3]) // 2]
        lines[5] = "[1, 2, 3]"
        lines[7] = '{"round": "seven"}'
        lines[9] = "[" * 100_000
        lines[11] = '{"round": 12, "status": 5, "accuracy": ' + "9" * 5000 + "}"
        file.write_text("\n".join(lines) + "\n")
    run = reading.read(damaged)
    assert len(run.clients) == len(run.rounds) == 15
    assert run.unreadable == 10
    data = embedded(page.render(page.page_data([run])))
    assert any("10 lines" in note for note in data["notes"])


def test_strange_values_become_undefined(damaged: Path) -> None:
    lines = (damaged / "clients.jsonl").read_text().splitlines()
    item = json.loads(lines[0])
    item |= {"alpha": [None, "x", {}, 1e999], "zeta": [[1], "no", [float("nan")] * 3, [0.1, 0.2, 0.3]], "gamma": [1, 2]}
    item |= {"status": ["joined", 7, None, "<b>"], "utility_points": {"places": "?", "values": 3}}
    (damaged / "clients.jsonl").write_text("\n".join([json.dumps(item), *lines[1:]]) + "\n")
    first = reading.read(damaged).clients[0]
    assert first.status == "jaaa"
    assert first.numbers["alpha"] == [None] * 4
    assert first.numbers["gamma"] == [None] * 4
    assert first.zeta[1:3] == [None, None]
    page.render(page.page_data([reading.read(damaged)]))


@pytest.mark.parametrize("name", ["rounds", "clients"])
def test_a_line_without_bounds_is_refused_in_one_line(damaged: Path, name: str) -> None:
    with (damaged / f"{name}.jsonl").open("a") as file:
        file.write('{"round": 99, "x": "' + "a" * lines.MOST + '"}\n')
    result = CliRunner().invoke(app, ["report", str(damaged), "-o", str(damaged / "r.html")])
    assert isinstance(result.exception, InputError)
    assert f"more than {lines.MOST} bytes" in str(result.exception)
    assert "\n" not in str(result.exception)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.toml", "a = [", "is not TOML"),
        ("config.toml", f"{'a.' * 5000}a = 1", "more than 20 deep"),
        ("env.json", "[]", "is not a JSON object"),
        ("status.json", "{", "is not a JSON object"),
        ("config.toml", "a = 1 # " + "x" * 3_000_000, "bytes"),
    ],
)
def test_unreadable_files_are_refused_in_one_line(damaged: Path, name: str, content: str, said: str) -> None:
    (damaged / name).write_text(content)
    with pytest.raises(InputError, match=said) as caught:
        reading.read(damaged)
    assert "\n" not in str(caught.value)


def test_markup_in_names_stays_inside_the_data(tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    run = written(tmp_path, [evil, "a & b", "\u2028<!--", "x" * 1000], 3)
    html = page.render(page.page_data([reading.read(run.path)]))
    assert evil not in html
    assert "<img" not in html.split("<body>")[1].split('id="data"')[1].split("</script>")[0]
    silos = embedded(html)["runs"][0]["silos"]
    assert silos[0] == evil  # shown as it is, as text
    assert len(silos[3]) == cleaning.MAX_TEXT


def test_nothing_to_show_is_said_in_one_line(tmp_path: Path) -> None:
    empty = Written(tmp_path, ["a"], 3)
    with pytest.raises(InputError, match="no finished round"):
        reading.read(empty.path)
    with pytest.raises(InputError, match="not a run directory"):
        reading.read(tmp_path / "nowhere")


# What the page says ---------------------------------------------------------------------------------------------------


def test_the_payload_carries_curves_points_and_strip(small: Written) -> None:
    run = reading.read(small.path)
    data = payload([run])
    shown = data["runs"][0]
    assert ["".join(column) for column in zip(*shown["strip"])] == small.status
    assert shown["details"]["rounds"] == list(range(1, 21))
    entry = shown["details"]["silos"][4][2]
    zeta = np.array([run.clients[4].zeta[2]])
    expected = Quadratic().value(zeta, np.array(data["grid"])[:, None])[:, 0]
    np.testing.assert_allclose(np.array(entry[9]) / SCALE, expected, atol=1e-4)
    np.testing.assert_allclose(np.array(entry[10]) / SCALE, run.clients[4].points[2], atol=1e-4)
    assert len(entry[10]) == len(shown["details"]["places"]) == 29
    assert shown["fallbacks"] == [[17, "tilt"]]


def test_the_verdict_says_how_it_ended_and_not_only_its_mean(small: Written) -> None:
    said = verdict.verdict(reading.read(small.path))
    shares = [letters.count("j") / 4 for letters in small.status]
    mean, end = (f"{100 * np.mean(part):.1f} %" for part in (shares, shares[-10:]))
    assert f"{end} of silos took part in the last 10 rounds, {mean} over all 20" in said[0]
    assert f"; {small.status[-1].count('j')} of 4 in the very last" in said[0]


def test_the_page_says_who_is_better_off_and_who_left(tmp_path: Path) -> None:
    run = reading.read(written(tmp_path, 4, 12, alone=True).path)
    said = verdict.verdict(run)
    gain = "Deployed 56.2 % against 50.0 % alone on untouched data: 3 of 4 silos better off, mean +6.2 points, worst silo-1 -5.0."
    assert gain in said
    assert "1 of 4 silos quit for good: silo-3 (round 3)." in said
    data = payload([run])
    assert data["runs"][0]["strip"][3][1:4] == run.clients[1].status[3] + "ll"
    shown = data["runs"][0]["standing"]
    assert shown["sentence"] == gain
    end = {"j": "in", "d": "out: declined", "a": "out: absent", "r": "out: refused"}[run.clients[-1].status[1]]
    assert shown["rows"][1] == [1, pytest.approx(0.46667), pytest.approx(0.41667), pytest.approx(-0.05), 11, end]
    assert shown["rows"][3] == [3, 0.6, 0.7, pytest.approx(0.1), 13, "quit in round 3"]
    assert (data["table"][0]["better_off"], data["table"][0]["gain_worst"]) == (0.75, pytest.approx(-0.05))
    assert {row["status"] for row in charts.strip_rows(data["runs"][0]) if row["silo"] == "silo-3"} >= {"left"}


def test_the_page_judges_every_silo_and_says_why_some_keep_to_their_own(tmp_path: Path) -> None:
    run = reading.read(written(tmp_path, 8, 12, alone=True, judged=True).path)
    said = verdict.verdict(run)
    judged = (
        "Against the models alone, judged with errors by accuracy on untouched data in round 12: of 8 silos 2 better off"
        " (25.0 %), 2 no different (25.0 %), 2 worse off (25.0 %), 2 undecided (25.0 %)."
    )
    assert judged in said
    data = payload([run])
    shown = data["runs"][0]["standing"]
    assert shown["sentence"].endswith(judged)
    words = ["better off", "worse off", "no different", "undecided"] * 2
    assert [row[0] for row in shown["judged"]] == [row[4] for row in shown["judged"]] == words
    assert [row[2:4] for row in shown["judged"]] == [[60, 10], [10, 60], [2, 2], [1, 2]] * 2
    assert shown["judged"][0][1] < 1e-6 < shown["judged"][3][1] == 1
    assert [row[6] for row in shown["judged"][:2]] == [0.3, -0.3]
    assert data["table"][0]["judged"] == "25.0 / 25.0 / 25.0 / 25.0 %"

    last = run.clients[-1]
    out = [k for k, letter in enumerate(last.status) if letter == "d"]
    assert out
    why = next(s for s in said if "because the private model is better than the offer" in s)
    assert why.startswith(f"{len(out)} of the {len(out)} that declined in round 12 do")
    for k in out:
        own, offered = (f"{100 * last.numbers[name][k]:.1f} %" for name in ("own_accuracy", "offered_accuracy"))
        assert f"silo-{k} ({own} against {offered}, +3.0 points)" in why
        assert shown["rows"][k][5] == f"out: its private model is better ({own} against {offered}, +3.0 points)"
    assert all("private model" not in row[5] for k, row in enumerate(shown["rows"]) if k not in out)


def test_seeds_are_judged_together_and_scores_without_right_answers_by_loss(tmp_path: Path) -> None:
    runs = [reading.read(written(tmp_path, 4, 3, seed, alone=True, judged=True).path) for seed in (0, 1)]
    task = runs[0].config["task"]
    columns = [run.clients[-1].paired for run in runs]
    expected = judging.figures(columns, judging.overlap(2, task["validation_share"] * task["test_share"]))
    assert (
        payload(runs)["table"][0]["judged"]
        == " / ".join(f"{100 * expected[f'{word}_share']:.1f}" for word in judging.VERDICTS) + " %"
    )
    for run in runs:
        run.config["task"]["test_share"] = "much"  # nobody knows how their parts overlap
        run.clients[-1].paired.update(gained=[None] * 4, lost=[None] * 4)  # type: ignore[union-attr]
    expected = judging.figures(columns, 2)
    assert expected["better_share"] is None
    assert (
        payload(runs)["table"][0]["judged"]
        == " / ".join(f"{100 * expected[f'loss_{word}_share']:.1f}" for word in judging.VERDICTS) + " %"
    )
    assert "by log-loss on untouched data in round 3: of 4 silos 1 better off" in " ".join(verdict.verdict(runs[0]))


def test_scores_that_are_none_are_left_out_and_an_empty_federation_is_said(tmp_path: Path) -> None:
    run = reading.read(written(tmp_path, ["only"], 5, alone=True).path)
    said = " ".join(verdict.verdict(run))
    assert "1 of 1 silos quit for good: only (round 3); the federation is empty since round 3" in said
    assert "Out in round 5" not in said
    for c in run.clients:
        c.numbers["test_deployed"][0] = 1e308  # type: ignore[index]
    assert payload([run])["runs"][0]["standing"] is None


def test_failed_and_running_runs_say_so(tmp_path: Path) -> None:
    run = Written(tmp_path, ["a", "b"], 5)
    run.round()
    assert any("round 1 of 5" in s for s in verdict.verdict(reading.read(run.path)))
    run.directory.fail("the disk is full")
    assert any("the disk is full" in s for s in verdict.verdict(reading.read(run.path)))


# The page ---------------------------------------------------------------------------------------------------------------


def test_the_page_is_small_and_needs_nothing_else(small: Written, tmp_path: Path) -> None:
    (target,) = write([small.path], tmp_path / "r.html")
    html = target.read_text(encoding="utf-8")
    assert target.stat().st_size < 2_000_000
    assert "connect-src 'none'" in html
    shell = re.sub(r"<script>.*?</script>", "", html, flags=re.S)
    assert not re.search(r"(src|href)=[\"']?https?:", shell)
    assert set(embedded(html)["charts"]) == set(charts.TITLES)


def test_a_thousand_rounds_of_a_hundred_silos_are_thinned_and_it_says_so(tmp_path: Path) -> None:
    path = stretched(tmp_path, 100, 1000, points=True)
    data = page.page_data([reading.read(path)])
    assert len(page.render(data).encode()) < 2_000_000
    assert len(data["runs"][0]["strip"]) == 100
    assert len(data["runs"][0]["strip"][0]) == 1000
    kept = data["runs"][0]["details"]["rounds"]
    assert kept[0] == 1
    assert kept[-1] == 1000
    assert any("of 1000 rounds" in note for note in data["notes"])


def test_too_many_runs_are_refused(small: Written) -> None:
    with pytest.raises(InputError, match="61 runs"):
        payload([reading.read(small.path)] * 61)


def test_a_run_without_curves_still_makes_a_page(small: Written) -> None:
    run = reading.read(small.path)
    for c in run.clients:
        object.__setattr__(c, "zeta", [None] * 4)
        object.__setattr__(c, "points", [None] * 4)
    for line in run.rounds:
        for name in ("slack", "gap", "jensen", "promise_kept", "discrepancy_bound"):
            line.numbers[name] = None  # type: ignore[index]
    data = page.page_data([run])
    assert "nothing was promised" in " ".join(data["runs"][0]["research"])
    page.render(data)


# Figures ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_figures_are_written_in_three_formats(small: Written, tmp_path: Path) -> None:
    data = page.page_data([reading.read(small.path)])
    files = figures.write_figures(data, tmp_path)
    kinds = {"svg": b"<svg", "png": b"\x89PNG", "pdf": b"%PDF"}
    assert {f.stem for f in files} == {
        "accuracy", "participation", "strip", "weighed", "curve", "promise", "slack", "gap", "jensen", "discrepancy",
    }  # fmt: skip
    for file in files:
        assert file.read_bytes().startswith(kinds[file.suffix[1:]])
    assert (tmp_path / "strip.svg").read_text().count("silo-") >= 4
    assert figures.write_pdf(data, tmp_path / "all.pdf").read_bytes().startswith(b"%PDF")


def test_strip_rows_cover_every_cell_once(small: Written) -> None:
    rows = charts.strip_rows(payload([reading.read(small.path)])["runs"][0])
    for k, name in enumerate(small.silos):
        mine = [r for r in rows if r["silo"] == name]
        letters = "".join(r["status"][0] * round(r["end"] - r["start"]) for r in mine)
        assert letters == "".join(column[k] for column in small.status)


# The command ------------------------------------------------------------------------------------------------------------


def test_the_command_writes_a_page(small: Written, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(small.path), "-o", str(tmp_path / "deep" / "r.html")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "deep" / "r.html").stat().st_size > 500_000


def test_a_target_that_cannot_be_written_is_one_line(small: Written, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="choose another file"):
        write([small.path], tmp_path / "file" / "r.html")


def test_runs_are_found_up_to_three_levels_down_whatever_else_is_there(tmp_path, monkeypatch):
    for name in ("b", "a/x", "a/y/z", "too/deep/down/here"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "status.json").write_text("{}")
    (tmp_path / "gone").mkdir()
    scan = reading.os.scandir

    def vanishing(path):
        if Path(path).name == "gone":
            raise FileNotFoundError(path)
        return scan(path)

    monkeypatch.setattr(reading.os, "scandir", vanishing)
    found = [path.relative_to(tmp_path).as_posix() for path in reading.find_runs(tmp_path)]
    assert found == ["b", "a/x", "a/y/z"]
    assert reading.find_runs(tmp_path / "b") == [tmp_path / "b"]
    assert reading.find_runs(tmp_path / "nothing") == []


def test_a_page_of_many_silos_is_the_same_whether_rounds_stay_in_memory_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LONG", 20_000)
    run = written(tmp_path, 350, 12, alone=True)
    assert b"$zlib" in (run.path / "clients.jsonl").read_bytes()
    kept = payload([reading.read(run.path)])
    monkeypatch.setattr(silos, "IN_MEMORY", 800)
    few = reading.read(run.path)
    assert len(few.clients._read) <= 2
    assert payload([few]) == kept
    assert len(few.clients._read) <= 2
    assert any("are kept for" in note for note in kept["notes"])


def test_records_that_change_or_vanish_while_they_are_read_are_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silos, "IN_MEMORY", 0)
    run = written(tmp_path, 5, 9)
    file, read = run.path / "clients.jsonl", reading.read(run.path)
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"round":3', b'"round":4'))
    with pytest.raises(InputError, match="has changed since it was read"):
        payload([read])
    run.path.rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"cannot be read now.*load the run again from where it is"):
        payload([read])


def test_a_live_page_starts_over_when_a_run_was_started_anew_and_is_already_longer(tmp_path: Path) -> None:
    run = written(tmp_path, 4, 2)
    reader = reading.RunReader(run.path)
    again = written(tmp_path / "again", 4, 5, seed=3)
    for name in ("rounds.jsonl", "clients.jsonl"):
        shutil.copy(again.path / name, run.path / name)
    assert reader.refresh()
    assert [c.status for c in reader.run.clients] == again.status
    assert [line.round for line in reader.run.rounds] == [1, 2, 3, 4, 5]
