"""Many SuperNodes on one machine: seconds and processor time of a round, memory of all processes, by number of silos.

    python benchmarks/flower_nodes.py [--nodes 3 10 20] [--rounds 5] [--out benchmarks/results/flower_nodes.json]
    python benchmarks/flower_nodes.py --table      # from the summary into docs/speed.md

A deployment as `feduca deploy up` starts it, with TLS and keys: the quickstart recipe, whose app imports torch. It runs once as
Flower does it, with a new Python for every message (`fresh = true` in silo.toml), and once with processes that are forked from
one that has imported everything. The first round of a run is left out. Memory is the largest sum of the processes' proportional
set sizes (PSS: a page that n processes share counts 1/n for each) that was seen, every two seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from feduca.flower import control, deploy  # noqa: E402
from feduca.flower import folder as folders  # noqa: E402
from feduca.flower.processes import descendants, free_ports  # noqa: E402
from feduca.recipes.schema import load  # noqa: E402
from tables import markdown, replace_tables  # noqa: E402

SUMMARY, DOCUMENT = ROOT / "benchmarks" / "results" / "flower_nodes.json", ROOT / "docs" / "speed.md"
WAYS = "fresh", "forked"
TICK = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 10, 20])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--table", action="store_true", help="measure nothing, write the table")
    options = parser.parse_args()
    if options.table:
        replace_tables(DOCUMENT, {"nodes": table(json.loads(SUMMARY.read_text(encoding="utf-8"))["rows"])})
        return
    rows = []
    for nodes in options.nodes:
        for way in options.ways:
            row = {"nodes": nodes, "way": way, **measured(nodes, way, options.rounds), "load": os.getloadavg()[0]}
            rows.append(row)
            print(json.dumps(row), flush=True)
            keep(options.out, rows)


def keep(path: Path | None, rows: list[dict[str, Any]]) -> None:
    """The rows, and what other calls have measured before."""
    if path is not None:
        old = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
        done = {(row["nodes"], row["way"]) for row in rows}
        result = {
            "command": " ".join(["python", "benchmarks/flower_nodes.py", *sys.argv[1:]]),
            "machine": {"platform": platform.platform(), "cpus": os.cpu_count()},
            "rows": [row for row in old if (row["nodes"], row["way"]) not in done] + rows,
        }
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def table(rows: list[dict[str, Any]]) -> str:
    """One line per number of silos, a new Python → forked; a dash where a way was not measured."""
    found = {(row["nodes"], row["way"]): row for row in rows}
    lines = []
    for nodes in sorted({nodes for nodes, _ in found}):
        pairs = [[found.get((nodes, way)) for way in WAYS] for _ in TOLD]
        cells = [[("-" if row is None else say(row)) for row in pair] for say, pair in zip(TOLD.values(), pairs)]
        lines.append([nodes, *map(" → ".join, cells)])
    return markdown(["silos", *TOLD], lines)


TOLD: dict[str, Callable[[dict[str, Any]], str]] = {
    "seconds a round": lambda row: f"{row['seconds_of_a_round']:.1f}",
    "processor seconds a message": lambda row: f"{row['cpu_seconds_of_a_round']['apps'] / row['nodes']:.2f}",
    "GiB": lambda row: f"{max(row['mebibytes'].values()) / 1024:.1f}",
    "seconds until all are connected": lambda row: f"{row['seconds_until_online']:.0f}",
}


def measured(nodes: int, way: str, rounds: int) -> dict[str, Any]:
    """One run over so many silos."""
    recipe = load("quickstart", {"task.clients": nodes, "rounds": rounds})
    with tempfile.TemporaryDirectory(prefix="feduca-bench-") as place, Memory() as memory:
        folder = Path(place) / "deployment"
        ports = free_ports(nodes + 2)
        where = {"address": f"127.0.0.1:{ports.pop()}", "control": ports.pop(), "ports": ports}
        settings = {"silos-timeout": 900.0, "round-timeout": 900.0}
        folders.init(folder, recipe, folders.silo_names(recipe, nodes), **where, settings=settings)
        for silo in (folder / "silos").iterdir():
            path = silo / "silo.toml"
            path.write_text(
                f"fresh = {str(way == 'fresh').lower()}\n{path.read_text(encoding='utf-8')}", encoding="utf-8"
            )
        began = time.monotonic()
        with deploy.standing(folder) as server:
            while list(control.registered(server).values()).count("online") < nodes:
                time.sleep(0.5)
            up = time.monotonic() - began
            time.sleep(5)
            idle, at = spent(), time.monotonic()
            time.sleep(10)
            idle_share = {kind: (cpu - idle[kind]) / (time.monotonic() - at) for kind, cpu in spent().items()}
            memory.note("idle")
            ends: list[tuple[float, dict[str, float]]] = []
            deploy.run(server, watch=lambda record, clients: ends.append((time.monotonic(), spent())))
            memory.note("run")
    spans = [after[0] - before[0] for before, after in itertools.pairwise(ends)]
    return {
        "seconds_until_online": up,
        "seconds_of_rounds": spans,
        "seconds_of_a_round": statistics.median(spans),
        "cpu_seconds_of_a_round": {k: (ends[-1][1][k] - ends[0][1][k]) / len(spans) for k in ends[0][1]},
        "cpu_share_idle": idle_share,
        "mebibytes": memory.most,
        "processes": memory.processes,
    }


def spent() -> dict[str, float]:
    """Processor seconds so far of the server's processes, of SuperNodes, and of what those have started (ended ones, too)."""
    total = {"server": 0.0, "supernodes": 0.0, "apps": 0.0}
    of = {os.getpid(): "self"}
    below = {"self": "server", "server": "server", "host": "supernodes", "supernodes": "apps", "apps": "apps"}
    for pid, _ in descendants(os.getpid()):  # parents come before their children
        with contextlib.suppress(OSError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            above = of.get(int(fields[1]), "self")
            of[pid] = below[above]
            if above == "self" and b"supernode" in command:
                of[pid] = "supernodes"
            elif above == "self" and b"feduca.flower.host" in command:
                of[pid] = "host"
            own, ended = (sum(map(int, fields[k : k + 2])) / TICK for k in (11, 13))
            total["supernodes" if of[pid] == "host" else of[pid]] += own
            total["apps" if of[pid] in ("host", "supernodes") else of[pid]] += ended
    return total


class Memory:
    """The most memory that all processes under this one have taken together, by phase; measured in a thread."""

    def __init__(self) -> None:
        self.most: dict[str, float] = {}
        self.processes: dict[str, int] = {}
        self._phase, self._over = "idle", threading.Event()
        self._now, self._count = 0.0, 0

    def __enter__(self) -> Memory:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def note(self, phase: str) -> None:
        """What was seen since the last note belongs to `phase`."""
        self.most[phase], self.processes[phase] = self._now, self._count
        self._now, self._count = 0.0, 0

    def _watch(self) -> None:
        while not self._over.wait(2.0):
            sizes = [size for pid, _ in descendants(os.getpid()) if (size := pss(pid))]
            self._now, self._count = max(self._now, sum(sizes)), max(self._count, len(sizes))


def pss(pid: int) -> float:
    """Mebibytes of one process."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    main()
