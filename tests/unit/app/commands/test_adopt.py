"""What adopt says of an owner object before it writes it anew."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.segments import TOPIC_ID_PARTITION
from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.app.commands.adopt import owner_in
from tiersidecar.app.commands.session import Session
from tiersidecar.domain.own_objects import MOST_OWNER_BYTES
from tiersidecar.ports.store import BytesBody
from tiersidecar.tasks.topic_owners import owner_key

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
