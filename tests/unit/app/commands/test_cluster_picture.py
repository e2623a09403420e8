"""A cluster put together from the documents of its sidecars."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tiersidecar.app.commands.asking import Answer, KnownSidecar, known_sidecars
from tiersidecar.app.commands.cluster_picture import cluster_document, cluster_text, picture_of


def row(topic: str, partition: int, role: str = "leader", **values: Any) -> dict[str, Any]:
    lag = 0 if role == "leader" else None
    return {
        "topic": topic,
        "partition": partition,
        "role": role,
        "mode": "strict",
        "leader_epoch": 1,
        "remote_segments": 2,
        "remote_size_bytes": 200,
        "local_size_bytes": 100,
        "copy_lag_segments": lag,
        "copy_lag_bytes": lag,
        "halted_reason": None,
        "held_back_reason": None,
        **values,
    }


def answer(node_id: int, *rows: dict[str, Any], **values: Any) -> Answer:
    document = {
        "node_id": node_id,
        "cluster_id": "abc",
        "version": "1.2.3",
        "roles": ["tier"],
        "mode": "enforce",
        "ready": True,
        "reasons": [],
        "standing_by": "",
        "deletes_blocked": "",
        "refused_topics": {},
        "untrimmable_topics": {},
        "disks": [],
        "partitions": list(rows),
        **values,
    }
    return Answer(sidecar=KnownSidecar(address=f"b{node_id}:8091", node_id=node_id), document=document, code=200)


WELL = dict(answer(1).document or {})
SILENT = Answer(sidecar=KnownSidecar(address="b3:8091", node_id=3, version="1.2.2"), problem="it did not answer")


def test_only_leaders_count_for_a_topic() -> None:
    picture = picture_of(
        [answer(1, row("a", 0), row("a", 1, "follower")), answer(2, row("a", 1), row("a", 0, "follower"))]
    )
    (topic,) = picture.topics
    assert (topic.partitions, topic.unknown, topic.remote_bytes, topic.local_bytes) == (2, 0, 400, 200)
    assert not picture.needs_somebody


def test_a_partition_whose_leader_is_silent_is_not_known() -> None:
    picture = picture_of([answer(1, row("a", 0), row("a", 1, "follower")), SILENT])
    assert [(topic.partitions, topic.unknown) for topic in picture.topics] == [(2, 1)]
    assert "2 (1 not known)" in cluster_text(picture)
    assert "broker 3: it did not answer" in cluster_text(picture)
    assert picture.needs_somebody


def test_of_two_leaders_the_one_of_the_later_epoch_counts() -> None:
    old, new = row("a", 0, leader_epoch=4, remote_size_bytes=1), row("a", 0, leader_epoch=5, remote_size_bytes=7)
    for answers in ([answer(1, old), answer(2, new)], [answer(1, new), answer(2, old)]):
        assert [topic.remote_bytes for topic in picture_of(answers).topics] == [7]


def test_a_process_that_is_asked_at_two_addresses_is_told_once() -> None:
    """At that of its lease and at one that the caller named; a gateway beside the same broker is another process."""
    by_lease = answer(1, row("a", 0), started_ms=7)
    named = Answer(sidecar=KnownSidecar(address="127.0.0.1:8091"), document=by_lease.document, code=200)
    gateway = answer(1, row("a", 0, local_size_bytes=0), started_ms=7, roles=["gateway"])
    picture = picture_of([by_lease, named, gateway])
    assert [(broker.address, broker.roles) for broker in picture.brokers] == [
        ("b1:8091", "tier"),
        ("b1:8091", "gateway"),
    ]
    assert [topic.local_bytes for topic in picture.topics] == [100]


def test_a_broker_whose_address_leads_to_another_sidecar_has_told_nothing() -> None:
    """Its row vanished with the answer, which was the other one's, and nothing said that nobody told of its partitions."""
    first = answer(1, row("a", 0), row("a", 1, "follower"), started_ms=7)
    second = Answer(sidecar=KnownSidecar(address="b1:8091", node_id=2), document=first.document, code=200)
    for answers in ([first, second], [second, first]):
        picture = picture_of(answers)
        assert {broker.node_id: broker.answers for broker in picture.brokers} == {1: True, 2: False}
        assert "broker 2: the sidecar of broker 1 answers at b1:8091: set status.advertised" in cluster_text(picture)
        assert [(topic.partitions, topic.unknown) for topic in picture.topics] == [(2, 1)]
        assert picture.needs_somebody


def test_two_leases_at_one_process_that_does_not_know_its_broker_yet() -> None:
    starting = [
        Answer(
            sidecar=KnownSidecar(address="b1:8091", node_id=node_id),
            document=answer(1, started_ms=7).document,
            code=200,
        )
        for node_id in (1, 2)
    ]
    starting = [replace(one, document={**(one.document or {}), "node_id": None}) for one in starting]
    assert [(one.node_id, one.answers) for one in picture_of(starting).brokers] == [(1, True), (2, False)]


