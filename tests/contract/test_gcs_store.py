"""The Google Cloud Storage store keeps the contract on a real server; what an upload begins it ends; errors say what to do.

Shown here: S-071 S-193 S-194 S-290.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count

import pytest
from aiohttp import web
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.test_store_model import StoreModel
from tests.support.gcs_fault_proxy import GcsFaultProxy, running_gcs_fault_proxy
from tests.support.gcs_server import GcsServer
from tests.support.loopback_ports import free_port
from tests.support.s3_fault_proxy import Fault, FaultKind
from tiersidecar.adapters.clock import SystemIds, ThreadBlocking
from tiersidecar.adapters.stores.gcs import GcsStore, open_gcs_store
from tiersidecar.adapters.stores.gcs_settings import MIB, GcsSettings
from tiersidecar.domain.errors import ObjectExistsError, StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.store import BytesBody, Store
from tiersidecar.testing.store_contract import KEY, FailingBody, PiecesBody, StoreContract, keys_of

pytestmark = pytest.mark.server

_buckets = count(1)


def new_bucket(server: GcsServer, url: str) -> GcsSettings:
    """Settings for a bucket of its own, reached at ``url``."""
    bucket = f"bucket-{os.getpid()}-{next(_buckets)}"
    server.create_bucket(bucket)
    return GcsSettings(
        bucket=bucket, endpoint_url=url, login="anonymous", chunk_size_bytes=MIB, max_attempts=4, attempt_timeout_s=5.0
    )


@pytest.fixture
def settings(gcs_server: GcsServer) -> GcsSettings:
    return new_bucket(gcs_server, gcs_server.url)


@pytest.fixture
async def blocking() -> AsyncIterator[Blocking]:
    async with ThreadBlocking(max_threads=2) as pool:
        yield pool


@pytest.fixture
async def store(settings: GcsSettings, blocking: Blocking) -> AsyncIterator[GcsStore]:
    async with open_gcs_store(settings, blocking=blocking, ids=SystemIds()) as store:
        yield store


class TestContract(StoreContract):
    keeps_checksums = True
    piece_bytes = MIB * 3 // 4

    @pytest.fixture
    def store(self, store: GcsStore) -> Store:
        return store


def test_any_sequence_of_verbs_does_what_a_dict_would(gcs_server: GcsServer) -> None:
    class GcsModel(StoreModel):
        def make_store(self) -> Store:
            self.blocking = ThreadBlocking(max_threads=1)
            settings = new_bucket(gcs_server, gcs_server.url)
            self.opened = open_gcs_store(settings, blocking=self.blocking, ids=SystemIds())
            return self.loop.run_until_complete(self.opened.__aenter__())

        def teardown(self) -> None:
            self.loop.run_until_complete(self.opened.__aexit__(None, None, None))
            self.blocking.close()
            super().teardown()

    few = hypothesis_settings(max_examples=10, stateful_step_count=20, deadline=None)
    run_state_machine_as_test(GcsModel, settings=few)


class TestUploads:
    async def test_new_objects_have_the_storage_class(
        self, settings: GcsSettings, blocking: Blocking, gcs_server: GcsServer
    ) -> None:
        wanted = replace(settings, storage_class="NEARLINE")
        async with open_gcs_store(wanted, blocking=blocking, ids=SystemIds()) as store:
            await store.put_object("small", BytesBody(b"x"))
            await store.put_object("large", PiecesBody([os.urandom(MIB)] * 3))
        assert gcs_server.storage_classes(settings.bucket) == {"small": "NEARLINE", "large": "NEARLINE"}

    async def test_a_body_that_lies_about_a_large_size_leaves_nothing(self, store: GcsStore) -> None:
        class Longer(PiecesBody):
            @property
            def size_bytes(self) -> int | None:
                return 2 * MIB

        with pytest.raises(StoreError, match="2097153 bytes came instead of 2097152"):
            await store.put_object(KEY, Longer([os.urandom(MIB)] * 3))
        assert await keys_of(store) == []

    async def test_many_objects_go_up_at_once(self, store: GcsStore) -> None:
        bodies = {f"t/0/{number}": [os.urandom(MIB) for _ in range(3)] for number in range(8)}
        await asyncio.gather(*(store.put_object(key, PiecesBody(pieces)) for key, pieces in bodies.items()))
        for key, pieces in bodies.items():
            assert await store.fetch_object(key, max_bytes=2**30) == b"".join(pieces)

    async def test_a_large_conditional_put_leaves_what_is_there(self, store: GcsStore) -> None:
        await store.put_object(KEY, BytesBody(b"first"))
        with pytest.raises(ObjectExistsError):
            await store.put_object(KEY, PiecesBody([os.urandom(MIB)] * 3), if_absent=True)
        assert await store.fetch_object(KEY, max_bytes=2**30) == b"first"


@pytest.fixture
async def way(gcs_server: GcsServer) -> AsyncIterator[GcsFaultProxy]:
    async with running_gcs_fault_proxy(gcs_server.url) as proxy:
        yield proxy
        assert proxy.unfinished == 0, "an upload was neither ended nor cancelled"


@pytest.fixture
async def far_store(gcs_server: GcsServer, way: GcsFaultProxy, blocking: Blocking) -> AsyncIterator[GcsStore]:
    """Behind the proxy."""
    async with open_gcs_store(new_bucket(gcs_server, way.url), blocking=blocking, ids=SystemIds()) as store:
        yield store


class TestFaults:
    @pytest.mark.parametrize("kind", [FaultKind.REFUSE, FaultKind.RESET, FaultKind.LOSE_ANSWER])
    @pytest.mark.parametrize(("number", "chunks"), [(0, 3), (1, 3), (2, 3), (3, 3)])
    async def test_an_upload_goes_on_from_where_it_was(
        self, far_store: GcsStore, way: GcsFaultProxy, kind: FaultKind, number: int, chunks: int
    ) -> None:
        """Chunk ``number`` is hit, the last one of 700 bytes included; each other chunk is sent once."""
        pieces = [os.urandom(MIB) for _ in range(chunks)] + [os.urandom(700)]
        body, start = PiecesBody(pieces), number * MIB
        way.faults.append(HitChunk(kind=kind, method="PUT", start=start))
        stored = await far_store.put_object(KEY, body)
        assert stored.size_bytes == chunks * MIB + 700
        assert await far_store.fetch_object(KEY, max_bytes=2**30) == b"".join(pieces)
        repeated = 0 if kind is FaultKind.LOSE_ANSWER else 1
        assert way.requests["PUT"] - way.questions == chunks + 1 + repeated
        assert way.questions == 1

    async def test_what_the_service_did_not_keep_of_a_chunk_is_sent_again(
        self, far_store: GcsStore, way: GcsFaultProxy
    ) -> None:
        way.keeps_at_once = 256 * 1024
        pieces = [os.urandom(MIB) for _ in range(2)] + [os.urandom(300_000)]
        await far_store.put_object(KEY, PiecesBody(pieces, knows_size=False))
        assert await far_store.fetch_object(KEY, max_bytes=2**30) == b"".join(pieces)

    @pytest.mark.parametrize("pieces", [1, 3], ids=["of one request", "of several chunks"])
    async def test_an_upload_that_is_changed_on_the_way_is_never_seen(
        self, far_store: GcsStore, way: GcsFaultProxy, pieces: int
    ) -> None:
        method = "POST" if pieces == 1 else "PUT"
        way.faults.append(Fault(kind=FaultKind.SPOIL, method=method, times=1))
        with pytest.raises(StoreError):
            await far_store.put_object(KEY, PiecesBody([os.urandom(MIB - 1)] * pieces))
        assert await keys_of(far_store) == []

    @pytest.mark.parametrize("kind", [FaultKind.REFUSE, FaultKind.RESET, FaultKind.LOSE_ANSWER, FaultKind.CUT])
    async def test_a_read_is_tried_again(self, far_store: GcsStore, way: GcsFaultProxy, kind: FaultKind) -> None:
        await far_store.put_object(KEY, BytesBody(b"0123456789"))
        for status in (408, 429, 500, 503):
            way.faults.append(Fault(kind=kind, method="GET", status=status))
            assert await far_store.fetch_range(KEY, ByteRange(2, 5)) == b"234"
            way.faults.append(Fault(kind=kind, method="GET", status=status))
            assert await keys_of(far_store) == [KEY]

    async def test_a_read_that_is_changed_on_the_way_is_told(self, far_store: GcsStore, way: GcsFaultProxy) -> None:
        await far_store.put_object(KEY, BytesBody(b"0123456789"))
        way.faults.append(Fault(kind=FaultKind.GARBLE, method="GET", query="alt=media"))
        with pytest.raises(StoreError, match="CRC32C"):
            await far_store.fetch_object(KEY, max_bytes=2**30)

    async def test_a_storm_of_refusals_ends_in_an_error_and_is_over_then(
        self, far_store: GcsStore, way: GcsFaultProxy
    ) -> None:
        way.faults.append(Fault(kind=FaultKind.REFUSE, method="PUT", times=1000, status=503))
        with pytest.raises(StoreError, match="503"):
            await far_store.put_object(KEY, PiecesBody([os.urandom(MIB)] * 3))
        way.faults.clear()
        assert await keys_of(far_store) == []
        await far_store.put_object(KEY, PiecesBody([os.urandom(MIB)] * 3))

    async def test_a_bare_200_is_no_proof_of_a_put(self, far_store: GcsStore, way: GcsFaultProxy) -> None:
        way.faults.append(Fault(kind=FaultKind.REFUSE, method="POST", status=200))
        with pytest.raises(StoreError, match="it was taken, and is not there"):
            await far_store.put_object(KEY, BytesBody(b"x"))

    async def test_a_conditional_put_whose_answer_was_lost_is_known_as_ours(
        self, far_store: GcsStore, way: GcsFaultProxy
    ) -> None:
        way.faults.append(Fault(kind=FaultKind.LOSE_ANSWER, method="POST"))
        stored = await far_store.put_object(KEY, BytesBody(b"claim"), if_absent=True)
        assert stored.size_bytes == 5
        with pytest.raises(ObjectExistsError):
            await far_store.put_object(KEY, BytesBody(b"claim"), if_absent=True)

    async def test_a_cancelled_upload_is_cancelled_there(self, far_store: GcsStore, way: GcsFaultProxy) -> None:
        """The fixture looks for what is left."""
        body = FailingBody([os.urandom(MIB)] * 4)
        put = asyncio.create_task(far_store.put_object(KEY, body))
        await body.stalled.wait()
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put
        assert len(way.sessions) == 1

    async def test_an_upload_that_nobody_answers_is_given_up(
        self, gcs_server: GcsServer, way: GcsFaultProxy, blocking: Blocking
    ) -> None:
        wanted = replace(new_bucket(gcs_server, way.url), attempt_timeout_s=0.3, max_attempts=1)
        way.faults.append(Fault(kind=FaultKind.STALL, method="POST"))
        async with open_gcs_store(wanted, blocking=blocking, ids=SystemIds()) as store:
            with pytest.raises(StoreError, match="no answer in time"):
                await store.put_object(KEY, BytesBody(b"x"))


class HitChunk(Fault):
    """The next chunk that begins at byte ``start``."""

    def __init__(self, *, kind: FaultKind, method: str, start: int) -> None:
        super().__init__(kind=kind, method=method)
        self.start = start

    def strikes(self, request: web.BaseRequest) -> bool:
        is_meant = request.headers.get("Content-Range", "").startswith(f"bytes {self.start}-")
        return is_meant and super().strikes(request)


async def failure_of(settings: GcsSettings, blocking: Blocking) -> str:
    async with open_gcs_store(settings, blocking=blocking, ids=SystemIds()) as store:
        with pytest.raises(StoreError) as raised:
            await store.check_writable()
    return str(raised.value)


class TestErrors:
    async def test_a_bucket_that_is_not_there_is_named(self, settings: GcsSettings, blocking: Blocking) -> None:
        said = await failure_of(replace(settings, bucket="not-there"), blocking)
        assert "create the bucket, or correct gcs.bucket.name" in said

    async def test_nothing_listens(self, settings: GcsSettings, blocking: Blocking) -> None:
        nowhere = replace(settings, endpoint_url=f"http://127.0.0.1:{free_port()}", max_attempts=2)
        said = await failure_of(nowhere, blocking)
        assert "gcs.endpoint.url" in said
        assert "\n" not in said
