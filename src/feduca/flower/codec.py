"""Between our types and Flower's records.

Three kinds of message: the first exchange (`hello`: who are you?), a round's announcement, and the report that answers it. Models
travel as one array; every other number as JSON text, whose decimal digits give back the same float64 to the bit. A silo that
declines says so and sends no array. Whatever arrives is measured before it is believed: protocol, run, round, name, size, type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from feduca.core.messages import NAMES
from feduca.core.share import Share
from feduca.errors import InputError, RunError
from feduca.federation.replay import pack
from feduca.flower.vectors import numbers
from feduca.trust.gate import Malformed, parse
from feduca.types import JOINED, Announcements, LocalSpec, Reports

PROTOCOL = 1
LARGEST_TEXT = 1_000_000  # characters of a report's words and numbers; a real one has about a thousand
KNOWN = {"optimiser": ["sgd", "adam"], "objective": ["mean", "propfair"]}
WHOLE = {"epochs": 10**6, "batch_size": 10**9}  # the largest of each, as in a recipe
LARGEST = 1e30  # of any other number of local training
LARGEST_MODEL = 2**31 - 2**20  # bytes; Flower moves an object in one protobuf message


class ProtocolError(RunError):
    """A message that is not what it should be; the text says what is wrong with it."""


@dataclass(frozen=True)
class Hello:
    """What a silo says of itself when it is first met."""

    silo: str
    examples: int
    size: int  # entries of theta
    recipe: str  # hash: both sides must run the same
    feduca: str
    flwr: str
    clock: float  # seconds since 1970 where the silo is


def host(theta: Any) -> np.ndarray:
    """A model as a numpy array in this process's memory."""
    return theta.detach().cpu().numpy() if hasattr(theta, "detach") else np.asarray(theta)


def wrapped(theta: np.ndarray) -> ArrayRecord:
    """A model as the one array of a record."""
    return ArrayRecord({"theta": Array(theta)})


# ---------------------------------------------------------------------------------------------------------------------


def hello_request(run: str) -> RecordDict:
    return RecordDict({"hello": ConfigRecord({"protocol": PROTOCOL, "run": run})})


def hello_reply(hello: Hello) -> RecordDict:
    return RecordDict({"hello": ConfigRecord({"protocol": PROTOCOL, **asdict(hello)})})


def read_hello(content: RecordDict) -> Hello:
    words = _config(content, "hello")
    try:
        hello = Hello(**{name: words[name] for name in Hello.__dataclass_fields__})
    except KeyError as error:
        raise ProtocolError(f"the silo's first answer lacks {error}") from None
    if not isinstance(hello.silo, str) or not 0 < len(hello.silo) <= 200:
        raise ProtocolError(f"a silo's name is a short text, not {str(hello.silo)[:60]!r}")
    if not isinstance(hello.examples, int) or hello.examples < 1:
        raise ProtocolError(f"silo {hello.silo} says it has {hello.examples!r} examples; it needs at least 1")
    return hello


def announcement(asked: Announcements, silo: str) -> RecordDict:
    """What one silo is told: `asked` for one client."""
    theta = host(asked.theta)
    if theta.nbytes > LARGEST_MODEL:
        raise ProtocolError(f"a model of {theta.nbytes} bytes does not fit into one message (at most {LARGEST_MODEL})")
    words = {
        "protocol": PROTOCOL,
        "run": asked.run,
        "round": asked.round,
        "silo": silo,
        "client": int(asked.clients[0]),
        "alpha_formed": float(asked.alpha_formed[0]),
        "alpha_announced": float(asked.alpha_announced[0]),
        "s": [float(x) for x in asked.s],
        "local": json.dumps(asdict(asked.local)),
    }
    content = RecordDict({"theta": wrapped(theta), "announcement": ConfigRecord(words)})
    if asked.control is not None:
        content["control"] = wrapped(host(asked.control))
    return content


