"""The settings of a compacted topic, as a broker tells them."""

from __future__ import annotations

import pytest

from tests.support.clean_world import COMPACTED
from tiersidecar.decide.cleaner_settings import read_cleaner_settings
from tiersidecar.decide.compacted_retention import CleanupPolicy


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
