"""The Flower app of the three hospitals. Each gives the path of its own file in its silo.toml: `data = "/path/north.csv"`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from logistic import Logistic, read

from feduca.flower import client_app, server_app
from feduca.recipes.schema import load


class Hospitals:
    recipe = load(Path(__file__).with_name("recipe.toml"))

    def server(self, config: Mapping[str, Any]) -> Logistic:
        """The server has no patients; it may have a test file (`test` in server.toml)."""
        return Logistic(test=read(config["test"]) if config.get("test") else None)

    def silo(self, name: str, index: int, config: Mapping[str, Any]) -> Logistic:
        return Logistic(name, index, read(config["data"]))


app = Hospitals()
server = server_app(app)
client = client_app(app)
