"""The S3 store keeps the contract on a real server; what an upload begins it ends; faults on the way are borne or told.

Shown here: S-071 S-193 S-194 S-290.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import aioboto3
import google_crc32c
import pytest
from obstore.store import S3Store as RustS3Store
from structlog.testing import capture_logs

from tests.support.certificates import CertificateAuthority
from tests.support.s3_fault_proxy import Fault, FaultKind, S3FaultProxy, running_s3_fault_proxy
from tests.support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server, running_s3_server
from tests.support.token_service import TokenService, running_token_service
from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.adapters.stores.s3 import S3Store, open_s3_store
from tiersidecar.adapters.stores.s3_quick_reads import S3QuickReads
from tiersidecar.adapters.stores.s3_settings import MIB, S3Checksums, S3Settings
from tiersidecar.domain.errors import ObjectExistsError, StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.store import BytesBody, SourceFile, Store
from tiersidecar.testing.store_contract import KEY, FailingBody, FileBody, PiecesBody, StoreContract, keys_of

pytestmark = pytest.mark.server

PART_BYTES = 5 * MIB
_session = aioboto3.Session()
_buckets = count(1)


def settings_of(url: str, bucket: str) -> S3Settings:
    return S3Settings(
        bucket=bucket,
        region="us-east-1",
        endpoint_url=url,
        addressing="path",
        part_size_bytes=PART_BYTES,
        parts_in_flight=3,
        part_buffers=4,
        max_attempts=3,
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
    )


@pytest.fixture
async def settings(s3_server: S3Server) -> S3Settings:
    """With a bucket of its own for each test."""
    settings = settings_of(s3_server.url, f"bucket-{os.getpid()}-{next(_buckets)}")
    async with _session.client("s3", **settings.client_arguments()) as client:
        await client.create_bucket(Bucket=settings.bucket)
    return settings


@pytest.fixture
async def blocking() -> AsyncIterator[Blocking]:
    async with ThreadBlocking(max_threads=2) as pool:
        yield pool


@pytest.fixture
async def store(settings: S3Settings, blocking: Blocking) -> AsyncIterator[S3Store]:
    async with open_s3_store(settings, blocking=blocking, clock=SystemClock(), ids=SystemIds()) as store:
        yield store
        assert await uploads_in(settings) == [], "an upload was neither completed nor aborted"
        assert free_buffers(store) <= settings.part_buffers


async def uploads_in(settings: S3Settings) -> list[str]:
    async with _session.client("s3", **settings.client_arguments()) as client:
        answer = await client.list_multipart_uploads(Bucket=settings.bucket)
        return [upload["Key"] for upload in answer.get("Uploads", ())]


async def begin_upload(settings: S3Settings, key: str) -> None:
    async with _session.client("s3", **settings.client_arguments()) as client:
        await client.create_multipart_upload(Bucket=settings.bucket, Key=key)


def free_buffers(store: S3Store) -> int:
    return len(store._buffers._free)


class TestContract(StoreContract):
    hides_its_races = False
    """versitygw keeps objects as files: ExistingObjectIsDirectory when a directory is made and removed at once."""
    piece_bytes = 4 * MIB
    """With parts of 5 MiB: bodies of several pieces become several parts, cut elsewhere."""

    @pytest.fixture
    def store(self, store: S3Store) -> Store:
        return store


class TestContractWithoutChecksums(StoreContract):
    keeps_checksums = False
    hides_its_races = False
    piece_bytes = 4 * MIB

    @pytest.fixture
    def settings(self, settings: S3Settings) -> S3Settings:
        return replace(settings, checksums=S3Checksums.NONE)

    @pytest.fixture
    def store(self, store: S3Store) -> Store:
        return store


class TestUploads:
    async def test_a_big_file_goes_up_within_the_buffers(self, store: S3Store, tmp_path: Path) -> None:
        data = os.urandom(12 * PART_BYTES + 17)
        path = tmp_path / "00000000000000000000.log"
        path.write_bytes(data)
        with path.open("rb") as file:
            source = SourceFile(fileno=file.fileno(), path=str(path), byte_range=ByteRange(0, len(data)))
            stored = await store.put_object(KEY, FileBody(source))
        assert (stored.size_bytes, stored.crc32c) == (len(data), google_crc32c.value(data))
        assert free_buffers(store) <= 4
        assert await store.fetch_range(KEY, ByteRange(len(data) - 40, len(data))) == data[-40:]

    async def test_many_objects_at_once_share_the_buffers(self, store: S3Store) -> None:
        bodies = {f"t/0/{number}": [os.urandom(4 * MIB) for _ in range(4)] for number in range(8)}
        await asyncio.gather(*(store.put_object(key, PiecesBody(pieces)) for key, pieces in bodies.items()))
        assert free_buffers(store) == 4
        for key, pieces in bodies.items():
            assert (await store.head_object(key)).crc32c == google_crc32c.value(b"".join(pieces))

    @pytest.mark.parametrize("excess", [-1, 0, 1], ids=["a byte less than a part", "a part", "a byte more than a part"])
    async def test_sizes_around_a_part(self, store: S3Store, excess: int) -> None:
        for key, knows_size in (("a/known", True), ("a/unknown", False)):
            data = os.urandom(PART_BYTES + excess)
            await store.put_object(key, PiecesBody([data[: 3 * MIB], data[3 * MIB :]], knows_size))
            assert await store.fetch_object(key, max_bytes=2**30) == data

    async def test_a_conditional_upload_in_parts_leaves_what_is_there(self, store: S3Store) -> None:
        await store.put_object(KEY, BytesBody(b"first"))
        with pytest.raises(ObjectExistsError):
            await store.put_object(KEY, PiecesBody([bytes(4 * MIB)] * 4), if_absent=True)
        assert await store.fetch_object(KEY, max_bytes=2**30) == b"first"

    async def test_a_file_that_became_shorter_aborts_the_upload(self, store: S3Store, tmp_path: Path) -> None:
        """S-292."""
        path = tmp_path / "00000000000000000000.log"
        path.write_bytes(bytes(3 * PART_BYTES))
        with path.open("rb") as file:
            source = SourceFile(fileno=file.fileno(), path=str(path), byte_range=ByteRange(0, 3 * PART_BYTES))
            os.truncate(path, 2 * PART_BYTES + 5)
            with pytest.raises(Exception, match=f"ends at byte {2 * PART_BYTES + 5}"):
                await store.put_object(KEY, FileBody(source))
        assert await keys_of(store) == []


class TestQuickReads:
    """Ranges come through object_store, and through aioboto3 where that fails."""

    async def test_a_range_comes_the_quick_way(self, store: S3Store) -> None:
        await store.put_object(KEY, BytesBody(b"0123456789"))
        quick = store._quick_reads
        assert quick is not None
        found = await quick.fetch_range(KEY, ByteRange(2, 5))
        assert found is not None
        assert bytes(found) == b"234"
        assert await quick.fetch_range("t/0/absent", ByteRange(2, 5)) is None
        assert await quick.fetch_range(KEY, ByteRange(8, 12)) is None, "it is shorter than that"

    async def test_an_object_comes_the_quick_way(self, store: S3Store) -> None:
        await store.put_object(KEY, BytesBody(b"0123456789"))
        quick = store._quick_reads
        assert quick is not None
        assert await quick.fetch_object(KEY, max_bytes=2**30) == b"0123456789"
        assert await quick.fetch_object("t/0/absent", max_bytes=2**30) is None

    async def test_where_it_fails_the_other_way_is_taken(self, store: S3Store, settings: S3Settings) -> None:
        await store.put_object(KEY, BytesBody(b"0123456789"))
        nowhere = RustS3Store(
            settings.bucket, endpoint="http://127.0.0.1:9", client_options={"allow_http": True},
            access_key_id="a", secret_access_key="b", region="us-east-1", retry_config={"max_retries": 0},
        )  # fmt: skip
        store._quick_reads = S3QuickReads(nowhere, description=store.description)
        for _ in range(4):
            assert await store.fetch_range(KEY, ByteRange(2, 5)) == b"234"
            assert await store.fetch_object(KEY, max_bytes=2**30) == b"0123456789"


class TestSweep:
    async def test_only_stale_uploads_of_our_layout_under_our_prefix_are_aborted(
        self, settings: S3Settings, blocking: Blocking
    ) -> None:
        """A bucket may be shared, and an upload of another sidecar may be under way (S-292)."""
        settings = replace(settings, key_prefix="tiered/")
        foreign = ["backups/dump.tar", "tiered/dump.tar", KEY.removeprefix("tiered/")]
        for key in (KEY, *foreign):
            await begin_upload(settings, key)
        now_ms = SystemClock().now_ms()
        async with open_s3_store(settings, blocking=blocking, clock=SystemClock(), ids=SystemIds()) as store:
            assert await store.sweep_stale(older_than_ms=now_ms - 3_600_000) == 0
            assert await store.sweep_stale(older_than_ms=now_ms + 3_600_000) == 1
        assert sorted(await uploads_in(settings)) == sorted(foreign)

    async def test_opening_sweeps_in_the_background(self, settings: S3Settings, blocking: Blocking) -> None:
        await begin_upload(settings, KEY.removeprefix("tiered/"))
        settings = replace(settings, stale_upload_ms=-3_600_000)
        with capture_logs() as logs:
            async with open_s3_store(settings, blocking=blocking, clock=SystemClock(), ids=SystemIds()):
                while await uploads_in(settings):
                    pass
        assert [entry["uploads"] for entry in logs if entry["event"] == "store.sweep.finished"] in ([1], [])


class TestBadStores:
    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"bucket": "no-such-bucket"}, r"NoSuchBucket.*create the bucket"),
            ({"secret_access_key": "wrong"}, r"SignatureDoesNotMatch.*the secret key is wrong"),
            ({"access_key_id": "nobody"}, r"the access key is not known there"),
            ({"endpoint_url": "http://127.0.0.1:9", "max_attempts": 1}, r"127\.0\.0\.1:9"),
        ],
        ids=["no such bucket", "wrong secret", "unknown key", "nothing listens"],
    )
    async def test_what_is_wrong_is_told_when_the_store_is_used(
        self, settings: S3Settings, blocking: Blocking, change: dict[str, str], said: str
    ) -> None:
        settings = replace(settings, **change)  # type: ignore[arg-type]
        async with open_s3_store(settings, blocking=blocking, clock=SystemClock(), ids=SystemIds()) as store:
            with pytest.raises(StoreError, match=said) as raised:
                await store.check_writable()
            assert SECRET_KEY not in str(raised.value)
            assert SECRET_KEY not in store.description


class TestVirtualHosts:
    """The bucket in the host name, as AWS has it; the names are resolved here, not by a name server."""

    DOMAIN = "s3.test"

    @pytest.fixture
    def settings_by_host(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Settings]:
        real = socket.getaddrinfo

        def resolve(host: str, *arguments: Any, **named: Any) -> Any:
            return real("127.0.0.1" if str(host).endswith(self.DOMAIN) else host, *arguments, **named)

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        with running_s3_server(tmp_path / "s3", virtual_domain=self.DOMAIN) as server:
            settings = settings_of(server.url.replace("127.0.0.1", self.DOMAIN), "by-host")
            (server.directory / settings.bucket).mkdir()
            yield replace(settings, addressing="virtual")

    async def test_objects_are_put_read_listed_and_deleted(
        self, settings_by_host: S3Settings, blocking: Blocking
    ) -> None:
        async with open_s3_store(settings_by_host, blocking=blocking, clock=SystemClock(), ids=SystemIds()) as store:
            pieces = [os.urandom(4 * MIB)] * 3
            await store.put_object(KEY, PiecesBody(pieces))
            assert await store.fetch_range(KEY, ByteRange(5, 4 * MIB + 5)) == b"".join(pieces)[5 : 4 * MIB + 5]
            assert await keys_of(store) == [KEY]
            await store.delete_objects([KEY])
            assert await keys_of(store) == []


class TestAssumedRole:
    """Without keys in the configuration, botocore's own chain finds them."""

    ROLE = "arn:aws:iam::123456789012:role/tiersidecar"

    @pytest.fixture
    async def tokens(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TokenService]:
        (tmp_path / "token").write_text("of-the-service-account")
        async with running_token_service(ACCESS_KEY, SECRET_KEY) as service:
            monkeypatch.setenv("AWS_ENDPOINT_URL_STS", service.url)
            yield service

    @pytest.mark.parametrize("way", ["web identity of a pod", "profile with a source profile"])
    async def test_its_keys_are_used(
        self,
        way: str,
        settings: S3Settings,
        blocking: Blocking,
        tokens: TokenService,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        if way == "web identity of a pod":
            monkeypatch.setenv("AWS_ROLE_ARN", self.ROLE)
            monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
            action, token = "AssumeRoleWithWebIdentity", "of-the-service-account"
        else:
            (tmp_path / "config").write_text(
                f"[profile tiered]\nrole_arn = {self.ROLE}\nsource_profile = base\n"
                "[profile base]\naws_access_key_id = somebody\naws_secret_access_key = else\n"
            )
            monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
            monkeypatch.setenv("AWS_PROFILE", "tiered")
            action, token = "AssumeRole", None
        chain = replace(settings, access_key_id=None, secret_access_key=None)
        async with open_s3_store(chain, blocking=blocking, clock=SystemClock(), ids=SystemIds()) as store:
            await store.put_object(KEY, BytesBody(b"by the role"))
            assert await store.fetch_object(KEY, max_bytes=2**30) == b"by the role"
        asked = {(form["Action"], form["RoleArn"], form.get("WebIdentityToken")) for form in tokens.asked}
        assert asked == {(action, self.ROLE, token)}


class TestTls:
    """A custom endpoint with a certificate of a private authority."""

    @pytest.fixture
    def authority(self, tmp_path: Path) -> CertificateAuthority:
        return CertificateAuthority(tmp_path / "ca")

    @pytest.fixture
    def server(self, tmp_path: Path, authority: CertificateAuthority) -> Iterator[S3Server]:
        with running_s3_server(tmp_path / "s3", authority.issue("s3")) as server:
            yield server

    @pytest.fixture
    async def settings(self, server: S3Server, authority: CertificateAuthority) -> S3Settings:
        settings = replace(settings_of(server.url, "bucket"), ca_file=str(authority.authority_path))
        async with _session.client("s3", **settings.client_arguments()) as client:
            await client.create_bucket(Bucket=settings.bucket)
        return settings

    async def test_the_authority_that_is_named_is_trusted(self, store: S3Store) -> None:
        await store.check_writable()
        pieces = [os.urandom(4 * MIB)] * 3
        await store.put_object(KEY, PiecesBody(pieces))
        assert await store.fetch_object(KEY, max_bytes=2**30) == b"".join(pieces)

    @pytest.mark.parametrize("trusted", ["the system's", "a stranger's"])
    async def test_any_other_is_not(
        self, settings: S3Settings, blocking: Blocking, tmp_path: Path, trusted: str
    ) -> None:
        stranger = CertificateAuthority(tmp_path / "stranger", "somebody else")
        ca_file = None if trusted == "the system's" else str(stranger.authority_path)
        settings = replace(settings, ca_file=ca_file, max_attempts=1)
        async with open_s3_store(settings, blocking=blocking, clock=SystemClock(), ids=SystemIds()) as store:
            with pytest.raises(StoreError, match=r"CERTIFICATE_VERIFY_FAILED"):
                await store.check_writable()

    async def test_unless_certificates_are_not_checked(self, settings: S3Settings, blocking: Blocking) -> None:
        settings = replace(settings, ca_file=None, verify_tls=False)
        async with open_s3_store(settings, blocking=blocking, clock=SystemClock(), ids=SystemIds()) as store:
            await store.check_writable()


class TestFaults:
    @pytest.fixture
    async def proxy(self, s3_server: S3Server) -> AsyncIterator[S3FaultProxy]:
        async with running_s3_fault_proxy(s3_server.url) as proxy:
            yield proxy

    @pytest.fixture
    async def store(self, settings: S3Settings, proxy: S3FaultProxy, blocking: Blocking) -> AsyncIterator[S3Store]:
        settings = replace(settings, endpoint_url=proxy.url, stall_timeout_s=2.0, key_prefix="tiered/")
        async with open_s3_store(settings, blocking=blocking, clock=SystemClock(), ids=SystemIds()) as store:
            yield store
            proxy.faults.clear()
            assert await uploads_in(settings) == []

    @pytest.mark.parametrize("kind", [FaultKind.REFUSE, FaultKind.RESET, FaultKind.LOSE_ANSWER])
    @pytest.mark.parametrize(
        ("method", "query"),
        [("POST", "uploads"), ("PUT", "partNumber=2"), ("POST", "uploadId=")],
        ids=["create", "a part", "complete"],
    )
    async def test_a_fault_on_the_way_is_borne(
        self, store: S3Store, proxy: S3FaultProxy, kind: FaultKind, method: str, query: str
    ) -> None:
        """A retried part sends the same bytes; a completion whose answer was lost has happened all the same."""
        proxy.faults.append(Fault(kind=kind, method=method, query=query))
        pieces = [os.urandom(4 * MIB) for _ in range(4)]
        stored = await store.put_object(KEY, PiecesBody(pieces))
        assert proxy.faults[0].times == 0
        assert stored.crc32c == google_crc32c.value(b"".join(pieces))
        assert await store.fetch_object(KEY, max_bytes=2**30) == b"".join(pieces)
        if (kind, query) == (FaultKind.LOSE_ANSWER, "uploads"):
            await store.sweep_stale(older_than_ms=SystemClock().now_ms() + 3_600_000)  # nobody knows the first one's id

    @pytest.mark.parametrize("kind", [FaultKind.REFUSE, FaultKind.RESET, FaultKind.LOSE_ANSWER])
    async def test_a_fault_in_a_small_conditional_put_is_borne(
        self, store: S3Store, proxy: S3FaultProxy, kind: FaultKind
    ) -> None:
        """The second attempt finds the key taken by the first."""
        proxy.faults.append(Fault(kind=kind, method="PUT"))
        await store.put_object(KEY, BytesBody(b"manifest"), if_absent=True)
        assert await store.fetch_object(KEY, max_bytes=2**30) == b"manifest"

    @pytest.mark.parametrize("pieces", [1, 4], ids=["in one request", "in parts"])
    async def test_of_two_conditional_puts_of_the_same_bytes_only_one_is_done(
        self, store: S3Store, proxy: S3FaultProxy, pieces: int
    ) -> None:
        """The second one's request is refused at first, and its repetition meets what the first put has stored."""
        body = [bytes(4 * MIB)] * pieces
        await store.put_object(KEY, PiecesBody(body), if_absent=True)
        method, query = ("PUT", "") if pieces == 1 else ("POST", "uploadId=")
        proxy.faults.append(Fault(kind=FaultKind.REFUSE, method=method, query=query))
        with pytest.raises(ObjectExistsError):
            await store.put_object(KEY, PiecesBody(body), if_absent=True)
        assert proxy.faults[0].times == 0

    async def test_a_bare_200_does_not_make_another_puts_object_ours(self, store: S3Store, proxy: S3FaultProxy) -> None:
        await store.put_object(KEY, BytesBody(b"claim"), if_absent=True)
        proxy.faults.append(Fault(kind=FaultKind.REFUSE, method="PUT", status=200))
        with pytest.raises(ObjectExistsError):
            await store.put_object(KEY, BytesBody(b"claim"), if_absent=True)

    async def test_a_server_that_goes_on_refusing_is_told_and_the_upload_aborted(
        self, store: S3Store, proxy: S3FaultProxy
    ) -> None:
        proxy.faults.append(Fault(kind=FaultKind.REFUSE, method="PUT", query="partNumber=2", times=1000))
        with pytest.raises(StoreError, match=r"SlowDown: so the test wants it, tried 3 times"):
            await store.put_object(KEY, PiecesBody([bytes(4 * MIB)] * 4))
        assert await keys_of(store) == []

    @pytest.mark.parametrize("pieces", [1, 4], ids=["in one request", "in parts"])
    async def test_a_bare_200_is_no_proof_that_anything_is_stored(
        self, store: S3Store, proxy: S3FaultProxy, pieces: int
    ) -> None:
        """Found by make chaos: a proxy that lies made a finished segment of objects that were never there."""
        proxy.faults.append(Fault(kind=FaultKind.REFUSE, method="PUT", times=1000, status=200))
        with pytest.raises(StoreError):
            await store.put_object(KEY, PiecesBody([bytes(4 * MIB)] * pieces))
        proxy.faults.clear()
        assert await keys_of(store) == []
        await store.put_object(KEY, PiecesBody([bytes(4 * MIB)] * pieces))
        assert await keys_of(store) == [KEY]

    @pytest.mark.parametrize("pieces", [1, 4], ids=["in one request", "in parts"])
    async def test_an_upload_that_makes_no_progress_ends(
        self, store: S3Store, proxy: S3FaultProxy, pieces: int
    ) -> None:
        """U1: a copy that hangs for ever, 12 times in 5 weeks."""
        query = "partNumber=1" if pieces > 1 else ""
        proxy.faults.append(Fault(kind=FaultKind.STALL, method="PUT", query=query))
        with pytest.raises(StoreError, match="no progress in time"):
            await store.put_object(KEY, PiecesBody([os.urandom(4 * MIB)] * pieces))
        assert await keys_of(store) == []

    @pytest.mark.parametrize("kind", [FaultKind.REFUSE, FaultKind.RESET, FaultKind.LOSE_ANSWER])
    async def test_a_fault_before_a_fetch_is_answered_is_borne(
        self, store: S3Store, proxy: S3FaultProxy, kind: FaultKind
    ) -> None:
        data = os.urandom(1_000_000)
        await store.put_object(KEY, BytesBody(data))
        proxy.faults.append(Fault(kind=kind, method="GET"))
        assert await store.fetch_range(KEY, ByteRange(10, 900_000)) == data[10:900_000]
        proxy.faults.append(Fault(kind=kind, method="GET"))
        assert await store.fetch_object(KEY, max_bytes=2**30) == data

    async def test_an_answer_that_is_cut_off_is_no_short_object(self, store: S3Store, proxy: S3FaultProxy) -> None:
        await store.put_object(KEY, BytesBody(bytes(1_000_000)))
        for fetch in (store.fetch_object(KEY, max_bytes=2**30), store.fetch_range(KEY, ByteRange(0, 1_000_000))):
            proxy.faults.append(Fault(kind=FaultKind.CUT, method="GET", times=2))  # it is asked for in two ways
            with pytest.raises(StoreError, match="ClientPayloadError"):
                await fetch

    async def test_parts_in_flight_are_bounded(
        self, settings: S3Settings, proxy: S3FaultProxy, blocking: Blocking
    ) -> None:
        """While the server takes none, as many wait as are allowed, and no more."""
        settings = replace(settings, endpoint_url=proxy.url, stall_timeout_s=2.0, part_buffers=8)
        proxy.faults.append(Fault(kind=FaultKind.STALL, method="PUT", query="partNumber", times=1000))
        async with open_s3_store(settings, blocking=blocking, clock=SystemClock(), ids=SystemIds()) as store:
            with pytest.raises(StoreError, match="no progress in time"):
                await store.put_object(KEY, PiecesBody([bytes(4 * MIB)] * 12))
        assert (proxy.most_at_once, proxy.requests["PUT"]) == (3, 3)

    async def test_an_upload_that_outlives_its_abort_is_aborted_again(
        self, store: S3Store, proxy: S3FaultProxy
    ) -> None:
        """A part that the server is still taking in revives it."""
        proxy.faults.append(Fault(kind=FaultKind.REFUSE, method="DELETE", query="uploadId", status=204, times=2))
        with pytest.raises(ValueError, match="broke"):
            await store.put_object(KEY, FailingBody([bytes(4 * MIB)] * 4, failure=ValueError("broke")))
        assert proxy.requests["DELETE"] == 3

    async def test_a_server_that_refuses_checksums_is_used_without(self, store: S3Store, proxy: S3FaultProxy) -> None:
        proxy.faults.append(
            Fault(
                kind=FaultKind.REFUSE,
                method="PUT",
                header="x-amz-checksum-crc32c",
                times=1000,
                status=501,
                code="NotImplemented",
            )
        )
        with capture_logs() as logs:
            for _ in range(2):
                assert (await store.put_object(KEY, BytesBody(b"manifest"))).crc32c is None
        assert [entry["event"] for entry in logs] == ["store.checksums.refused"]
        assert proxy.requests["PUT"] == 3

    async def test_a_checksum_that_is_demanded_is_demanded(
        self, settings: S3Settings, proxy: S3FaultProxy, blocking: Blocking
    ) -> None:
        settings = replace(settings, endpoint_url=proxy.url, checksums=S3Checksums.CRC32C)
        refusal = Fault(kind=FaultKind.REFUSE, method="PUT", times=1000, status=501, code="NotImplemented")
        async with open_s3_store(settings, blocking=blocking, clock=SystemClock(), ids=SystemIds()) as store:
            await store.check_writable()
            proxy.faults.append(refusal)
            with pytest.raises(StoreError, match="NotImplemented"):
                await store.check_writable()

    async def test_what_a_delete_could_not_remove_is_named(self, store: S3Store, proxy: S3FaultProxy) -> None:
        await store.put_object(KEY, BytesBody(b"x"))
        proxy.faults.append(
            Fault(kind=FaultKind.REFUSE, method="POST", query="delete", status=403, code="AccessDenied")
        )
        with pytest.raises(StoreError, match=re.escape(KEY)):
            await store.delete_objects([KEY])
        assert await keys_of(store) == [KEY]
