"""Single segments read back, over what the real plugin left (issue 20)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.directory_store import DirectoryStore
from tests.support.manual_clock import ManualClock, settle
from tests.support.plugin_bucket import NOW_MS, PluginBucket
from tests.support.remote_runs import key_ring
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.decide.reconcile_findings import FindingKind
from tiersidecar.domain.data_keys import NO_CONTEXT, KeyContext
from tiersidecar.domain.errors import DataKeyError, KeyRefusedError, KeyServiceError, StoreError, TiersidecarError
from tiersidecar.domain.ids import RemoteLogSegmentId, format_uuid
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.metadata.serde import read_event
from tiersidecar.ports.store import Buffer
from tiersidecar.reconcile.deep_check import KeyRingOpener
from tiersidecar.reconcile.verify import ReadsAtPace, SegmentVerifier, Verdict, Verified


class Reading:
    """The bucket's segments, and a verifier over its store."""

    def __init__(self, bucket: PluginBucket, store: ReadsAtPace) -> None:
        self.root = bucket.root
        self.store = store
        self.verifier = SegmentVerifier(store=store, key_prefix="", is_plain=False, open_key_ring=key_ring)
        self.segments = folded(bucket)

    def first(self, kind: str) -> tuple[RemoteLogSegmentMetadata, Path]:
        """The segment whose object of ``kind`` comes first, and that object."""
        path = min(self.root.rglob(f"*.{kind}"))
        (segment,) = (
            one for one in self.segments.values() if self.verifier.key_of(one, kind) == str(path.relative_to(self.root))
        )
        return segment, path

    async def verify(self, segment: RemoteLogSegmentMetadata) -> Verified:
        topic_id_partition = segment.topic_id_partition
        beside = [one for one in self.segments.values() if one.topic_id_partition == topic_id_partition]
        return await self.verifier.verify(segment, self.verifier.preceding(beside), NOW_MS)


def folded(bucket: PluginBucket) -> dict[RemoteLogSegmentId, RemoteLogSegmentMetadata]:
    found: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
    for value in bucket.events:
        event = read_event(value, where="the bucket")
        if isinstance(event, RemoteLogSegmentMetadata):
            found[event.remote_log_segment_id] = event
        elif isinstance(event, RemoteLogSegmentMetadataUpdate):
            found[event.remote_log_segment_id] = found[event.remote_log_segment_id].with_update(event)
    return found


@pytest.fixture
async def reading(tmp_path: Path) -> AsyncIterator[Reading]:
    bucket = PluginBucket(tmp_path / "bucket")
    async with DirectoryStore(str(bucket.root))() as store:
        yield Reading(bucket, ReadsAtPace(store, UploadPace(None, ManualClock())))


