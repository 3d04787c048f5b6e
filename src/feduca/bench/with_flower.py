"""The job of `feduca bench cpu` in Flower's own simulation (`pip install "flwr[simulation]"`, on Ray), with its own FedAvg.

python -m feduca.bench.with_flower JOB [CPUS]      CPUS per simulated silo: as many run at once as fit
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

import torch

from feduca.bench.job import Clock, Job, hand_in


@functools.cache
def silo(folder: str, k: int) -> tuple[Job, torch.Tensor, torch.Tensor]:
    """Read once per worker: reading is nobody's round."""
    job = Job(Path(folder))
    return job, *job.silo(k)


def main(folder: str, cpus: int = 1) -> None:
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    job, clock, last = Job(Path(folder)), Clock(), {}
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        from feduca.bench.with_flower import silo  # the worker's own, with its cache

        torch.set_num_threads(cpus)
        k = int(context.node_config["partition-id"])
        job, x, y = silo(folder, k)
        model = job.model()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
        number = int(message.content["config"]["server-round"])  # type: ignore[index]
        job.epochs(model, x, y, torch.Generator().manual_seed(1000 * number + k))
        reply = RecordDict(
            {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
        )
        return Message(reply, reply_to=message)

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        def after(number: int, arrays: ArrayRecord) -> None:
            if number:
                clock.tick()
                last.update(arrays.to_torch_state_dict())
            else:
                clock.__init__()

        silos = job.spec["silos"]
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=silos, min_available_nodes=silos)
        strategy.start(grid, ArrayRecord(job.model().state_dict()), num_rounds=job.spec["rounds"], evaluate_fn=after)

    backend: Any = {"client_resources": {"num_cpus": cpus, "num_gpus": 0.0}, "init_args": {"num_cpus": os.cpu_count()}}
    run_simulation(server, client, num_supernodes=job.spec["silos"], backend_config=backend)
    hand_in(job, "flower", clock, last)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1)
