"""Messages that nobody can read end no training; output that nobody reads ends in no traceback."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import feduca
from feduca.cli.streams import Unheard

FAST = "run quickstart --rounds 3 --set local.epochs=1 --set utility.check_every=0"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_message_that_cannot_be_written_is_dropped() -> None:
    class Full:
        encoding = "utf-8"

        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "full")

        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "full")

    stream = Unheard(Full())
    print("one", file=stream)
    stream.flush()
    assert stream.encoding == "utf-8"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirected", "codes"),
    [
        ("2>/dev/full", {0}),
        ("2>&1 | head -1", {0}),  # of head
        ("> /dev/full", {1}),
    ],
)
def test_a_run_goes_on_when_its_progress_cannot_be_told(redirected: str, codes: set[int]) -> None:
    done = subprocess.run(
        f"{sys.executable} -m feduca {FAST} {redirected}", shell=True, capture_output=True, text=True, check=False
    )
    assert done.returncode in codes, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    (status,) = Path("runs").glob("*/*/status.json")
    assert json.loads(status.read_text())["state"] == "finished"
    if redirected == "> /dev/full":
        assert "cannot write the output: no space left; free some space, then repeat the command" in done.stderr


@pytest.mark.parametrize(("number", "says"), [(errno.EPIPE, ""), (errno.ENOSPC, "free some space")])
def test_output_that_cannot_be_written(
    number: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise OSError(number, "broken")

    monkeypatch.setattr("feduca.cli.catalogue.catalogue", broken)
    monkeypatch.setattr("feduca.cli.streams.give_up_stdout", lambda: None)
    code, _, err = feduca("list", "--all", capsys=capsys)
    assert code == 1
    assert (says in err) if says else not err
