"""Where tokens for Google Cloud Storage come from, and when they are renewed.

The services that give tokens are stood in for by a few lines of HTTP: no emulator of them is known.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from google.auth.credentials import Credentials
from google.auth.exceptions import TransportError

from tests.support.inline_blocking import InlineBlocking
from tiersidecar.adapters.clock import SystemIds, ThreadBlocking
from tiersidecar.adapters.stores.gcs_credentials import GcsTokens, credentials_loader
from tiersidecar.adapters.stores.gcs_requests import ConnectionFailedError, GcsRequests, new_session
from tiersidecar.adapters.stores.gcs_settings import GcsSettings
from tiersidecar.domain.errors import StoreError
from tiersidecar.ports.clock import Blocking

pytestmark = pytest.mark.filterwarnings("ignore:The load_credentials_from_dict method:DeprecationWarning")


class Issuer:
    """Gives ``token-1``, ``token-2`` and so on, each good for ``lasts_s``; ``asked`` has path and body of each request."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.lasts_s, self.status = 3600, 200
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def tokens_given(self) -> int:
        return sum("token" in path for path, _ in self.asked)

    def answer(self, path: str, body: str) -> tuple[int, dict[str, Any] | str]:
        self.asked.append((path, body))
        if self.status != 200:
            return self.status, {"error": "invalid_grant", "error_description": "so the test wants it"}
        if "token" in path:
            return 200, {
                "access_token": f"token-{self.tokens_given}",
                "expires_in": self.lasts_s,
                "token_type": "Bearer",
            }
        if path.startswith("/computeMetadata/v1/instance/service-accounts/default/?"):
            return 200, {"email": "tier@project.iam.gserviceaccount.com", "scopes": [], "aliases": ["default"]}
        return 200, "project"


