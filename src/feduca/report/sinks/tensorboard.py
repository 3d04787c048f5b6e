"""Rounds as TensorBoard scalars, and each silo's participation as one small curve."""

from __future__ import annotations

from pathlib import Path

from feduca.core.records import ClientRecord, RoundRecord
from feduca.report.sinks import missing, scalars


class TensorBoard:
    """Writes event files into `folder`; look at them with `tensorboard --logdir`."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise missing("tensorboard") from None
        self._writer = SummaryWriter(str(folder))

    def on_round(self, record: RoundRecord, clients: ClientRecord) -> None:
        for name, value in scalars(record):
            self._writer.add_scalar(name, value, record.round)
        for k, status in enumerate(clients.status):
            self._writer.add_scalar(f"silos/{k}/joined", float(status == "joined"), record.round)

    def close(self) -> None:
        self._writer.close()
