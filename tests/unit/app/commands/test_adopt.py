"""What adopt says of an owner object before it writes it anew."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.scripted import MemoryStateLog, ScriptedBroker
from tests.support.segments import TOPIC_ID_PARTITION
from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.kafka.broker import KafkaBroker
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.app.commands.adopt import look_at_adoption, owner_in
from tiersidecar.app.commands.session import Session
from tiersidecar.domain.ids import Uuid, format_uuid
from tiersidecar.domain.own_objects import MOST_OWNER_BYTES
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.store import BytesBody
from tiersidecar.tasks.topic_owners import owner_key, read_owned_place

TOPIC_ID = TOPIC_ID_PARTITION.topic_id


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(None, "", id="none"),
        pytest.param(b'{"cluster_id":"theirs"}', "theirs", id="another cluster's"),
        pytest.param(b"{}", "unreadable: it names no cluster", id="no owner"),
        pytest.param(b"[" * 60_000, "unreadable: its JSON is nested too deeply", id="deeply nested"),
        pytest.param(bytes(MOST_OWNER_BYTES + 1), "unreadable: it has more than 65536 bytes", id="too large"),
    ],
)
async def test_an_owner_object_that_cannot_be_read_is_not_said_to_be_missing(
    tmp_path: Path, data: bytes | None, expected: str
) -> None:
    session = cast(Session, SimpleNamespace(config=load(tmp_path, LEAST)))
    store = MemoryStore(clock=ManualClock(), ids=SystemIds())
    if data is not None:
        await store.put_object(owner_key(session.config.store.key_prefix, TOPIC_ID), BytesBody(data))
    assert await owner_in(session, store, TOPIC_ID) == expected


PLACES = """\
log.dirs: [/d]
broker: {{bootstrap.servers: 127.0.0.1:9092}}
store: {{type: filesystem, root: {0}/hot}}
places: {{cold: {{root: {0}/cold}}, far: {{root: {0}/far}}, other: {{root: {0}/other}}}}
topics: [{{pattern: ".*", place: far}}]
"""


class Broker(ScriptedBroker):
    async def describe_topic_ids(self, topic_ids: Iterable[Uuid]) -> dict[Uuid, str | None]:
        return dict.fromkeys(topic_ids)


async def test_every_place_where_segments_lie_gets_an_owner_object(tmp_path: Path) -> None:
    """S-293: that of former rules too, else nothing that is there would ever be deleted."""
    for name in ("hot", "cold", "far", "other"):
        (tmp_path / name).mkdir()
    broker, state = Broker(), MemoryStateLog()
    await state.publish_partition_state(
        TOPIC_ID_PARTITION, PartitionState(owner_seen_ms=1, places_seen=("cold", "gone"))
    )
    session = Session(
        config=load(tmp_path, PLACES.format(tmp_path)),
        broker=cast("KafkaBroker", broker),
        state=state,
        metadata=None,
        clock=ManualClock(),
    )
    intent = await look_at_adoption(session, TOPIC_ID)
    assert intent.apply is not None
    await intent.apply()
    named = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob(f"{format_uuid(TOPIC_ID)}.json")}
    assert named == {"hot", "cold", "far"}
    assert (await look_at_adoption(session, TOPIC_ID)).steps == ()
    places = {name: read_owned_place((tmp_path / name / owner_key("", TOPIC_ID)).read_bytes()) for name in named}
    assert places == {"hot": "", "cold": "cold", "far": "far"}
    (tmp_path / "cold").rename(tmp_path / "other-cold")
    (tmp_path / "far").rename(tmp_path / "cold")
    (tmp_path / "other-cold").rename(tmp_path / "far")
    exchanged = await look_at_adoption(session, TOPIC_ID)
    assert exchanged.apply is not None, "or the places were renamed, and the operator knows"
    await exchanged.apply()
    assert read_owned_place((tmp_path / "cold" / owner_key("", TOPIC_ID)).read_bytes()) == "cold"
