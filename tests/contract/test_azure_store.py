"""The Azure store keeps the contract on a real server; what an upload begins it ends; errors say what to do.

Shown here: S-071 S-193 S-194 S-290 S-292.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count

import pytest

from tests.support.azure_fault_proxy import AzureFaultProxy, running_azure_fault_proxy
from tests.support.azurite_server import ACCOUNT, ACCOUNT_KEY, AzuriteServer, account_sas
from tests.support.loopback_ports import free_port
from tests.support.s3_fault_proxy import Fault, FaultKind
from tiersidecar.adapters.clock import SystemIds, ThreadBlocking
from tiersidecar.adapters.stores import azure_upload
from tiersidecar.adapters.stores.azure import AzureStore, open_azure_store
from tiersidecar.adapters.stores.azure_settings import MIB, AzureSettings
from tiersidecar.domain.errors import ObjectExistsError, StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.store import BytesBody, Store
from tiersidecar.testing.store_contract import KEY, FailingBody, PiecesBody, StoreContract

pytestmark = pytest.mark.server

_containers = count(1)


@pytest.fixture
def settings(azurite: AzuriteServer) -> AzureSettings:
    """With a container of its own for each test."""
    container = f"container-{os.getpid()}-{next(_containers)}"
    azurite.create_container(container)
    return AzureSettings(
        account_name=ACCOUNT,
        account_key=ACCOUNT_KEY,
        container=container,
        endpoint_url=azurite.url,
        block_size_bytes=MIB,
        max_attempts=2,
    )


@pytest.fixture
async def blocking() -> AsyncIterator[Blocking]:
    async with ThreadBlocking(max_threads=2) as pool:
        yield pool


@pytest.fixture
async def store(settings: AzureSettings, blocking: Blocking, azurite: AzuriteServer) -> AsyncIterator[AzureStore]:
    async with open_azure_store(settings, blocking=blocking, ids=SystemIds()) as store:
        yield store
    assert azurite.unfinished_blobs(settings.container) == [], "an upload was neither committed nor dropped"


class TestContract(StoreContract):
    keeps_checksums = False
    piece_bytes = MIB * 3 // 4

    @pytest.fixture
    def store(self, store: AzureStore) -> Store:
        return store


class TestUploads:
    async def test_blocks_that_were_sent_are_dropped_with_a_failed_put(self, store: AzureStore) -> None:
        """The fixture looks for what is left."""
        body = FailingBody([os.urandom(MIB)] * 6, failure=ValueError("the source broke"))
        with pytest.raises(ValueError, match="the source broke"):
            await store.put_object(KEY, body)
        assert [stored.key async for stored in store.list_objects()] == []

    async def test_a_body_that_lies_about_a_large_size_leaves_nothing(self, store: AzureStore) -> None:
        class Lying(PiecesBody):
            @property
            def size_bytes(self) -> int | None:
                return 9 * MIB

        with pytest.raises(StoreError, match="3145728 bytes came instead of 9437184"):
            await store.put_object(KEY, Lying([os.urandom(MIB)] * 3))
        assert [stored.key async for stored in store.list_objects()] == []

    async def test_a_failed_put_over_a_blob_leaves_the_blob(self, store: AzureStore, azurite: AzuriteServer) -> None:
        await store.put_object(KEY, BytesBody(b"before"))
        body = FailingBody([os.urandom(MIB)] * 6, failure=ValueError("the source broke"))
        with pytest.raises(ValueError, match="the source broke"):
            await store.put_object(KEY, body)
        assert await store.fetch_object(KEY, max_bytes=2**30) == b"before"

    async def test_many_objects_go_up_at_once(self, store: AzureStore) -> None:
        bodies = {f"t/0/{number}": [os.urandom(MIB) for _ in range(3)] for number in range(8)}
        await asyncio.gather(*(store.put_object(key, PiecesBody(pieces)) for key, pieces in bodies.items()))
        for key, pieces in bodies.items():
            assert await store.fetch_object(key, max_bytes=2**30) == b"".join(pieces)

    async def test_a_conditional_put_of_more_than_a_block_is_one_request(
        self, far_store: AzureStore, way: AzureFaultProxy
    ) -> None:
        """A snapshot of a partition has up to 150 bytes for each segment, and there may be half a million."""
        data = os.urandom(3 * MIB)
        stored = await far_store.put_object(KEY, BytesBody(data), if_absent=True)
        assert stored.size_bytes == len(data)
        assert (way.blocks, way.requests["PUT"]) == (0, 1)
        with pytest.raises(ObjectExistsError):
            await far_store.put_object(KEY, BytesBody(os.urandom(3 * MIB)), if_absent=True)
        assert await far_store.fetch_object(KEY, max_bytes=2**30) == data

    @pytest.mark.parametrize("knows_size", [False, True])
    async def test_a_conditional_put_that_is_larger_than_one_request_may_be_is_refused(
        self, store: AzureStore, monkeypatch: pytest.MonkeyPatch, knows_size: bool
    ) -> None:
        monkeypatch.setattr(azure_upload, "_CONDITIONAL_BYTES", 2 * MIB - 1)
        body = PiecesBody([os.urandom(MIB)] * 2, knows_size)
        with pytest.raises(StoreError, match="a conditional put is one request, of at most"):
            await store.put_object(KEY, body, if_absent=True)

    async def test_new_blobs_have_the_access_tier(
        self, settings: AzureSettings, blocking: Blocking, azurite: AzuriteServer
    ) -> None:
        async with open_azure_store(replace(settings, access_tier="Cool"), blocking=blocking, ids=SystemIds()) as store:
            await store.put_object("small", BytesBody(b"x"))
            await store.put_object("large", PiecesBody([os.urandom(MIB)] * 3))
        assert azurite.access_tiers(settings.container) == {"small": "Cool", "large": "Cool"}


@pytest.fixture
async def way(azurite: AzuriteServer) -> AsyncIterator[AzureFaultProxy]:
    async with running_azure_fault_proxy(azurite.url) as proxy:
        yield proxy


@pytest.fixture
async def far_store(
    settings: AzureSettings, way: AzureFaultProxy, blocking: Blocking, azurite: AzuriteServer
) -> AsyncIterator[AzureStore]:
    """Behind the proxy."""
    far = replace(settings, endpoint_url=f"{way.url}/{ACCOUNT}")
    async with open_azure_store(far, blocking=blocking, ids=SystemIds()) as store:
        yield store
    assert azurite.unfinished_blobs(settings.container) == [], "an upload was neither committed nor dropped"


class TestFaults:
    @pytest.mark.parametrize(
        ("kind", "query"),
        [
            (FaultKind.REFUSE, "comp=block&"),
            (FaultKind.RESET, "comp=block&"),
            (FaultKind.LOSE_ANSWER, "comp=block&"),
            (FaultKind.REFUSE, "comp=blocklist"),
            (FaultKind.RESET, "comp=blocklist"),
        ],
    )
    async def test_an_upload_is_tried_again(
        self, far_store: AzureStore, way: AzureFaultProxy, kind: FaultKind, query: str
    ) -> None:
        pieces = [os.urandom(MIB) for _ in range(3)]
        way.faults.append(Fault(kind=kind, method="PUT", query=query, code="ServerBusy"))
        await far_store.put_object(KEY, PiecesBody(pieces))
        assert await far_store.fetch_object(KEY, max_bytes=2**30) == b"".join(pieces)

    async def test_a_commit_whose_answer_was_lost_is_found_to_be_done(
        self, far_store: AzureStore, way: AzureFaultProxy
    ) -> None:
        """object_store commits again, and the blocks are uncommitted ones no more: InvalidBlockList."""
        pieces = [os.urandom(MIB) for _ in range(3)]
        fault = Fault(kind=FaultKind.LOSE_ANSWER, method="PUT", query="comp=blocklist")
        way.faults.append(fault)
        stored = await far_store.put_object(KEY, PiecesBody(pieces))
        assert stored.size_bytes == 3 * MIB
        assert fault.times == 0, "the answer was lost"
        assert await far_store.fetch_object(KEY, max_bytes=2**30) == b"".join(pieces)

    async def test_a_conditional_put_whose_answer_was_lost_is_found_to_be_done(
        self, far_store: AzureStore, way: AzureFaultProxy
    ) -> None:
        way.faults.append(Fault(kind=FaultKind.LOSE_ANSWER, method="PUT"))
        await far_store.put_object(KEY, BytesBody(b"mine"), if_absent=True)
        assert await far_store.fetch_object(KEY, max_bytes=2**30) == b"mine"
        with pytest.raises(ObjectExistsError):
            await far_store.put_object(KEY, BytesBody(b"mine"), if_absent=True)

    async def test_what_another_upload_left_under_the_key_is_not_taken_for_this_one(
        self, far_store: AzureStore, store: AzureStore, way: AzureFaultProxy
    ) -> None:
        """Of the same size: only the blob's own upload names it."""
        before = [os.urandom(MIB) for _ in range(3)]
        await store.put_object(KEY, PiecesBody(before))
        way.faults.append(Fault(kind=FaultKind.REFUSE, method="PUT", query="comp=blocklist", times=1000, status=400))
        with pytest.raises(StoreError):
            await far_store.put_object(KEY, PiecesBody([os.urandom(MIB) for _ in range(3)]))
        assert await store.fetch_object(KEY, max_bytes=2**30) == b"".join(before)

    @pytest.mark.parametrize(
        ("query", "pieces", "said"),
        [
            ("", 1, "it was taken, and is not there"),
            ("comp=block&", 3, "InvalidBlockList"),
            ("comp=blocklist", 3, "it was taken, and is not there"),
        ],
    )
    async def test_a_bare_201_is_no_proof_that_anything_is_stored(
        self, far_store: AzureStore, way: AzureFaultProxy, query: str, pieces: int, said: str
    ) -> None:
        """Nor are blocks left that it did not commit (S-292): the fixture looks for them."""
        way.faults.append(Fault(kind=FaultKind.REFUSE, method="PUT", query=query, status=201))
        with pytest.raises(StoreError, match=said):
            await far_store.put_object(KEY, PiecesBody([os.urandom(MIB - 1)] * pieces))
        assert [stored.key async for stored in far_store.list_objects()] == []

    @pytest.mark.parametrize(("query", "pieces"), [("", 1), ("comp=blocklist", 3)])
    async def test_nor_is_what_was_there_before_and_is_as_large(
        self, far_store: AzureStore, store: AzureStore, way: AzureFaultProxy, query: str, pieces: int
    ) -> None:
        """An owner object that is adopted has the size that it had."""
        before = [os.urandom(MIB - 1) for _ in range(pieces)]
        await store.put_object(KEY, PiecesBody(before))
        way.faults.append(Fault(kind=FaultKind.REFUSE, method="PUT", query=query, status=201))
        with pytest.raises(StoreError, match="it was taken, and something else is there"):
            await far_store.put_object(KEY, PiecesBody([os.urandom(MIB - 1) for _ in range(pieces)]))
        assert await store.fetch_object(KEY, max_bytes=2**30) == b"".join(before)

    async def test_a_storm_of_refusals_ends_in_an_error(self, far_store: AzureStore, way: AzureFaultProxy) -> None:
        way.faults.append(Fault(kind=FaultKind.REFUSE, method="PUT", times=1000, code="ServerBusy"))
        with pytest.raises(StoreError, match="ServerBusy"):
            await far_store.put_object(KEY, PiecesBody([os.urandom(MIB)]))

    async def test_half_an_answer_is_no_short_blob(self, far_store: AzureStore, way: AzureFaultProxy) -> None:
        data = os.urandom(3 * MIB)
        await far_store.put_object(KEY, PiecesBody([data]))
        way.faults.append(Fault(kind=FaultKind.CUT, method="GET"))
        try:
            found = await far_store.fetch_object(KEY, max_bytes=2**30)
        except StoreError:
            return
        assert found == data, "object_store asks for the rest"

    async def test_answers_that_break_off_within_an_object_say_nothing_of_the_store(
        self, far_store: AzureStore, way: AzureFaultProxy
    ) -> None:
        """Nor do they keep a place's readers from its other objects, as with the other stores."""
        await far_store.put_object(KEY, PiecesBody([os.urandom(3 * MIB)]))
        way.faults.append(Fault(kind=FaultKind.CUT, method="GET", times=1000))
        broke_off = "the answer broke off within the object"
        with pytest.raises(StoreError, match=broke_off) as of_range:
            await far_store.fetch_range(KEY, ByteRange(0, MIB))
        with pytest.raises(StoreError, match=broke_off) as of_object:
            await far_store.fetch_object(KEY, max_bytes=2**30)
        assert not of_range.value.is_away
        assert not of_object.value.is_away

    async def test_a_listing_of_long_ago_does_not_pass_for_a_store_that_works(
        self, far_store: AzureStore, way: AzureFaultProxy
    ) -> None:
        way.faults.append(Fault(kind=FaultKind.STALE, method="GET", query="comp=list"))
        with pytest.raises(StoreError, match="an object just written is not listed"):
            await far_store.check_writable()
        await far_store.check_writable()

    async def test_a_conflict_without_a_condition_is_told_for_what_it_is(
        self, far_store: AzureStore, way: AzureFaultProxy
    ) -> None:
        await far_store.put_object(KEY, BytesBody(b"x"))
        way.faults.append(Fault(kind=FaultKind.REFUSE, method="GET", status=409, code="BlobArchived"))
        with pytest.raises(StoreError, match="it must be rehydrated before a read"):
            await far_store.fetch_object(KEY, max_bytes=2**30)


