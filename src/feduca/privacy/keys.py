"""The cryptography: X25519, HKDF, AES-256 and signatures, all from the library `cryptography`.

Every key is used once: it is derived for one purpose, one session and one ordered pair of silos. That is why masks and sealed
shares need no nonces of their own.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, x25519
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

VERSION = 2  # of what silos say to each other: another version derives other keys and reads no statement of this one
SEED = 32  # bytes of a self-mask's seed, which is shared out
SHORT = 8192  # numbers: masks that are not longer are remembered for a while
CHUNK = 2**27  # numbers of a mask that one call makes


def digest(*parts: bytes) -> bytes:
    """SHA-256 of several byte strings, each with its length, so that no two lists give the same."""
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()


def canonical(words: Any) -> bytes:
    """The one text of `words` that is signed and hashed."""
    return json.dumps(words, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def derived(secret: bytes, *info: bytes, length: int = 32) -> bytes:
    return HKDF(hashes.SHA256(), length, b"feduca secure aggregation %d" % VERSION, digest(*info)).derive(secret)


@functools.lru_cache(maxsize=64)
def public(private: bytes) -> bytes:
    return _private(private).public_key().public_bytes_raw()


@dataclass(frozen=True)
class Pair:
    """What two silos have in common in a session: the key of their mask, and one to seal shares with for each way."""

    mask: bytes
    upwards: bytes  # to the silo whose name is the later one
    downwards: bytes


def pair(private: bytes, theirs: bytes, session: bytes, low: str, high: str) -> Pair:
    """Of the silos `low` and `high`. ValueError where the other's key is none (of low order)."""
    asked = frozenset((public(private), theirs)), session, low, high
    if asked not in _pairs:  # in a simulation both silos of a pair ask, and each more than once
        if len(_pairs) >= 4096:
            _pairs.clear()
        secret = _private(private).exchange(x25519.X25519PublicKey.from_public_bytes(theirs))
        found = derived(secret, b"pair", session, low.encode(), high.encode(), length=96)
        _pairs[asked] = Pair(found[:32], found[32:64], found[64:])
    return _pairs[asked]


_pairs: dict[tuple[frozenset[bytes], bytes, str, str], Pair] = {}


@functools.lru_cache(maxsize=64)  # it takes as long as an exchange, and a session has one for many
def _private(private: bytes) -> x25519.X25519PrivateKey:
    return x25519.X25519PrivateKey.from_private_bytes(private)


def mask(key: bytes, size: int) -> np.ndarray:
    """`size` numbers modulo 2^64 that nobody without the key can tell from random ones: AES-256 in counter mode.

    That is what GCM makes of zeros, before its tag, and in this library its fastest way.
    """
    return _short(key, size) if size <= SHORT else _stream(key, size)


@functools.lru_cache(maxsize=256)  # in a simulation both silos of a pair ask
def _short(key: bytes, size: int) -> np.ndarray:
    return _stream(key, size)


def _stream(key: bytes, size: int) -> np.ndarray:
    aes, parts = AESGCM(key), []
    for nonce, start in enumerate(range(0, size, CHUNK)):
        zeros = bytes(8 * min(CHUNK, size - start))
        parts.append(np.frombuffer(aes.encrypt(nonce.to_bytes(12, "big"), zeros, None), "<u8", len(zeros) // 8))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def sealed(key: bytes, text: bytes, about: bytes) -> bytes:
    return AESGCM(key).encrypt(bytes(12), text, about)


def opened(key: bytes, text: bytes, about: bytes) -> bytes:
    """ValueError where it was not sealed with this key for this purpose."""
    try:
        return AESGCM(key).decrypt(bytes(12), text, about)
    except InvalidTag:
        raise ValueError("a share was not sealed by the silo it is said to come from") from None


# Signatures: Ed25519 in a simulation, the silos' registered ECDSA P-384 keys in a deployment ---------------------------


def sign(private: Any, text: bytes) -> bytes:
    if not isinstance(private, ed25519.Ed25519PrivateKey):
        return private.sign(text, ec.ECDSA(hashes.SHA384()))
    signature = private.sign(text)
    if len(_made_here) >= 4096:
        _made_here.clear()
    _made_here.add((_pem(private), text, signature))
    return signature


# Signatures of this process need no proof: those of a simulation.
_made_here: set[tuple[bytes, bytes, bytes]] = set()


def signed(key: bytes, text: bytes, signature: bytes) -> bool:
    """Whether the holder of the public `key` (OpenSSH's or PEM's text) has signed `text`."""
    return (key, text, signature) in _made_here or verified(key, text, signature)


@functools.lru_cache(maxsize=4096)
def verified(key: bytes, text: bytes, signature: bytes) -> bool:
    try:
        known = _public(key)
        if isinstance(known, ed25519.Ed25519PublicKey):
            known.verify(signature, text)
        elif isinstance(known, ec.EllipticCurvePublicKey):
            known.verify(signature, text, ec.ECDSA(hashes.SHA384()))
        else:
            return False
    except (InvalidSignature, ValueError, UnsupportedAlgorithm):
        return False
    return True


def _public(key: bytes) -> Any:
    load = serialization.load_pem_public_key if key.startswith(b"-----") else serialization.load_ssh_public_key
    return load(key)


def new_signer() -> tuple[ed25519.Ed25519PrivateKey, bytes]:
    """A key pair for a silo of a simulation: the private key, and the public one as text."""
    private = ed25519.Ed25519PrivateKey.generate()
    return private, _pem(private)


@functools.lru_cache(maxsize=4096)  # by the key itself: it is kept, so that its identity stays its own
def _pem(private: ed25519.Ed25519PrivateKey) -> bytes:
    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return private.public_key().public_bytes(*form)
