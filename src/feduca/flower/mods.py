"""Flower's mods around our own ClientApp: what clips or blurs a model, where there is one."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from feduca.errors import ConfigError

_MASKED = "adds masked models up in a server workflow of Flower's, and feduca's server weighs each silo's by itself"
_BOUND = "takes its bound from a strategy wrapper of Flower's, which a feduca deployment has not"
CANNOT = {
    "secagg_mod": f"{_MASKED}; leave it out",
    "secaggplus_mod": f"{_MASKED}; leave it out",
    "fixedclipping_mod": f"{_BOUND}; use LocalDpMod, or aggregation.clip in the recipe",
    "adaptiveclipping_mod": f"{_BOUND}; use LocalDpMod, or aggregation.clip in the recipe",
}


class _Declined(Exception):
    def __init__(self, reply: Message) -> None:
        self.reply = reply


def around_models(mod: Mod) -> Mod:
    """`mod` for silos that may decline: those send no model, which Flower's mods take for a mistake, so they are passed by."""
    name = getattr(mod, "__name__", type(mod).__name__)
    if name in CANNOT:
        raise ConfigError(f"mods: {name} {CANNOT[name]}")

    def around(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        def inner(message: Message, context: Context) -> Message:
            reply = call_next(message, context)
            if not reply.has_error() and not reply.content.array_records:
                raise _Declined(reply)
            return reply

        try:
            return mod(message, context, inner)
        except _Declined as declined:
            return declined.reply

    return around
