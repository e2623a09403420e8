"""Users of a service without a broker: names, passwords, and which topics each may read.

They are the service's own, from its configuration: there is no broker to ask (the exception to rules 7 and 13 of the design).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from tiersidecar.ports.broker import CallerNotAuthenticatedError, Credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """``topic_prefixes``: beginnings of the topics' names that the user may read; an empty text is every topic."""

    name: str
    password: str = field(repr=False)
    topic_prefixes: tuple[str, ...] = ("",)

    def may_read(self, topic: str) -> bool:
        """Return whether the user may read a topic of that name, be there one or not."""
        return topic.startswith(self.topic_prefixes)


ANYBODY = User(name="ANONYMOUS", password="")
"""The only user of a service that has none: it listens on this machine alone."""


class Users:
    """Checks passwords in a time that reveals nothing about them.  It is the HTTP service's ``AuthorizeRead``, too."""

    def __init__(self, users: Iterable[User]) -> None:
        self._users = {user.name: user for user in users}
        self._key = secrets.token_bytes(32)
        self._digests = {user.name: self._digest(user.password) for user in self._users.values()}
        self._of_nobody = secrets.token_bytes(32)

    @property
    def are_required(self) -> bool:
        """Return whether a caller has to log in."""
        return bool(self._users)

    def all(self) -> Collection[User]:
        """Return every user."""
        return self._users.values()

    def user(self, name: str) -> User | None:
        """Return the user of that name."""
        return self._users.get(name)

    def checked(self, name: str, password: str) -> User | None:
        """Return the user, if the password is right."""
        is_right = hmac.compare_digest(self._digests.get(name, self._of_nobody), self._digest(password))
        return self._users.get(name) if is_right else None

    async def log_in(self, credentials: Credentials) -> None:
        """Return once the user's password is checked."""
        self._user_of(credentials)

    async def may_read(self, credentials: Credentials, topic: str) -> bool:
        """Return whether the user may read ``topic``."""
        return self._user_of(credentials).may_read(topic)

    def _user_of(self, credentials: Credentials) -> User:
        if not self._users and credentials == Credentials():
            return ANYBODY
        if credentials.username is None or credentials.password is None:
            raise CallerNotAuthenticatedError("a user and a password are asked for")
        user = self.checked(credentials.username, credentials.password)
        if user is None:
            raise CallerNotAuthenticatedError("no such user, or a wrong password")
        return user

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode(), hashlib.sha256)
