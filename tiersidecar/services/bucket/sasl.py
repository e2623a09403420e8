"""Logins of Kafka clients, the server's side: PLAIN (RFC 4616) and SCRAM (RFC 5802, RFC 7677) as Kafka speaks them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tiersidecar.services.bucket.users import User, Users

_ITERATIONS = 4096
"""``ScramMechanism.minIterations``: what brokers take by default."""
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_MOST_TEXT = 1024
"""Bytes of a name or a nonce."""


class LoginRefusedError(Exception):
    """The client is not let in; ``guessed`` is the name whose password it got wrong, None where it showed none."""

    def __init__(self, reason: str, *, guessed: str | None = None) -> None:
        super().__init__(reason)
        self.guessed = guessed


@dataclass(frozen=True, slots=True)
class LoginStep:
    """The answer to the client, and the user once the login is done."""

    answer: bytes
    user: User | None = None


class Login(Protocol):
    """One exchange."""

    def step(self, token: bytes) -> LoginStep:
        """Take the client's next token.

        Raises:
            LoginRefusedError: it is malformed, or the password is wrong.
        """
        ...


class Mechanisms:
    """The mechanisms that a listener offers; what SCRAM keeps of each user is derived once, at the start."""

    def __init__(self, users: Users, names: tuple[str, ...]) -> None:
        self._made: dict[str, Callable[[], Login]] = {}
        for name in names:
            if name in _HASHES:
                self._made[name] = partial(ScramLogin, ScramSecrets(users, _HASHES[name]))
            else:
                self._made[name] = partial(PlainLogin, users)

    @property
    def names(self) -> tuple[str, ...]:
        """Return their names."""
        return tuple(self._made)

    def begin(self, name: str) -> Login | None:
        """Return a new exchange; None for a mechanism that is not offered."""
        make = self._made.get(name)
        return None if make is None else make()


class PlainLogin:
    """Name and password in one token."""

    def __init__(self, users: Users) -> None:
        self._users = users

    def step(self, token: bytes) -> LoginStep:
        """Take the client's next token."""
        parts = _text(token).split("\0")
        if len(parts) != 3 or not parts[1]:
            raise LoginRefusedError("a PLAIN token has an empty authorization id, a name and a password")
        authorized_as, name, password = parts
        user = self._users.checked(name, password)
        if user is None or authorized_as not in ("", name):
            raise LoginRefusedError("no such user, or a wrong password", guessed=name)
        return LoginStep(b"", user)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    salt: bytes
    stored_key: bytes
    server_key: bytes


class ScramSecrets:
    """Salt and keys of each user, for one hash.  A name that no user has gets ones of its own, always the same, so that the
    exchange does not reveal which names there are."""

    def __init__(self, users: Users, hash_name: str) -> None:
        self.users, self.hash_name = users, hash_name
        self._key = secrets.token_bytes(32)
        # Now: derived at a user's first login, they would reveal by some milliseconds that there is such a user.
        self._kept = {one.name: self._derived(self._salt(one.name), one.password.encode()) for one in users.all()}

    def of(self, name: str) -> _Kept:
        """Return what a proof is checked by."""
        salt = self._salt(name)
        of_nobody = _Kept(salt=salt, stored_key=self.hmac(self._key, salt), server_key=self._key)
        return self._kept.get(name, of_nobody)

    def _salt(self, name: str) -> bytes:
        return hmac.digest(self._key, name.encode(), "sha256")

    def _derived(self, salt: bytes, password: bytes) -> _Kept:
        salted = hashlib.pbkdf2_hmac(self.hash_name, password, salt, _ITERATIONS)
        client_key = self.hmac(salted, b"Client Key")
        return _Kept(
            salt=salt,
            stored_key=hashlib.new(self.hash_name, client_key).digest(),
            server_key=self.hmac(salted, b"Server Key"),
        )

    def hmac(self, key: bytes, message: bytes) -> bytes:
        """Return the HMAC by the hash."""
        return hmac.digest(key, message, self.hash_name)


class ScramLogin:
    """client-first, server-first, client-final, server-final."""

    def __init__(self, kept_secrets: ScramSecrets, *, nonce: str | None = None) -> None:
        self._secrets, self._nonce = kept_secrets, nonce or secrets.token_urlsafe(24)
        self._name = ""
        self._kept: _Kept | None = None
        self._gs2, self._first_bare, self._server_first = "", "", ""

    def step(self, token: bytes) -> LoginStep:
        """Take the client's next token."""
        message = _text(token)
        return self._first(message) if self._kept is None else self._final(message, self._kept)

    def _first(self, message: str) -> LoginStep:
        channel, _, rest = message.partition(",")
        authorized_as, _, bare = rest.partition(",")
        fields = _fields(bare)
        name, nonce = _unescaped(fields.get("n", "")), fields.get("r", "")
        if channel not in ("n", "y") or not name or not nonce or "m" in fields:
            raise LoginRefusedError("not a client-first-message without channel binding")
        if fields.get("tokenauth") == "true" or max(len(name), len(nonce)) > _MOST_TEXT:
            raise LoginRefusedError("delegation tokens are not known here")
        if authorized_as and _unescaped(authorized_as.removeprefix("a=")) != name:
            raise LoginRefusedError("no user may log in for another one")
        self._name, self._kept = name, self._secrets.of(name)
        self._gs2, self._first_bare = f"{channel},{authorized_as},", bare
        self._nonce = nonce + self._nonce
        salt = base64.b64encode(self._kept.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={_ITERATIONS}"
        return LoginStep(self._server_first.encode())

    def _final(self, message: str, kept: _Kept) -> LoginStep:
        without_proof, _, proof_text = message.rpartition(",p=")
        fields = _fields(without_proof)
        if fields.get("r") != self._nonce or _decoded(fields.get("c", "")) != self._gs2.encode():
            raise LoginRefusedError("not a client-final-message of this exchange")
        signed = ",".join((self._first_bare, self._server_first, without_proof)).encode()
        proof = _decoded(proof_text)
        signature = self._secrets.hmac(kept.stored_key, signed)
        if len(proof) != len(signature):
            raise LoginRefusedError("a proof of another length")
        client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(hashlib.new(self._secrets.hash_name, client_key).digest(), kept.stored_key)
        user = self._secrets.users.user(self._name)
        if not is_right or user is None:
            raise LoginRefusedError("no such user, or a wrong password", guessed=self._name)
        verifier = base64.b64encode(self._secrets.hmac(kept.server_key, signed)).decode()
        return LoginStep(f"v={verifier}".encode(), user)


def _text(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError as error:
        raise LoginRefusedError("a token that is not UTF-8") from error


def _fields(message: str) -> dict[str, str]:
    """Read ``n=…,r=…``; if a name comes twice, the first counts."""
    found: dict[str, str] = {}
    for part in message.split(","):
        name, _, value = part.partition("=")
        found.setdefault(name, value)
    return found


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise LoginRefusedError("a value that is not base64") from error
