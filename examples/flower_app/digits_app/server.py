"""The server: one line differs from an app that uses FedAvg."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits_app import model
from digits_app.client import RECIPE
from feduca.flower import FedUCAStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    nodes = int(config["min-nodes"])
    strategy = FedUCAStrategy(RECIPE, min_available_nodes=nodes, patience=3)
    if config["strategy"] == "fedavg":
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    strategy.start(grid=grid, initial_arrays=model.initial(), num_rounds=int(config["num-server-rounds"]))