def test_partitions_of_which_nobody_tells_need_somebody() -> None:
    picture = picture_of([answer(1, row("a", 0), row("a", 1, "follower"))])
    assert [topic.unknown for topic in picture.topics] == [1]
    assert picture.needs_somebody


def test_a_process_without_the_role_tier_tells_of_topics_where_there_is_no_other() -> None:
    reader = answer(1, row("a", 0, leader_epoch=9, remote_size_bytes=0), roles=["read"])
    assert [topic.remote_bytes for topic in picture_of([reader]).topics] == [0]
    assert [topic.remote_bytes for topic in picture_of([reader, answer(2, row("a", 0))]).topics] == [200]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param({"ready": False, "reasons": ["no broker"]}, ["not ready", "broker 1: no broker"], id="not ready"),
        pytest.param({"standing_by": "standing by: process 7"}, ["standing by", "process 7"], id="standing by"),
        pytest.param({"mode": "observe"}, ["tier (observe)"], id="only observes"),
        pytest.param({"refused_topics": {"c": "compacted"}}, ["c is not tiered: compacted"], id="a refused topic"),
        pytest.param({"paused": ["copying is paused …"]}, ["copying is paused …"], id="paused"),
        pytest.param({"deletes_blocked": "brokers 3 …"}, ["nothing remote is deleted: brokers 3"], id="no deletes"),
        pytest.param(
            {
                "disks": [
                    {
                        "log_dirs": ["/data"],
                        "size_bytes": 1000,
                        "free_bytes": 250,
                        "seconds_to_full": 7200,
                        "state": "below_reserve",
                    }
                ]
            },
            ["/data", "25", "2h", "below reserve"],
            id="a disk that fills",
        ),
    ],
)
def test_what_people_have_to_know_is_in_the_text(values: dict[str, Any], words: list[str]) -> None:
    text = cluster_text(picture_of([answer(1, **values)]))
    assert [word for word in words if word not in text] == []


def test_halted_partitions_come_with_their_reasons() -> None:
    halted = row("a", 0, halted_reason="a bad batch")
    held = row("b", 0, held_back_reason="group g has read up to 5")
    follower = row("b", 1, "follower", held_back_reason="is the leader's to say")
    document = cluster_document(picture_of([answer(1, held, halted, follower)]))
    assert [(one["topic"], one["kind"], one["reason"]) for one in document["troubles"]] == [
        ("a", "halted", "a bad batch"),
        ("b", "held back", "group g has read up to 5"),
    ]
    assert document["needs_somebody"]


def test_a_sidecar_of_a_former_release_is_not_asked() -> None:
    told = [{"node_id": 1, "address": "", "host": "h", "version": "0.1", "is_over": is_over} for is_over in (0, 1)]
    notes = [one.note for one in known_sidecars(told)]
    assert "former release" in notes[0]
    assert "not renewed its lease" in notes[1]


def test_something_else_at_the_address_is_told() -> None:
    other = Answer(sidecar=KnownSidecar(address="b1:80"), code=404)
    assert "HTTP 404" in cluster_text(picture_of([other]))


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"secret": 1},
        {**WELL, "node_id": "1"},
        {**WELL, "cluster_id": ["abc"]},
        {**WELL, "roles": None},
        {**WELL, "reasons": [1]},
        {**WELL, "paused": 3},
        {**WELL, "refused_topics": []},
        {**WELL, "refused_topics": {"a": None}},
        {**WELL, "disks": [{"log_dirs": ["/d"]}]},
        {**WELL, "disks": [1]},
        {**WELL, "partitions": {"a": 1}},
        {**WELL, "partitions": [row("a", 0) | {"topic": 1}]},
        {**WELL, "partitions": [row("a", 0) | {"partition": "0"}]},
        {**WELL, "partitions": [row("a", 0) | {"remote_size_bytes": 10**400}]},
        {**WELL, "partitions": [row("a", 0) | {"copy_lag_bytes": "1"}]},
        {**WELL, "partitions": [row("a", 0) | {"halted_reason": 1}]},
    ],
)
def test_what_is_no_status_is_told_and_hides_no_other(document: dict[str, Any]) -> None:
    """A forged lease leads to it."""
    forged = Answer(sidecar=KnownSidecar(address="b9:1", node_id=9), document=document, code=200)
    picture = picture_of([forged, answer(1, row("a", 0))])
    assert [(broker.node_id, broker.answers) for broker in picture.brokers] == [(9, False), (1, True)]
    assert "not a status that this version can read" in cluster_text(picture)
    assert [one.topic for one in picture.topics] == ["a"]


def test_what_others_say_moves_no_cursor() -> None:
    text = cluster_text(picture_of([answer(1, reasons=["\x1b[2J"], paused=["\x1b]0;x\x07"])]))
    assert "\x1b" not in text
