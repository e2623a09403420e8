"""Choice of a reader's budget of remote bytes, by user and client id: Kafka's order of precedence (ClientQuotaManager).

A rule that names a user or client id is one budget for all that it matches; ``<default>`` is one budget for each that no rule
names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

DEFAULT = "<default>"
"""Kafka's name for every user, or client id, without a rule of its own."""
_USER_TYPE = "User:"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdReader:
    """A reader: ``principal`` as the broker has it, or an address where there was no login; empty: not known."""

    principal: str = ""
    client_id: str = ""

    @property
    def user(self) -> str:
        """Return the user as quotas name it: without the type of the principal."""
        return self.principal.removeprefix(_USER_TYPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderQuotaRule:
    """``user`` and ``client_id``: a name, :data:`DEFAULT`, or None where the rule does not look at it."""

    user: str | None = None
    client_id: str | None = None
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderBudget:
    """Readers of the same ``key`` share the rate."""

    key: tuple[str | None, str | None]
    bytes_per_s: float


def find_budget(rules: Iterable[ReaderQuotaRule], reader: ColdReader) -> ReaderBudget | None:
    """Return the budget that holds for ``reader``; None where no rule does."""
    known = {(rule.user, rule.client_id): rule for rule in rules}
    for place in _precedence(reader):
        rule = known.get(place)
        if rule is not None:
            user = None if rule.user is None else reader.user
            client_id = None if rule.client_id is None else reader.client_id
            return ReaderBudget(key=(user, client_id), bytes_per_s=rule.bytes_per_s)
    return None


def _precedence(reader: ColdReader) -> Iterator[tuple[str | None, str | None]]:
    for user in (reader.user, DEFAULT):
        yield user, reader.client_id
        yield user, DEFAULT
        yield user, None
    yield None, reader.client_id
    yield None, DEFAULT
