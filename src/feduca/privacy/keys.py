"""The cryptography: X25519, HKDF, AES-256 and signatures, all from the library `cryptography`.

Every key is used once: it is derived for one purpose, one session and one ordered pair of silos. That is why masks and sealed
shares need no nonces of their own.
"""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, x25519
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

SEED = 32  # bytes of a self-mask's seed, which is shared out


def digest(*parts: bytes) -> bytes:
    """SHA-256 of several byte strings, each with its length, so that no two lists give the same."""
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()


def canonical(words: Any) -> bytes:
    """The one text of `words` that is signed and hashed."""
    return json.dumps(words, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


@functools.lru_cache(maxsize=4096)  # in a simulation both silos of a pair ask
def derived(secret: bytes, *info: bytes, length: int = 32) -> bytes:
    return HKDF(hashes.SHA256(), length, b"feduca secure aggregation 1", digest(*info)).derive(secret)


@functools.lru_cache(maxsize=64)
def public(private: bytes) -> bytes:
    return _private(private).public_key().public_bytes_raw()


def agreed(private: bytes, theirs: bytes) -> bytes:
    """The secret of two silos. ValueError where the other's key is none (of low order)."""
    pair = frozenset((public(private), theirs))
    if pair not in _secrets:  # in a simulation both silos of a pair ask, each for masks and for shares
        if len(_secrets) >= 4096:
            _secrets.clear()
        _secrets[pair] = _private(private).exchange(x25519.X25519PublicKey.from_public_bytes(theirs))
    return _secrets[pair]


_secrets: dict[frozenset[bytes], bytes] = {}


@functools.lru_cache(maxsize=64)  # it takes as long as an exchange, and a session has one for many
def _private(private: bytes) -> x25519.X25519PrivateKey:
    return x25519.X25519PrivateKey.from_private_bytes(private)


def mask(key: bytes, size: int) -> np.ndarray:
    """`size` numbers modulo 2^64 that nobody without the key can tell from random ones: AES-256 in counter mode."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * size)), dtype="<u8")


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
    if isinstance(private, ed25519.Ed25519PrivateKey):
        return private.sign(text)
    return private.sign(text, ec.ECDSA(hashes.SHA384()))


@functools.lru_cache(maxsize=4096)
def signed(key: bytes, text: bytes, signature: bytes) -> bool:
    """Whether the holder of the public `key` (OpenSSH's or PEM's text) has signed `text`."""
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
    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return private, private.public_key().public_bytes(*form)
