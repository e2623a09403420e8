"""Tiering switched on and off: what is taken over, what is put back, what is refused (U10; issue text)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.support.segments import remote_segment
from tiersidecar.decide.switching import (
    KnownTiering,
    PartitionFacts,
    WantedTiering,
    cluster_retention,
    copied_bytes,
    copied_stop,
    decide_disable,
    decide_enable,
    parts_of_history,
    restored_retention,
)
from tiersidecar.domain.policy import RetentionMode
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State

WEEK = {"retention.ms": "604800000", "retention.bytes": "-1", "cleanup.policy": "delete"}
OURS = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
CLUSTER = {"retention.ms": "604800000", "retention.bytes": "-1"}
STRICT, RACE = RetentionMode.STRICT, RetentionMode.RACE
NO_OVERRIDES: dict[str, str | None] = {"retention.ms": None, "retention.bytes": None}
ENABLED = KnownTiering(
    is_on=True, mode=STRICT, retention_ms=1000, former_settings={"retention.ms": "604800000", "retention.bytes": None}
)
CONFIGURED = KnownTiering(is_on=True, mode=STRICT, retention_ms=1000, local_retention_ms=10, former_settings={})


@pytest.mark.parametrize(
    ("wanted", "known", "effective", "overrides", "expected"),
    [
        pytest.param(
            WantedTiering(),
            None,
            WEEK,
            {"retention.ms": "604800000"},
            (604800000, {"retention.ms": "604800000", "retention.bytes": None}, {"retention.ms": "-1"}),
            id="a new topic: its retention becomes the total one, its override is taken down",
        ),
        pytest.param(
            WantedTiering(),
            None,
            WEEK,
            {},
            (604800000, NO_OVERRIDES, {"retention.ms": "-1"}),
            id="no override of its own",
        ),
        pytest.param(
            WantedTiering(retention_ms=99),
            CONFIGURED,
            WEEK,
            {},
            (99, NO_OVERRIDES, {"retention.ms": "-1"}),
            id="what is said counts",
        ),
        pytest.param(
            WantedTiering(),
            CONFIGURED,
            WEEK,
            {},
            (1000, NO_OVERRIDES, {"retention.ms": "-1"}),
            id="then what is configured",
        ),
        pytest.param(
            WantedTiering(),
            ENABLED,
            OURS,
            {"retention.ms": "-1", "retention.bytes": "-1"},
            (1000, ENABLED.former_settings, {}),
            id="enabled twice: our own -1 is not taken for the user's",
        ),
        pytest.param(
            WantedTiering(),
            ENABLED,
            WEEK,
            {"retention.ms": "604800000"},
            (1000, ENABLED.former_settings, {"retention.ms": "-1"}),
            id="stopped in between, or put back by tooling: done again",
        ),
        pytest.param(
            WantedTiering(),
            replace(ENABLED, is_on=False, mode=RACE),
            {**WEEK, "retention.ms": "5"},
            {"retention.ms": "5"},
            (1000, {"retention.ms": "5", "retention.bytes": None}, {"retention.ms": "-1"}),
            id="enabled again after it was off: the overrides of today are taken down",
        ),
        pytest.param(
            WantedTiering(),
            replace(ENABLED, is_on=False, mode=RACE),
            OURS,
            {"retention.ms": "-1", "retention.bytes": "-1"},
            (1000, ENABLED.former_settings, {}),
            id="enabled again while its disabling was half done",
        ),
        pytest.param(
            WantedTiering(mode=RACE),
            None,
            WEEK,
            {},
            (604800000, {}, {}),
            id="race: the broker keeps its settings, so there is nothing to put back",
        ),
        pytest.param(
            WantedTiering(),
            replace(ENABLED, is_on=False, mode=RACE, former_settings={}),
            OURS,
            {"retention.ms": "-1", "retention.bytes": "-1"},
            (1000, {"retention.ms": "-1", "retention.bytes": "-1"}, {}),
            id="enabled again after its settings were put back: a -1 of now is somebody's own wish",
        ),
    ],
)
def test_enable(
    wanted: WantedTiering,
    known: KnownTiering | None,
    effective: Mapping[str, str | None],
    overrides: Mapping[str, str | None],
    expected: tuple[int, dict[str, str | None], dict[str, str | None]],
) -> None:
    plan = decide_enable(wanted, known, effective, overrides)
    assert (plan.retention_ms, plan.former_settings, plan.changes, plan.refusal) == (*expected, "")


@pytest.mark.parametrize(
    ("wanted", "known", "effective", "reason"),
    [
        pytest.param(WantedTiering(), None, {**WEEK, "cleanup.policy": "compact"}, "compact", id="a compacted topic"),
        pytest.param(
            WantedTiering(),
            None,
            {**WEEK, "remote.storage.enable": "true"},
            "the broker tiers it itself",
            id="tiered natively",
        ),
        pytest.param(
            WantedTiering(mode=RACE), ENABLED, OURS, "disable it first", id="another mode: only by way of disable"
        ),
        pytest.param(
            WantedTiering(retention_ms=10, local_retention_ms=11),
            None,
            WEEK,
            "local.retention.ms of 11",
            id="more local than total",
        ),
        pytest.param(
            WantedTiering(retention_bytes=10, local_retention_bytes=-1),
            None,
            WEEK,
            "local.retention.bytes",
            id="local without limit",
        ),
    ],
)
def test_enable_is_refused(
    wanted: WantedTiering, known: KnownTiering | None, effective: Mapping[str, str | None], reason: str
) -> None:
    assert reason in decide_enable(wanted, known, effective, {}).refusal


def test_as_much_local_as_total_is_no_contradiction() -> None:
    wanted = WantedTiering(retention_ms=10, local_retention_ms=10, retention_bytes=5, local_retention_bytes=5)
    plan = decide_enable(wanted, None, WEEK, {})
    assert (plan.refusal, plan.local_retention_ms, plan.retention_bytes) == ("", 10, 5)


def test_what_is_refused_changes_nothing_and_the_first_reason_is_told() -> None:
    too_much = WantedTiering(retention_ms=10, local_retention_ms=11)
    plan = decide_enable(too_much, None, WEEK, {})
    assert (plan.changes, plan.former_settings) == ({}, {})
    compacted = decide_enable(too_much, None, {**WEEK, "cleanup.policy": "compact"}, {})
    assert "compact" in compacted.refusal


@pytest.mark.parametrize(
    ("known", "overrides", "changes"),
    [
        pytest.param(
            ENABLED,
            {"retention.ms": "-1", "retention.bytes": "-1"},
            {"retention.ms": "604800000", "retention.bytes": None},
            id="what enabling made -1 is put back",
        ),
        pytest.param(ENABLED, {"retention.ms": "2592000000"}, {}, id="what somebody has set since stays"),
        pytest.param(
            replace(ENABLED, mode=RACE),
            {"retention.ms": "2592000000"},
            {},
            id="race mode took nothing over, whatever a former release took down",
        ),
        pytest.param(replace(ENABLED, mode=RACE), OURS, {}, id="race mode: a -1 is somebody's own wish"),
        pytest.param(
            replace(ENABLED, is_on=False, mode=RACE),
            {"retention.ms": "-1"},
            {"retention.ms": "604800000"},
            id="a disabling that was half done is done",
        ),
        pytest.param(
            replace(ENABLED, former_settings={"retention.ms": "-1", "retention.bytes": "-1"}),
            {"retention.ms": "-1", "retention.bytes": "-1"},
            {},
            id="it was without limit before",
        ),
    ],
)
def test_disable_puts_back_what_enabling_took_over_and_nothing_else(
    known: KnownTiering, overrides: Mapping[str, str | None], changes: Mapping[str, str | None]
) -> None:
    assert decide_disable(known, overrides, [], cluster=CLUSTER).changes == changes


FACTS = PartitionFacts(
    partition=3,
    log_start_offset=100,
    high_watermark=500,
    copied_stop=400,
    kept_from=400,
    local_bytes=4000,
    remote_bytes_still_local=3000,
)


@pytest.mark.parametrize(
    ("facts", "former", "reason"),
    [
        pytest.param(FACTS, {"retention.ms": "604800000"}, "", id="what would go is remote"),
        pytest.param(
            replace(FACTS, kept_from=401),
            {"retention.ms": "604800000"},
            "[400, 401) of partition 3",
            id="one record is not",
        ),
        pytest.param(
            replace(FACTS, kept_from=401), {"retention.ms": None}, "[400, 401)", id="by the cluster's retention"
        ),
        pytest.param(
            replace(FACTS, kept_from=401, is_kept_from_bound=True),
            {"retention.ms": "604800000"},
            "may delete some of them: the broker can say which once it has deleted the files below its log start; try again",
            id="one record is not, or is: the broker cannot tell yet",
        ),
        pytest.param(
            replace(FACTS, is_kept_from_bound=True),
            {"retention.ms": "5"},
            "",
            id="the broker cannot tell, all is remote",
        ),
        pytest.param(replace(FACTS, kept_from=401), {"retention.ms": "-1"}, "", id="without a limit nothing goes"),
        pytest.param(replace(FACTS, kept_from=401), {}, "", id="nothing was taken down, so nothing is restored"),
        pytest.param(replace(FACTS, kept_from=500, copied_stop=500), {"retention.ms": "5"}, "", id="all is remote"),
        pytest.param(
            replace(FACTS, copied_stop=0, kept_from=101),
            {"retention.ms": "5"},
            "[100, 101)",
            id="nothing is remote: from the log start",
        ),
        pytest.param(FACTS, {"retention.bytes": "1000"}, "", id="by size only remote bytes are too much"),
        pytest.param(FACTS, {"retention.bytes": "999"}, "4000 bytes, of which 3000 are remote", id="one byte more"),
        pytest.param(
            replace(FACTS, local_bytes=None), {"retention.bytes": "1000"}, "not known", id="the size is not known"
        ),
        pytest.param(
            replace(FACTS, local_bytes=None, copied_stop=500),
            {"retention.bytes": "1000"},
            "",
            id="and need not be, all is remote",
        ),
    ],
)
def test_disable_is_refused_where_data_would_be_lost(
    facts: PartitionFacts, former: Mapping[str, str | None], reason: str
) -> None:
    plan = decide_disable(replace(ENABLED, former_settings=former), OURS, [facts], cluster=CLUSTER)
    assert reason in plan.refusal
    assert bool(plan.refusal) is bool(reason)
    assert bool(reason) == bool(plan.refusal)


def _new(start: int, end: int) -> RemoteLogSegmentMetadata:
    """Of epoch 2."""
    return remote_segment(start, end, epochs=((2, 100),))


@pytest.mark.parametrize(
    ("remote", "log_start", "stop"),
    [
        pytest.param([], 7, 7, id="nothing is remote"),
        pytest.param([remote_segment(0, 99), _new(100, 199)], 50, 200, id="without a hole"),
        pytest.param([remote_segment(0, 99), _new(101, 199)], 50, 100, id="up to the hole"),
        pytest.param([remote_segment(60, 99)], 50, 50, id="a hole at the log start"),
        pytest.param([remote_segment(0, 99, state=State.COPY_SEGMENT_STARTED)], 50, 50, id="not finished"),
        pytest.param(
            [remote_segment(0, 299, epochs=((0, 0), (1, 90))), remote_segment(80, 149, epochs=((0, 0), (2, 100)))],
            50,
            150,
            id="an election has cut a segment, and what follows it is copied anew",
        ),
        pytest.param(
            [remote_segment(0, 99), remote_segment(100, 299, epochs=((1, 100),))],
            50,
            100,
            id="of an epoch that the leader does not know",
        ),
        pytest.param([remote_segment(0, 299, epochs=((0, 0), (1, 150)))], 50, 100, id="cut in the first of its epochs"),
        pytest.param([remote_segment(0, 399, epochs=((0, 0), (2, 100)))], 50, 350, id="beyond the end of the log"),
    ],
)
def test_how_far_it_is_remote(remote: list[RemoteLogSegmentMetadata], log_start: int, stop: int) -> None:
    """The leader's log has epoch 0 up to 100, and epoch 2 from there on."""
    assert copied_stop(parts_of_history(remote, {0: 100, 2: 350}), log_start) == stop


