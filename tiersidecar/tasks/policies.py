"""The way in which each topic is tiered: by the state topic for its id (``tiersidecar enable``), else by the configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Protocol

from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.policy import AS_TOTAL, UNLIMITED, RetentionMode, TieringMode, TopicPolicy
from tiersidecar.ports.state_log import TopicState
from tiersidecar.tasks.partition_table import PartitionTable

_NAMES_KEPT = 10_000


class TopicStates(Protocol):
    """The state topic's records of topics."""

    def topic_state(self, topic_id: Uuid) -> TopicState | None:
        """Return the state of a topic (:class:`~tiersidecar.ports.state_log.StateLog`), None without a record."""
        ...


class NoTopicStates:
    """The states of a cluster whose state topic is not read: in a read-only mount it is the source's, and may be out of
    reach."""

    def topic_state(self, topic_id: Uuid) -> TopicState | None:
        return None


class TopicPolicies:
    """``defaults`` is the configuration's policy for a topic's name, ``unnamed`` its policy for all that no rule matches and
    that ``enable`` tiers."""

    def __init__(
        self,
        *,
        table: PartitionTable,
        state: TopicStates,
        defaults: Callable[[str], TopicPolicy | None],
        unnamed: TopicPolicy,
    ) -> None:
        self._table, self._state, self._defaults, self._unnamed = table, state, defaults, unnamed
        self._is_named = lru_cache(_NAMES_KEPT)(lambda topic: defaults(topic) is not None)

    def may_tier(self, topic: str) -> bool:
        """Return whether :meth:`policy_for` may give one, now or once more is known; takes a microsecond."""
        if self._is_named(topic):
            return True
        topic_id = self._table.topic_ids.get(topic)
        try:
            return topic_id is not None and self._state.topic_state(topic_id) is not None
        except MetadataNotReadyError:
            return True

    def policy_for(self, topic: str) -> TopicPolicy | None:
        """Return the policy; None: the topic is left alone.

        Raises:
            MetadataNotReadyError: the state topic has not been replayed: nothing is begun by the configuration alone.
        """
        topic_id = self._table.topic_ids.get(topic)
        state = None if topic_id is None else self._state.topic_state(topic_id)
        return resolved_policy(self._defaults(topic), state, self._unnamed)


def resolved_policy(default: TopicPolicy | None, state: TopicState | None, unnamed: TopicPolicy) -> TopicPolicy | None:
    """Return the state topic's policy over the configuration's; what only the configuration has (copy lag, the groups that
    trims wait for) stays, and comes from ``unnamed`` where no rule of it matches the topic."""
    if state is None:
        return default
    base = default or unnamed
    if state.mode not in set(TieringMode) or not _is_understood(state):
        # Said by a later version: keep the data and touch nothing, until a release that understands it comes.
        return TopicPolicy(mode=RetentionMode.RACE, copy_disabled=True)
    mode = TieringMode(state.mode)
    is_off = mode in (TieringMode.DETACHED, TieringMode.DELETING)
    return replace(
        base,
        mode=RetentionMode.STRICT if mode is TieringMode.STRICT else RetentionMode.RACE,
        retention_ms=state.retention_ms,
        retention_bytes=state.retention_bytes,
        local_retention_ms=state.local_retention_ms,
        local_retention_bytes=state.local_retention_bytes,
        copy_disabled=is_off or base.copy_disabled,
        delete_remote=mode is TieringMode.DELETING,
    )


def _is_understood(state: TopicState) -> bool:
    """Return whether its retentions are amounts, or stand for no limit or for the total: any other would let everything go."""
    total = min(state.retention_ms, state.retention_bytes)
    return total >= UNLIMITED and min(state.local_retention_ms, state.local_retention_bytes) >= AS_TOTAL
