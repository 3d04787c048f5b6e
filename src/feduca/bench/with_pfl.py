"""The same job in pfl-research's simulator (`pip install pfl`), with its own federated averaging."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from feduca.bench.job import Clock, Job, hand_in


def main(folder: str) -> None:
    from pfl.aggregate.simulate import SimulatedBackend  # type: ignore[import-not-found]
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams  # type: ignore[import-not-found]
    from pfl.callback.base import TrainingProcessCallback  # type: ignore[import-not-found]
    from pfl.data.federated_dataset import FederatedDataset  # type: ignore[import-not-found]
    from pfl.data.pytorch import PyTorchTensorDataset  # type: ignore[import-not-found]
    from pfl.data.sampling import get_user_sampler  # type: ignore[import-not-found]
    from pfl.hyperparam import NNTrainHyperParams  # type: ignore[import-not-found]
    from pfl.metrics import Weighted  # type: ignore[import-not-found]
    from pfl.model.pytorch import PyTorchModel  # type: ignore[import-not-found]

    job, generator, clock = Job(Path(folder)), torch.Generator().manual_seed(0), Clock()
    silos, spec = job.data, job.spec

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = job.model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(self(x), y)

        def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
            return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}

    def dataset(k: int) -> Any:  # shuffled once a round: its batches are the same in all epochs of a round
        order = torch.randperm(len(silos[k][1]), generator=generator)
        return PyTorchTensorDataset((silos[k][0][order], silos[k][1][order]), user_id=str(k))

    class Tick(TrainingProcessCallback):
        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
            from pfl.metrics import Metrics  # type: ignore[import-not-found]

            clock.tick()
            return False, Metrics()

    model = Model()
    wrapped = PyTorchModel(
        model=model,
        local_optimizer_create=functools.partial(torch.optim.SGD, weight_decay=spec["weight_decay"]),
        central_optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
    )
    everybody = FederatedDataset(dataset, get_user_sampler("minimize_reuse", list(range(len(silos)))))
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=spec["rounds"],
            evaluation_frequency=10**9,
            train_cohort_size=len(silos),
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=everybody, val_data=everybody),
        model=wrapped,
        model_train_params=NNTrainHyperParams(
            local_batch_size=spec["batch_size"],
            local_num_epochs=spec["epochs"],
            local_learning_rate=spec["lr"],
            local_max_grad_norm=spec["clip"] or None,
        ),
        callbacks=[Tick()],
        send_metrics_to_platform=False,
    )
    hand_in(job, "pfl", clock, model.net.state_dict())


if __name__ == "__main__":
    main(sys.argv[1])