@pytest.fixture
def issuer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Issuer]:
    issuer = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            status, said = issuer.answer(self.path, body)
            data = said.encode() if isinstance(said, str) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(said, str) else "application/json")
            self.send_header("Metadata-Flavor", "Google")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _answer  # noqa: N815 - the base class's names

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer.port = server.server_port
    # A user's file does not say where tokens are, and the library reads the metadata server's address when it is imported.
    monkeypatch.setattr("google.oauth2.credentials._GOOGLE_OAUTH2_TOKEN_ENDPOINT", f"{issuer.url}/token")
    monkeypatch.setattr("google.auth.compute_engine._metadata._GCE_METADATA_HOST", f"127.0.0.1:{issuer.port}")
    monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{issuer.port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield issuer
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
async def blocking() -> AsyncIterator[Blocking]:
    async with ThreadBlocking(max_threads=2) as pool:
        yield pool


def service_account(issuer: Issuer) -> dict[str, str]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return {
        "type": "service_account",
        "project_id": "project",
        "private_key_id": "1",
        "private_key": pem,
        "client_email": "tier@project.iam.gserviceaccount.com",
        "token_uri": f"{issuer.url}/token",
    }


def user(issuer: Issuer) -> dict[str, str]:
    """As ``gcloud auth application-default login`` leaves it."""
    return {
        "type": "authorized_user",
        "client_id": "client",
        "client_secret": "secret",
        "refresh_token": "refresh",
        "token_uri": f"{issuer.url}/token",
        "quota_project_id": "payer",
    }


def tokens_of(settings: GcsSettings, blocking: Blocking, *, pause_s: float = 10) -> GcsTokens:
    return GcsTokens(credentials_loader(settings), blocking=blocking, pause_s=pause_s)


def from_file(path: Path, document: dict[str, str]) -> GcsSettings:
    path.write_text(json.dumps(document))
    return GcsSettings(bucket="b", login="path", credentials_path=str(path))


async def test_a_service_accounts_key_gets_a_token_and_keeps_it(
    issuer: Issuer, blocking: Blocking, tmp_path: Path
) -> None:
    tokens = tokens_of(from_file(tmp_path / "key.json", service_account(issuer)), blocking)
    assert (await tokens.headers("put", "k"))["authorization"] == "Bearer token-1"
    assert (await tokens.headers("put", "k"))["authorization"] == "Bearer token-1"
    assert "assertion=" in issuer.asked[0][1]


async def test_the_content_of_a_credentials_file_will_do(issuer: Issuer, blocking: Blocking) -> None:
    settings = GcsSettings(bucket="b", login="json", credentials_json=json.dumps(user(issuer)))
    assert await tokens_of(settings, blocking).headers("put", "k") == {
        "authorization": "Bearer token-1",
        "x-goog-user-project": "payer",
    }
    assert "secret" not in repr(settings)


async def test_a_users_file_is_found_by_the_environment(
    issuer: Issuer, blocking: Blocking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "adc.json"
    file.write_text(json.dumps(user(issuer)))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    headers = await tokens_of(GcsSettings(bucket="b"), blocking).headers("put", "k")
    assert headers["authorization"] == "Bearer token-1"


async def test_a_machine_without_files_asks_its_metadata_server(
    issuer: Issuer, blocking: Blocking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata server is the one above: what Google's own answers is not tried here."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    headers = await tokens_of(GcsSettings(bucket="b"), blocking).headers("put", "k")
    assert headers["authorization"].startswith("Bearer token-")
    assert any("instance/service-accounts" in path for path, _ in issuer.asked)


class HungCredentials(Credentials):
    """A token that lasts ``lasts_s``, and a service for the next one that answers, with an error, when it is let go."""

    def __init__(self, lasts_s: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.token = "old"
        self.expiry = (datetime.now(UTC) + timedelta(seconds=lasts_s)).replace(tzinfo=None)
        self.asked, self.may_end = 0, threading.Event()

    def refresh(self, request: object) -> None:
        self.asked += 1
        self.may_end.wait(20)
        raise TransportError("so the test wants it")  # type: ignore[no-untyped-call]


async def test_a_token_near_its_end_is_renewed_beside_its_use(
    issuer: Issuer, blocking: Blocking, tmp_path: Path
) -> None:
    issuer.lasts_s = 60
    tokens = tokens_of(from_file(tmp_path / "key.json", user(issuer)), blocking, pause_s=0)
    await tokens.headers("put", "k")
    assert (await tokens.headers("put", "k"))["authorization"] == "Bearer token-1"
    assert tokens._renewal is not None
    await tokens._renewal
    assert (await tokens.headers("put", "k"))["authorization"] == "Bearer token-2"
    await tokens.aclose()


async def test_a_hanging_service_for_tokens_holds_no_request_while_the_old_token_is_good(blocking: Blocking) -> None:
    hung = HungCredentials(lasts_s=100)
    tokens = GcsTokens(lambda: hung, blocking=blocking)
    tokens._credentials = hung
    try:
        async with asyncio.timeout(5):
            found = await asyncio.gather(*(tokens.headers("fetch", "k") for _ in range(10)))
            hung.may_end.set()
            assert tokens._renewal is not None
            await tokens._renewal
            found += [await tokens.headers("fetch", "k")]
    finally:
        hung.may_end.set()
    assert {headers["authorization"] for headers in found} == {"Bearer old"}
    assert hung.asked == 1, "once in ten seconds"


async def test_without_a_good_token_one_request_for_it_serves_all_and_a_failure_lasts_a_while(
    blocking: Blocking,
) -> None:
    hung = HungCredentials(lasts_s=-1)
    hung.may_end.set()
    tokens = GcsTokens(lambda: hung, blocking=blocking, failed_pause_s=60)
    found = await asyncio.gather(*(tokens.headers("fetch", f"{i}") for i in range(10)), return_exceptions=True)
    with pytest.raises(StoreError, match=r"'later'.*so the test wants it"):
        await tokens.headers("fetch", "later")
    assert all(isinstance(error, StoreError) for error in found)
    assert hung.asked == 1


async def test_a_token_that_does_not_come_is_waited_for_no_longer_than_an_attempt(blocking: Blocking) -> None:
    hung = HungCredentials(lasts_s=-1)
    tokens = GcsTokens(lambda: hung, blocking=blocking)
    settings = GcsSettings(bucket="b", attempt_timeout_s=0.05)
    async with new_session(None) as session:
        sender = GcsRequests(session, settings, tokens=tokens, ids=SystemIds())
        with pytest.raises(ConnectionFailedError, match="no access token in time"):
            await sender.once("fetch", "k", "GET", "http://127.0.0.1:1/")
    hung.may_end.set()
    await tokens.aclose()


async def test_a_service_for_tokens_that_hangs_is_left_after_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[object] = []

    def refuse(*_: object, **others: object) -> None:
        limits.append(others["timeout"])
        raise requests.exceptions.Timeout("so the test wants it")

    monkeypatch.setattr(requests.Session, "request", refuse)
    document = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    settings = GcsSettings(bucket="b", login="json", credentials_json=json.dumps(document))
    with pytest.raises(StoreError, match="so the test wants it"):
        await tokens_of(settings, InlineBlocking()).headers("put", "k")
    assert set(limits) == {10.0}


async def test_an_expired_token_is_not_used(issuer: Issuer, blocking: Blocking, tmp_path: Path) -> None:
    tokens = tokens_of(from_file(tmp_path / "key.json", user(issuer)), blocking)
    await tokens.headers("put", "k")
    issuer.status = 400
    assert tokens._credentials is not None
    tokens._credentials.expiry = (datetime.now(UTC) - timedelta(seconds=1)).replace(tzinfo=None)
    with pytest.raises(StoreError, match=r"no access token: .*so the test wants it"):
        await tokens.headers("put", "k")


async def test_a_file_that_was_replaced_is_read_when_the_old_token_is_refused(
    issuer: Issuer, blocking: Blocking, tmp_path: Path
) -> None:
    """A document with an access token alone, as the plugin takes it."""
    file = tmp_path / "token.json"
    tokens = tokens_of(from_file(file, {"access_token": "first"}), blocking)
    assert (await tokens.headers("put", "k"))["authorization"] == "Bearer first"
    file.write_text(json.dumps({"access_token": "second"}))
    assert (await tokens.headers("put", "k"))["authorization"] == "Bearer first"
    tokens.refused({"authorization": "Bearer first"})
    assert (await tokens.headers("put", "k"))["authorization"] == "Bearer second"
    file.write_text(json.dumps({"access_token": "third"}))
    tokens.refused({"authorization": "Bearer first"})  # of a request that was under way before
    assert (await tokens.headers("put", "k"))["authorization"] == "Bearer second"


@pytest.mark.parametrize(
    ("content", "part"),
    [
        pytest.param(None, "cannot be read: No such file or directory", id="no file"),
        pytest.param("{", "not what Google's libraries write", id="no JSON"),
        pytest.param('{"type": "of another kind"}', "no access token", id="of a kind that nobody knows"),
        pytest.param("[]", "not what Google's libraries write", id="no object"),
    ],
)
async def test_credentials_that_cannot_be_used_are_told(
    blocking: Blocking, tmp_path: Path, content: str | None, part: str
) -> None:
    file = tmp_path / "key.json"
    if content is not None:
        file.write_text(content)
    tokens = tokens_of(GcsSettings(bucket="b", login="path", credentials_path=str(file)), blocking)
    with pytest.raises(StoreError, match=part):
        await tokens.headers("put", "k")


async def test_many_requests_at_once_fetch_one_token(issuer: Issuer, blocking: Blocking, tmp_path: Path) -> None:
    tokens = tokens_of(from_file(tmp_path / "key.json", user(issuer)), blocking)
    found = await asyncio.gather(*(tokens.headers("put", "k") for _ in range(8)))
    assert {headers["authorization"] for headers in found} == {"Bearer token-1"}


async def test_a_file_that_the_environment_names_and_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "adc.json"))
    with pytest.raises(StoreError, match=r"adc\.json was not found"):
        await tokens_of(GcsSettings(bucket="b"), InlineBlocking()).headers("put", "k")
