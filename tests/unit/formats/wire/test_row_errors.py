"""A client without any right had 480 KB of ListOffsets opened, row by row, for errors alone: 1.1 s (issue 17)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from tiersidecar.formats.wire.messages import write_message
from tiersidecar.formats.wire.row_errors import is_any_deleted, is_any_listed

LIST_OFFSETS, DELETE_RECORDS = 2, 21
REFUSED = (ErrorCode.topic_authorization_failed, ErrorCode.unknown_topic_or_partition)


def answer(api_key: int, version: int, *errors: ErrorCode) -> bytes:
    """A topic of each error, of two partitions."""
    schema: Any = load_response_schema(api_key, version)
    topic_type = schema.__dataclass_fields__["topics"].type.__args__[0]
    row_type = topic_type.__dataclass_fields__["partitions"].type.__args__[0]
    values = {"timestamp": -1, "offset": -1, "leader_epoch": -1, "low_watermark": -1}
    values = {name: value for name, value in values.items() if name in row_type.__dataclass_fields__}
    topics = [
        topic_type(
            name=f"topic-{number}",
            partitions=tuple(row_type(partition_index=index, error_code=error, **values) for index in (0, 1)),
        )
        for number, error in enumerate(errors)
    ]
    throttled = {"throttle_time": timedelta(0)} if "throttle_time" in schema.__dataclass_fields__ else {}
    return write_message(schema(topics=tuple(topics), **throttled))


@pytest.mark.parametrize("version", range(1, 12))
def test_rows_of_list_offsets(version: int) -> None:
    assert not is_any_listed(answer(LIST_OFFSETS, version), version)
    assert not is_any_listed(answer(LIST_OFFSETS, version, *REFUSED), version)
    assert is_any_listed(answer(LIST_OFFSETS, version, *REFUSED, ErrorCode.none), version)


@pytest.mark.parametrize("version", range(3))
def test_rows_of_delete_records(version: int) -> None:
    assert not is_any_deleted(answer(DELETE_RECORDS, version, *REFUSED), version)
    for accepted in (ErrorCode.none, ErrorCode.request_timed_out):
        assert is_any_deleted(answer(DELETE_RECORDS, version, *REFUSED, accepted), version)


@pytest.mark.parametrize("version", range(3))
def test_what_is_no_answer_is_left_to_those_who_say_so(version: int) -> None:
    whole = answer(DELETE_RECORDS, version, *REFUSED)
    for spoilt in (whole[:-1], whole + b"x", b""):
        assert is_any_deleted(spoilt, version)
