"""What a report says of places that it could not look at whole."""

from __future__ import annotations

from tiersidecar.decide.reconcile_findings import (
    Action,
    Finding,
    FindingKind,
    place_out_of_reach,
    place_stopped_answering,
)


def test_segments_in_a_place_that_is_not_configured_are_one_finding_for_an_operator() -> None:
    found = place_out_of_reach("@cold/", 12, {"@warm/": "it did not answer"})
    assert found == Finding(
        kind=FindingKind.UNKNOWN_PLACE,
        key="@cold/",
        detail="12 segments lie in place 'cold', which the configuration does not name: put it back under places",
    )
    assert found.action is Action.LOOK


def test_a_place_that_was_not_listed_whole_is_named_with_the_reason() -> None:
    found = place_out_of_reach("@cold/", 12, {"@cold/": "it did not answer"})
    assert found == Finding(
        kind=FindingKind.NOT_CHECKED,
        key="@cold/",
        detail="place 'cold' was not listed whole, and its 12 segments were not checked: it did not answer",
    )
    assert found.action is Action.LOOK


def test_a_place_that_stopped_answering_later_is_named_by_its_keys() -> None:
    found = place_stopped_answering("cold", 3, "timed out")
    assert found == Finding(
        kind=FindingKind.NOT_CHECKED,
        key="@cold/",
        detail="place 'cold' stopped answering, and 3 segments were not checked, or not whole: timed out",
    )
    assert place_stopped_answering("", 3, "timed out").key == "", "the default place's keys begin with nothing"
