"""The documentation builds without a warning, its code runs, its commands exist, and the examples work."""

from __future__ import annotations

import fnmatch
import glob
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from chromium import browser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OPTIONS = DOCS / "options.md"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
SOURCES = [*PAGES, *(p for p in (ROOT / "README.md",) if p.exists())]


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Fenced blocks of a page with the line each starts on."""
    found, text = [], page.read_text(encoding="utf-8")
    for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.S | re.M):
        found.append((text[: match.start(1)].count("\n"), match.group(1)))
    return found


def built(target: Path, scratch: Path) -> Path:
    """The documentation in a folder, warnings as errors."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", str(scratch), str(DOCS)]
    done = subprocess.run([*command, str(target)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.slow
def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    """Into build/docs, where it can be looked at afterwards."""
    target = built(ROOT / "build" / "docs", tmp_path)
    for page in PAGES:
        assert (target / page.relative_to(DOCS).with_suffix(".html")).is_file(), (
            f"{page} is not part of the documentation"
        )


LONG = {"api.html", "defaults.html"}  # docstrings, and options, one after another: looked up, not read


@pytest.mark.slow
def test_every_page_is_short_and_nothing_is_cut_off(tmp_path: Path) -> None:
    """At most eight screens of 1400 x 900; on a telephone, light and dark, no page scrolls sideways and every picture loads."""
    wrong = []
    with browser() as chromium:
        target = built(tmp_path / "html", tmp_path / "scratch")
        wide = chromium.new_page(viewport={"width": 1400, "height": 900})
        narrow = [chromium.new_page(viewport={"width": 390, "height": 844}, color_scheme=c) for c in ("light", "dark")]
        for page in PAGES:
            file = target / page.relative_to(DOCS).with_suffix(".html")
            wide.goto(file.as_uri())
            screens = wide.evaluate("document.documentElement.scrollHeight") / 900
            if screens > 8 and file.name not in LONG:
                wrong.append(f"{page.relative_to(DOCS)}: {screens:.1f} screens")
            broken = wide.evaluate("[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)")
            wrong += [f"{page.relative_to(DOCS)}: {source} does not load" for source in broken]
            for view in narrow:
                view.goto(file.as_uri())
                if (across := view.evaluate("document.documentElement.scrollWidth")) > 390:
                    wrong.append(f"{page.relative_to(DOCS)}: {across} pixels wide on a telephone")
    assert wrong == []


def words(page: Path) -> int:
    """What a reader reads: not tables that a command writes, code, addresses or marks."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"<!-- table.*?<!-- end -->|```.*?```|<!-- .*? -->", "", text, flags=re.DOTALL)
    return len(re.findall(r"\w[\w'-]*", re.sub(r"\]\([^)]*\)", "]", text)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_no_page_is_longer_than_a_reader_stays(page: Path) -> None:
    generated = page.parent.name == "paper"  # tables of claims and cells
    assert generated or words(page) <= 2500, f"{page.name} has {words(page)} words: split it"


def test_every_page_is_reached_from_the_navigation() -> None:
    """By a toctree, in one of the five groups (methods and the paper's tables by their own pages')."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert re.findall(r":caption: (.*)", index) == ["Start", "Do", "Evidence", "The paper", "Reference"]
    listed = {line for line in index.splitlines() if re.fullmatch(r"[a-z][\w/*-]*", line)}
    for page in DOCS.glob("*.md"):
        assert page.stem == "index" or any(fnmatch.fnmatch(page.stem, one) for one in listed), page.name


def with_code() -> list[Path]:
    return [page for page in SOURCES if blocks(page, "python")]


@pytest.mark.slow
@pytest.mark.parametrize("page", with_code(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a page's blocks, one after another, in one namespace and an empty folder. (```py marks part of a file.)"""
    from feduca.mechanisms import registry

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", {})  # a page's own mechanisms stay on the page
    names: dict[str, object] = {"__name__": "__page__"}
    for line, source in blocks(page, "python"):
        code = compile("\n" * line + source, str(page), "exec", dont_inherit=True)
        exec(code, names)


def test_there_is_code_to_run() -> None:
    assert {"start.md", "see.md", "your-data.md", "your-mechanism.md", "findings.md", "choosing.md"} <= {
        p.name for p in with_code()
    }


def commands() -> list[tuple[str, str]]:
    lines = [
        (str(page.relative_to(ROOT)), line.split("#")[0].strip())
        for page in SOURCES
        for _, block in blocks(page, "bash")
        for line in block.splitlines()
    ]
    return [(page, line) for page, line in lines if line.startswith("feduca ")]


@pytest.mark.parametrize(("page", "line"), commands())
def test_a_command_that_is_shown_exists(page: str, line: str) -> None:
    from feduca.cli.main import app

    root = typer.main.get_command(app)
    here, words = root, line.split()[1:]
    while words and hasattr(here, "commands") and words[0] in here.commands:  # type: ignore[attr-defined]
        here = here.commands[words.pop(0)]  # type: ignore[attr-defined]
    assert here is not root or words[:1] in ([], ["--version"], ["--help"]), f"{page}: no command in {line!r}"
    known = {option for parameter in here.params for option in parameter.opts} | {"--help"}
    for word in words:
        if re.match(r"--?[a-z]", word):
            assert word.split("=")[0] in known, f"{page}: {line!r} uses {word}"


def test_the_recipes_of_the_page_run_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/recipes.md: its files (named in their first line), then its commands, in an empty folder."""
    from feduca.cli import main as cli
    from feduca.mechanisms import registry

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    page, shown = DOCS / "recipes.md", []
    for language in ("toml", "py"):
        for _, text in blocks(page, language):
            name = text.splitlines()[0].removeprefix("# ")
            (tmp_path / name).write_text(text)
    for where, line in commands():
        if where == "docs/recipes.md":
            words = [word for one in shlex.split(line) for word in (sorted(glob.glob(one)) or [one])]
            monkeypatch.setattr(sys, "argv", words)
            with pytest.raises(SystemExit) as end:
                cli.main()
            assert end.value.code == 0, line
            shown.append(line)
    assert len(shown) == 7
    mine = json.loads((tmp_path / "results/mine.json").read_text())
    assert [tuple(cell["labels"].values()) for cell in mine] == [
        (method, offer) for method in ("FedAvg", "FedUCA") for offer in ("global", "least concession")
    ]
    assert all(cell["rounds"] == 10 and cell["seeds"] == [0, 1] for cell in mine)
    own = json.loads((tmp_path / "results/by-size.json").read_text())
    assert [(cell["mechanism"], cell["seeds"]) for cell in own] == [
        ("fedavg", [0, 1, 2]),
        ("by-size", [0, 1, 2]),
        ("by-size", [0, 1, 2]),
    ]
    assert len(list((tmp_path / "runs/mine").glob("*-s*"))) == 8
    assert (tmp_path / "mine.html").is_file()


def test_the_page_of_options_names_every_entry_there_is() -> None:
    from feduca.recipes.schema import Recipe

    tables: dict[str, set[str]] = {"": set()}
    for table in re.findall(r"(?:^\|.*\n)+", OPTIONS.read_text(encoding="utf-8"), re.M):
        head, _, *rows = table.splitlines()
        entries = {word for row in rows for word in re.findall(r"`([a-z0-9_]+)`", row.split("|")[1])}
        for name in re.findall(r"\[([a-z]+)\]", head) or [""]:
            tables.setdefault(name, set()).update(entries)
    for name, field in Recipe.model_fields.items():
        keys = getattr(field.annotation, "model_fields", {"name": None} if name == "mechanism" else None)
        if keys is None:
            assert name in tables[""], f"docs/options.md lacks {name}"
        else:
            assert set(keys) <= tables[name], f"docs/options.md lacks {set(keys) - tables[name]} of [{name}]"


def test_the_page_of_defaults_is_what_the_schema_says() -> None:
    """Else: python docs/defaults.py."""
    text = (DOCS / "defaults.md").read_text(encoding="utf-8")
    assert runpy.run_path(str(DOCS / "defaults.py"))["page"]() == text
    rows = {row.split("|")[1].strip() + row.split("|")[2].strip() for row in text.splitlines() if row.startswith("| `")}
    assert {"`rounds``30`", "`eta_s``1.0`", "`split_seed`unset: the run's seed"} <= rows  # by hand
    assert "| `trim` | `0.2` | a number, at least 0, below 0.5 |" in text


def named(head: str) -> dict[str, str]:
    """Rows by name of the table of docs/options.md whose first column is called `head`."""
    text = OPTIONS.read_text(encoding="utf-8")
    (table,) = re.findall(rf"^\| `{head}` \|.*\n\|-.*\n((?:\|.*\n)+)", text, re.M)
    return {row.split("`")[1]: row for row in table.splitlines()}


def test_the_page_of_options_names_what_the_code_has() -> None:
    from feduca.cli.catalogue import catalogue
    from feduca.tasks import data as datasets
    from feduca.tasks import models, task
    from feduca.tasks.engines import optimisers
    from feduca.tasks.models import resnet

    entries, page = catalogue(), OPTIONS.read_text(encoding="utf-8")
    assert list(named("data")) == list(entries["data sets"]) == list(datasets.LOADERS) == list(datasets.FILES)
    assert list(named("model")) == list(entries["models"]) == list(models.NAMES)
    assert list(named("optimiser")) == list(entries["optimisers"]) == list(optimisers.OPTIMISERS)
    assert set(entries["engines"]) == set(task.ENGINES)
    assert list(entries["precisions"]) == list(task.PRECISIONS)
    for kind, key in (("engines", "kind"), ("precisions", "precision")):
        (item,) = re.findall(rf"^- `{key}`: ((?:.*\n)+?)(?=- )", page, re.M)
        assert all(f"`{name}`" in item for name in entries[kind])
    for name, row in named("data").items():  # the same folders and addresses as the code's own
        wanted = re.findall(r"https?://[^\s;]+|DIR/[\w-]+|[\w-]+\.tar\.gz", datasets.FILES[name])
        assert all(word in row or (name == "cifar100" and word in page) for word in wanted), name
    assert all(f"`{file}`" in page for file in resnet.FILES)
    assert all(("`hidden`" in row) == (name in models.LAYERED) for name, row in named("model").items())


def test_recipes_and_registries_offer_the_same_choices() -> None:
    from typing import get_args

    from feduca.recipes.schema import EngineTable, LocalTable
    from feduca.tasks import task
    from feduca.tasks.engines import optimisers

    for table, key, names in (
        (LocalTable, "optimiser", optimisers.OPTIMISERS),
        (EngineTable, "kind", task.ENGINES),
        (EngineTable, "precision", task.PRECISIONS),
    ):
        assert set(get_args(table.model_fields[key].annotation)) == set(names)
    assert task.Settings().chunk == 10_000  # what docs/options.md and `feduca show` say of engine.chunk left unset
    assert "10 000 unless set" in OPTIONS.read_text(encoding="utf-8")
    assert EngineTable.model_fields["chunk"].description == "10000 examples at a time"


def test_the_classes_of_the_quickstart_are_as_the_page_says() -> None:
    from feduca.recipes import build as experiment
    from feduca.recipes import schema as config

    task = experiment.make_task(config.load("quickstart"), 0)
    *most, last = task.about["classes_per_silo"]  # type: ignore[attr-defined]
    said = " ".join(OPTIONS.read_text(encoding="utf-8").split())
    assert f"ten silos train with {', '.join(map(str, most))} and {last} classes" in said


def test_pictures_are_there_small_and_described() -> None:
    for page in SOURCES:
        for words, target in re.findall(r"!\[(.*?)\]\((.*?)\)", page.read_text(encoding="utf-8")):
            if target.startswith(("http:", "https:")):
                continue
            picture = page.parent / target
            assert picture.is_file(), f"{page}: {target}"
            assert picture.stat().st_size < 150_000, target
            assert len(words) > 10, f"{page}: {target} needs a description"


def test_no_page_names_a_machine() -> None:
    for page in SOURCES:
        assert not re.search(r"/(work|root|home|tmp)/", page.read_text(encoding="utf-8")), page


def script(path: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(ROOT / path), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_newcomers_walk(tmp_path, monkeypatch, capsys) -> None:
    """docs/start.md from top to bottom in an empty folder: the demo, a report, three silos in memory, and who is better off."""
    from feduca.cli import main as cli
    from feduca.mechanisms import registry

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", {})
    page, names, said = DOCS / "start.md", {"__name__": "__page__"}, []
    assert "(docs/start.md)" in (ROOT / "README.md").read_text(encoding="utf-8")  # how one comes here
    assert re.search(r"^demo: install\n\t\$\(BIN\)/feduca compare\n", (ROOT / "Makefile").read_text(), re.M)
    started = time.monotonic()
    steps = sorted([(line, "python", code) for line, code in blocks(page, "python")]
                   + [(line, "bash", code) for line, code in blocks(page, "bash")])  # fmt: skip
    for line, language, code in steps:
        if language == "python":
            exec(compile("\n" * line + code, str(page), "exec", dont_inherit=True), names)
        else:
            for command in filter(None, (one.split("#")[0].strip() for one in code.splitlines())):
                if command != "make demo":  # which installs, then is `feduca compare`
                    words = [word for one in shlex.split(command) for word in (sorted(glob.glob(one)) or [one])]
                    assert words[0] == "feduca"
                    monkeypatch.setattr(sys, "argv", words)
                    with pytest.raises(SystemExit) as end:
                        cli.main()
                    assert end.value.code == 0, command
        said.append(capsys.readouterr().out)
    assert time.monotonic() - started < 600
    told = "".join(said)
    for row in json.loads((ROOT / "results/tailored.json").read_text(encoding="utf-8")):
        assert f"\n{row['method']}  " in told  # the demo's table
    verdicts = dict(re.findall(r"^(north|south|east): .*: (better off|not better off)$", told, re.M))
    assert len(verdicts) == 3
    assert list(verdicts.values()).count("better off") >= 2
    assert re.search(r"surely better off: \d+% of the silos, surely worse off: 0%", told)
    for report, about in (("report.html", "silo-0"), ("mine.html", "north")):
        text = (tmp_path / report).read_text(encoding="utf-8")
        assert about in text
        assert "http://" not in re.sub(r"http://www\.w3\.org\S*", "", text[:2000])  # opens without a network


@pytest.mark.slow
def test_the_quickstart_runs(tmp_path: Path) -> None:
    said = script("examples/quickstart.py", tmp_path)
    assert said.count("accuracy") == 3
    assert (tmp_path / "report.html").stat().st_size > 500_000


@pytest.mark.slow
def test_your_own_data_runs(tmp_path: Path) -> None:
    said = script("examples/your_own_data/run.py", tmp_path)
    assert all(f"{clinic}: " in said for clinic in ("north", "south", "east", "west"))
    card = json.loads((tmp_path / "models" / "card.json").read_text())
    assert card["silos"] == ["east", "north", "south", "west"]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Jupyter's own
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(ROOT / "examples" / "quickstart.ipynb", as_version=4)
    nbformat.validate(notebook)
    committed = [shown(cell) for cell in notebook.cells]
    pictures = [data["image/svg+xml"] for data in committed if "image/svg+xml" in data]
    assert len(pictures) == 3
    assert all("http" not in picture.replace("http://www.w3.org/2000/svg", "") for picture in pictures)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    again = [shown(cell) for cell in notebook.cells]
    assert [set(data) for data in again] == [set(data) for data in committed]  # figures may differ in their last digits
    assert any("stay in" in data.get("text/html", "") for data in again)


def shown(cell: dict) -> dict:
    """What a notebook's cell shows, by kind."""
    return {kind: words for out in cell.get("outputs", []) for kind, words in out.get("data", {}).items()}


def test_a_method_of_ones_own_goes_into_a_table_as_the_page_says(tmp_path, monkeypatch, capsys) -> None:
    """docs/your-mechanism.md: a copy of table1, the entry that stands there, its summary under the file's name, its figures."""
    from feduca.cli import main as cli
    from feduca.mechanisms import registry
    from paper import figures
    from paper.page import read

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    page = DOCS / "your-mechanism.md"

    def feduca(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["feduca", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 0
        return capsys.readouterr().out

    ((_, code), *_), ((_, entry),) = blocks(page, "python"), blocks(page, "toml")
    Path("my_method.py").write_text(code.split("result = ")[0])
    assert "feduca show table1 > mine.toml" in page.read_text()
    copy = feduca("show", "table1")
    assert copy.count("\n[smoke]\n") == 1
    Path("mine.toml").write_text(copy.replace("\n[smoke]\n", f"\n{entry}\n[smoke]\n"))
    chosen = ["--only", "data=fmnist", "--only", "split=0.5,1.0", "--only", "method=fedavg|half-uniform"]
    feduca("reproduce", "mine.toml", "--import", "my_method.py", "--smoke", *chosen)
    feduca("reproduce", "table1", "--smoke", *chosen[:-1], "method=fedavg")  # the same run, found again
    assert len(list(Path("runs/smoke/paper").iterdir())) == 2
    cells = json.loads(Path("runs/smoke/results/mine.json").read_text())
    assert [(cell["method"], cell["rule"], cell["memory"]) for cell in cells] == [
        ("fedavg", "accuracy", "model"),
        ("half-uniform", "accuracy", "model"),
    ]
    Path("drawn").mkdir()
    Path("drawn/table1.json").write_text(json.dumps(cells))
    assert "half-uniform" in figures.write(read(Path("drawn")), "drawn/figures")[0].read_text()
