"""Which topics are compacted, by the broker's word of at most half a minute ago."""

from __future__ import annotations

from tiersidecar.decide.topics import is_compacted
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError
from tiersidecar.ports.broker import DescribeConfigs
from tiersidecar.ports.clock import Clock

_KEPT_S = 30.0
_POLICY = "cleanup.policy"


class CompactedTopics:
    """Asks the broker as the sidecar, since callers may not see a topic's settings, and remembers the answers."""

    def __init__(self, broker: DescribeConfigs, clock: Clock) -> None:
        self._broker, self._clock = broker, clock
        self._known: dict[str, tuple[bool, float]] = {}

    async def has(self, topic: str) -> bool:
        """Return whether ``topic`` is compacted; False for one that does not exist.

        Raises:
            BrokerUnreachableError, BrokerRefusedError: the broker does not say it, and never has.
        """
        now_s = self._clock.monotonic_s()
        known = self._known.get(topic)
        if known is not None and now_s < known[1] + _KEPT_S:
            return known[0]
        try:
            configs = (await self._broker.describe_topic_configs([topic], names=[_POLICY])).get(topic)
        except (BrokerUnreachableError, BrokerRefusedError):
            if known is None:
                raise
            return known[0]
        if configs is None:  # a broker may not have heard of it yet
            return known is not None and known[0]
        found = is_compacted(configs)
        self._known[topic] = found, now_s
        return found
