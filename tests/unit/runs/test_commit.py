"""A run says which commit of the library ran, never one of the repository it was used in."""

from __future__ import annotations

import json
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from feduca.runs import commit as commits


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's repository, committed."""
    for key in ("FEDUCA_COMMIT", "GIT_DIR"):
        monkeypatch.delenv(key, raising=False)
    for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "x")
    commits._checkout.cache_clear()
    return tmp_path


def committed(root: Path, project: str, package: str) -> str:
    folder = root / package
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (root / "pyproject.toml").write_text(f'[project]\nname = "{project}"\n')
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run(
            ["git", "-c", "user.name=x", "-c", "user.email=x", "-c", "commit.gpgsign=false", *words],
            cwd=root,
            check=True,
        )
    return subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_of_a_checkout(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = committed(repository, "feduca", "src/feduca")
    monkeypatch.setenv("GIT_DIR", str(repository / "elsewhere"))  # as in a hook of some other repository
    assert commits._checkout(repository / "src" / "feduca") == head
    commits._checkout.cache_clear()
    (repository / "src" / "feduca" / "__init__.py").write_text("changed")
    assert commits._checkout(repository / "src" / "feduca") == f"{head}+"


@pytest.mark.parametrize(
    ("project", "package"),
    [("thesis", "src/feduca"), ("thesis", ".venv/lib/python3/site-packages/feduca"), ("feduca", "vendor/src/feduca")],
)
def test_not_of_the_repository_it_is_used_in(repository: Path, project: str, package: str) -> None:
    committed(repository, project, package)
    assert commits._checkout(repository / package) is None


def test_an_installation_says_what_pip_noted(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        told = json.dumps({"url": "https://x", "vcs_info": {"vcs": "git", "commit_id": "0123456789abcdef"}})

        def read_text(self, name: str) -> str | None:
            return self.told

    monkeypatch.setattr(metadata, "distribution", lambda name: Installed())
    monkeypatch.setattr(commits, "_checkout", lambda package: None)
    assert commits.commit() == "0123456789ab"
    monkeypatch.setattr(Installed, "told", None)  # a wheel
    assert commits.commit() is None
