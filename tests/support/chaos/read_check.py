"""Readers that never stop: what they get through any sidecar is what was acknowledged, or an honest refusal."""

from __future__ import annotations

import http.client
import json
import random
import urllib.error
from collections import Counter
from dataclasses import dataclass, field

from aiokafka.errors import KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

from tests.support.chaos.gateway_reads import read_through_gateway
from tests.support.keep_producing import KeepProducing
from tests.support.read_service import Shape, fetch_records, shape_of

_BY_GATEWAY = 0.3
_PATIENCE_S = 20.0
_HONEST = frozenset({404, 429, 500, 502, 503, 504})
"""Answers that a service may give while its broker, its store or its metadata are away; 404 is that of a sidecar without a
replica.  Never 416: that an offset that was acknowledged is out of range."""


def content_of(shape: Shape) -> tuple[object, ...]:
    """Return a record without its offset."""
    return shape[1:]


@dataclass(slots=True)
class ReadCheck:
    """``gateways`` are their addresses; ``outcomes`` counts reads by how they ended, ``records`` those that were compared."""

    topic: str
    producing: KeepProducing
    gateways: list[str]
    outcomes: Counter[str] = field(default_factory=Counter)
    records: int = 0

    def read(self, draw: random.Random, read_url: str, partition: int, stop: int, max_records: int = 3_000) -> None:
        """Do one read of a range below ``stop``, which must be remote or committed by now.

        Raises:
            AssertionError: wrong records, or a refusal that says that they are not there.
        """
        if stop <= 0:
            return
        start = draw.randrange(stop)
        stop = min(stop, start + draw.randint(1, max_records))
        isolation = draw.choice(["read_uncommitted", "read_committed"])
        through = draw.choice(self.gateways) if draw.random() < _BY_GATEWAY else ""
        where = f"{self.topic}-{partition} [{start}, {stop}) {isolation} through {through or read_url}"
        try:
            if through:
                found = read_through_gateway(
                    through, self.topic, partition, offset=start, stop=stop, isolation=isolation, timeout_s=_PATIENCE_S
                )
            else:
                found = list(
                    fetch_records(read_url, self.topic, partition, offset=start, stop=stop, isolation=isolation)
                )
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            if error.code not in _HONEST:
                raise AssertionError(f"{where}: {error.code} {said}") from error
            self.outcomes[f"{error.code} {_name_in(said)}"] += 1
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            raise AssertionError(f"{where}: {error!r}") from error
        except (OSError, http.client.HTTPException, KafkaError) as error:
            self.outcomes[type(error).__name__] += 1
        else:
            expected = [shape_of(record) for record in self.producing.acknowledged(partition)[start:stop]]
            assert found == expected, f"{where}: {_difference(found, expected)}"
            self.outcomes["read by gateway" if through else "read"] += 1
            self.records += len(found)


def _name_in(problem: str) -> str:
    try:
        return str(json.loads(problem)["type"]).rpartition("/")[2].rpartition(":")[2]
    except (ValueError, KeyError, TypeError):
        return ""


def _difference(found: list[Shape], expected: list[Shape]) -> str:
    if [shape[0] for shape in found] == [shape[0] for shape in expected]:
        index = next(index for index, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1])
        return f"offset {found[index][0]} is {found[index]}, was {expected[index]}"
    got = [shape[0] for shape in found]
    return f"{len(got)} records, offsets {got[:1]} to {got[-1:]}, where {len(expected)} were acknowledged"
