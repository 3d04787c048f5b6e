"""What a run folder says is checked before it is believed."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import feduca
from feduca.cli.main import app
from feduca.errors import InputError
from feduca.report.payload import payload
from feduca.report.reading import RunReader, glance
from feduca.runs import manifest
from run_directories import before_seals

SMALL = {"rounds": 3, "local.epochs": 1, "task.max_examples": 400}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two finished runs that differ in their seed."""
    root = tmp_path_factory.mktemp("victims")
    one, other = (feduca.run("quickstart", SMALL, seed=seed, out=root).run_dir for seed in (0, 1))
    assert one is not None
    assert other is not None
    return one, other


@pytest.fixture
def victim(runs: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs[0], tmp_path / "runs" / "quickstart" / runs[0].name))


def lines(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))


DAMAGE: dict[str, Callable[[Path, Path], object]] = {
    "an edited figure": lambda p, _: lines(
        p / "rounds.jsonl", lambda found: [found[0].replace('"participation":', '"participation":0'), *found[1:]]
    ),
    "an edited summary": lambda p, _: (p / "status.json").write_text(
        (p / "status.json").read_text().replace('"accuracy": 0.', '"accuracy": 0.9')
    ),
    "swapped lines": lambda p, _: lines(p / "clients.jsonl", lambda found: [found[1], found[0], *found[2:]]),
    "a missing last line": lambda p, _: [
        lines(p / name, lambda found: found[:-1]) for name in ("rounds.jsonl", "clients.jsonl")
    ],
    "another run's records": lambda p, other: [
        shutil.copy(other / name, p / name) for name in ("rounds.jsonl", "clients.jsonl")
    ],
    "another run": lambda p, other: [
        shutil.copy(other / name, p / name) for name in (*manifest.RECORDS, manifest.STATUS)
    ],
    "an empty config": lambda p, _: (p / "config.toml").write_text(""),
    "no environment": lambda p, _: (p / "env.json").unlink(),
    "other names of silos": lambda p, _: (p / "silos.json").write_text('{"silos": ["x"]}'),
    "no seal": lambda p, _: (p / "status.json").write_text('{"schema": 2, "state": "finished", "summary": {}}'),
    "unfinished after all": lambda p, _: (p / "status.json").write_text(
        (p / "status.json").read_text().replace('"finished"', '"interrupted"')
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_what_a_run_did_not_write_is_not_believed(runs: tuple[Path, Path], victim: Path, what: str) -> None:
    DAMAGE[what](victim, runs[1])
    with pytest.raises(InputError, match=r"damaged.*repeat the run with --again"):
        feduca.load(victim)
    with pytest.raises(InputError, match="damaged"):
        feduca.export_models(victim, victim.parent / "models")
    if what != "unfinished after all":  # that one goes on: from its last checkpoint, which says what is right
        with pytest.raises(InputError, match="damaged"):
            feduca.run("quickstart", SMALL, seed=0, out=victim.parents[1])
    for reader in (RunReader(victim).run, glance(victim)):
        assert reader.doubt
        assert reader.state_shown == "damaged"
    page = payload([RunReader(victim).run])
    assert page["verdict"][0].startswith("Do not believe these figures: the records are not those that the run wrote")
    assert "do not believe them" in page["notes"][0]


def test_the_command_line_says_so(victim: Path) -> None:
    DAMAGE["an edited figure"](victim, victim)
    page = victim.parent / "page.html"
    done = CliRunner().invoke(app, ["report", str(victim), "-o", str(page)])
    assert done.exit_code == 0
    assert "Do not believe these figures" in page.read_text()
    sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    done = CliRunner().invoke(app, ["run", "quickstart", *sets, "--seed", "0", "--out", str(victim.parents[1])])
    assert isinstance(done.exception, InputError)


@pytest.mark.parametrize("schema", [0, 3, 99, "2", None, [1]])
def test_a_schema_of_the_future_is_refused(victim: Path, schema: object) -> None:
    status = json.loads((victim / "status.json").read_text())
    (victim / "status.json").write_text(json.dumps({**status, "schema": schema}))
    for ask in (feduca.load, RunReader, glance, feduca.resume):
        with pytest.raises(InputError, match=r"has schema .*, this version reads 1 to 2; use a version"):
            ask(victim)
    with pytest.raises(InputError, match="has schema"):
        feduca.run("quickstart", SMALL, seed=0, out=victim.parents[1])


def test_a_copy_or_another_name_is_fine(runs: tuple[Path, Path], tmp_path: Path) -> None:
    there = feduca.load(runs[0])
    for name in ("kept for the paper", runs[0].name):
        copy = shutil.copytree(runs[0], tmp_path / name)
        assert feduca.load(copy).summary == there.summary  # type: ignore[union-attr]
        assert RunReader(copy).run.state_shown == "finished"
        assert feduca.export_models(copy, tmp_path / f"models of {name}").card["summary"] == there.summary  # type: ignore[union-attr]
    with pytest.raises(InputError, match="in the folder of another"):
        feduca.load(shutil.copytree(runs[0], tmp_path / runs[1].name))


def test_runs_of_before_are_read_and_called_unchecked(victim: Path, caplog: pytest.LogCaptureFixture) -> None:
    there = feduca.load(victim)
    assert not caplog.messages
    before_seals(victim)
    with caplog.at_level(logging.WARNING, "feduca"):
        assert feduca.load(victim).summary == there.summary  # type: ignore[union-attr]
    assert "its figures are shown unchecked" in caplog.text
    run = RunReader(victim).run
    assert (run.unchecked, run.doubt) == (True, "")
    assert "its figures are shown unchecked" in payload([run])["notes"][0]


def test_a_checkpoint_vouches_for_a_run_of_before(victim: Path) -> None:
    status = json.loads((victim / "status.json").read_text())
    (victim / "status.json").write_text(json.dumps({"schema": 1, "state": "finished", "summary": status["summary"]}))
    feduca.load(victim)
    DAMAGE["an edited figure"](victim, victim)
    with pytest.raises(InputError, match=r"rounds\.jsonl is not what the last checkpoint knew it to be"):
        feduca.load(victim)


def test_an_interrupted_run_is_checked_against_its_checkpoint(tmp_path: Path) -> None:
    def stop(record: object, clients: object) -> None:
        if getattr(record, "round", 0) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feduca.run("quickstart", SMALL, out=tmp_path, watch=stop)
    (torn,) = tmp_path.glob("*/*")
    with (torn / "rounds.jsonl").open("a") as file:
        file.write('{"half a li')
    assert len(feduca.load(torn).rounds) == 2  # type: ignore[union-attr]
    DAMAGE["swapped lines"](torn, torn)
    with pytest.raises(InputError, match="has damaged records"):
        feduca.load(torn)
    assert RunReader(torn).run.state_shown == "damaged"


def test_a_finished_run_is_read_where_nothing_can_be_written(victim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = feduca.load(victim)

    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, os.strerror(30))

    monkeypatch.setattr(tempfile, "TemporaryFile", read_only)
    out = victim.parents[1]
    assert feduca.run("quickstart", SMALL, seed=0, out=out).summary == there.summary  # type: ignore[union-attr]
    (many,) = feduca.api.run_many([(feduca.recipe("quickstart", SMALL, seed=0), 0)], out=out)
    assert many.summary == there.summary  # type: ignore[union-attr]
    with pytest.raises(InputError, match="is not writable"):
        feduca.run("quickstart", SMALL, seed=5, out=out)


def test_another_runs_model_is_not_given_back(runs: tuple[Path, Path], victim: Path, caplog: pytest.LogCaptureFixture):
    """The records are right, the checkpoint beside them is another run's of the same shape."""
    assert feduca.run("quickstart", SMALL, seed=0, out=victim.parents[1]).theta is not None
    shutil.rmtree(victim / "checkpoint")
    shutil.copytree(runs[1] / "checkpoint", victim / "checkpoint")
    found = feduca.run("quickstart", SMALL, seed=0, out=victim.parents[1])
    assert found.theta is None
    assert found.rounds == feduca.load(victim).rounds
    assert f"not to {victim.name}); repeat the run with --again; its model (theta) is left out" in caplog.text
    shutil.rmtree(victim / "checkpoint" / "round-00000003")
    shutil.copytree(
        runs[0] / "checkpoint" / "round-00000002", victim / "checkpoint" / "round-00000002", dirs_exist_ok=True
    )
    assert feduca.resume(victim).theta is None  # an earlier round's is not the last's