@pytest.mark.parametrize(
    ("remote", "size_bytes"),
    [
        pytest.param([], 0, id="nothing is remote"),
        pytest.param([(0, 99), (100, 199)], 2000, id="side by side"),
        pytest.param([(0, 99), (0, 99), (100, 199)], 2000, id="copied twice"),
        pytest.param([(0, 99), (50, 149), (100, 199)], 2000, id="leaders that rolled differently: what is new of each"),
        pytest.param([(0, 199), (50, 149), (100, 199)], 1000, id="within another"),
        pytest.param([(0, 99), (150, 249)], 1500, id="one that ends behind what counts: that part"),
        pytest.param([(0, 99), (200, 299)], 1000, id="one behind it"),
        pytest.param([(0, 49), (0, 99), (100, 199)], 2000, id="of two that begin alike the longer one"),
        pytest.param([(0, 2), (1, 3)], 1333, id="whole bytes"),
    ],
)
def test_what_is_remote_counts_once_however_often_it_was_copied(remote: list[tuple[int, int]], size_bytes: int) -> None:
    """Else more than is remote could be deleted by the retention that ``disable`` restores."""
    segments = [replace(remote_segment(*segment), segment_size_in_bytes=1000) for segment in remote]
    ends = {0: 1000}
    assert copied_bytes(parts_of_history(segments, ends), 0, 200) == size_bytes
    started = [replace(segment, state=State.COPY_SEGMENT_STARTED) for segment in segments]
    assert copied_bytes(parts_of_history(started, ends), 0, 200) == 0
    assert copied_bytes(parts_of_history([*started[:1], *segments], ends), 0, 200) == size_bytes, (
        "an unfinished one hides none that is finished"
    )


