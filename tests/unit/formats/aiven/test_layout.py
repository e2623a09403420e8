"""Our objects are the plugin's, byte for byte (issue "The bytes"; S-283 S-284 S-285 S-286 S-287 S-288 S-289)."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.golden import AIVEN_OBJECTS, CLEAN_LOG_DIR, read_json
from tiersidecar.domain.errors import DataKeyError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.index_blob import IndexArtefacts, IndexKind, slice_index
from tiersidecar.formats.aiven.key_ring import KeyRing, read_rsa_key_pair
from tiersidecar.formats.aiven.keys import (
    CustomMetadata,
    CustomMetadataField,
    ObjectKind,
    ParsedObjectKey,
    parse_object_key,
    write_custom_metadata,
)
from tiersidecar.formats.aiven.layout import (
    SegmentEncryption,
    SegmentLayout,
    new_segment_encryption,
    plan_objects,
)
from tiersidecar.formats.aiven.manifest import Manifest, read_manifest, reading_plan
from tiersidecar.formats.aiven.transforms import IV_SIZE, ChunkCipher
from tiersidecar.formats.kafka.indexes import read_transaction_index
from tiersidecar.formats.kafka.log_dir_files import read_leader_epochs, write_leader_epochs
from tiersidecar.formats.kafka.segment_scan import SegmentScanner


@dataclass(frozen=True, kw_only=True)
class Run:
    """One configuration under which the plugin wrote objects."""

    name: str
    chunk_size: int
    key_prefix: str
    compression: bool
    fields: frozenset[CustomMetadataField]

    @property
    def root(self) -> Path:
        return AIVEN_OBJECTS / self.name

    def segments(self) -> list[ParsedObjectKey]:
        """What the keys of the plugin's manifests say."""
        found = []
        for path in sorted(self.root.rglob("*.rsm-manifest")):
            parsed = parse_object_key(str(path.relative_to(self.root)), self.key_prefix)
            assert parsed is not None
            found.append(parsed)
        return found


def read_runs() -> dict[str, Run]:
    """The runs with the settings that their manifest records."""
    runs = {}
    for name, described in read_json("aiven-objects", "manifest.json")["runs"].items():
        settings = dict(line.removeprefix("rsm.config.").split("=", 1) for line in described["rsm_config"])
        included = settings.get("custom.metadata.fields.include", "")
        runs[name] = Run(
            name=name,
            chunk_size=int(settings["chunk.size"]),
            key_prefix=settings.get("key.prefix", ""),
            compression=settings.get("compression.enabled") == "true",
            fields=frozenset(map(CustomMetadataField, filter(None, included.split(",")))),
        )
    return runs


