"""What a check of an installation or a deployment found: one line each, with a remedy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    what: str
    ok: bool
    seen: str
    remedy: str = ""
    optional: bool = False

    def advice(self) -> str:
        return f" -> {self.remedy}" if self.remedy and not self.ok else ""
