"""DescribeLogDirs with the remote tier as a log dir more (issue 20)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from tests.support.gateway_exchange import exchange_of, rewritten
from tests.support.inline_blocking import InlineBlocking
from tests.unit.services.gateway.test_offset_rewrites import built
from tiersidecar.formats.wire.messages import MalformedMessageError, read_message, write_message
from tiersidecar.services.gateway.log_dirs_rewrite import DescribeLogDirsRewrite

DESCRIBE_LOG_DIRS = 35
REMOTE = "remote://tier"
LED = {("orders", 0): 7_000, ("orders", 2): 0}


class FixedSizes:
    """Remote bytes of what the broker leads."""

    def led_bytes(self, topic: str, partition: int) -> int | None:
        return LED.get((topic, partition))


REWRITE = DescribeLogDirsRewrite(log_dir=REMOTE, sizes=FixedSizes(), blocking=InlineBlocking())

Rows = dict[str, list[tuple[int, int, bool]]]
"""By topic: partition, size, whether it is a future log."""


def log_dir(version: int, path: str, rows: Rows, error_code: ErrorCode = ErrorCode.none) -> Any:
    schema: Any = load_response_schema(DESCRIBE_LOG_DIRS, version)
    result = schema.__dataclass_fields__["results"].type.__args__[0]
    topic = result.__dataclass_fields__["topics"].type.__args__[0]
    row = topic.__dataclass_fields__["partitions"].type.__args__[0]
    topics = tuple(
        built(
            topic,
            {
                "name": name,
                "partitions": tuple(
                    built(row, {"partition_index": n, "partition_size": size, "offset_lag": 3, "is_future_key": future})
                    for n, size, future in partitions
                ),
            },
        )
        for name, partitions in rows.items()
    )
    values = {"error_code": error_code, "log_dir": path, "topics": topics, "total_bytes": 100, "usable_bytes": 50}
    return built(result, {**values, "is_cordoned": True})


def answer_of(version: int, *results: Any) -> bytes:
    values = {"throttle_time": timedelta(0), "error_code": ErrorCode.none, "results": results}
    return write_message(built(load_response_schema(DESCRIBE_LOG_DIRS, version), values))


async def after(version: int, response: bytes) -> Any:
    """The message that the client gets; None where the broker's passes."""
    pieces = await rewritten(REWRITE.rewrite(exchange_of(DESCRIBE_LOG_DIRS, version), memoryview(response)))
    if pieces is None:
        return None
    message, end = read_message(load_response_schema(DESCRIBE_LOG_DIRS, version), b"".join(pieces))
    assert end == sum(map(len, pieces))
    return message


def told(result: Any) -> Rows:
    return {
        str(topic.name): [(row.partition_index, row.partition_size, row.is_future_key) for row in topic.partitions]
        for topic in result.topics
    }


@pytest.mark.parametrize("version", REWRITE.versions())
async def test_what_the_broker_leads_is_in_one_log_dir_more(version: int) -> None:
    first = log_dir(version, "/data/0", {"orders": [(0, 10, False), (1, 11, False)], "other": [(0, 5, False)]})
    second = log_dir(version, "/data/1", {"orders": [(2, 12, False)]})
    message = await after(version, answer_of(version, first, second))
    assert message.results[:2] == (first, second), "the broker's own stay as they are"
    (added,) = message.results[2:]
    assert (added.log_dir, added.error_code) == (REMOTE, ErrorCode.none)
    assert told(added) == {"orders": [(0, 7_000, False), (2, 0, False)]}
    assert {row.offset_lag for topic in added.topics for row in topic.partitions} == {0}
    assert getattr(added, "total_bytes", -1) == getattr(added, "usable_bytes", -1) == -1
    assert not getattr(added, "is_cordoned", False)


@pytest.mark.parametrize(
    "results",
    [
        pytest.param([], id="the client may not describe the cluster"),
        pytest.param(
            [{"orders": [(1, 11, False)], "other": [(0, 5, False)]}], id="nothing that it leads was asked for"
        ),
        pytest.param([{"orders": [(0, 11, True)]}], id="a log that is being moved here is none yet"),
        pytest.param([{}], id="an empty log dir"),
    ],
)
async def test_an_answer_without_such_a_partition_passes(results: list[Rows]) -> None:
    dirs = (log_dir(4, f"/data/{number}", rows) for number, rows in enumerate(results))
    assert await after(4, answer_of(4, *dirs)) is None


async def test_nothing_is_said_of_a_log_dir_that_the_broker_could_not_read() -> None:
    broken = log_dir(4, "/data/0", {"orders": [(0, 10, False)]}, ErrorCode.kafka_storage_error)
    assert await after(4, answer_of(4, broken)) is None


async def test_bytes_behind_the_answer_end_the_connection() -> None:
    with pytest.raises(MalformedMessageError):
        await after(4, answer_of(4) + b"\0")