def test_what_begins_before_the_range_does_not_hide_what_begins_in_it() -> None:
    segments = [replace(remote_segment(*one), segment_size_in_bytes=1000) for one in ((0, 99), (100, 199), (300, 399))]
    parts = parts_of_history(segments, {0: 1000})
    assert copied_bytes(parts, 50, 300) == 1000
    assert copied_bytes(parts, 100, 301) == 1010
    assert copied_bytes(parts, 0, 1) == 10


def test_parts_have_whole_bytes() -> None:
    (part,) = parts_of_history([replace(remote_segment(0, 2), segment_size_in_bytes=100)], {0: 2})
    assert (part.size_bytes, isinstance(part.size_bytes, int)) == (66, True)


def test_a_compacted_topic_is_enabled_only_where_such_topics_are_tiered() -> None:
    compacted = {**WEEK, "cleanup.policy": "compact"}
    assert "compaction.enabled" in decide_enable(WantedTiering(), None, compacted, {}).refusal
    assert decide_enable(WantedTiering(), None, compacted, {}, tiers_compacted=True).refusal == ""


def test_of_a_segment_that_an_election_cut_only_the_front_counts() -> None:
    cut = replace(remote_segment(50, 149), segment_size_in_bytes=1000)
    assert copied_bytes(parts_of_history([cut], {0: 100}), 0, 200) == 500


