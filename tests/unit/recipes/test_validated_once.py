"""A recipe is validated when it is constructed, and not again on its way to a run."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

import feduca
from feduca.cli.main import app as feduca_app
from feduca.errors import ConfigError
from feduca.recipes import schema


@pytest.fixture
def validations(monkeypatch):
    seen: list[str] = []

    def counted(tree, source, validate=schema._validate):
        seen.append(source)
        return validate(tree, source)

    monkeypatch.setattr(schema, "_validate", counted)
    return seen


@pytest.mark.parametrize(
    "go",
    [
        lambda out: feduca.run("quickstart", rounds=1),
        lambda out: feduca.run("quickstart", {"task.clients": 3}, rounds=1, out=out),
        lambda out: next(feduca.iterate({"rounds": 1})),
        lambda out: CliRunner().invoke(feduca_app, ["run", "--rounds", "1", "--out", str(out)], catch_exceptions=False),
    ],
)
def test_once_from_the_file_to_the_run(go, validations, tmp_path):
    go(tmp_path)
    assert len(validations) == 1


def test_a_recipe_at_hand_is_validated_only_for_what_changes(validations, tmp_path):
    chosen = feduca.recipe({"rounds": 1, "task": {"clients": 3}})
    feduca.run(chosen, out=tmp_path)
    assert len(validations) == 1
    feduca.run(chosen, {"local.epochs": 1})
    assert len(validations) == 2


def test_a_table_as_one_run_must_make_sense_by_itself():
    table = {"offer": {"margin": 0.1}, "compare": [{"label": "a", "set": {"offer.kind": "least-concession"}}]}
    chosen = schema.load(table)
    with pytest.raises(ConfigError, match=r"recipe: offer.margin is 0\.1 with offer.kind 'global'"):
        chosen.single()
    table = {"participation": {"rule": "never", "quits": 1}, "compare": [{"label": "a"}]}
    with pytest.raises(ConfigError, match=r"recipe: participation.quits is 1"):
        schema.load(table).single()
    assert schema.load("quickstart").single().hash() == schema.load("quickstart").hash()