RUNS = read_runs()
UNENCRYPTED = [
    pytest.param(run, segment, id=f"{run.name} {segment.segment_id.topic_id_partition} {segment.start_offset}")
    for run in RUNS.values()
    if run.name != "encrypted"
    for segment in run.segments()
]
ENCRYPTED = [
    pytest.param(segment, id=f"{segment.segment_id.topic_id_partition} {segment.start_offset}")
    for segment in RUNS["encrypted"].segments()
]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A segment of the log dir, with what we derive from it."""

    log: bytes
    artefacts: IndexArtefacts
    metadata: RemoteLogSegmentMetadata


def read_source(segment: ParsedObjectKey, event_timestamp_ms: int) -> Source:
    """All but id and event time from the log dir alone, as the copy task will."""
    directory = CLEAN_LOG_DIR / str(segment.segment_id.topic_id_partition)
    base = segment.start_offset
    following = min(int(path.stem) for path in directory.glob("*.log") if int(path.stem) > base)
    log = (directory / f"{base:020d}.log").read_bytes()
    scanner = SegmentScanner(where=str(base), base_offset=base, next_base_offset=following)
    scanner.feed(log)
    scan = scanner.finish()
    lineage = Lineage.of(read_leader_epochs((directory / "leader-epoch-checkpoint").read_bytes()))
    transactions = directory / f"{base:020d}.txnindex"
    transaction_index = transactions.read_bytes() if transactions.exists() else None
    aborted = read_transaction_index(transaction_index or b"", base_offset=base)
    return Source(
        log=log,
        artefacts=IndexArtefacts(
            offset_index=(directory / f"{base:020d}.index").read_bytes(),
            time_index=(directory / f"{base:020d}.timeindex").read_bytes(),
            producer_snapshot=(directory / f"{following:020d}.snapshot").read_bytes(),
            leader_epochs=write_leader_epochs(lineage.entries_below(following)),
            transaction_index=transaction_index,
        ),
        metadata=RemoteLogSegmentMetadata(
            remote_log_segment_id=segment.segment_id,
            start_offset=base,
            end_offset=Offset(following - 1),
            max_timestamp_ms=scan.max_timestamp_ms,
            broker_id=BrokerId(1),
            event_timestamp_ms=event_timestamp_ms,
            segment_size_in_bytes=len(log),
            segment_leader_epochs=lineage.entries_in_range(base, following),
            txn_index_empty=not aborted,
        ),
    )


def plugin_object(run: Run, segment: ParsedObjectKey, kind: ObjectKind) -> bytes:
    partition = segment.segment_id.topic_id_partition
    (path,) = (run.root / run.key_prefix / partition.qualified).glob(f"{segment.start_offset:020d}-*.{kind}")
    return path.read_bytes()


def plugin_manifest(run: Run, segment: ParsedObjectKey) -> Manifest:
    return read_manifest(plugin_object(run, segment, ObjectKind.MANIFEST))


def plan_of(run: Run, source: Source, encryption: SegmentEncryption | None = None) -> SegmentLayout:
    return plan_objects(
        metadata=source.metadata,
        key_prefix=run.key_prefix,
        chunk_size=run.chunk_size,
        compression=run.compression,
        encryption=encryption,
        custom_metadata_fields=run.fields,
    )


def source_of(run: Run, segment: ParsedObjectKey) -> Source:
    told = plugin_manifest(run, segment).segment
    assert told is not None
    return read_source(segment, told.event_timestamp_ms)


def assemble(
    layout: SegmentLayout, source: Source, ivs: list[bytes | None], index_ivs: list[bytes]
) -> dict[str, bytes]:
    """The three objects by key, as the uploader makes them, chunk by chunk."""
    size, view = layout.transform.chunk_size, memoryview(source.log)
    chunks = [
        bytes(layout.transform.transform(view[index * size : (index + 1) * size], ivs[index]))
        for index in range(layout.chunk_count)
    ]
    blob = layout.index_blob(source.artefacts, index_ivs)
    manifest = layout.manifest(layout.chunk_index([len(chunk) for chunk in chunks]), blob.indexes)
    objects = (b"".join(chunks), blob.data, manifest)
    return dict(zip(layout.keys.in_upload_order, objects, strict=True))


@pytest.mark.parametrize(("run", "segment"), UNENCRYPTED)
def test_objects_equal_the_plugins_byte_for_byte(run: Run, segment: ParsedObjectKey) -> None:
    """S-029, S-033, S-034: given the id and the event time, everything else follows from the log dir."""
    source = source_of(run, segment)
    layout = plan_of(run, source)
    objects = assemble(layout, source, [None] * layout.chunk_count, [])
    for kind, (key, data) in zip(ObjectKind, objects.items(), strict=True):
        assert (run.root / key).read_bytes() == data, kind


def test_all_objects_of_the_plugin_were_compared() -> None:
    counts = {name: len(run.segments()) for name, run in RUNS.items()}
    assert counts == {
        "plain": 51, "prefix-custommeta": 21, "compressed": 16, "compressed-bigchunk": 11, "encrypted": 15,
    }  # fmt: skip


@pytest.fixture(scope="module")
def key_ring() -> KeyRing:
    keys = AIVEN_OBJECTS / "keys"
    pair = read_rsa_key_pair((keys / "rsa-public.spki.der").read_bytes(), (keys / "rsa-private.pkcs8.der").read_bytes())
    return KeyRing(active_key_id="key1", keys={"key1": pair})


@pytest.mark.parametrize("segment", ENCRYPTED)
def test_encrypted_objects_of_the_plugin_open_to_the_same_bytes(segment: ParsedObjectKey, key_ring: KeyRing) -> None:
    run = RUNS["encrypted"]
    source, manifest = source_of(run, segment), plugin_manifest(run, segment)
    plan = reading_plan(manifest, key_ring)
    stored = plugin_object(run, segment, ObjectKind.LOG)
    index = manifest.chunk_index
    opened = []
    for number in range(index.chunk_count):
        chunk = index.chunk(number)
        opened.append(plan.detransform(stored[chunk.transformed.start : chunk.transformed.stop], len(chunk.original)))
    assert b"".join(opened) == source.log

    blob = plugin_object(run, segment, ObjectKind.INDEXES)
    parts = dict(zip(IndexKind, source.artefacts.parts(), strict=False))
    for kind in IndexKind:
        assert slice_index(blob, manifest.indexes, kind, plan.cipher) == parts.get(kind), kind


@pytest.mark.parametrize("segment", ENCRYPTED)
def test_with_the_plugins_keys_and_ivs_we_encrypt_to_the_same_bytes(
    segment: ParsedObjectKey, key_ring: KeyRing
) -> None:
    """Randomness comes in as arguments, so that the whole encrypted layout is compared as well."""
    run = RUNS["encrypted"]
    source, manifest = source_of(run, segment), plugin_manifest(run, segment)
    assert manifest.encryption is not None
    cipher = ChunkCipher(key_ring.unwrap(manifest.encryption.data_key), manifest.encryption.aad)
    encryption = SegmentEncryption(cipher=cipher, wrapped_data_key=manifest.encryption.data_key)
    layout = plan_of(run, source, encryption)
    log = plugin_object(run, segment, ObjectKind.LOG)
    blob = plugin_object(run, segment, ObjectKind.INDEXES)
    starts = [manifest.chunk_index.chunk(number).transformed.start for number in range(layout.chunk_count)]
    ivs: list[bytes | None] = [log[start : start + IV_SIZE] for start in starts]
    index_ivs = [blob[part.start : part.start + IV_SIZE] for _, part in manifest.indexes.ranges()]
    for key, data in assemble(layout, source, ivs, index_ivs).items():
        assert (run.root / key).read_bytes() == data


def test_a_segment_encrypted_under_fresh_keys_reads_back(key_ring: KeyRing) -> None:
    run = RUNS["encrypted"]
    segment = run.segments()[0]
    source = source_of(run, segment)
    encryption = new_segment_encryption(key_ring, Counter())
    layout = plan_of(run, source, encryption)
    draw = Counter()
    objects = assemble(layout, source, [draw(IV_SIZE) for _ in range(layout.chunk_count)], [draw(IV_SIZE)] * 5)
    manifest = read_manifest(objects[layout.keys.manifest])
    plan = reading_plan(manifest, key_ring)
    stored, index = objects[layout.keys.log], manifest.chunk_index
    assert index == layout.fixed_chunk_index
    chunks = [index.chunk(number) for number in range(index.chunk_count)]
    opened = [plan.detransform(stored[c.transformed.start : c.transformed.stop], len(c.original)) for c in chunks]
    assert b"".join(opened) == source.log


def test_an_encrypted_segment_without_keys_says_which_key_it_needs() -> None:
    run = RUNS["encrypted"]
    manifest = plugin_manifest(run, run.segments()[0])
    with pytest.raises(DataKeyError, match="'key1' cannot be opened: encryption is not configured"):
        reading_plan(manifest, None)


@pytest.mark.parametrize("name", ["prefix-custommeta", "compressed"])
def test_custom_metadata_has_the_wanted_fields(name: str) -> None:
    """S-035: the sizes are those of the three objects together; the vectors hold the bytes."""
    run = RUNS[name]
    layout = plan_of(run, source_of(run, run.segments()[0]))
    written = layout.custom_metadata([100, 20, 3])
    assert written is not None
    assert written[0] == len(run.fields)
    assert written[1:5] == bytes.fromhex("0002f601")


def test_a_place_is_recorded_whatever_else_is_wanted() -> None:
    """S-293: without it nobody would find the objects."""
    run = RUNS["compressed"]
    layout = plan_objects(metadata=source_of(run, run.segments()[0]).metadata, key_prefix="own/", place="cold")
    written = layout.custom_metadata([100, 20, 3])
    assert written == write_custom_metadata(CustomMetadata(place="cold"))
    assert all(key.startswith("@cold/") for key in layout.keys.in_upload_order)


def test_no_wanted_field_means_no_custom_metadata() -> None:
    run = RUNS["plain"]
    assert plan_of(run, source_of(run, run.segments()[0])).custom_metadata([1, 2, 3]) is None


@pytest.mark.parametrize(
    ("kafka_version", "has_it"),
    [
        pytest.param((3, 8), False, id="3.8 has no isTxnIdxEmpty for Jackson to find"),
        pytest.param((3, 9), False, id="3.9 neither"),
        pytest.param((4, 0), True, id="4.0 is the first to have it"),
        pytest.param((4, 3), True, id="4.3 has it"),
    ],
)
def test_the_manifest_fits_the_kafka_version(kafka_version: tuple[int, int], has_it: bool) -> None:
    run = RUNS["plain"]
    source = source_of(run, run.segments()[0])
    layout = plan_objects(metadata=source.metadata, kafka_version=kafka_version)
    index = layout.fixed_chunk_index
    assert index is not None
    manifest = layout.manifest(index, layout.index_blob(source.artefacts).indexes)
    assert (b'"txnIdxEmpty"' in manifest) is has_it


class Counter:
    """Different bytes at each call, the same in each run."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, count: int) -> bytes:
        self.calls += 1
        return (sha256(self.calls.to_bytes(4, "big")).digest() * (count // 32 + 1))[:count]