@pytest.mark.parametrize(
    ("ends", "spans"),
    [
        pytest.param({0: 100, 2: 300}, [(0, 199)], id="what adjoins is one"),
        pytest.param({0: 60, 2: 300}, [(0, 59), (100, 199)], id="what an election has cut out stays out"),
        pytest.param({2: 300}, [(100, 199)], id="an epoch that is not of the log"),
    ],
)
def test_what_a_segment_of_two_epochs_has_of_the_log(ends: dict[int, int], spans: list[tuple[int, int]]) -> None:
    parts = parts_of_history([remote_segment(0, 199, epochs=((0, 0), (2, 100)))], ends)
    assert [(part.start_offset, part.stop_offset - 1) for part in parts] == spans


def test_disable_restores_what_was_and_leaves_the_rest() -> None:
    overrides = {"retention.ms": "-1", "retention.bytes": "-1", "segment.bytes": "5"}
    plan = decide_disable(ENABLED, overrides, [FACTS], cluster=CLUSTER)
    assert plan.changes == {"retention.ms": "604800000", "retention.bytes": None}
    assert (plan.retention_ms, plan.former_settings) == (1000, ENABLED.former_settings)
    known = replace(ENABLED, retention_bytes=7, local_retention_ms=8, local_retention_bytes=9)
    kept = decide_disable(known, overrides, [FACTS], cluster=CLUSTER)
    assert (kept.retention_bytes, kept.local_retention_ms, kept.local_retention_bytes) == (7, 8, 9)
    done = decide_disable(ENABLED, {"retention.ms": "604800000"}, [replace(FACTS, kept_from=500)], cluster=CLUSTER)
    assert (done.changes, done.refusal) == ({}, "")


