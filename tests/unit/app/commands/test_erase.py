"""``tiersidecar erase``: which files of keys it takes, which topics it refuses, and how it ends."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import typer

from tests.unit.app.test_erase_run import KEY, World, world
from tiersidecar.app.commands.erase import KeyFormat, Wanted, look_at_erasure, read_keys
from tiersidecar.app.commands.session import Session
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.policy import Pause, PausedThing, PauseKind, TieringMode
from tiersidecar.ports.broker import ClusterDescription
from tiersidecar.ports.state_log import TopicState

__all__ = ["world"]

T = TypeVar("T")


@pytest.mark.parametrize(
    ("content", "form", "keys"),
    [
        pytest.param(b"one\ntwo\n", KeyFormat.TEXT, {b"one", b"two"}, id="a line each"),
        pytest.param(b"one\r\ntwo", KeyFormat.TEXT, {b"one", b"two"}, id="as Windows writes it, without an end"),
        pytest.param(b" one \n", KeyFormat.TEXT, {b" one "}, id="blanks are part of it"),
        pytest.param("sch\u00f6n\n".encode(), KeyFormat.TEXT, {"sch\u00f6n".encode()}, id="UTF-8"),
        pytest.param(b"00ff0A\n", KeyFormat.HEX, {b"\0\xff\n"}, id="hex"),
        pytest.param(base64.b64encode(b"\0\xff") + b"\n", KeyFormat.BASE64, {b"\0\xff"}, id="base64"),
        pytest.param(b"one\none\n", KeyFormat.TEXT, {b"one"}, id="one said twice"),
    ],
)
def test_keys_of_a_file(tmp_path: Path, content: bytes, form: KeyFormat, keys: set[bytes]) -> None:
    (path := tmp_path / "keys").write_bytes(content)
    assert set(read_keys(path, form)) == keys


@pytest.mark.parametrize(
    ("content", "form", "reason"),
    [
        pytest.param(b"", KeyFormat.TEXT, "line 1 is empty", id="nothing"),
        pytest.param(b"one\n\ntwo\n", KeyFormat.TEXT, "line 2 is empty", id="an empty line: hardly the empty key"),
        pytest.param(b"\xfc\n", KeyFormat.TEXT, "line 1 is no key in the format text", id="no UTF-8"),
        pytest.param(
            "\ufeffone\n".encode(), KeyFormat.TEXT, "line 1 begins with a byte-order mark", id="UTF-8 with a mark"
        ),
        pytest.param("one\n".encode("utf-16"), KeyFormat.TEXT, "line 1 begins with a byte-order mark", id="UTF-16"),
        pytest.param("one\n".encode("utf-16-le"), KeyFormat.TEXT, "line 1 has a NUL", id="UTF-16 without a mark"),
        pytest.param(b"00\n \n", KeyFormat.HEX, "line 2 is blank", id="a blank as hex: hardly the empty key"),
        pytest.param(b"AA==\n\t\n", KeyFormat.BASE64, "line 2 is blank", id="a blank as base64"),
        pytest.param(b"00\nsecret\n", KeyFormat.HEX, "line 2 is no key in the format hex", id="no hex"),
        pytest.param(b"secret!\n", KeyFormat.BASE64, "line 1 is no key in the format base64", id="no base64"),
    ],
)
def test_what_is_no_key_is_refused_by_its_line_and_never_shown(
    tmp_path: Path, content: bytes, form: KeyFormat, reason: str
) -> None:
    (path := tmp_path / "keys").write_bytes(content)
    with pytest.raises(typer.BadParameter) as caught:
        read_keys(path, form)
    assert reason in caught.value.message
    assert "secret" not in caught.value.message


def wanted(there: World, *, settle_s: float = 0.0) -> Wanted:
    return Wanted(
        topic=there.builder.partition.topic, keys={KEY: 1, b"nobody's": 7}, scratch=there.scratch, settle_s=settle_s
    )


def compacted(there: World) -> Session:
    """The topic is compacted, and the brokers have all of it."""
    there.broker.settings[there.builder.partition.topic] = {"cleanup.policy": "compact"}
    there.broker.replica_starts = {1: 0, 2: 0}
    return replace(there.session, config=there.session.config.model_copy(update={"compaction_enabled": True}))


async def while_time_passes(there: World, doing: Awaitable[T]) -> T:
    """Return what ``doing`` gives; the clock goes on whenever it sleeps, and stands still while threads work for it."""
    task = asyncio.ensure_future(doing)
    while not task.done():
        if there.clock.wakes_within(5):
            await there.clock.advance(5)
        elif there.clock.wakes_within(10):
            await asyncio.sleep(0.2)  # the lease is renewed every 10 s, also while threads work
            await there.clock.advance(10)
        await asyncio.sleep(0)
    return await task


def tiered(there: World, mode: TieringMode | str = "strict") -> None:
    partition = there.builder.partition
    state = there.session.state
    state.topics[partition.topic_id] = TopicState(  # type: ignore[attr-defined]
        topic=partition.topic,
        mode=str(mode),
        retention_ms=-1,
        retention_bytes=-1,
        local_retention_ms=-2,
        local_retention_bytes=-2,
    )


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("not tiered", "is not tiered"),
        ("compacted", "compacted topics are tiered with compaction.enabled alone"),
        ("native", "the broker tiers the topic itself"),
        ("deleting", "all that is remote of the topic is being deleted"),
        ("deletes paused", "deletes and trims are paused"),
        ("copies paused", "copying is paused"),
        ("a broker without a sidecar", "brokers 3 have no sidecar of this version yet"),
    ],
)
async def test_topics_of_which_nothing_is_erased(
    world: World, case: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.add(0)
    topic = world.builder.partition.topic
    if case != "not tiered":
        tiered(world, TieringMode.DELETING if case == "deleting" else "strict")
    if case == "compacted":
        world.broker.settings[topic] = {"cleanup.policy": "compact,delete"}
    if case == "native":
        world.broker.settings[topic] = {"cleanup.policy": "delete", "remote.storage.enable": "true"}
    if case.endswith("paused"):
        kind = PauseKind.DELETES if case.startswith("deletes") else PauseKind.COPIES
        thing = PausedThing(kind=kind, topic_id=world.builder.partition.topic_id)
        await world.session.state.publish_pause(Pause(thing=thing, topic=topic, since_ms=0, by="an operator"))
    if case == "a broker without a sidecar":

        async def describe_cluster() -> ClusterDescription:
            return ClusterDescription(cluster_id="scripted", brokers={BrokerId(3): "broker:9092"})

        monkeypatch.setattr(world.broker, "describe_cluster", describe_cluster)
    assert reason in (await look_at_erasure(world.session, wanted(world))).refusal


async def test_it_shows_what_it_will_do_and_what_it_leaves_and_proves_what_it_did(world: World) -> None:
    tiered(world)
    for start in (0, 10):
        await world.add(start)
    world.broker.replica_starts = {1: 10, 2: 10}
    intent = await look_at_erasure(world.session, wanted(world))
    assert (intent.facts["keys"], intent.facts["segments"], intent.facts["records"]) == (2, 2, 7)
    assert (intent.facts["keys_found"], intent.details["keys_not_found_lines"]) == (1, [7])
    assert "no record that was read has the key of line 7 of the file" in intent.notes
    (step,) = intent.steps
    assert "offsets 0 to 9: 4 records; rewritten without them under a new id" in step
    assert any("still local: offsets 10 to 19" in note for note in intent.notes)
    assert intent.apply is not None
    outcome = await intent.apply()
    assert outcome is not None
    assert (outcome["complete"], outcome["erased_records"]) == (False, 4)
    (proof,), (left,), (trash,) = outcome["erased"], outcome["remaining"], outcome["trash"]
    assert proof["sha256_before"] != proof["sha256_after"]
    assert (left["start_offset"], trash["segment_ids"]) == (10, [proof["segment_id"]])
    assert KEY.decode() not in repr((intent, outcome))


async def test_of_a_compacted_topic_all_that_is_remote_is_erased_and_what_brokers_hold_is_named(world: World) -> None:
    tiered(world)
    await world.add(0)
    intent = await look_at_erasure(compacted(world), wanted(world, settle_s=30))
    assert (intent.refusal, len(intent.steps)) == ("", 1)
    assert intent.details["held_by_brokers"] == [{"partition": 0, "from_offset": 0}]
    assert any("what is copied from offset 10 on is not erased" in note for note in intent.notes)
    elsewhere = intent.details["copies_may_remain"]
    assert "of which nothing is trimmed" in elsewhere[0]
    assert [one.partition(":")[0].split()[0] for one in elsewhere] == ["the", "pins", "caches", "clusters", "earlier"]
    assert intent.apply is not None
    outcome = await while_time_passes(world, intent.apply())
    assert outcome is not None
    assert (outcome["complete"], outcome["erased_records"]) == (True, 4)
    assert outcome["not_looked_at"] == [{"partition": 0, "from_offset": 10}]


@pytest.mark.parametrize(
    ("settle_s", "refusal"),
    [
        pytest.param(29.999, "a compacted topic needs 30 s at least", id="the cleaner may still finish a swap"),
        pytest.param(30, "", id="what the cleaner had begun is over"),
    ],
)
async def test_of_a_compacted_topic_it_waits_longer_than_the_cleaner_may_take(
    world: World, settle_s: float, refusal: str
) -> None:
    tiered(world)
    await world.add(0)
    refused = (await look_at_erasure(compacted(world), wanted(world, settle_s=settle_s))).refusal
    assert refusal in refused
    assert bool(refused) is bool(refusal)


@pytest.mark.parametrize("is_silent", [False, True], ids=["all of it is still local", "a replica is silent"])
async def test_where_all_is_left_alone_it_says_that_something_remains(world: World, is_silent: bool) -> None:
    tiered(world)
    await world.add(0)
    world.broker.replica_starts = {1: 0, 2: "it is down" if is_silent else 0}
    intent = await look_at_erasure(world.session, wanted(world))
    assert (intent.steps, intent.complete) == ((), False)
    assert [one["start_offset"] for one in intent.details["remaining"]] == [0]
    assert intent.details["not_looked_at"] == [{"partition": 0, "from_offset": None if is_silent else 0}]
    assert any("hold" in note and "the log" in note for note in intent.notes)
