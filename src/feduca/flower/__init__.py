"""FedUCA on Flower: silos on machines of their own. The only part of feduca that imports flwr (install `feduca[flower]`).

A deployment is an ordinary Flower app of two lines (`server_app(app)`, `client_app(app)`), where `app` says which recipe is run
and where each silo's data are; `feduca deploy init` writes one. Who already has a Flower app takes `FedUCAStrategy` and
`rational` instead and keeps everything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feduca.flower.app import App, RecipeApp
    from feduca.flower.client import client_app
    from feduca.flower.federation import FlowerFederation
    from feduca.flower.rational_client import rational
    from feduca.flower.server import server_app
    from feduca.flower.strategy import FedUCAStrategy

_HOME = {
    "App": "app",
    "RecipeApp": "app",
    "client_app": "client",
    "server_app": "server",
    "FlowerFederation": "federation",
    "FedUCAStrategy": "strategy",
    "rational": "rational_client",
}

__all__ = ["App", "FedUCAStrategy", "FlowerFederation", "RecipeApp", "client_app", "rational", "server_app"]


def __getattr__(name: str) -> Any:
    """Names on demand: `feduca deploy --help` must not pay for flwr."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"feduca.flower.{_HOME[name]}"), name)
