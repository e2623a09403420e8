"""What an operator sees first on the status page."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.services.status.test_server import Source, partition
from tiersidecar.services.status.page import MAX_ROWS, render_page

SUMMARY = Source().summary()


def test_partitions_in_trouble_come_first_then_those_with_most_lag() -> None:
    rows = [
        partition("a", 0, copy_lag_bytes=1),
        partition("b", 0, copy_lag_bytes=900),
        partition("c", 0, held_back_reason="retention.ms is not -1"),
        partition("d", 0, halted_reason="segment is corrupt"),
    ]
    page = render_page(SUMMARY, [], rows)
    places = [page.index(f"<td class=''>{topic}<") for topic in "dcba"]
    assert places == sorted(places)
    assert "4 partitions, 1 halted" in page
    assert "segment is corrupt" in page


def test_thousands_of_partitions_are_cut_and_the_rest_is_counted() -> None:
    page = render_page(SUMMARY, [], [partition("t", number) for number in range(MAX_ROWS + 50)])
    assert page.count("<tr><td") == MAX_ROWS + 1  # and one topic that is refused
    assert "and 50 more" in page


def test_of_thousands_of_misplaced_partitions_the_first_are_shown_apart() -> None:
    page = render_page(replace(SUMMARY, misplaced={f"t-{number:04}": "not here" for number in range(3000)}), [], [])
    assert "Partitions whose directory is not here" in page
    assert page.count("<td>not here") == 20
    assert "not here" not in render_page(SUMMARY, [], [])


def test_names_and_reasons_are_escaped() -> None:
    page = render_page(
        replace(SUMMARY, refused_topics={"<b>": "a & b"}), ["<i>"], [partition("t", 0, halted_reason="<u>")]
    )
    assert not any(tag in page for tag in ("<b>", "<i>", "<u>"))
    assert "a &amp; b" in page


def test_switched_off_deletes_show() -> None:
    assert "all deletes are switched off" in render_page(replace(SUMMARY, deletes_enabled=False), [], [])
    assert "all deletes are switched off" not in render_page(SUMMARY, [], [])


def test_what_is_paused_shows() -> None:
    assert "copying is paused" in render_page(replace(SUMMARY, paused=["copying is paused"]), [], [])
    assert "Paused" not in render_page(SUMMARY, [], [])


def test_a_process_that_knows_little_yet_has_a_page_too() -> None:
    page = render_page(replace(SUMMARY, cluster_id=None, node_id=None), ["broker not reachable"], [])
    assert "not known yet" in page
    assert "Not ready" in page
