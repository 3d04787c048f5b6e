"""Ctrl-C before anything runs, and what the system refuses, are nobody's bug: no traceback."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from feduca.cli import main as cli
from feduca.errors import FeducaError, printable

IN_THE_MIDST = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts the tests in the background has it ignored
from feduca import __main__ as start

class Interrupts:
    def find_spec(self, name, *_):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
start.main()
"""


def test_an_interruption_while_we_are_imported_says_nothing():
    done = subprocess.run([sys.executable, "-c", IN_THE_MIDST], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


def test_an_import_that_was_interrupted_counts_as_interrupted(capsys):
    with pytest.raises(ImportError) as caught:
        raise ImportError("numpy cannot be imported") from KeyboardInterrupt()
    assert cli._outside(caught.value) == 130
    assert capsys.readouterr().err == "feduca: interrupted\n"


def test_what_the_system_refuses_names_the_file(capsys):
    assert cli._outside(OSError(36, "File name too long", "x" * 5000)) == 2
    assert "xx: File name too long; give another path" in capsys.readouterr().err
    assert cli._outside(MemoryError()) == 1
    assert cli._outside(ValueError("a bug")) is None
    assert cli._outside(OSError("no file is named")) is None


def test_a_message_is_one_printable_line_of_bounded_length():
    assert str(FeducaError("a\x1b[31mb\r\nc\u202ed")) == "a\\x1b[31mb\\r\\nc\\u202ed"
    assert str(FeducaError("Größe ±1")) == "Größe ±1"
    said = str(FeducaError("start" + "x" * 10**6 + "end"))
    assert said.startswith("start")
    assert said.endswith("end")
    assert len(said) < 2100
    assert printable("plain") == "plain"
