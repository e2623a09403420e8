"""Whether a segment is in the store: manifest, .log and indexes, as the metadata and the manifest say (issue 16: repair)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.faulty_store import FaultyStore, away
from tests.support.remote_builder import RemoteBuilder
from tests.unit.reading.test_histories import source
from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.index_blob import bounds_of
from tiersidecar.formats.aiven.keys import ObjectKeys
from tiersidecar.ports.store import BytesBody
from tiersidecar.reading.remote_objects import SegmentPresence, recorded_keys

Change = Callable[[dict[str, Any]], object]


class Copied:
    """One segment of offsets 20 to 34 in the store, and whoever looks for it."""

    def __init__(self, builder: RemoteBuilder, metadata: RemoteLogSegmentMetadata) -> None:
        self.store, self.metadata = builder.run.store, metadata
        self.keys: ObjectKeys = recorded_keys(metadata, "")
        self.presence = SegmentPresence(self.store, "")

    async def is_whole(self) -> bool:
        return await self.presence.is_whole(self.metadata)

    async def says(self, change: Change) -> None:
        """Put ``change``d content in place of the manifest's."""
        document = json.loads(await self.store.fetch_object(self.keys.manifest, max_bytes=2**30))
        change(document)
        await self.store.put_object(self.keys.manifest, BytesBody(json.dumps(document).encode()))


@pytest.fixture
async def copied() -> Copied:
    builder = RemoteBuilder()
    return Copied(builder, await builder.add(source(20, 35, {0: 0, 3: 25})))


async def test_a_segment_with_its_three_objects_is_whole(copied: Copied) -> None:
    assert await copied.is_whole()


@pytest.mark.parametrize("kind", ["log", "indexes", "manifest"])
async def test_one_that_lacks_an_object_is_not(copied: Copied, kind: str) -> None:
    await copied.store.delete_objects([getattr(copied.keys, kind)])
    assert not await copied.is_whole()


@pytest.mark.parametrize("kind", ["log", "indexes", "manifest"])
@pytest.mark.parametrize("cut", [slice(0, -1), slice(0, 0)], ids=["a byte is missing", "it is empty"])
async def test_one_with_an_object_of_another_size_is_not(copied: Copied, kind: str, cut: slice) -> None:
    key = getattr(copied.keys, kind)
    data = await copied.store.fetch_object(key, max_bytes=2**30)
    await copied.store.put_object(key, BytesBody(data[cut]))
    assert not await copied.is_whole()


def said(**changes: object) -> Change:
    return lambda document: document["remoteLogSegmentMetadata"].update(changes)


def said_id(uuid: str) -> Change:
    return lambda document: document["remoteLogSegmentMetadata"]["remoteLogSegmentId"].update(id=uuid)


@pytest.mark.parametrize(
    ("change", "is_whole"),
    [
        pytest.param(said_id("AAAAAAAAAAAAAAAAAAAAAQ"), False, id="another segment's id"),
        pytest.param(said(startOffset=19), False, id="another start"),
        pytest.param(said(endOffset=35), False, id="another end"),
        pytest.param(said(segmentLeaderEpochs={"0": 20, "4": 25}), False, id="another leader wrote the end"),
        pytest.param(said(segmentLeaderEpochs={"0": 20, "3": 26}), False, id="an epoch begins elsewhere"),
        pytest.param(said(brokerId=7, maxTimestampMs=5), True, id="by whom it was copied is no matter"),
        pytest.param(lambda it: it.pop("remoteLogSegmentMetadata"), True, id="the plugin's oldest ones say nothing"),
    ],
)
async def test_a_manifest_must_be_of_the_segment(copied: Copied, change: Change, *, is_whole: bool) -> None:
    await copied.says(change)
    assert await copied.is_whole() is is_whole


async def test_a_manifest_of_a_log_of_another_size_is_not_the_segments(copied: Copied) -> None:
    size_bytes = copied.metadata.segment_size_in_bytes
    copied.metadata = replace(copied.metadata, segment_size_in_bytes=size_bytes + 1)
    assert not await copied.is_whole()
    copied.metadata = replace(copied.metadata, segment_size_in_bytes=size_bytes)
    await copied.says(lambda document: document.pop("remoteLogSegmentMetadata"))
    assert await copied.is_whole()
    copied.metadata = replace(copied.metadata, segment_size_in_bytes=size_bytes - 1)
    assert not await copied.is_whole()


async def test_one_whose_custom_metadata_are_another_plugins_is_not_whole(copied: Copied) -> None:
    copied.metadata = replace(copied.metadata, custom_metadata=b"\xff\xff not ours")
    assert not await copied.is_whole()


@pytest.mark.parametrize("verb", ["fetch_object", "head_object"])
async def test_where_the_store_is_away_nobody_can_tell(
    copied: Copied, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(key: str, **options: object) -> None:
        away(key, None, b"")

    store = FaultyStore(copied.store)
    monkeypatch.setattr(store, verb, fail)
    with pytest.raises(StoreError, match="connection reset"):
        await SegmentPresence(store, "").is_whole(copied.metadata)


async def test_what_is_wrong_with_a_manifest_is_told_and_nothing_of_one_that_is_not_there(copied: Copied) -> None:
    key = copied.keys.manifest
    found, wrong = await copied.presence.read_manifest(key)
    assert (found is not None, wrong) == (True, "")
    await copied.store.put_object(key, BytesBody(b"{}"))
    found, wrong = await copied.presence.read_manifest(key)
    assert (found, "the manifest cannot be read" in wrong, key in wrong) == (None, True, True)
    await copied.store.delete_objects([key])
    assert await copied.presence.read_manifest(key) == (None, "")


async def test_of_an_object_that_is_larger_than_a_manifest_of_the_segment_can_be_nothing_is_made(
    copied: Copied,
) -> None:
    """Whoever can write to the bucket fills no memory with it."""
    bounds = bounds_of(replace(copied.metadata, end_offset=Offset(21)))
    await copied.says(lambda document: document.update(padding="x" * bounds.manifest_bytes))
    found, wrong = await copied.presence.read_manifest(copied.keys.manifest, bounds)
    assert (found, "cannot be read" in wrong) == (None, True)
    assert (await copied.presence.read_manifest(copied.keys.manifest))[0] is not None


async def test_where_nothing_else_is_recorded_the_configured_prefix_counts(copied: Copied) -> None:
    assert not await SegmentPresence(copied.store, "elsewhere/").is_whole(copied.metadata)
