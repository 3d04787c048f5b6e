"""What `feduca deploy check` says of a silo's keys, and `run.sh` of a SuperLink that is not there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from feduca.errors import RunError
from feduca.flower import deploy
from feduca.flower.check import _pair


def pair() -> tuple[bytes, bytes]:
    key = generate_private_key(SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b" north"


@pytest.mark.parametrize(
    ("kind", "good", "said"),
    [
        ("its own", True, "key fits key.pub"),
        ("another's", False, "key is not the one of key.pub"),
        ("no key", False, "key is no private key"),
    ],
)
def test_a_wrong_private_key_is_found_before_the_server_refuses_it(tmp_path, kind, good, said):
    (private, public), (other, _) = pair(), pair()
    (tmp_path / "key").write_bytes({"its own": private, "another's": other, "no key": b"hello\n"}[kind])
    (tmp_path / "key.pub").write_bytes(public)
    [found] = _pair(SimpleNamespace(name="north", path=tmp_path))  # type: ignore[arg-type]
    assert found.ok is good
    assert said in found.seen
    assert good or "deploy rotate" in found.remedy


def test_a_run_waits_for_a_superlink_that_is_starting(monkeypatch):
    looks = iter([False, False, True])
    monkeypatch.setattr(deploy, "reachable", lambda server: next(looks))
    deploy._wait_for_superlink(SimpleNamespace(local=("127.0.0.1", 1)))  # type: ignore[arg-type]
    assert not list(looks)
    monkeypatch.setattr(deploy, "reachable", lambda server: False)
    with pytest.raises(RunError, match=r"no SuperLink answers at 127.0.0.1:1 within 0.1 s: start server/start.sh"):
        deploy._wait_for_superlink(SimpleNamespace(local=("127.0.0.1", 1)), 0.1)  # type: ignore[arg-type]
