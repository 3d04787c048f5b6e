"""What FedUCA costs on top of Flower: rounds of stock FedAvg and of our strategy, in turn, on the same SuperLink and SuperNodes.

    python benchmarks/flower.py [--rounds 4] [--times 3] [--out benchmarks/results/flower.json]

Three authenticated SuperNodes, TLS, the example app of examples/flower_app (softmax regression on digits, the same model and
local training for both). A round is what Flower's own loop makes it: messages out, answers in, aggregated. The first round of
a run is left out, because its messages wait for the app to be fetched.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from feduca.flower import approval, control, deploy  # noqa: E402
from feduca.flower import folder as folders  # noqa: E402
from feduca.flower.processes import free_ports  # noqa: E402
from feduca.recipes.schema import load  # noqa: E402

TIMED = """
import json, time
from pathlib import Path
from digits_app import model
from digits_app.client import RECIPE
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from feduca.flower import FedUCAStrategy

app = ServerApp()


def timed(kind):
    class Timed(kind):
        def configure_train(self, *args, **kwargs):
            self.times = getattr(self, "times", [])
            self.started = time.perf_counter()
            return super().configure_train(*args, **kwargs)

        def aggregate_train(self, *args, **kwargs):
            done = super().aggregate_train(*args, **kwargs)
            self.times.append(time.perf_counter() - self.started)
            return done

    return Timed


@app.main()
def main(grid, context):
    config = context.run_config
    if config["strategy"] == "fedavg":
        strategy = timed(FedAvg)(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    else:
        strategy = timed(FedUCAStrategy)(RECIPE, min_available_nodes=3)
    strategy.start(grid=grid, initial_arrays=model.initial(), num_rounds=int(config["num-server-rounds"]))
    Path(config["result"]).write_text(json.dumps(strategy.times))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {"fedavg": [], "feduca": []}
    with tempfile.TemporaryDirectory(prefix="feduca-bench-") as place:
        folder = Path(place) / "deployment"
        names = [f"silo-{k}" for k in range(3)]
        ports = free_ports(5)
        config = {name: {"partition-id": k, "num-partitions": 3} for k, name in enumerate(names)}
        address = f"127.0.0.1:{ports.pop()}"
        control_port = ports.pop()
        where = {"address": address, "ports": ports, "control": control_port}
        folders.init(folder, load("quickstart"), names, **where, config=config)
        app = folder / "server" / "timed"
        shutil.copytree(ROOT / "examples" / "flower_app", app)
        (app / "digits_app" / "server.py").write_text(TIMED, encoding="utf-8")
        settings = (app / "pyproject.toml").read_text(encoding="utf-8")
        (app / "pyproject.toml").write_text(settings + '\nresult = ""\n', encoding="utf-8")
        for name in names:
            approval.approve(folder / "silos" / name, approval.bundle(app))
        with deploy.standing(folder) as server:
            for turn in range(options.times):
                for strategy in ("fedavg", "feduca") if turn % 2 == 0 else ("feduca", "fedavg"):
                    times = one_run(server, strategy, options.rounds, Path(place) / f"{strategy}-{turn}.json")
                    seconds[strategy] += times[1:]
                    print(strategy, [round(t, 2) for t in times], flush=True)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    result = {
        "command": " ".join(["python", "benchmarks/flower.py", *sys.argv[1:]]),
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg()[0]},
        "seconds": seconds,
        "median": medians,
        "ratio": medians["feduca"] / medians["fedavg"],
        "ratio_of_means": statistics.mean(seconds["feduca"]) / statistics.mean(seconds["fedavg"]),
    }
    print(json.dumps({key: result[key] for key in ("median", "ratio", "ratio_of_means")}))
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def one_run(server: folders.ServerFolder, strategy: str, rounds: int, result: Path) -> list[float]:
    """Seconds of each round."""
    words = {"strategy": strategy, "num-server-rounds": rounds, "result": str(result)}
    control.start(server, server.path / "timed", words)
    deadline = time.monotonic() + 300
    while not result.is_file() or not result.read_text(encoding="utf-8"):
        if time.monotonic() > deadline:
            raise SystemExit(f"no result within 300 s; see {server.path}/superlink.log")
        time.sleep(0.5)
    return json.loads(result.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
