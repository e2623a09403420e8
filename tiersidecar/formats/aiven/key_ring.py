"""Data keys under RSA keys: OAEP with SHA3-512, MGF1 with SHA3-512 (``RsaEncryptionProvider``).

A wrapped key is written ``<key id>:<base64>``.  New segments use the active key; the others of the ring open what was written
before a rotation.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tiersidecar.domain.data_keys import NO_CONTEXT, KeyContext
from tiersidecar.domain.errors import DataKeyError

if TYPE_CHECKING:  # and below where keys are used: pycryptodome takes time to import, and most daemons encrypt nothing
    from Crypto.Cipher.PKCS1_OAEP import PKCS1OAEP_Cipher
    from Crypto.PublicKey.RSA import RsaKey

_SHA3_512_BYTES = 64
_LEAST_MODULUS_BYTES = 2 * _SHA3_512_BYTES + 2 + 32
"""Overhead of OAEP with this hash around a key of 32 bytes."""


class DataKeys(Protocol):
    """Wraps the data keys of new segments, and opens those of all: an RSA key ring, or a key service.  It may take time: it is
    called in threads."""

    def wrap(self, data_key: bytes, random_bytes: Callable[[int], bytes], context: KeyContext = NO_CONTEXT) -> str:
        """Return ``data_key`` as a manifest has it; a service binds it to ``context``, RSA does not.

        Raises:
            KeyServiceError: the key service is away.
            KeyRefusedError: it refuses.
        """

    def unwrap(self, text: str, context: KeyContext = NO_CONTEXT) -> bytes:
        """Return the data key of a manifest's ``dataKey``.

        Raises:
            DataKeyError: malformed, under a key that is not known, not opened by it, or bound to another context.
            KeyServiceError: the key service is away.
            KeyRefusedError: it refuses.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class RsaKeyPair:
    """A key pair; without ``private`` it can only wrap."""

    public: RsaKey
    private: RsaKey | None = field(default=None, repr=False)


def read_rsa_key_pair(public: bytes, private: bytes | None = None) -> RsaKeyPair:
    """Read a key pair from PEM or DER: SubjectPublicKeyInfo and PKCS #8, or what else pycryptodome reads.

    Raises:
        ValueError: saying which of the two cannot be used, and why.
    """
    public_key = _read_key(public, "public").public_key()
    if public_key.size_in_bytes() < _LEAST_MODULUS_BYTES:
        raise ValueError(f"public key of {public_key.size_in_bits()} bits is too small to wrap a data key")
    if private is None:
        return RsaKeyPair(public=public_key)
    private_key = _read_key(private, "private")
    if not private_key.has_private():
        raise ValueError("private key file holds a public key")
    if private_key.public_key() != public_key:
        raise ValueError("private and public key are not a pair")
    return RsaKeyPair(public=public_key, private=private_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRing:
    """Key pairs by key id, and the one that wraps new data keys.

    Raises:
        ValueError: the active key is not among them, or an id cannot be written.
    """

    active_key_id: str
    keys: Mapping[str, RsaKeyPair]

    def __post_init__(self) -> None:
        if self.active_key_id not in self.keys:
            raise ValueError(f"active key id {self.active_key_id!r} is not in the key ring")
        for key_id in self.keys:
            if not key_id.strip() or ":" in key_id:
                raise ValueError(f"key id {key_id!r} is blank or has a colon")

    def wrap(self, data_key: bytes, random_bytes: Callable[[int], bytes], context: KeyContext = NO_CONTEXT) -> str:
        """Return ``data_key`` wrapped by the active key, as a manifest has it."""
        public = self.keys[self.active_key_id].public
        wrapped = _oaep(public, random_bytes).encrypt(data_key)
        return f"{self.active_key_id}:{base64.b64encode(wrapped).decode('ascii')}"

    def unwrap(self, text: str, context: KeyContext = NO_CONTEXT) -> bytes:
        """Return the data key of a manifest's ``dataKey``.

        Raises:
            DataKeyError: malformed, under a key that is not in the ring, or not opened by it.
        """
        key_id, separator, encoded = text.partition(":")
        if not separator:
            raise DataKeyError(key_id="", reason="it is not <key id>:<base64>")
        pair = self.keys.get(key_id)
        if pair is None:
            raise DataKeyError(key_id=key_id, reason=f"the key ring has only {', '.join(sorted(self.keys))}")
        if pair.private is None:
            raise DataKeyError(key_id=key_id, reason="the key ring has no private key for it")
        try:
            return _oaep(pair.private).decrypt(base64.b64decode(encoded, validate=True))
        except (binascii.Error, ValueError, TypeError) as error:
            raise DataKeyError(key_id=key_id, reason=f"{error}") from error


def _read_key(data: bytes, kind: str) -> RsaKey:
    from Crypto.PublicKey import RSA

    try:
        return RSA.import_key(data)
    except (ValueError, IndexError, TypeError) as error:
        raise ValueError(f"{kind} key is neither a PEM nor a DER RSA key: {error}") from error


def _oaep(key: RsaKey, random_bytes: Callable[[int], bytes] | None = None) -> PKCS1OAEP_Cipher:
    from Crypto.Cipher import PKCS1_OAEP
    from Crypto.Hash import SHA3_512

    return PKCS1_OAEP.new(key, hashAlgo=SHA3_512, randfunc=random_bytes)