async def test_what_the_plugin_left_is_sound_to_the_last_byte(reading: Reading) -> None:
    found = [await reading.verify(segment) for segment in reading.segments.values()]
    assert {segment.verdict for segment in found} == {Verdict.SOUND}
    objects = sum(path.stat().st_size for path in reading.root.rglob("*") if path.is_file())
    assert (
        sum(segment.read_bytes for segment in found) >= objects
    )  # what comes before is read for its open transactions


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip_in_the_midst(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def set_the_first_epoch(path: Path) -> None:
    """Of the first batch, at byte 12: no checksum covers it."""
    data = bytearray(path.read_bytes())
    struct.pack_into(">i", data, 12, 77)
    path.write_bytes(data)


def move_an_entry_of_the_offset_index(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[7] ^= 0x01
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("kind", "damage", "finding"),
    [
        pytest.param("log", Path.unlink, FindingKind.MISSING_OBJECT, id="the log is gone"),
        pytest.param("indexes", Path.unlink, FindingKind.MISSING_OBJECT, id="the indexes are gone"),
        pytest.param("rsm-manifest", Path.unlink, FindingKind.MISSING_OBJECT, id="the manifest is gone"),
        pytest.param("log", cut_short, FindingKind.SIZE_MISMATCH, id="the log is a byte short"),
        pytest.param("log", flip_in_the_midst, FindingKind.CORRUPT_CONTENT, id="a byte of a batch is another"),
        pytest.param("log", set_the_first_epoch, FindingKind.CORRUPT_CONTENT, id="a batch is of another leader epoch"),
        pytest.param(
            "indexes", move_an_entry_of_the_offset_index, FindingKind.CORRUPT_CONTENT, id="an index points elsewhere"
        ),
        pytest.param("rsm-manifest", cut_short, FindingKind.UNREADABLE_MANIFEST, id="the manifest is cut"),
    ],
)
async def test_each_damage_has_its_finding(
    reading: Reading, kind: str, damage: Callable[[Path], None], finding: FindingKind
) -> None:
    segment, path = reading.first(kind)
    damage(path)
    found = await reading.verify(segment)
    assert found.verdict is Verdict.DAMAGED
    (told,) = found.findings
    assert (told.kind, told.segment_id) == (finding, format_uuid(segment.remote_log_segment_id.uuid))
    assert told.key == str(path.relative_to(reading.root)) or "the offset index says" in told.detail


async def test_a_clock_that_is_behind_the_brokers_hides_nothing(reading: Reading) -> None:
    segment, path = reading.first("log")
    path.unlink()
    assert (await reading.verifier.verify(segment, {}, now_ms=0)).verdict is Verdict.DAMAGED


async def test_an_object_that_goes_while_it_is_read_is_missing(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment, path = reading.first("log")
    fetch = ReadsAtPace.fetch_range

    async def fetch_range(self: ReadsAtPace, key: str, byte_range: ByteRange) -> Buffer:
        path.unlink(missing_ok=True)
        return await fetch(self, key, byte_range)

    monkeypatch.setattr(ReadsAtPace, "fetch_range", fetch_range)
    (found,) = (await reading.verify(segment)).findings
    assert found.kind is FindingKind.MISSING_OBJECT


@pytest.mark.parametrize(
    "state", [RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.DELETE_SEGMENT_STARTED]
)
async def test_of_what_is_not_there_whole_nothing_is_read(reading: Reading, state: RemoteLogSegmentState) -> None:
    segment, _ = reading.first("log")
    update = RemoteLogSegmentMetadataUpdate(
        remote_log_segment_id=segment.remote_log_segment_id,
        broker_id=segment.broker_id,
        event_timestamp_ms=1,
        state=state,
    )
    found = await reading.verify(segment.with_update(update))
    assert (found.verdict, found.read_bytes, found.findings) == (Verdict.UNFINISHED, 0, ())


async def test_a_store_that_is_away_is_no_finding(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(self: ReadsAtPace, key: str, byte_range: ByteRange) -> Buffer:
        raise StoreError(verb="fetch", key=key, reason="away")

    monkeypatch.setattr(ReadsAtPace, "fetch_range", away)
    segment, _ = reading.first("log")
    with pytest.raises(StoreError, match="away"):
        await reading.verify(segment)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(KeyServiceError(service="KMS", verb="unwrap", reason="connection refused"), id="away"),
        pytest.param(DataKeyError(key_id="k", reason="the key ring has only j"), id="has another key"),
        pytest.param(KeyRefusedError(verb="unwrap", key_id="k", reason="enable the key again"), id="refuses"),
    ],
)
async def test_without_its_data_key_a_segment_is_not_checked(reading: Reading, error: TiersidecarError) -> None:
    class Refusing:
        def unwrap(self, text: str, context: KeyContext = NO_CONTEXT) -> bytes:
            raise error

        def wrap(self, data_key: bytes, random_bytes: Callable[[int], bytes], context: KeyContext = NO_CONTEXT) -> str:
            raise error

    await assert_encrypted_ones_are_not_checked(reading, Refusing, str(error))


async def test_without_any_keys_encrypted_segments_are_not_checked(reading: Reading) -> None:
    await assert_encrypted_ones_are_not_checked(reading, lambda: None, "encryption is not configured here")


async def assert_encrypted_ones_are_not_checked(reading: Reading, keys: KeyRingOpener, told: str) -> None:
    reading.verifier = SegmentVerifier(store=reading.store, key_prefix="", is_plain=False, open_key_ring=keys)
    verified = [await reading.verify(segment) for segment in reading.segments.values()]
    unchecked = [one for one in verified if one.findings]
    assert unchecked, "the bucket has encrypted segments"
    for one in unchecked:
        assert one.verdict is Verdict.NOT_CHECKED
        assert [finding.kind for finding in one.findings] == [FindingKind.NOT_CHECKED]
        assert told in one.findings[0].detail
    assert len(unchecked) < len(verified), "the others need no key"


async def test_reads_keep_to_their_rate(reading: Reading) -> None:
    clock = ManualClock()
    segment, path = reading.first("log")
    size_bytes = path.stat().st_size
    seen: list[int] = []
    paced = ReadsAtPace(reading.store, UploadPace(size_bytes, clock), seen.append)
    fetching = asyncio.create_task(paced.fetch_range(reading.verifier.key_of(segment, "log"), ByteRange(0, size_bytes)))
    await clock.advance(0.9)
    assert not fetching.done()
    await clock.advance(0.2)
    async with asyncio.timeout(10):
        assert len(await fetching) == size_bytes
    await settle()
    assert seen == [size_bytes]
