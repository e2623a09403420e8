"""Checks whether each tiered topic's broker settings fit: every 30 s, and again before every trim."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import structlog

from tiersidecar.decide.topics import (
    is_compacted,
    read_cleaner_settings,
    reason_not_to_store,
    reason_not_to_tier,
    reason_not_to_trim,
)
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.ports.broker import DescribeConfigs
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.retention import UNSAFE_TOPICS
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.tasks.partition_table import PartitionTable

log = structlog.get_logger(__name__)

CHECK_INTERVAL_S = 30.0


class TopicChecks:
    """Keeps ``table.refused_topics`` and ``table.untrimmable_topics`` true, and logs each change of them.

    ``max_name_bytes`` is that of the store (:attr:`~tiersidecar.ports.store.Store.max_name_bytes`); with ``tiers_compacted``
    compacted topics are tiered, and ``table.compacted_topics`` has them.
    """

    def __init__(
        self,
        *,
        broker: DescribeConfigs,
        table: PartitionTable,
        policy_for: Callable[[str], TopicPolicy | None],
        max_name_bytes: int | None,
        clock: Clock,
        telemetry: Telemetry,
        tiers_compacted: bool = False,
    ) -> None:
        self._broker, self._table, self._policy_for = broker, table, policy_for
        self._max_name_bytes, self._tiers_compacted = max_name_bytes, tiers_compacted
        self._clock, self._telemetry = clock, telemetry
        self._checked_s: dict[str, float] = {}
        self._unshown: set[str] = set()

    async def refresh(self, topics: Iterable[str]) -> None:
        """Check those topics whose last check is older than the interval; forget topics that are not among them.

        Raises:
            BrokerUnreachableError: nothing is known then, and what was known stays.
        """
        wanted = frozenset(topics)
        now_s = self._clock.monotonic_s()
        due = [t for t in sorted(wanted) if now_s - self._checked_s.get(t, -CHECK_INTERVAL_S) >= CHECK_INTERVAL_S]
        if due:
            await self.check(due)
        for gone in set(self._checked_s) - wanted:
            del self._checked_s[gone]
            self._unshown.discard(gone)
            self._table.refused_topics.pop(gone, None)
            self._table.untrimmable_topics.pop(gone, None)
            self._table.compacted_topics.pop(gone, None)
            self._table.uncleaned_topics.discard(gone)
            self._telemetry.forget(UNSAFE_TOPICS, topic=gone)

    async def check(self, topics: Iterable[str]) -> None:
        """Check these topics now.

        Raises:
            BrokerUnreachableError: as :meth:`refresh`.
        """
        asked = list(topics)
        settings = await self._broker.describe_topic_configs(asked)
        for topic in asked:
            policy = self._policy_for(topic)
            if policy is None:
                continue
            self._checked_s[topic] = self._clock.monotonic_s()
            configs = settings.get(topic)
            if configs is None:  # no rights, or just deleted: what is not known is not taken for good, nor for mended
                refused = self._table.refused_topics.get(topic, "")
                untrimmable = "the broker did not show its settings"
                self._unshown.add(topic)
            else:
                self._unshown.discard(topic)
                refused = reason_not_to_store(topic, self._max_name_bytes) or self._reason_not_to_tier(topic, configs)
                untrimmable = reason_not_to_trim(policy, configs)
            self._note(self._table.refused_topics, topic, refused, "topic.refused")
            self._note(self._table.untrimmable_topics, topic, refused or untrimmable, "topic.trim_refused")
            self._telemetry.gauge(UNSAFE_TOPICS, 1 if refused or untrimmable else 0, topic=topic)

    def _reason_not_to_tier(self, topic: str, configs: Mapping[str, str | None]) -> str:
        """Return the reason, and take note of what the cleaner of a compacted topic goes by."""
        reason = reason_not_to_tier(configs, tiers_compacted=self._tiers_compacted)
        settings = None if reason else read_cleaner_settings(configs)
        self._table.uncleaned_topics.discard(topic)
        if settings is not None:
            self._table.compacted_topics[topic] = settings
        elif not reason:
            self._table.compacted_topics.pop(topic, None)
            if is_compacted(configs):
                return "the broker does not report its cleaner's settings"
            self._table.uncleaned_topics.add(topic)
        return reason

    async def reason_to_leave(self, topic: str) -> str:
        """Return why what another may be copying must be left alone, by the topic's settings as they are now; empty where only
        sidecars tier it.

        Raises:
            BrokerUnreachableError: as :meth:`refresh`.
        """
        await self.check([topic])
        unshown = "the broker did not show its settings" if topic in self._unshown else ""
        return self._table.refused_topics.get(topic, "") or unshown

    def _note(self, reasons: dict[str, str], topic: str, reason: str, event: str) -> None:
        if reasons.get(topic, "") == reason:
            return
        if reason:
            reasons[topic] = reason
            log.error(event, topic=topic, reason=reason)
        else:
            del reasons[topic]
            log.info(f"{event}.cleared", topic=topic)