def test_what_the_restored_retention_would_delete_is_said_for_certain_where_it_is() -> None:
    overrides = {"retention.ms": "-1", "retention.bytes": "-1"}
    sure = decide_disable(ENABLED, overrides, [replace(FACTS, kept_from=450)], cluster=CLUSTER)
    assert sure.refusal == (
        "offsets [400, 450) of partition 3 are not remote, and the restored retention.ms of 604800000 would delete them"
    )


def test_a_topic_that_is_not_tiered_is_not_disabled() -> None:
    plan = decide_disable(None, {}, [], cluster=CLUSTER)
    assert (plan.refusal, plan.changes, plan.former_settings) == ("it is not tiered", {}, {})


@pytest.mark.parametrize(
    ("configs", "retention_ms"),
    [
        ({"log.retention.hours": "168"}, 604800000),
        ({"log.retention.hours": "168", "log.retention.minutes": "2"}, 120000),
        ({"log.retention.hours": "168", "log.retention.minutes": None, "log.retention.ms": "7"}, 7),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.hours": "168", "log.retention.ms": ""}, 604800000),
        ({"log.retention.hours": "168", "log.retention.ms": "0"}, 0),
        ({}, -1),
    ],
)
def test_what_topics_take_from_the_broker(configs: Mapping[str, str | None], retention_ms: int) -> None:
    assert restored_retention({"retention.ms": None}, cluster_retention(configs), "retention.ms") == retention_ms


@pytest.mark.parametrize(
    ("configs", "retention_bytes"),
    [
        ({"log.retention.bytes": "70"}, 70),
        ({"log.retention.bytes": "-1"}, -1),
        ({"log.retention.bytes": None}, -1),
        ({}, -1),
    ],
)
def test_what_topics_take_from_the_broker_by_size(configs: Mapping[str, str | None], retention_bytes: int) -> None:
    assert (
        restored_retention({"retention.bytes": None}, cluster_retention(configs), "retention.bytes") == retention_bytes
    )
    assert cluster_retention(configs)["retention.bytes"] == str(retention_bytes)


def test_a_topic_that_is_configured_keeps_its_local_retention_where_none_is_wanted() -> None:
    known = replace(CONFIGURED, local_retention_ms=10, local_retention_bytes=20)
    plan = decide_enable(WantedTiering(), known, WEEK, {})
    assert (plan.local_retention_ms, plan.local_retention_bytes) == (10, 20)
    plan = decide_enable(WantedTiering(local_retention_ms=1, local_retention_bytes=2), known, WEEK, {})
    assert (plan.local_retention_ms, plan.local_retention_bytes) == (1, 2)
