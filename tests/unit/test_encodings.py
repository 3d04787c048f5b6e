"""Every text file and every program's output is read and written as UTF-8, whatever language the machine is set to."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2]
TEXT = {"read_text", "write_text", "open", "fdopen"}
NOT_TEXT = (
    "webbrowser.open",
    "os.open",
    "Image.open",
    "tarfile.open",
    "metadata.distribution(",
    "info.read_text",
    "opener.open",
)  # or always UTF-8


def without_encoding(source: str) -> Iterator[int]:
    """Lines that open text, or take a program's output as text, and do not say in which encoding."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        named = {word.arg: word.value for word in node.keywords}
        if "encoding" in named or None in named:
            continue
        called = ast.unparse(node.func)
        modes = [v.value for v in [*node.args[:2], named.get("mode")] if isinstance(v, ast.Constant)]
        binary = any(isinstance(mode, str) and "b" in mode and len(mode) <= 3 for mode in modes)
        opens = called.split(".")[-1] in TEXT and not called.startswith(NOT_TEXT) and not binary
        if opens or (called.startswith("subprocess.") and {"text", "universal_newlines"} & set(named)):
            yield node.lineno


@pytest.mark.parametrize("folder", ["src", "paper", "benchmarks", "examples"])
def test_every_text_file_names_its_encoding(folder):
    found = [
        f"{file.relative_to(HERE)}:{line}"
        for file in sorted((HERE / folder).rglob("*.py"))
        for line in without_encoding(file.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_the_walk_finds_what_it_looks_for():
    lines = (
        "open('a')",
        "Path('a').read_text()",
        "subprocess.run(['a'], text=True)",
        "open('a', 'rb')",
        "Path('a').open('r+b')",
        "open('a', encoding='utf-8')",
    )
    assert list(without_encoding("\n".join(lines))) == [1, 2, 3]


@pytest.mark.slow
def test_a_run_is_resumed_on_a_machine_without_utf8(tmp_path):
    """Umlauts in what a recipe holds; neither Python's UTF-8 mode nor its change of locale helps."""
    recipe = tmp_path / "groesse.toml"
    recipe.write_text(
        'extends = "quickstart"\nrounds = 2\n[task]\nmax_examples = 300\nclients = 3\n'
        '[[compare]]\nlabel = "größe ±1"\nset = { "mechanism.name" = "fedavg" }\n',
        encoding="utf-8",
    )
    ascii_only = os.environ | {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ascii_only.pop("PYTHONIOENCODING", None)

    def feduca(*words: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "feduca", *words]
        return subprocess.run(command, cwd=tmp_path, env=ascii_only, capture_output=True, timeout=120)

    compared = feduca("compare", recipe.name, "--seed", "1")
    assert compared.returncode == 0, compared.stderr
    (folder,) = (tmp_path / "runs").glob("*/*")
    again = feduca("resume", str(folder))
    assert again.returncode == 0, again.stderr
    assert b"Traceback" not in again.stderr + compared.stderr