class TestDeletes:
    @pytest.mark.parametrize("by_token", [False, True], ids=["by key, in batches", "by token, one by one"])
    async def test_a_blob_that_may_not_be_deleted_says_nothing_of_the_store(
        self, settings: AzureSettings, blocking: Blocking, azurite: AzuriteServer, by_token: bool
    ) -> None:
        """Taken for a store that is away, it kept a place's readers from all that is there."""
        login = replace(settings, account_key=None, sas_token=account_sas()) if by_token else settings
        async with open_azure_store(login, blocking=blocking, ids=SystemIds()) as store:
            for key in ("held", "free"):
                await store.put_object(key, BytesBody(b"x"))
            azurite.lease(settings.container, "held")
            with pytest.raises(StoreError, match=r"lease") as raised:
                await store.delete_objects(["held", "free", "none"])
        assert not raised.value.is_away
        assert azurite.names(settings.container) == {"held"}

    @pytest.mark.parametrize("by_token", [False, True], ids=["by key", "by token"])
    @pytest.mark.parametrize("kind", [FaultKind.REFUSE, FaultKind.RESET])
    async def test_a_service_that_deletes_nothing_now_is_away(
        self, settings: AzureSettings, blocking: Blocking, way: AzureFaultProxy, by_token: bool, kind: FaultKind
    ) -> None:
        """By a token it was not: each such delete said that a place works, and a deleted topic waited for it."""
        login = replace(settings, account_key=None, sas_token=account_sas()) if by_token else settings
        far = replace(login, endpoint_url=f"{way.url}/{ACCOUNT}")
        way.faults += [Fault(kind=kind, method=method, times=1000, code="ServerBusy") for method in ("POST", "DELETE")]
        async with open_azure_store(far, blocking=blocking, ids=SystemIds()) as store:
            with pytest.raises(StoreError) as raised:
                await store.delete_objects([KEY])
        assert raised.value.is_away


