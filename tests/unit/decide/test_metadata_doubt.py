"""When the metadata topic is not to be taken for the whole truth (finding 3; U11)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiersidecar.decide.metadata_doubt import FormerLook, MetadataFacts, metadata_doubt

BEFORE = FormerLook(run_id="r", topic_id="id", end={0: 10, 1: 5})
FACTS = MetadataFacts(topic="t", topic_id="id", begin={0: 0, 1: 0}, end={0: 12, 1: 5}, segment_count=3)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        pytest.param(FACTS, "", id="nothing was seen before"),
        pytest.param(replace(FACTS, former=BEFORE), "", id="all that was seen before is there"),
        pytest.param(replace(FACTS, begin={0: 0, 1: 1}), "does not begin at offset 0", id="its front is gone"),
        pytest.param(replace(FACTS, former=BEFORE, end={0: 12, 1: 4}), "ended at 5 in run r", id="its end is gone"),
        pytest.param(
            replace(FACTS, former=BEFORE, end={0: 12}), "partition 1 of t ends at offset 0", id="a partition is gone"
        ),
        pytest.param(
            replace(FACTS, former=replace(BEFORE, end={0: 10, 2: 1})),
            "partition 2 of t ends at offset 0, and ended at 1",
            id="a partition with a single event is gone",
        ),
        pytest.param(
            replace(FACTS, former=BEFORE, topic_id="other"), "created again", id="another topic of the same name"
        ),
        pytest.param(
            replace(FACTS, former=replace(BEFORE, topic_id=""), topic_id="other"),
            "",
            id="a former run that named no id",
        ),
        pytest.param(replace(FACTS, foreign_segment_count=9), "", id="some topics were deleted"),
        pytest.param(
            replace(FACTS, segment_count=0, foreign_segment_count=9),
            "another cluster's",
            id="no topic of it is known here",
        ),
        pytest.param(replace(FACTS, segment_count=0), "", id="nothing was ever copied"),
    ],
)
def test_doubts(facts: MetadataFacts, said: str) -> None:
    found = metadata_doubt(facts)
    assert (found == "") if not said else (said in found)
