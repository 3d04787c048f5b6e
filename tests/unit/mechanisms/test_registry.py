"""A package of a user's own joins the registry; a broken one says so in one line and harms nobody else."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

import pytest

import feduca
from feduca.errors import ConfigError
from feduca.mechanisms import FedAvg, Registry, registry

GOOD = """
from feduca.mechanisms.fedavg import FedAvg
from dataclasses import dataclass

@dataclass(frozen=True)
class Halved(FedAvg):
    factor: float = 0.5
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install throw-away packages: a module and the metadata that pip would have written."""

    def one(package: str, code: str, entry_points: dict[str, str]) -> Registry:
        (tmp_path / f"{package}.py").write_text(code)
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = "\n".join(f"{name} = {value}" for name, value in entry_points.items())
        (info / "entry_points.txt").write_text(f"[feduca.mechanisms]\n{lines}\n")
        importlib.invalidate_caches()
        return Registry({"fedavg": FedAvg})

    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield one
    for name in set(sys.modules) - before:
        if name.startswith("plug"):
            del sys.modules[name]


def test_an_installed_package_joins(install):
    found = install("plug_good", GOOD, {"halved": "plug_good:Halved"})
    assert "plug_good" not in sys.modules
    assert list(found) == ["fedavg", "halved"]
    assert len(found) == 2
    assert "plug_good" not in sys.modules  # names are known without importing strangers' code
    assert found["halved"]().factor == 0.5
    with pytest.raises(KeyError):
        found["nobody"]


def test_an_installed_mechanism_runs_by_name_with_its_options_validated(install, monkeypatch):
    found = install("plug_run", GOOD, {"halved": "plug_run:Halved"})
    monkeypatch.setattr("feduca.mechanisms.registry", found)
    recipe = feduca.recipe({}, {"mechanism.name": "halved", "mechanism.factor": 0.25})
    assert recipe.mechanism == {"name": "halved", "beta": "uniform", "factor": 0.25}
    with pytest.raises(ConfigError, match=r"unknown key 'mechanism.facto'; did you mean 'factor'\?"):
        feduca.recipe({}, {"mechanism.name": "halved", "mechanism.facto": 1})


def test_a_broken_package_gives_one_line_when_it_is_named(install):
    found = install("plug_bad", "import a_module_that_is_not_there", {"bad": "plug_bad:Thing"})
    assert found["fedavg"] is FedAvg
    with pytest.raises(ConfigError) as caught:
        found["bad"]
    assert str(caught.value) == (
        "mechanism 'bad' of package plug_bad cannot be loaded (ModuleNotFoundError: No module named"
        " 'a_module_that_is_not_there'); repair or uninstall the package"
    )
    assert found.describe()["bad"].startswith("unusable: mechanism 'bad' of package plug_bad")


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("Thing = 3", "is 3, not a dataclass"),
        (
            "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Thing:\n    needs = None",
            "lacks schedule, local",
        ),
    ],
)
def test_what_is_not_a_mechanism_is_refused(install, code, complaint):
    found = install("plug_odd", code, {"odd": "plug_odd:Thing"})
    with pytest.raises(ConfigError, match=complaint):
        found["odd"]


def test_a_built_in_is_never_shadowed_silently(install):
    found = install("plug_shadow", GOOD, {"fedavg": "plug_shadow:Halved"})
    with pytest.warns(UserWarning, match=r"plug_shadow names its mechanism 'fedavg', which is feduca's own"):
        assert list(found) == ["fedavg"]
    assert found["fedavg"] is FedAvg


def test_two_packages_with_one_name_are_both_named(install):
    install("plug_a", GOOD, {"same": "plug_a:Halved"})
    found = install("plug_b", GOOD, {"same": "plug_b:Halved"})
    with pytest.raises(ConfigError, match=r"'same' is offered by plug_a and plug_b; uninstall one"):
        found["same"]


def test_register_refuses_a_name_that_is_taken():
    with pytest.raises(ConfigError, match="there is a mechanism 'fedavg' already"):
        registry.register("fedavg", FedAvg)


def test_the_example_is_short_and_runs(capsys):
    path = Path(__file__).parents[3] / "examples" / "custom_mechanism.py"
    assert len(path.read_text().splitlines()) < 60
    known = dict(registry._registered)
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        registry._registered.clear()
        registry._registered.update(known)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].strip() for line in printed] == [
        "temperature  0.1",
        "temperature  1.0",
        "temperature 10.0",
    ]
    assert float(printed[-1].split()[-1]) > float(printed[0].split()[-1])  # nearly equal weights learn more


@pytest.mark.parametrize(("decliners", "told"), [("all", [0, 1, 2, 3]), ("silent", [0, 2])])
def test_a_mechanism_sees_validation_losses_of_those_who_tell(decliners, told, monkeypatch):
    from dataclasses import dataclass

    import numpy as np

    import feduca
    from feduca.client import registry as parts
    from feduca.client.participation import Decision
    from feduca.mechanisms import registry as mechanisms

    seen = []

    @dataclass(frozen=True)
    class ByValidation(mechanisms["fedavg"]):
        """Looks at validation losses."""

        def allocate(self, state, round, seed):
            seen.append(round.validation_loss)
            return super().allocate(state, round, seed)

    @dataclass(frozen=True)
    class Even:
        """Silos at even places."""

        needs = feduca.Needs()

        def decide(self, situation):
            join = np.arange(len(situation.gamma)) % 2 == 0
            return Decision(join, ["even"] * len(join))

    monkeypatch.setattr(mechanisms, "_registered", {"by-validation": ByValidation})
    monkeypatch.setattr(parts.rules, "_registered", {"even": Even})
    chosen = {"mechanism.name": "by-validation", "participation.rule": "even", "reporting.decliners": decliners}
    result = feduca.run("quickstart", {**chosen, "task.clients": 4, "local.epochs": 1}, rounds=2)
    assert np.flatnonzero(np.isfinite(seen[-1])).tolist() == told
    assert result.clients[-1]["status"] == ["joined", "declined"] * 2
