"""Error codes of the rows of an answer, without an object for each row: clients without rights may ask for thousands of them.

Of answers that are an optional throttle time, then topics by name with rows of fields of fixed sizes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tiersidecar.formats.wire.cursor import Buffer, Cursor
from tiersidecar.formats.wire.messages import MalformedMessageError

NONE, REQUEST_TIMED_OUT = 0, 7
_THROTTLE_BYTES = 4
_DELETED = struct.Struct(">iqh")
_LISTED = {False: struct.Struct(">ihqq"), True: struct.Struct(">ihqqi")}
"""By whether a row has a leader epoch."""


def is_any_deleted(answer: Buffer, version: int) -> bool:
    """Return whether the body of an answer to DeleteRecords has a row that is no refusal; True also where it is no answer.

    After its own time limit the leader has moved its start, only not every follower has.
    """
    errors = _errors(answer, flexible=version >= 2, has_throttle=True, layout=_DELETED, error_at=2)
    return _is_any(errors, frozenset({NONE, REQUEST_TIMED_OUT}))


def is_any_listed(answer: Buffer, version: int) -> bool:
    """Return whether the body of an answer to ListOffsets, from version 1 on, has a row without an error; True also where it is
    no answer."""
    layout = _LISTED[version >= 4]
    errors = _errors(answer, flexible=version >= 6, has_throttle=version >= 2, layout=layout, error_at=1)
    return _is_any(errors, frozenset({NONE}))


def _is_any(errors: Iterator[int], wanted: frozenset[int]) -> bool:
    try:
        return any(error in wanted for error in errors)
    except MalformedMessageError:
        return True


def _errors(
    answer: Buffer, *, flexible: bool, has_throttle: bool, layout: struct.Struct, error_at: int
) -> Iterator[int]:
    """
    Raises:
        MalformedMessageError: the answer is not laid out so.
    """
    cursor = Cursor(answer, flexible=flexible)
    cursor.skip(_THROTTLE_BYTES if has_throttle else 0)
    for _ in range(cursor.array_length()):
        cursor.skip_string()
        for _ in range(cursor.array_length()):
            yield cursor.fixed(layout)[error_at]
            cursor.skip_tagged_fields()
        cursor.skip_tagged_fields()
    cursor.skip_tagged_fields()
    cursor.end()
