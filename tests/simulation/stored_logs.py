"""What lies in the bucket, read past every network, cache and reader of the product."""

from __future__ import annotations

import random
from functools import cache

from Crypto.PublicKey import RSA

from tests.simulation.network import at_once
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.domain.data_keys import context_of
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.key_ring import KeyRing, RsaKeyPair
from tiersidecar.formats.aiven.manifest import read_manifest, reading_plan
from tiersidecar.reading.remote_objects import recorded_keys

KEY_ID, _KEY_BITS = "simulated", 1344
_MOST_BYTES = 10_000_000


@cache
def simulated_key_ring() -> KeyRing:
    """Return one for all runs: the same in each process, for a seed replays exactly."""
    key = RSA.generate(_KEY_BITS, randfunc=random.Random("the simulation's key").randbytes)
    return KeyRing(active_key_id=KEY_ID, keys={KEY_ID: RsaKeyPair(public=key.public_key(), private=key)})


def read_stored_log(store: MemoryStore, metadata: RemoteLogSegmentMetadata) -> bytes:
    """Return the original .log of a segment.

    Raises:
        TiersidecarError: an object is not there, or cannot be read.
    """
    keys = recorded_keys(metadata)
    manifest = read_manifest(at_once(store.fetch_object(keys.manifest, max_bytes=_MOST_BYTES)), where=keys.manifest)
    plan = reading_plan(manifest, simulated_key_ring(), context_of(metadata.remote_log_segment_id))
    stored = memoryview(at_once(store.fetch_object(keys.log, max_bytes=_MOST_BYTES)))
    chunks = map(manifest.chunk_index.chunk, range(manifest.chunk_index.chunk_count))
    return b"".join(
        plan.detransform(stored[one.transformed.start : one.transformed.stop], len(one.original)) for one in chunks
    )
