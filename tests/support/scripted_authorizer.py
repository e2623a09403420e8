"""A broker's verdicts, as a test writes them down."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tiersidecar.ports.broker import CallerNotAuthenticatedError, Credentials


class ScriptedAuthorizer:
    """``ports.broker.AuthorizeRead``: ``anonymous`` topics for all clients, ``users`` by name: password and their
    topics; ``tokens`` by token: its topics."""

    def __init__(
        self,
        *,
        anonymous: Collection[str] | None = (),
        users: Mapping[str, tuple[str, Collection[str]]] | None = None,
        tokens: Mapping[str, Collection[str]] | None = None,
        fault: Exception | None = None,
    ) -> None:
        self._anonymous = anonymous
        self._users = users or {}
        self._tokens = tokens or {}
        self.fault = fault
        self.asked: list[tuple[Credentials, str]] = []

    async def log_in(self, credentials: Credentials) -> None:
        self._verdict(credentials, "")

    async def may_read(self, credentials: Credentials, topic: str) -> bool:
        self.asked.append((credentials, topic))
        if self.fault is not None:
            raise self.fault
        return self._verdict(credentials, topic)

    def _verdict(self, credentials: Credentials, topic: str) -> bool:
        if credentials.token is not None:
            if credentials.token not in self._tokens:
                raise CallerNotAuthenticatedError
            return topic in self._tokens[credentials.token]
        if credentials.username is None:
            if self._anonymous is None:
                raise CallerNotAuthenticatedError
            return topic in self._anonymous
        password, topics = self._users.get(credentials.username, (None, ()))
        if password is None or password != credentials.password:
            raise CallerNotAuthenticatedError
        return topic in topics
