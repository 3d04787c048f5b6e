"""The command line in this process."""

from __future__ import annotations

import sys

import pytest

from feduca.cli import main as cli

FAST = ["--rounds", "2", "--set", "local.epochs=1", "--set", "utility.check_every=0"]  # what keeps a run short


def feduca(*args: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    argv, sys.argv = sys.argv, ["feduca", *args]
    try:
        cli.main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        sys.argv = argv
    out, err = capsys.readouterr()
    return code, out, err