def read_announcement(content: RecordDict, silo: str, size: int) -> Announcements:
    """The silo's side; `silo` and `size` are its own name and the size of its own model."""
    words = _config(content, "announcement")
    try:
        if words["silo"] != silo:
            raise ProtocolError(f"this message is for {words['silo']!r}, and here is {silo!r}; check the silo's name")
        theta = _model(content, size)
        return Announcements(
            run=str(words["run"]),
            round=int(words["round"]),
            clients=np.array([int(words["client"])]),
            theta=theta,
            alpha_formed=np.array([float(words["alpha_formed"])]),
            alpha_announced=np.array([float(words["alpha_announced"])]),
            s=np.array(words["s"], dtype=float),
            local=_local(words["local"]),
            control=_model(content, size, "control") if "control" in content else None,
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the announcement is damaged: {type(error).__name__} {error}") from None


def _local(text: Any) -> LocalSpec:
    """The local training that a server asks for. A silo's privacy is reckoned from it, so nothing of it is taken on trust."""
    spec = LocalSpec(**json.loads(text))
    for name, value in asdict(spec).items():
        if name in KNOWN:
            fine, wants = value in KNOWN[name], f"one of {', '.join(KNOWN[name])}"
        elif name == "augment":
            fine, wants = isinstance(value, bool), "true or false"
        elif name in WHOLE:
            fine = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= WHOLE[name]
            wants = f"a whole number from 1 to {WHOLE[name]}"
        else:
            fine = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST
            wants = f"a number from 0 to {LARGEST:g}"
        if not fine:
            raise ProtocolError(f"the announcement asks for local.{name} = {str(value)[:60]!r}; it has to be {wants}")
    return spec


def report(
    answer: Reports,
    run: str,
    silo: str,
    *,
    leave: bool = False,
    erase: bool = False,
    share: Share | None = None,
    key: str | None = None,
) -> RecordDict:
    """What one silo answers. Only who joins sends a model, and of that only what is shared; or a `key` for its masks."""
    arrays, words = pack(answer)
    theta, client = arrays.pop("theta"), arrays.pop("clients")
    body = {"words": words, "numbers": {name: value.tolist() for name, value in arrays.items()}}
    head = {
        "protocol": PROTOCOL,
        "run": run,
        "round": answer.round,
        "silo": silo,
        "client": int(client[0]),
        "status": answer.status[0],
        "leave": leave,
        "erase": erase,
        "body": json.dumps(body),
    }
    content = RecordDict({"report": ConfigRecord(head)})
    if answer.status[0] == JOINED and key is not None:
        content["statement"] = ConfigRecord({"protocol": PROTOCOL, "text": key})
    elif answer.status[0] == JOINED:
        content["theta"] = wrapped(theta[0] if share is None else theta[0][share.mask])
    return content


def read_report(
    content: RecordDict, asked: Announcements, silo: str, curve: int, share: Share | None = None, masked: bool = False
) -> tuple[Reports, bool]:
    """The report, and whether the silo leaves for good; ProtocolError unless it is exactly what was asked for.

    `asked` is what this one silo was told, `curve` how many numbers describe a utility curve, `share` what of a model travels;
    `masked` says that none does (secure_server.py). Here a message is taken apart; what it says is judged by the gate.
    """
    words = _config(content, "report")
    if words.get("silo") != silo:
        raise ProtocolError(f"the report is for silo {words.get('silo')!r}, asked was {silo!r}")
    text = words.get("body", "")
    if not isinstance(text, str) or len(text) > LARGEST_TEXT:
        raise ProtocolError(f"the report's text has {len(str(text))} characters, at most {LARGEST_TEXT} are read")
    theta = None
    if masked:
        if "theta" in content:
            raise ProtocolError("it sends its model in the clear, and the run is one with secure aggregation")
        theta = host(asked.theta) if words.get("status") == JOINED else None
    elif "theta" in content:
        theta = _model(content, len(asked.theta) if share is None else int(share.mask.sum()))
        theta = theta if share is None else _filled(theta, host(asked.theta), share)
    if theta is not None and not np.isfinite(theta).all():
        raise ProtocolError("the model has entries that are not finite numbers")
    try:
        body = json.loads(text)
        said, numbers = body["words"], {name: _one(name, value) for name, value in body["numbers"].items()}
        again, reason = (said["round"], said["status"]), _one("reason", said["reason"])
        gamma, zeta = numbers.pop("gamma"), numbers.pop("zeta")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"the report is damaged: {type(error).__name__} {error}") from None
    if missing := set(NAMES) - numbers.keys():
        raise ProtocolError(f"the report lacks the number {min(missing)!r}")
    raw = {name: words.get(name) for name in ("run", "round", "client", "status")}
    raw |= {"reason": reason, "theta": theta, "gamma": gamma, "zeta": zeta, "measurements": numbers}
    try:
        report = parse(raw, asked, curve)
    except Malformed as error:
        raise ProtocolError(str(error)) from None
    if again != (report.round, [report.status[0]]):
        raise ProtocolError("the report contradicts itself about its round or status")
    return report, bool(words.get("leave", False))


def _filled(theta: np.ndarray, announced: np.ndarray, share: Share) -> np.ndarray:
    """What a silo sent of its model, in the places where it belongs; the rest as announced."""
    whole = announced.astype(theta.dtype)
    whole[share.mask] = theta
    return whole


def wants_erasure(content: RecordDict) -> bool:
    """Whether a silo that leaves asks that nothing of what it sent is kept; of a report that was read already."""
    return bool(_config(content, "report").get("erase", False))


def _one(name: str, value: object) -> Any:
    """The one entry of a list: what travels is a report of many, with one silo in it."""
    if not isinstance(value, list) or len(value) != 1:
        raise ProtocolError(f"{name[:60]!r} is not one number, row or word of one silo")
    return value[0]


def _config(content: RecordDict, name: str) -> Mapping[str, Any]:
    if name not in content or not isinstance(content[name], ConfigRecord):
        raise ProtocolError(f"there is no {name!r} in this message; is everybody running a feduca app?")
    words = dict(content[name])  # type: ignore[call-overload]
    if words.get("protocol") != PROTOCOL:
        raise ProtocolError(
            f"protocol {words.get('protocol')!r} meets protocol {PROTOCOL}; install the same feduca on both sides"
        )
    return words


def _model(content: RecordDict, size: int, name: str = "theta") -> np.ndarray:
    record = content.get(name)
    if not isinstance(record, ArrayRecord) or list(record) != ["theta"]:
        raise ProtocolError("the message holds no model called 'theta', or more than one")
    try:
        theta = numbers(record["theta"])
    except InputError as error:
        raise ProtocolError(str(error)) from None
    if theta.shape != (size,) or theta.dtype.kind != "f":
        raise ProtocolError(f"the model is {theta.dtype}{list(theta.shape)}, asked was one of {size} floats")
    return theta
