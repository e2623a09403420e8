"""What a put into Google Cloud Storage believes, and what it removes, when its answer is not what it should be.

The service is a few lines of HTTP: no server gives these answers when it is asked to.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from aiohttp import web

from tests.support.scripted_gcs import CHUNK_BYTES, SETTINGS, description, refusal, scripted_gcs_store
from tiersidecar.domain.errors import ObjectExistsError, StoreError
from tiersidecar.ports.store import BytesBody
from tiersidecar.testing.store_contract import PiecesBody

OLD, NEW = b"the old manifest", b"the new manifest, which is longer"


async def test_a_constraint_that_forbids_a_put_is_no_success() -> None:
    """What is there is older, and was not overwritten."""

    def answer(request: web.Request) -> web.Response:
        if request.method == "POST":
            return refusal(412, "Request violates constraint 'restrictNonCmekServices'", "orgPolicyConstraintFailed")
        return web.Response(body=description("k", OLD))

    async with scripted_gcs_store(answer) as (store, service):
        for if_absent in (False, True):
            with pytest.raises(StoreError, match="412: Request violates constraint") as raised:
                await store.put_object("k", BytesBody(NEW), if_absent=if_absent)
            assert not isinstance(raised.value, ObjectExistsError)
    assert service.methods == ["POST", "POST"]


LOGIN_PAGE = b"<html>please log in</html>"


@pytest.mark.parametrize(
    ("if_absent", "said", "there", "failure"),
    [
        pytest.param(False, LOGIN_PAGE, description("k", OLD), StoreError, id="a page, and what was there before"),
        pytest.param(True, LOGIN_PAGE, description("k", OLD), ObjectExistsError, id="a page, and a claim of nobody's"),
        pytest.param(
            True, LOGIN_PAGE, description("k", NEW, writer="another"), ObjectExistsError,
            id="a page, and another's claim with the same bytes",
        ),
        pytest.param(
            False, b"{}", description("k", NEW).replace(b'"crc32c"', b'"md5"'), StoreError,
            id="no description, and an object without a checksum",
        ),
        pytest.param(False, description("k", OLD, generation=None), b"", StoreError, id="another object, of no generation"),
        pytest.param(False, description("l", OLD), b"", StoreError, id="an object of another key"),
        pytest.param(
            True, description("k", OLD, writer="another"), b"", StoreError, id="an object that another put wrote"
        ),
    ],
)  # fmt: skip
async def test_nothing_is_removed_that_may_be_anothers(
    if_absent: bool, said: bytes, there: bytes, failure: type[StoreError]
) -> None:
    def answer(request: web.Request) -> web.Response:
        return web.Response(body={"POST": said, "GET": there}[request.method])

    async with scripted_gcs_store(answer) as (store, service):
        with pytest.raises(StoreError) as raised:
            await store.put_object("k", BytesBody(NEW), if_absent=if_absent)
    assert type(raised.value) is failure
    assert "DELETE" not in service.methods


async def test_what_was_just_put_and_is_not_what_was_sent_is_removed() -> None:
    def answer(request: web.Request) -> web.Response:
        return web.Response(status=204) if request.method == "DELETE" else web.Response(body=description("k", OLD))

    async with scripted_gcs_store(answer) as (store, service):
        with pytest.raises(StoreError, match="not what was sent"):
            await store.put_object("k", BytesBody(NEW))
    assert service.asked[-1].startswith("DELETE ")
    assert service.asked[-1].endswith("?ifGenerationMatch=7")


async def test_an_answer_that_nobody_can_read_is_no_failure_when_all_of_it_is_there() -> None:
    def answer(request: web.Request) -> web.Response:
        return web.Response(body=LOGIN_PAGE if request.method == "POST" else description("k", NEW))

    async with scripted_gcs_store(answer) as (store, _):
        assert (await store.put_object("k", BytesBody(NEW))).size_bytes == len(NEW)


LARGE = PiecesBody([bytes(CHUNK_BYTES)] * 3, knows_size=False)


@pytest.mark.parametrize(
    "location",
    ["", "upload?upload_id=secret", "http://[bad?upload_id=secret", "http://127.0.0.1:1/up?upload_id=secret"],
)
async def test_an_upload_goes_to_no_other_server(location: str) -> None:
    def answer(request: web.Request) -> web.Response:
        return web.Response(headers={"Location": location})

    async with scripted_gcs_store(answer) as (store, service):
        with pytest.raises(StoreError, match=r"no address at gcs\.endpoint\.url") as raised:
            await store.put_object("k", LARGE)
    assert service.methods == ["POST"]
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("status", [400, 0], ids=["a refusal that names the address", "no HTTP"])
async def test_no_error_has_the_address_of_an_upload(status: int) -> None:
    """Who has it can write the object."""

    def answer(request: web.Request) -> web.Response:
        address = f"http://{request.host}/up?uploadType=resumable&upload_id=secret"
        if request.method == "POST":
            return web.Response(headers={"Location": address})
        if status == 0:
            assert request.transport is not None
            request.transport.write(b"no HTTP\r\n\r\n")
        return web.Response(status=status or 200, text=f"cannot go on with {address}")

    async with scripted_gcs_store(answer) as (store, _):
        with pytest.raises(StoreError, match=r"/up\b") as raised:
            await store.put_object("k", LARGE)
    assert "secret" not in str(raised.value)


class FlakyUpload:
    """Keeps ``step_bytes`` more of an upload with each send, and answers it with 503: only a question says how far it is."""

    def __init__(self, step_bytes: int) -> None:
        self.step_bytes, self.kept_bytes, self.sends = step_bytes, 0, 0

    def answer(self, request: web.Request) -> web.Response:
        if request.method != "PUT":
            return web.Response(headers={"Location": f"http://{request.host}/up?upload_id=1"})
        if request.headers["Content-Range"] != "bytes */*":
            self.sends += 1
            self.kept_bytes = min(self.kept_bytes + self.step_bytes, 3 * CHUNK_BYTES)
            return web.Response(status=503)
        if self.kept_bytes == 3 * CHUNK_BYTES:
            return web.Response(body=description("k", bytes(3 * CHUNK_BYTES)))
        return web.Response(status=308, headers={"Range": f"bytes=0-{self.kept_bytes - 1}"} if self.kept_bytes else {})


async def test_an_upload_that_moves_is_not_given_up() -> None:
    """Each send brings half a chunk and fails, as does the one that only says where the end is."""
    upload = FlakyUpload(CHUNK_BYTES // 2)
    async with scripted_gcs_store(upload.answer, replace(SETTINGS, max_attempts=2)) as (store, _):
        assert (await store.put_object("k", LARGE)).size_bytes == 3 * CHUNK_BYTES
    assert upload.sends == 7


async def test_questions_are_no_attempts() -> None:
    upload = FlakyUpload(0)
    async with scripted_gcs_store(upload.answer, replace(SETTINGS, max_attempts=3)) as (store, _):
        with pytest.raises(StoreError, match="503"):
            await store.put_object("k", LARGE)
    assert upload.sends == 3
