"""A summary's cell has a type: what a study keeps, what is committed and what neighbours add are its fields."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from feduca import api
from feduca.runs import standing
from feduca.studies.cell_summary import CellSummary
from feduca.studies.cells import cells
from feduca.studies.execute import STUDIES
from feduca.studies.summarise import beside, summarise
from feduca.studies.summary_file import read

FIELDS = {field.name for field in fields(CellSummary)}
RESULTS = Path(__file__).parents[3] / "results"


@pytest.mark.parametrize("study", [name for name in STUDIES if name != "splits"])
def test_committed_cells_have_the_fields_of_the_type(study):
    for cell in read(RESULTS / f"{study}.json").values():
        assert not cell.keys() - FIELDS
        assert {key: CellSummary.of(cell).to_json()[key] for key in cell} == cell


def test_what_a_study_keeps_of_a_run_are_fields_of_the_type():
    cell = cells(api.recipe("quickstart", {"task.test_share": 0.5}, rounds=1))[0]
    (found,) = beside([summarise(cell, [api.run(cell.recipe)])])
    assert not found.keys() - FIELDS
    assert CellSummary.of(found).seeds == [0]


def test_who_is_better_off_is_said_in_fields_of_the_type():
    assert standing.figures([[0.5, 0.7]], [[0.4, 0.8]]).keys() <= FIELDS
