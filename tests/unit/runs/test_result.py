"""What a run gives back: short to read, a page and pictures for a notebook, frames; mistakes in one line."""

from __future__ import annotations

import csv
import itertools
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

import feduca
from command_line import feduca as command
from feduca.errors import ConfigError, InputError
from feduca.runs.pictures import ticks
from numpy_task import NumpyTask

SMALL = {"task.clients": 4, "local.epochs": 1, "utility.check_every": 0}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return feduca.run("tailored", SMALL, rounds=3, out=tmp_path_factory.mktemp("runs"))


def test_it_is_short_to_read(result):
    said = repr(result)
    assert said.startswith("RunResult('tailored', seed 0: 3 rounds, accuracy ")
    assert f"{100 * result.summary['better_off']:.1f} % of silos better off than alone" in said
    assert len(said) < 160
    alone = repr(feduca.run("quickstart", SMALL, rounds=1))
    assert "better off" not in alone


def test_a_notebook_shows_every_silo_and_fetches_nothing(result):
    page = result._repr_html_()
    assert page.count("<tr>") == 1 + 4
    assert all(f"<td>{name}</td>" in page for name in result.silos)
    assert "3 of 3" in page
    assert "<td>everybody trains along</td>" in page
    for picture in (result.plot(), result.strip(), result.silo(2), result.silo("silo-2")):
        svg = picture._repr_svg_()
        ET.fromstring(svg)
        assert "<script" not in svg
        assert svg.count("http") == 1  # the name of SVG
    assert result.silo(2).svg == result.silo("silo-2").svg
    assert result.strip().svg.count("<rect") == 4 * 3 + 1
    assert {"accuracy", "deployed", "alone", "stay in"} <= set(result.plot().svg.replace("<", ">").split(">"))
    with pytest.raises(InputError, match="there is no silo 'north'; there are silo-0, silo-1"):
        result.silo("north")


def test_a_picture_is_saved(result, tmp_path):
    assert result.plot().save(tmp_path / "new" / "plot.svg").read_text() == result.plot().svg
    with pytest.raises(InputError, match=r"plot\.png ends in \.png: call it .*plot\.svg"):
        result.plot().save(tmp_path / "plot.png")
    assert not (tmp_path / "plot.png").exists()
    with pytest.raises(InputError, match=r"cannot write .*; choose another place"):
        result.plot().save(tmp_path / "new" / "plot.svg" / "below.svg")


def test_axes_have_round_numbers():
    assert ticks(52.9, 100) == [60, 70, 80, 90, 100]
    assert ticks(5.71, 9.3) == [6, 7, 8, 9]
    assert ticks(49.5, 50.5) == [49.5, 49.75, 50, 50.25, 50.5]
    for low, wide in itertools.product((-0.137, 0, 3.3e4), np.geomspace(1e-3, 1e4, 50)):
        found = ticks(low, low + wide)
        assert 2 <= len(found) <= 6
        assert low - 1e-9 * abs(wide) <= found[0] < found[-1] <= (low + wide) * (1 + 1e-9) + 1e-9


def test_frames_or_what_to_install(result, monkeypatch):
    pd = pytest.importorskip("pandas")
    assert list(result.to_frame()["round"]) == [1, 2, 3]
    assert list(result.to_frame()["seconds.round"]) == [record["seconds"]["round"] for record in result.rounds]
    assert "seconds" not in result.to_frame()
    frame = result.clients_frame()
    assert isinstance(frame, pd.DataFrame)
    assert len(frame) == 3 * 4
    last = frame[(frame["round"] == 3) & (frame["silo"] == "silo-1")].iloc[0]
    assert last["offered_accuracy"] == result.clients[-1]["offered_accuracy"][1]
    assert last["reason"] == result.clients[-1]["reason"][1]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"needs pandas, which is not installed: pip install pandas; result\.clients"):
        result.clients_frame()