async def failure_of(settings: AzureSettings, blocking: Blocking) -> str:
    async with open_azure_store(settings, blocking=blocking, ids=SystemIds()) as store:
        with pytest.raises(StoreError) as raised:
            await store.check_writable()
    return str(raised.value)


class TestErrors:
    async def test_a_container_that_is_not_there_is_named(self, settings: AzureSettings, blocking: Blocking) -> None:
        said = await failure_of(replace(settings, container="not-there"), blocking)
        assert "ContainerNotFound" in said
        assert "create the container, or correct azure.container.name" in said

    async def test_a_wrong_key_is_told(self, settings: AzureSettings, blocking: Blocking) -> None:
        said = await failure_of(replace(settings, account_key="d3Jvbmcga2V5"), blocking)
        assert "the key or SAS token is wrong" in said
        assert "d3Jvbmcga2V5" not in said

    async def test_a_sas_token_works_and_one_that_may_not_write_is_told_without_its_signature(
        self, settings: AzureSettings, blocking: Blocking
    ) -> None:
        whole = replace(settings, account_key=None, sas_token="?" + account_sas())
        async with open_azure_store(whole, blocking=blocking, ids=SystemIds()) as store:
            await store.check_writable()
        reading = account_sas(permissions="rl")
        said = await failure_of(replace(settings, account_key=None, sas_token=reading), blocking)
        assert "permissions" in said
        assert reading.rpartition("sig=")[2] not in said

    async def test_nothing_listens(self, settings: AzureSettings, blocking: Blocking) -> None:
        nowhere = f"http://127.0.0.1:{free_port()}/{ACCOUNT}"
        token = account_sas()
        said = await failure_of(replace(settings, endpoint_url=nowhere, account_key=None, sas_token=token), blocking)
        assert "azure.endpoint.url" in said
        assert "sig=" not in said
        assert "\n" not in said
