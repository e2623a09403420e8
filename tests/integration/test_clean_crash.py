"""``kill -9`` of the daemon at the steps of a picture and of the cleaner lane, beside a real broker whose own cleaner runs, and
the daemon after it (S-256, S-273, S-276, issue 23).

``make test`` takes some of the points, ``make crash`` all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.integration.test_compacted_topics import CONFIGS, SEGMENT_BYTES, TOPIC, Run, differing, live
from tests.support.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

PICTURE = ("pin.half", "picture.linked", "picture.taken", "copy.finished.published")
SWAP = ("rewritten", "started", "uploaded", "proven", "finishing", "finished", "trashed")
POINTS = (
    *((place, 1) for place in PICTURE),
    *((f"clean.{place}", 1) for place in ("mapped", *SWAP, "published")),
    *((f"clean.{place}", 2) for place in SWAP),
)
OFTEN = {("picture.linked", 1), ("clean.finished", 1), ("clean.trashed", 2), ("clean.published", 1)}


def parameters() -> list[Any]:
    return [
        pytest.param(
            number,
            f"{place}=kill@{hit}",
            id=f"{place}, {hit}",
            marks=[] if (place, hit) in OFTEN else [pytest.mark.exhaustive],
        )
        for number, (place, hit) in enumerate(POINTS)
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """One topic for all points: each finds what the kills before it have left."""
    with KafkaCluster(tmp_path_factory.mktemp("kafka"), properties={"log.cleaner.backoff.ms": "200"}) as kafka:
        kafka.create_topic(TOPIC, partitions=1, segment_bytes=SEGMENT_BYTES, configs=CONFIGS)
        run = Run(tmp_path_factory.mktemp("clean-crash"), kafka)
        run.write(1000)
        try:
            yield run
        finally:
            run.daemon.kill9()


@pytest.mark.parametrize(("number", "failpoint"), parameters())
def test_killed_and_restarted(run: Run, number: int, failpoint: str) -> None:
    """All keys have the values that a consumer of the broker's own log builds; the remote log is end to end."""
    run.write(number)
    run.daemon.failpoints = failpoint
    run.daemon.start()
    assert run.daemon.wait_for_exit() == -9, run.daemon.log_tail()
    run.daemon.failpoints = ""
    run.daemon.start()
    run.daemon.wait_until_ready()
    run.roll(1000 + number)  # or nothing need be left to clean
    stop = run.wait_until_copied_and_cleaned()
    records, brokers = run.over_http(stop), run.consumed(stop)
    run.daemon.kill9()
    assert differing(live(dict(records)), brokers) == {}
    assert [key for key, count in Counter(key for key, _ in records).items() if count > 1] == []
    spans = sorted({(one.start_offset, one.next_offset) for one in run.finished()})
    assert spans[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(spans)), "end to end"
    halted = [one for one in run.daemon.events() if one["event"] in {"lane.halted", "segment.gap"}]
    assert halted == []
