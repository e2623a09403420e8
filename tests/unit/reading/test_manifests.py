"""Opening remote segments: keys, manifests, data keys (DESIGN.md section 5, keys of objects)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.faulty_store import FaultyStore
from tests.support.inline_blocking import InlineBlocking
from tests.support.remote_runs import RemoteRun, key_ring, load_run, segments_of
from tiersidecar.domain.errors import CorruptDataError, DataKeyError, ObjectNotFoundError
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.reading.manifests import ManifestCache, recorded_keys


def first_segment(run: RemoteRun, partition: str) -> RemoteLogSegmentMetadata:
    return segments_of(run, run.partition(partition))[0]


async def test_recorded_keys_hold_after_the_configured_prefix_has_changed() -> None:
    """The manifest's too: the plugin would look for it under the new prefix, and not find it."""
    run = await load_run("prefix-custommeta")
    segment = first_segment(run, "epochs-0")
    assert recorded_keys(segment, "elsewhere/") == recorded_keys(segment, "tiered/some-prefix/")
    cache = ManifestCache(store=run.store, blocking=InlineBlocking(), key_prefix="elsewhere/")
    opened = await cache.open(segment)
    assert opened.keys.manifest.startswith("tiered/some-prefix/epochs-")


async def test_without_custom_metadata_the_configured_prefix_counts() -> None:
    run = await load_run("plain")
    segment = first_segment(run, "plain-0")
    cache = ManifestCache(store=run.store, blocking=InlineBlocking(), key_prefix="elsewhere/")
    with pytest.raises(ObjectNotFoundError, match="elsewhere/plain-"):
        await cache.open(segment)


async def test_a_manifest_is_fetched_once_and_anew_when_forgotten() -> None:
    run = await load_run("plain")
    store, segment = FaultyStore(run.store), first_segment(run, "plain-0")
    cache = ManifestCache(store=store, blocking=InlineBlocking())
    assert await cache.open(segment) is await cache.open(segment)
    assert len(store.fetched) == 1
    cache.forget(segment.remote_log_segment_id)
    await cache.open(segment)
    assert len(store.fetched) == 2


async def test_a_manifest_of_a_segment_of_another_size_is_refused() -> None:
    run = await load_run("plain")
    segment = first_segment(run, "plain-0")
    cache = ManifestCache(store=run.store, blocking=InlineBlocking())
    with pytest.raises(CorruptDataError, match="14414 bytes, the metadata say 14415"):
        await cache.open(replace(segment, segment_size_in_bytes=14415))


async def test_an_encrypted_segment_opens_with_its_key_and_not_without() -> None:
    run = await load_run("encrypted")
    segment = first_segment(run, "plain-0")
    opened = await ManifestCache(store=run.store, blocking=InlineBlocking(), key_ring=key_ring()).open(segment)
    assert opened.transform.cipher is not None
    with pytest.raises(DataKeyError, match="key1"):
        await ManifestCache(store=run.store, blocking=InlineBlocking()).open(segment)
