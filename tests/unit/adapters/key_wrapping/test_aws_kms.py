"""What an answer of AWS KMS means: the error says who has to do what; codes and forms as the API Reference has them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from time import monotonic

import pytest

from tests.support.loopback_ports import free_port
from tiersidecar.adapters.key_wrapping.aws_kms import AwsKms, AwsKmsKind
from tiersidecar.adapters.key_wrapping.service_keys import ServiceKeys
from tiersidecar.domain.data_keys import WrappedKey, context_of_ids
from tiersidecar.domain.errors import DataKeyError, KeyRefusedError, KeyServiceError, TiersidecarError
from tiersidecar.formats.aiven.wrapped_keys import write_wrapped_key

CONTEXT = context_of_ids("T", "S")
WRAPPED = WrappedKey("arn:aws:kms:eu-west-2:111122223333:key/1", b"ciphertext")


class Kms:
    """A service that refuses everything with one code."""

    def __init__(self) -> None:
        self.status, self.code, self.asked = 400, "", 0
        self.last: dict[str, object] = {}
        self.body: bytes | None = None
        """Of every answer, where it is not an error."""
        kms = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                kms.asked += 1
                kms.last = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                body = kms.body or json.dumps({"__type": kms.code, "message": "so it is"}).encode()
                self.send_response(kms.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *told: object) -> None:
                return None

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture(scope="module")
def kms() -> Iterator[Kms]:
    kms = Kms()
    thread = Thread(target=kms.server.serve_forever, daemon=True)
    thread.start()
    yield kms
    kms.server.shutdown()
    kms.server.server_close()


def client_of(url: str) -> AwsKms:
    return AwsKms(
        {
            "key.id": "alias/tier",
            "region": "eu-west-2",
            "endpoint.url": url,
            "access.key.id": "a",
            "secret.access.key": "s",
        }
    )


@pytest.mark.parametrize(
    ("status", "code", "kind", "told"),
    [
        pytest.param(
            400, "AccessDeniedException", KeyRefusedError, "give the sidecar's identity kms:Decrypt", id="denied"
        ),
        pytest.param(
            400, "ExpiredTokenException", KeyRefusedError, "give the sidecar's identity", id="a login that ended"
        ),
        pytest.param(400, "DisabledException", KeyRefusedError, "enable the key again", id="a key that is disabled"),
        pytest.param(400, "KMSInvalidStateException", KeyRefusedError, "cancel its deletion", id="one to be deleted"),
        pytest.param(400, "NotFoundException", KeyRefusedError, "no such key in this account", id="one that is gone"),
        pytest.param(
            400, "InvalidCiphertextException", DataKeyError, "no key of its own has wrapped it", id="not its own"
        ),
        pytest.param(400, "IncorrectKeyException", DataKeyError, "no key of its own", id="under another of its keys"),
        pytest.param(
            400, "ThrottlingException", KeyServiceError, "could not unwrap a data key", id="too many requests"
        ),
        pytest.param(
            500, "KMSInternalException", KeyServiceError, "could not unwrap a data key", id="a fault of its own"
        ),
        pytest.param(503, "DependencyTimeoutException", KeyServiceError, "could not unwrap", id="a fault behind it"),
        pytest.param(400, "ValidationException", DataKeyError, "cannot be asked for", id="a request that is none"),
        pytest.param(400, "InvalidArnException", DataKeyError, "cannot be asked for", id="no name of a key"),
    ],
)
def test_what_an_answer_means(kms: Kms, status: int, code: str, kind: type[TiersidecarError], told: str) -> None:
    kms.status, kms.code = status, code
    with pytest.raises(kind, match=told) as raised:
        client_of(kms.url).unwrap(WRAPPED, CONTEXT)
    assert code in str(raised.value)
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("status", "code", "is_away", "of_key"),
    [
        pytest.param(500, "KMSInternalException", True, False, id="a fault of its own"),
        pytest.param(503, "DependencyTimeoutException", True, False, id="a fault behind it"),
        pytest.param(400, "ThrottlingException", True, False, id="too many requests"),
        pytest.param(429, "", True, False, id="too many for a server before it"),
        pytest.param(500, "KeyUnavailableException", True, True, id="one key, as of a custom key store"),
        pytest.param(400, "SomethingNewException", False, False, id="a complaint that nobody knows"),
    ],
)
def test_whom_a_failure_is_about(kms: Kms, status: int, code: str, *, is_away: bool, of_key: bool) -> None:
    kms.status, kms.code = status, code
    with pytest.raises(KeyServiceError) as raised:
        client_of(kms.url).unwrap(WRAPPED, CONTEXT)
    assert (raised.value.is_away, raised.value.key_id) == (is_away, WRAPPED.key_id if of_key else "")


def test_a_long_answer_is_cut(kms: Kms) -> None:
    kms.status, kms.code = 400, "AccessDeniedException" + "x" * 10_000
    with pytest.raises(KeyServiceError) as raised:
        client_of(kms.url).unwrap(WRAPPED, CONTEXT)
    assert len(str(raised.value)) < 400


def test_a_key_id_that_is_none_is_the_configurations_fault(kms: Kms) -> None:
    kms.status, kms.code = 400, "ValidationException"
    with pytest.raises(KeyRefusedError, match=r"ValidationException.*: check key\.id"):
        client_of(kms.url).wrap(bytes(32), CONTEXT)


def test_a_refused_wrap_names_the_right_that_is_missing(kms: Kms) -> None:
    kms.status, kms.code = 400, "AccessDeniedException"
    with pytest.raises(KeyRefusedError, match=r"'alias/tier' may not wrap data keys: .*kms:Encrypt"):
        client_of(kms.url).wrap(bytes(32), CONTEXT)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"{}", id="no field"),
        pytest.param(b"<html>log in, please</html>", id="a login page"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'{"KeyId": 7, "CiphertextBlob": "", "Plaintext": ""}', id="fields of other types"),
        pytest.param(b'{"KeyId": "k", "CiphertextBlob": "!", "Plaintext": "!"}', id="no base64"),
        pytest.param(b"\xff\xfe", id="no text"),
    ],
)
def test_an_answer_that_is_none_is_the_services_fault(kms: Kms, monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    """The KeyError ended in a lane as a bug of its own."""
    monkeypatch.setattr(kms, "body", body)
    kms.status = 200
    keys = ServiceKeys("aws-kms", client_of(kms.url), keep_s=60, now_s=monotonic)
    with pytest.raises(KeyServiceError):
        keys.unwrap(write_wrapped_key("aws-kms", WRAPPED), CONTEXT)
    with pytest.raises(KeyServiceError):
        keys.wrap(bytes(32), bytes, CONTEXT)


@pytest.mark.parametrize(
    ("url", "fits"),
    [
        pytest.param("https://kms.eu-west-2.amazonaws.com", True, id="the usual one"),
        pytest.param("http://127.0.0.1:8080/", True, id="on loopback"),
        pytest.param("kms.eu-west-2.amazonaws.com", False, id="no scheme"),
        pytest.param("ftp://kms", False, id="another scheme"),
        pytest.param("https://", False, id="no host"),
        pytest.param("https://[::1", False, id="no address"),
        pytest.param("https://kms:x", False, id="no port"),
    ],
)
def test_the_endpoint_must_be_a_url(url: str, *, fits: bool) -> None:
    faults = list(AwsKmsKind().faults({"key.id": "k", "region": "eu-west-2", "endpoint.url": url}))
    assert [option for option, _ in faults] == ([] if fits else ["endpoint.url"])


def test_what_may_pass_is_tried_again_and_a_refusal_is_not(kms: Kms) -> None:
    kms.status, kms.code, kms.asked = 500, "KMSInternalException", 0
    with pytest.raises(KeyServiceError):
        client_of(kms.url).unwrap(WRAPPED, CONTEXT)
    assert kms.asked == 3
    kms.status, kms.code, kms.asked = 400, "AccessDeniedException", 0
    with pytest.raises(KeyRefusedError):
        client_of(kms.url).unwrap(WRAPPED, CONTEXT)
    assert kms.asked == 1


def test_a_service_that_is_away_may_come_back() -> None:
    with pytest.raises(KeyServiceError, match="AWS KMS could not unwrap a data key"):
        client_of(f"http://127.0.0.1:{free_port()}").unwrap(WRAPPED, CONTEXT)


def test_a_manifest_that_names_no_key_is_refused_without_a_request(kms: Kms) -> None:
    kms.asked = 0
    with pytest.raises(DataKeyError, match="cannot be asked for"):
        client_of(kms.url).unwrap(WrappedKey("", b"x"), CONTEXT)
    assert kms.asked == 0


def test_the_encryption_context_names_purpose_topic_and_segment(kms: Kms) -> None:
    kms.status, kms.code = 400, "AccessDeniedException"
    expected = {"purpose": "tiersidecar segment data key", "topic.id": "T", "segment.id": "S"}
    with pytest.raises(KeyRefusedError):
        client_of(kms.url).wrap(bytes(32), CONTEXT)
    assert kms.last["EncryptionContext"] == expected
    with pytest.raises(KeyRefusedError):
        client_of(kms.url).unwrap(WRAPPED, CONTEXT)
    assert kms.last["EncryptionContext"] == expected


def test_what_answers_nothing_is_given_up_soon() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        began_s = monotonic()
        with pytest.raises(KeyServiceError):
            client_of(f"http://127.0.0.1:{listening.getsockname()[1]}").unwrap(WRAPPED, CONTEXT)
    assert monotonic() - began_s < 20
