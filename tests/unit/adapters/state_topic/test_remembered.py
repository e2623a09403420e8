"""What a process knew of the state topic tells the next one whether it is the topic that was read before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.inline_blocking import InlineBlocking
from tests.unit.adapters.state_topic.test_catch_up import FACTS, Behind, FakeRecord
from tiersidecar.adapters.state_topic.fold import StateFold
from tiersidecar.adapters.state_topic.record_codecs import loss_key, write_loss
from tiersidecar.adapters.state_topic.remembered import FileMemory, LastRecord, RememberedTopic
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import Uuid, format_uuid
from tiersidecar.domain.offsets import Offset

KNOWN = RememberedTopic(
    cluster_id="cluster",
    topic_id=format_uuid(FACTS.topic_id),
    position=Offset(5),
    last=LastRecord.of(4, b"key", b"value"),
    accepted=frozenset({"a", "b"}),
)


async def test_a_file_keeps_it(tmp_path: Path) -> None:
    memory = FileMemory(tmp_path / "state-topic.tier.json", blocking=InlineBlocking())
    assert await memory.read() is None
    for known in (KNOWN, replace(KNOWN, last=None, position=Offset(9))):
        await memory.write(known)
        assert await memory.read() == known


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"cluster_id": "c"}', '{"cluster_id":"c","topic_id":"t","position":"x"}']
)
async def test_a_file_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state-topic.tier.json"
    path.write_text(text)
    assert await FileMemory(path, blocking=InlineBlocking()).read() is None


async def test_a_disk_that_is_full_stops_nothing(tmp_path: Path) -> None:
    await FileMemory(tmp_path / "missing" / "state-topic.tier.json", blocking=InlineBlocking()).write(KNOWN)


@pytest.mark.parametrize(
    ("known", "end", "lost"),
    [
        pytest.param(None, 5, "", id="nothing is known"),
        pytest.param(KNOWN, 5, "", id="it ends where it was read to"),
        pytest.param(KNOWN, 9, "", id="it went on"),
        pytest.param(KNOWN, 4, "ends at offset 4, but was read up to 5", id="it is shorter"),
        pytest.param(
            replace(KNOWN, topic_id=format_uuid(Uuid(b"another-topic-id"))), 9, "created again", id="another topic"
        ),
    ],
)
def test_the_first_look_of_a_process_compares(known: RememberedTopic | None, end: int, lost: str) -> None:
    topic = Behind().replica
    topic._facts, topic._position, topic._remembered = None, -1, known
    reason = topic._loss(FACTS, Offset(end))
    assert bool(reason) is bool(lost)
    assert lost in (reason or "")


@pytest.mark.parametrize(
    ("position", "end", "halted"),
    [
        pytest.param(4, 6, "state lost offsets 6 to 8 before they were read", id="the end was lost before it was read"),
        pytest.param(4, 9, "", id="it has the end that is to be reached"),
        pytest.param(4, 12, "", id="it went on"),
    ],
)
async def test_an_end_that_was_never_read_is_missed_for_as_long_as_the_process_runs(
    position: int, end: int, halted: str
) -> None:
    """What users deleted, or an operator paused, may be in it."""
    behind = Behind()
    behind.replica._ready_at, behind.replica._position = 9, position
    behind.replica._begin_reading(FACTS, Offset(0), Offset(end))
    assert halted in (behind.log.halted_reason or "")
    assert bool(behind.log.halted_reason) is bool(halted)
    behind.replica._begin_reading(FACTS, Offset(0), Offset(20))
    assert bool(behind.log.halted_reason) is bool(halted), "others write on, and what was lost is still unknown"


@pytest.mark.parametrize(("value", "is_lost"), [(b"value", False), (b"other", True)])
async def test_the_record_that_was_read_last_must_be_the_same(value: bytes, is_lost: bool) -> None:
    behind = Behind()
    behind.replica._remembered = KNOWN
    behind.consumer.records = [FakeRecord(4, b"key", value)]
    if not is_lost:
        await behind.replica._read_some(behind.consumer)
        assert behind.log.halted_reason is None
        return
    with pytest.raises(BrokerRefusedError, match="LOG_TRUNCATION_DETECTED"):
        await behind.replica._read_some(behind.consumer)
    assert "another record at offset 4" in str(behind.log.halted_reason)
    assert not behind.log.is_ready, "what is there now is not what was known"


def test_no_key_and_an_empty_key_are_two_things() -> None:
    records = [(None, b""), (b"", None), (b"", b""), (None, None), (b"a", b"b"), (b"ab", b"")]
    assert len({LastRecord.of(1, key, value).digest for key, value in records}) == len(records)


def test_acceptances_are_folded_and_those_of_other_clusters_are_not() -> None:
    fold = StateFold("ours")
    fold.apply(loss_key("1"), write_loss({"state": "s", "metadata": "m"}, by="x", now_ms=5), where="0")
    fold.apply(loss_key("2"), b'{"v":1,"topics":{"state":"t"},"cluster_id":"theirs"}', where="1")
    fold.apply(loss_key("3"), b'{"v":1,"topics":[]}', where="2")
    assert fold.losses == {"1": frozenset({"s", "m"})}
