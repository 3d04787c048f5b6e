"""An error's text stays at the silo."""

from __future__ import annotations

import json

import numpy as np
import pytest

from feduca.errors import DataError
from feduca.flower.failures import SPOKEN, SiloFailure, called, discreet, spoken

PATIENT = "Mrs Example, born 1950-01-01, in /srv/clinic/north.csv"


def logged(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_what_is_raised_has_a_class_and_a_line(tmp_path):
    for number, error in enumerate((ValueError(PATIENT), DataError(PATIENT), np.linalg.LinAlgError(PATIENT)), 1):
        with pytest.raises(SiloFailure) as caught, discreet(tmp_path, silo="north", round="3"):
            raise error
        assert str(caught.value) == f"{type(error).__name__}, line {number} of its log"
        line = logged(tmp_path)[-1]
        assert PATIENT in line["reason"]
        assert (line["silo"], line["round"], line["decision"]) == ("north", "3", "failed")


def test_a_class_of_the_apps_own_has_no_name_outside():
    assert called("builtins", "ValueError") == "ValueError"
    assert called("feduca.errors", "DataError") == "DataError"
    assert called("clinic.reading", "Mrs_Example") == "Exception"
    assert called("", "MrsExample") == "Exception"
    assert called("feduca.x", "Patient1950") == "Exception"
    forged = type("MrsExample", (Exception,), {"__module__": "feduca.errors"})  # built from what was in a cell
    assert called(forged.__module__, forged.__name__) == "Exception"


def test_an_error_that_cannot_be_printed_or_logged_tells_nothing_either(tmp_path):
    class Odd(Exception):
        def __str__(self):
            raise RuntimeError(PATIENT)

    with pytest.raises(SiloFailure, match=r"^Exception, line 1 of its log$"), discreet(tmp_path):
        raise Odd
    (tmp_path / "file").touch()  # no folder, so no log
    with pytest.raises(SiloFailure, match=r"^OSError, line 0 of its log$"), discreet(tmp_path / "file"):
        raise OSError(PATIENT)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (f"<class 'ValueError'>:<'{PATIENT}'>", "ValueError, line 1 of its log"),
        (f"<class 'clinic.MrsExample'>:<'{PATIENT}\n{PATIENT}'>", "Exception, line 1 of its log"),
        (PATIENT, "Exception, line 1 of its log"),
        ("", "Exception, line 1 of its log"),
        ("<class 'feduca.flower.failures.SiloFailure'>:<'OSError, line 7 of its log'>", "OSError, line 7 of its log"),
        (
            "<class 'feduca.flower.failures.SiloFailure'>:<'OSError, line 7 of its log: Mrs'>",
            "SiloFailure, line 1 of its log",
        ),
    ],
)
def test_whatever_an_app_says_is_cut_down_on_the_way_out(tmp_path, reason, said):
    assert spoken(reason, tmp_path, silo="north") == said
    assert SPOKEN.fullmatch(said)
