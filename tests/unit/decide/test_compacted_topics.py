"""Settings of a compacted topic, and what retention may take of it: the table of policies, row by row (S-267, S-268)."""

from __future__ import annotations

import pytest

from tests.support.clean_world import COMPACTED
from tiersidecar.decide.topics import (
    AgedSegment,
    CleanupPolicy,
    read_cleaner_settings,
    read_cleanup_policy,
    reason_to_keep_locally,
    reason_to_keep_remotely,
)
from tiersidecar.domain.offsets import Offset

DELETE, COMPACT, BOTH = CleanupPolicy.DELETE, CleanupPolicy.COMPACT, CleanupPolicy.COMPACT_AND_DELETE


@pytest.mark.parametrize(
    ("value", "policy"),
    [
        ("delete", DELETE),
        ("compact", COMPACT),
        ("compact,delete", BOTH),
        ("delete, compact", BOTH),
        ("", None),
        ("x", None),
    ],
)
def test_the_topic_config_is_read_in_any_order(value: str, policy: CleanupPolicy | None) -> None:
    assert read_cleanup_policy(value) is policy


@pytest.mark.parametrize(
    ("policy", "is_copied", "is_past", "cleaner_offset", "reason"),
    [
        pytest.param(BOTH, True, True, None, "", id="compact,delete does not wait for the cleaner"),
        pytest.param(DELETE, True, True, None, "", id="delete"),
        pytest.param(COMPACT, True, True, 100, "", id="compact, cleaned to its end"),
        pytest.param(
            COMPACT, True, True, 99, "it is not cleaned: the cleaner offset is 99", id="its last record is dirty"
        ),
        pytest.param(COMPACT, True, True, None, "it is not cleaned: the cleaner offset is 0", id="nothing was cleaned"),
        pytest.param(COMPACT, True, False, 100, "local retention keeps it", id="cleaned, and young"),
        pytest.param(BOTH, False, True, 100, "it is not in the remote tier", id="never what was not copied"),
    ],
)
def test_local(policy: CleanupPolicy, is_copied: bool, is_past: bool, cleaner_offset: int | None, reason: str) -> None:
    segment = AgedSegment(
        end_offset=Offset(99), is_copied=is_copied, is_past_local_retention=is_past, is_past_total_retention=False
    )
    offset = None if cleaner_offset is None else Offset(cleaner_offset)
    assert reason_to_keep_locally(policy, segment, offset) == reason


@pytest.mark.parametrize(
    ("policy", "is_past", "goes"),
    [(BOTH, True, True), (BOTH, False, False), (DELETE, True, True), (COMPACT, True, False)],
)
def test_remote(policy: CleanupPolicy, is_past: bool, goes: bool) -> None:
    segment = AgedSegment(
        end_offset=Offset(99), is_copied=True, is_past_local_retention=True, is_past_total_retention=is_past
    )
    assert (not reason_to_keep_remotely(policy, segment)) is goes


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete, compact"])
def test_a_compacted_topics_settings_are_read(policy: str) -> None:
    found = read_cleaner_settings(COMPACTED | {"cleanup.policy": policy, "min.cleanable.dirty.ratio": "0.5"})
    assert found is not None
    assert found.policy in {CleanupPolicy.COMPACT, CleanupPolicy.COMPACT_AND_DELETE}
    assert (found.compaction.min_cleanable_dirty_ratio, found.delete_retention_ms) == (0.5, 1000)


@pytest.mark.parametrize(
    "change",
    [
        {"cleanup.policy": "delete"},
        {"cleanup.policy": ""},
        {"cleanup.policy": None},
        {"cleanup.policy": "compact,other"},
        {"segment.bytes": None},
        {"segment.bytes": "many"},
        {"min.cleanable.dirty.ratio": "half"},
    ],
)
def test_nothing_is_cleaned_by_a_guess(change: dict[str, str | None]) -> None:
    assert read_cleaner_settings(COMPACTED | change) is None
