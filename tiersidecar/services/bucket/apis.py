"""Which APIs the listener knows, in which versions, and what answers each: a table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from tiersidecar.formats.wire.cursor import Buffer
from tiersidecar.formats.wire.fetch import FETCH_API_KEY, FETCH_VERSIONS
from tiersidecar.formats.wire.messages import write_message
from tiersidecar.services.bucket import refusals
from tiersidecar.services.bucket.answers import Asked, items, made
from tiersidecar.services.bucket.fetch_api import FetchApi
from tiersidecar.services.bucket.metadata_api import MetadataApi
from tiersidecar.services.bucket.offsets_api import OffsetsApi

SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36
BEFORE_LOGIN: Mapping[int, range] = {
    SASL_HANDSHAKE: range(1, 2),  # after version 0 come bare tokens
    API_VERSIONS: range(5),
    SASL_AUTHENTICATE: range(3),
}
"""The APIs that the connection itself answers."""

_MOST_ON_THE_LOOP = 16 * 1024
"""Bytes of a request: milliseconds.  A mebibyte of small rows takes seconds, in a thread then."""

Answering = Callable[[Asked], AbstractAsyncContextManager[list[Buffer] | None]]
"""Gives the body of the response, None for no response; it may be sent until the context ends."""


_PARSED, _FETCH = 96, 40
"""Bytes of memory for each byte of a request with the smallest rows there are: their entities, and those of the response."""


@dataclass(frozen=True, slots=True)
class Api:
    """One API.  Parsed and answered, a request takes ``memory_factor`` times its size at most; once its response is made, only
    twice that is left beside the response, unless ``is_kept``: then all of it is, until the response has been sent."""

    versions: range
    answer: Answering
    memory_factor: int = _PARSED
    is_kept: bool = False


def api_table(metadata: MetadataApi, offsets: OffsetsApi, fetch: FetchApi) -> dict[int, Api]:
    """Return the APIs by key.  Versions are those whose messages are known; a client has to lower a version above."""
    return {
        0: Api(range(3, 14), _refused(refusals.refuse_produce)),
        FETCH_API_KEY: Api(FETCH_VERSIONS, fetch.answer, _FETCH, is_kept=True),
        2: Api(range(1, 12), _plain(offsets.list_offsets)),
        3: Api(range(14), _plain(metadata.answer)),
        8: Api(range(2, 10), _refused(refusals.refuse_commit)),
        10: Api(range(7), _refused(refusals.refuse_coordinator)),
        11: Api(range(10), _refused(refusals.refuse_group)),
        16: Api(range(6), _refused(refusals.refuse_group)),
        19: Api(range(2, 8), _refused(refusals.refuse_create_topics)),
        20: Api(range(1, 7), _refused(refusals.refuse_delete_topics)),
        21: Api(range(3), _refused(refusals.refuse_delete_records)),
        22: Api(range(7), _refused(refusals.refuse_writer)),
        23: Api(range(2, 5), _plain(offsets.offsets_for_leader_epochs)),
        68: Api(range(2), _refused(refusals.refuse_group)),
    }


def api_versions_body(known: Mapping[int, range], version: int) -> list[Buffer]:
    """Return the body of an ApiVersions response: an unknown version gets one of version 0, so that the client asks again."""
    is_known = version in BEFORE_LOGIN[API_VERSIONS]
    response = load_response_schema(API_VERSIONS, version if is_known else 0)
    row_type = items(response, "api_keys")
    rows = [
        made(row_type, api_key=key, min_version=versions.start, max_version=versions.stop - 1)
        for key, versions in sorted(known.items())
    ]
    error = ErrorCode.none if is_known else ErrorCode.unsupported_version
    return [write_message(made(response, error_code=error, api_keys=tuple(rows)))]


def _plain(answer: Callable[[Asked], Awaitable[list[Buffer] | None]]) -> Answering:
    async def body_of(asked: Asked) -> list[Buffer] | None:
        # What is parsed ends with this call: the response may be sent for long.
        if len(asked.body) > _MOST_ON_THE_LOOP:
            asked = replace(asked, parsed=await asyncio.to_thread(asked.message))
        return await answer(asked)

    @asynccontextmanager
    async def answering(asked: Asked) -> AsyncIterator[list[Buffer] | None]:
        yield await body_of(asked)

    return answering


def _refused(answer: Callable[[Asked], list[Buffer] | None]) -> Answering:
    @asynccontextmanager
    async def answering(asked: Asked) -> AsyncIterator[list[Buffer] | None]:
        is_large = len(asked.body) > _MOST_ON_THE_LOOP
        yield await asyncio.to_thread(answer, asked) if is_large else answer(asked)

    return answering
