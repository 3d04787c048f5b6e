"""The command line in this process."""

from __future__ import annotations

import sys

import pytest

from feduca.cli import main as cli


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
