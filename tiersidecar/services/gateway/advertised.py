"""Where clients find the gateways: the address that stands for each broker.

Apart from what finds them in responses: the configuration has them, and no command needs Kafka's messages to read it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

NODE_ID = "{node.id}"
_UNMAPPED_DOMAIN = "not-mapped.invalid"
_PATTERN = re.compile(r"(?P<host>[^\s:]+|\[[^\s\]]+\]):(?P<port>\d{1,5}|\d*\{node\.id\}\d*|\{\d{1,5}\+node\.id\})")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvertisedAddresses:
    """Host and port of the gateway in front of each node.

    ``nodes`` counts first, then ``pattern``: ``host:port`` with ``{node.id}`` in either, or a port such as ``{19092+node.id}``.
    A node in neither gets a host below ``.invalid`` (RFC 6761): clients must not reach its broker directly, because they would
    skip tiered records without a word, and the name that they cannot resolve says what is missing.

    Raises:
        ValueError: the pattern is none.
    """

    nodes: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    pattern: str | None = None

    def __post_init__(self) -> None:
        if self.pattern is None:
            return
        if _PATTERN.fullmatch(self.pattern) is None:
            raise ValueError(f"expected host:port with {NODE_ID} in it, got {self.pattern!r}")
        if "node.id}" not in self.pattern:
            raise ValueError(f"{self.pattern!r} is the same for every broker: it needs {NODE_ID}")

    def is_mapped(self, node_id: int) -> bool:
        """Return whether clients get an address of ``node_id`` that they can reach."""
        return node_id in self.nodes or self.pattern is not None

    def address_of(self, node_id: int) -> tuple[str, int]:
        """Return the host and port that clients get for ``node_id``, which is not negative."""
        known = self.nodes.get(node_id)
        if known is not None:
            return known
        if self.pattern is not None:
            return self._from_pattern(self.pattern, node_id)
        return f"node-{node_id}.{_UNMAPPED_DOMAIN}", 9092

    @staticmethod
    def _from_pattern(pattern: str, node_id: int) -> tuple[str, int]:
        host, _, port = pattern.rpartition(":")
        summed = re.fullmatch(r"\{(\d+)\+node\.id\}", port)
        number = int(summed[1]) + node_id if summed else int(port.replace(NODE_ID, str(node_id)))
        return host.replace(NODE_ID, str(node_id)).strip("[]"), number