def test_records_as_csv(result, tmp_path, capsys):
    code, out, err = command("export", str(result.run_dir), "-o", str(tmp_path / "tables"), "--csv", capsys=capsys)
    assert code == 0, err
    assert out.count("written to ") == 2
    with (tmp_path / "tables/rounds.csv").open(newline="") as file:
        rounds = list(csv.DictReader(file))
    assert [float(row["accuracy"]) for row in rounds] == [record["accuracy"] for record in result.rounds]
    with (tmp_path / "tables/clients.csv").open(newline="") as file:
        clients = list(csv.DictReader(file))
    assert len(clients) == 3 * 4
    assert [row["silo"] for row in clients[:4]] == list(result.silos)
    assert [float(row["offered_accuracy"]) for row in clients[-4:]] == result.clients[-1]["offered_accuracy"]
    (tmp_path / "file").write_text("")
    assert (
        "choose another folder"
        in command("export", str(result.run_dir), "-o", str(tmp_path / "file"), "--csv", capsys=capsys)[2]
    )


def test_no_cell_is_a_formula_and_a_comma_stays_in_its_cell(result, tmp_path):
    names = ['=HYPERLINK("http://x")', "a, b", "-2+3", "@x"]
    replace(result, silos=names).to_csv(tmp_path)
    with (tmp_path / "clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["silo"] for row in rows[:4]] == ["'" + names[0], "a, b", "'-2+3", "'@x"]
    assert [float(row["r2"] or 0) for row in rows] == [x or 0 for record in result.clients for x in record["r2"]]


def test_what_is_read_back_shows_the_same(result):
    again = feduca.load(result.run_dir)
    assert repr(again) == repr(result)
    assert again._repr_html_() == result._repr_html_()
    assert again.strip().svg == result.strip().svg


def test_the_same_run_with_a_task_of_ones_own_is_found_with_its_model(tmp_path):
    rng = np.random.default_rng(0)
    silos = {}
    for name in ("a", "b"):
        x = rng.normal(size=(60, 3)).astype(np.float32)
        y = (x[:, 0] > 0).astype(int)
        silos[name] = (x[:40], y[:40], x[40:], y[40:])
    task = feduca.own_task(silos, model="logistic")
    first = feduca.run("quickstart", rounds=2, task=task, out=tmp_path)
    seen = []
    second = feduca.run("quickstart", rounds=2, task=task, out=tmp_path, watch=lambda *_: seen.append(1))
    assert not seen
    np.testing.assert_array_equal(first.theta, second.theta)
    assert second.summary == first.summary
    feduca.run("quickstart", rounds=2, task=task, out=tmp_path, watch=lambda *_: seen.append(1), again=True)
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lambda tmp: feduca.export_models(None, tmp), r"the run directory is None: give its path"),
        (lambda tmp: feduca.load(3), r"the run directory is 3: give its path"),
        (lambda tmp: feduca.resume(None), r"the run directory is None: give its path"),
        (lambda tmp: feduca.own_task(np.zeros(3)), r"the silos are an array of shape \(3,\): give a mapping"),
        (lambda tmp: feduca.own_task({"a": (np.zeros((4, 2)), [0, 1, 0, 1]) * 2}, model=nn.Linear), r"model is Linear, which"),
        (lambda tmp: feduca.run(task=3), r"task is 3, which has no silos, .*: give what feduca\.own_task"),
        (lambda tmp: feduca.run(task={"north": (np.ones((900, 4)), np.ones(900))}), r"^task is a dict of 1, which has no silos"),
        (lambda tmp: feduca.run(task=NumpyTask), r"task is the class NumpyTask, which"),
        (lambda tmp: feduca.run("quickstart", "rounds=3"), r"settings is 'rounds=3': give a mapping from dotted keys"),
        (lambda tmp: feduca.run("quickstart", "rounds=3", task=NumpyTask()), r"settings is 'rounds=3': give a mapping"),
        (lambda tmp: feduca.run(3), r"the recipe is 3: give a name, a TOML file or a mapping"),
        (lambda tmp: feduca.run("quickstart", rounds=1, out=3), r"the folder for runs is 3: give its path"),
    ],
)  # fmt: skip
def test_mistakes_are_said_in_one_line(mistake, says, tmp_path):
    with pytest.raises((InputError, ConfigError), match=says) as caught:
        mistake(tmp_path)
    assert "\n" not in str(caught.value)
