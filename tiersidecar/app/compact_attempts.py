"""Attempts of ``tiersidecar compact --spark`` to put a segment up: only one ever writes under one segment id.

Spark may run a task again while an executor that it has given up still writes, and each attempt has a data key of its own.  So
each first puts an object of the id's name that must not be there yet, and that no other attempt puts alike: a store that takes
a repeated request for the one before it by its bytes must not take one attempt's for another's.
"""

from __future__ import annotations

from tiersidecar.domain.errors import ObjectExistsError, SparkJobError
from tiersidecar.domain.ids import Uuid, format_uuid
from tiersidecar.domain.own_objects import ATTEMPTS
from tiersidecar.ports.clock import Clock, Ids
from tiersidecar.ports.store import BytesBody, PutObject, Store

ATTEMPT_BEGINS_WITHIN_MS = 3_600_000
"""After it an attempt does not begin: the objects of others must be there for far longer."""
_ATTEMPTS_KEPT_MS = 2 * 86_400_000
_NAME_BYTES = 16


async def claim_attempt(store: PutObject, key_prefix: str, uuid: Uuid, begun_ms: int, clock: Clock, ids: Ids) -> None:
    """Return if no other attempt may have begun to write under the segment id ``uuid``, which was published at ``begun_ms``.

    Raises:
        SparkJobError: one may have.
        StoreError: it cannot be known.
    """
    _require_in_time(begun_ms, clock)
    body = BytesBody(ids.random_bytes(_NAME_BYTES))
    try:
        await store.put_object(f"{key_prefix}{ATTEMPTS}{format_uuid(uuid)}", body, if_absent=True)
    except ObjectExistsError as error:
        raise SparkJobError(job="compact", reason="another attempt may still write under the same id") from error
    # The put may have waited for so long that another attempt's object was deleted before it.
    _require_in_time(begun_ms, clock)


def _require_in_time(begun_ms: int, clock: Clock) -> None:
    if clock.now_ms() > begun_ms + ATTEMPT_BEGINS_WITHIN_MS:
        raise SparkJobError(job="compact", reason="the attempt begins too late")


async def drop_old_attempts(store: Store, key_prefix: str, now_ms: int) -> None:
    """Delete what attempts of earlier runs have put, long after any of them could begin."""
    found = [one async for one in store.list_objects(f"{key_prefix}{ATTEMPTS}")]
    old = [one.key for one in found if one.modified_ms < now_ms - _ATTEMPTS_KEPT_MS]
    if old:
        await store.delete_objects(old)
