"""A read from an offset finds its batch through the stored objects alone, fetching no byte but those it needs.

Offset -> position by the offset index in .indexes -> chunks by the manifest -> batches by their headers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.golden import AIVEN_OBJECTS, read_json
from tiersidecar.formats.aiven.index_blob import IndexKind, open_index
from tiersidecar.formats.aiven.key_ring import KeyRing, read_rsa_key_pair
from tiersidecar.formats.aiven.manifest import read_manifest, reading_plan
from tiersidecar.formats.kafka.indexes import read_offset_index
from tiersidecar.formats.kafka.record_batches import RecordBatchHeader, check_batch, iter_batch_headers

READS = [
    pytest.param(read, id=f"{read['run']} {Path(read['log']).stem} from {read['offset']}")
    for read in read_json("partial-reads.json")["reads"]
]


@pytest.fixture(scope="module")
def key_ring() -> KeyRing:
    keys = AIVEN_OBJECTS / "keys"
    pair = read_rsa_key_pair((keys / "rsa-public.spki.der").read_bytes(), (keys / "rsa-private.pkcs8.der").read_bytes())
    return KeyRing(active_key_id="key1", keys={"key1": pair})


@pytest.mark.parametrize("read", READS)
def test_a_read_fetches_just_the_chunks_between_index_entry_and_batch(read: dict[str, Any], key_ring: KeyRing) -> None:
    log = AIVEN_OBJECTS / read["run"] / read["log"]
    manifest = read_manifest(log.with_suffix(".rsm-manifest").read_bytes())
    assert manifest.segment is not None
    plan = reading_plan(manifest, key_ring)
    base_offset = manifest.segment.start_offset

    part = manifest.indexes.range_of(IndexKind.OFFSET)
    assert part is not None
    stored_index = log.with_suffix(".indexes").read_bytes()[part.start : part.stop]
    index = read_offset_index(open_index(stored_index, plan.cipher), base_offset=base_offset)
    position = index.lookup(read["offset"]).position
    assert position == read["index_position"]

    stored, opened = log.read_bytes(), bytearray()
    chunk = first = manifest.chunk_index.chunk_at(position)
    while True:
        opened += plan.detransform(stored[chunk.transformed.start : chunk.transformed.stop], len(chunk.original))
        view = memoryview(bytes(opened))[position - first.original.start :]
        found = find_batch(view, position, read["offset"])
        if found is not None:
            break
        chunk = manifest.chunk_index.chunk(chunk.index + 1)
    place, header = found
    check_batch(view, header, place - position)
    seen = {"position": place, "size": header.size_bytes, "base_offset": header.base_offset, "crc": header.crc}
    assert seen == read["batch"]
    assert [first.index, chunk.index] == read["chunks"]
    assert [first.transformed.start, chunk.transformed.stop] == read["object_range"]


def find_batch(view: memoryview, position: int, offset: int) -> tuple[int, RecordBatchHeader] | None:
    """The first whole batch that has ``offset`` or follows it."""
    batches = iter_batch_headers(view, position)
    return next(((place, header) for place, header in batches if header.last_offset >= offset), None)


@pytest.mark.parametrize("read", READS)
def test_a_byte_of_the_object_leads_back_to_its_chunk(read: dict[str, Any]) -> None:
    manifest = read_manifest((AIVEN_OBJECTS / read["run"] / read["log"]).with_suffix(".rsm-manifest").read_bytes())
    start, stop = read["object_range"]
    numbers = [manifest.chunk_index.chunk_at_transformed(position).index for position in (start, stop - 1)]
    assert numbers == read["chunks"]
