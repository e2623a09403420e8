"""The read service as an HTTP client meets it (S-155; U2)."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import aiohttp
import pytest
from jsonschema import ValidationError
from yarl import URL

from tests.support.faulty_store import FaultyStore, away, flip_bit
from tests.support.local_batches import batches_between, consumed_records
from tests.support.scripted_authorizer import ScriptedAuthorizer
from tests.support.scripted_local import ScriptedLocal
from tests.unit.services.reader.service import ALL_TOPICS, DESCRIPTION, Service, open_service
from tests.unit.services.reader.test_continuous_log import PinnedFrom
from tiersidecar.decide.reader_quotas import ReaderQuotaRule
from tiersidecar.domain.errors import (
    BrokerUnreachableError,
    DataKeyError,
    KeyRefusedError,
    KeyServiceError,
    TiersidecarError,
)
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.services.reader.routes import ROUTES
from tiersidecar.services.reader.server import ReaderServiceSettings

PLAIN = "/topics/plain/partitions/0"


async def problem(service: Service, path: str | URL, **kwargs: Any) -> dict[str, Any]:
    """The problem document that ``path`` is answered with."""
    status, body, headers = await service.get(path, **kwargs)
    assert status >= 400
    assert headers["Content-Type"] == "application/problem+json"
    document: dict[str, Any] = json.loads(body)
    assert document["status"] == status
    assert document["type"].startswith("urn:tiersidecar:problem:")
    return document


async def test_topics_and_partitions_tell_what_the_remote_tier_holds() -> None:
    async with open_service() as service:
        topics: Any = await service.json("/topics")
        assert {topic["topic"] for topic in topics["topics"]} == ALL_TOPICS
        partitions: Any = await service.json("/topics/plain/partitions")
        assert partitions["topic_id"] == "OrpMwEoTQh6VZ_dz9HFK5g"
        first = partitions["partitions"][0]
        assert (first["start_offset"], first["end_offset"], first["segments"], first["ready"]) == (0, 245, 7, True)
        assert first["size_bytes"] == 14414 + 14418 + 14428 + 14466 + 14464 + 14458 + 14471


async def test_segments_are_listed_from_an_offset_on() -> None:
    async with open_service() as service:
        listed: Any = await service.json(f"{PLAIN}/segments", params={"offset": 70, "limit": 2})
        assert [(one["start_offset"], one["end_offset"]) for one in listed["segments"]] == [(70, 104), (105, 139)]
        assert listed["segments"][0]["leader_epochs"] == [{"epoch": 0, "start_offset": 70}]


async def test_batches_stream_from_an_offset_to_the_end_of_the_remote_tier() -> None:
    async with open_service() as service:
        status, body, headers = await service.get(f"{PLAIN}/batches?offset=33")
        assert (status, body) == (200, batches_between("plain-0", 33, 245))
        assert headers["Content-Type"] == "application/octet-stream"
        assert headers["Kafka-First-Offset"] == "30"


async def test_a_bounded_read_says_where_to_read_on() -> None:
    async with open_service() as service:
        offset, found = 0, b""
        while offset < 245:
            _, body, headers = await service.get(f"{PLAIN}/batches", params={"offset": offset, "max_bytes": 20_000})
            assert len(body) <= 20_000
            found, offset = found + body, int(headers["Kafka-Next-Offset"])
        assert found == batches_between("plain-0", 0, 245)
        status, body, headers = await service.get(f"{PLAIN}/batches?offset=245&max_bytes=1")
        assert (status, body, headers["Kafka-Next-Offset"]) == (200, b"", "245")
        assert "Kafka-First-Offset" not in headers


@pytest.mark.parametrize("topic", ["plain", "compressed", "transactions", "logappend"])
async def test_records_are_those_that_the_console_consumer_printed(topic: str) -> None:
    async with open_service() as service:
        bounds: Any = await service.json(f"/topics/{topic}/partitions")
        end = bounds["partitions"][0]["end_offset"]
        _, body, headers = await service.get(f"/topics/{topic}/partitions/0/records?offset=0&limit=100000")
        assert headers["Content-Type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in body.splitlines()]
        expected = consumed_records(f"{topic}-0", "read_uncommitted")
        assert [line["offset"] for line in lines] == [offset for offset in expected if offset < end]
        for line in lines:
            timestamp_ms, key, length, _, headers_count = expected[line["offset"]]
            assert line["timestamp_ms"] == timestamp_ms
            assert (None if line["key"] is None else base64.b64decode(line["key"]).decode()) == key
            assert len(base64.b64decode(line["value"])) == length
            assert len(line["headers"]) == headers_count


async def test_committed_records_leave_out_aborted_transactions() -> None:
    async with open_service() as service:
        path = "/topics/transactions/partitions/0/records"
        _, body, _ = await service.get(path, params={"offset": 0, "isolation": "read_committed", "limit": 10_000})
        expected = consumed_records("transactions-0", "read_committed")
        assert [json.loads(line)["offset"] for line in body.splitlines()] == [at for at in expected if at < 180]


@pytest.mark.parametrize("stop", [8, 31, 33, 70, 72])
async def test_records_end_before_the_stop_offset_even_within_a_batch(stop: int) -> None:
    """Found by make chaos: the rest of the batch came along."""
    async with open_service() as service:
        _, body, _ = await service.get(f"{PLAIN}/records", params={"offset": 7, "stop_offset": stop, "limit": 10_000})
        assert [json.loads(line)["offset"] for line in body.splitlines()] == list(range(7, stop))


async def test_records_in_utf8_and_up_to_a_limit() -> None:
    async with open_service() as service:
        _, body, _ = await service.get(f"{PLAIN}/records", params={"offset": 7, "limit": 3, "format": "utf8"})
        lines = [json.loads(line) for line in body.splitlines()]
        assert [line["offset"] for line in lines] == [7, 8, 9]
        assert json.loads(lines[0]["value"])
        assert lines[0]["timestamp_type"] == "CreateTime"


@pytest.mark.parametrize(
    ("timestamp", "offset"),
    [
        pytest.param(1_700_000_000_000, 0, id="the first record's own"),
        pytest.param(1_700_000_099_500, 100, id="between two records: the later one"),
        pytest.param(1_700_000_104_000, 104, id="the last record of a segment"),
        pytest.param(1_700_000_245_000, None, id="after the last remote record: none"),
        pytest.param(0, 0, id="before all"),
        pytest.param(-1, 245, id="latest"),
        pytest.param(-2, 0, id="earliest"),
        pytest.param(-3, 244, id="the record with the largest timestamp"),
    ],
)
async def test_offsets_by_timestamp(timestamp: int, offset: int | None) -> None:
    async with open_service() as service:
        found: Any = await service.json(f"{PLAIN}/offsets", params={"timestamp": timestamp})
        assert found["offset"] == offset


@pytest.mark.parametrize(
    ("pinned_from", "status"),
    [pytest.param(None, 200, id="nobody has it"), pytest.param(245, 503, id="only pins have it")],
)
async def test_a_time_passes_over_nothing_that_is_about_to_be_remote(pinned_from: int | None, status: int) -> None:
    """As the gateway's ListOffsets: what a broker has deleted, and pins hold, lies between the tiers."""
    pending = None if pinned_from is None else PinnedFrom(pinned_from)
    local = ScriptedLocal(log_start=260, high_watermark=280)
    async with open_service(local=local, pending=pending) as service:
        found, body, _ = await service.get(f"{PLAIN}/offsets?timestamp=1700000245000")
        assert (found, b"between" in body) == (status, status == 503)


@pytest.mark.parametrize(
    ("path", "status", "name"),
    [
        pytest.param("/topics/plain/partitions/0/batches", 400, "bad-request", id="no offset"),
        pytest.param(f"{PLAIN}/batches?offset=-1", 400, "bad-request", id="a negative offset"),
        pytest.param(f"{PLAIN}/batches?offset=1e3", 400, "bad-request", id="an offset that is no whole number"),
        pytest.param(f"{PLAIN}/batches?offset=9223372036854775808", 400, "bad-request", id="an offset of 65 bits"),
        pytest.param(f"{PLAIN}/batches?offset=%D9%A1", 400, "bad-request", id="an offset in other digits"),
        pytest.param(f"{PLAIN}/batches?offset=0&max_bytes=0", 400, "bad-request", id="no bytes at all"),
        pytest.param(f"{PLAIN}/batches?offset=0&max_bytes=99999999999", 400, "bad-request", id="too many bytes"),
        pytest.param(f"{PLAIN}/batches?offset=0&maxbytes=1", 400, "bad-request", id="a misspelt parameter"),
        pytest.param(f"{PLAIN}/batches?offset=0&offset=5", 400, "bad-request", id="a parameter twice"),
        pytest.param(f"{PLAIN}/records?offset=0&isolation=none", 400, "bad-request", id="an unknown isolation"),
        pytest.param(f"{PLAIN}/records?offset=0&format=avro", 400, "bad-request", id="an unknown format"),
        pytest.param(f"{PLAIN}/offsets?timestamp=-4", 400, "bad-request", id="an unknown special timestamp"),
        pytest.param("/topics/pl%20ain/partitions", 400, "bad-request", id="an illegal topic name"),
        pytest.param("/topics/%2E%2E%2F/partitions", 400, "bad-request", id="a traversal in the topic"),
        pytest.param("/topics/a%0D%0AX:1/partitions", 400, "bad-request", id="a header in the topic"),
        pytest.param("/topics/plain/partitions/x/batches?offset=0", 400, "bad-request", id="a partition in words"),
        pytest.param("/topics/plain/partitions/7/batches?offset=0", 404, "not-found", id="an unknown partition"),
        pytest.param("/nothing", 404, "not-found", id="an unknown path"),
        pytest.param(f"{PLAIN}/batches?offset=246", 416, "offset-out-of-range", id="past the end"),
        pytest.param(
            "/topics/deleted-prefix/partitions/0/batches?offset=76", 416, "offset-out-of-range", id="below it"
        ),
    ],
)
async def test_what_cannot_be_answered_is_told_as_a_problem(path: str, status: int, name: str) -> None:
    async with open_service() as service:
        document = await problem(service, URL(path, encoded=True))
        assert (document["status"], document["type"].rpartition(":")[2]) == (status, name)


async def test_out_of_range_says_what_there_is() -> None:
    async with open_service() as service:
        document = await problem(service, "/topics/deleted-prefix/partitions/0/batches?offset=76&max_bytes=100")
        assert (document["start_offset"], document["end_offset"]) == (77, 160)


async def test_only_get_is_understood_and_a_large_request_is_refused() -> None:
    async with open_service() as service:
        for method in ("POST", "PUT", "DELETE", "HEAD"):
            async with service.client.request(method, "/topics") as response:
                assert response.status == 405
                assert response.headers["Allow"] == "GET"
        async with service.client.get(f"/topics?{'x' * 20_000}") as response:
            assert response.status == 400


async def test_what_a_caller_may_not_read_is_neither_listed_nor_read() -> None:
    """S-301."""
    users = {"alice": ("secret", ["plain"])}
    authorizer = ScriptedAuthorizer(anonymous=["epochs"], users=users)
    async with open_service(authorizer=authorizer) as service:
        topics: Any = await service.json("/topics")
        assert [topic["topic"] for topic in topics["topics"]] == ["epochs"]
        assert (await problem(service, f"{PLAIN}/batches?offset=0"))["status"] == 403
        alice = {"Authorization": "Basic " + base64.b64encode(b"alice:secret").decode()}
        topics = await service.json("/topics", headers=alice)
        assert [topic["topic"] for topic in topics["topics"]] == ["plain"]
        status, body, _ = await service.get(f"{PLAIN}/batches?offset=240", headers=alice)
        assert (status, body) == (200, batches_between("plain-0", 240, 245))


async def test_whether_a_topic_exists_is_not_told_to_those_who_may_not_read_it() -> None:
    async with open_service(authorizer=ScriptedAuthorizer(anonymous=["none"])) as service:
        existing = await problem(service, "/topics/plain/partitions")
        absent = await problem(service, "/topics/absent/partitions")
        assert (existing["status"], absent["status"]) == (403, 403)
        assert (await problem(service, "/topics/none/partitions"))["status"] == 404


@pytest.mark.parametrize(
    "header",
    [
        pytest.param("Basic " + base64.b64encode(b"alice:wrong").decode(), id="a wrong password"),
        pytest.param("Basic " + base64.b64encode(b"mallory:secret").decode(), id="an unknown user"),
        pytest.param("Basic " + base64.b64encode(b"alice").decode(), id="no password"),
        pytest.param(
            "Basic " + base64.b64encode(b"alice\0root:secret").decode(), id="a NUL, which SASL/PLAIN parts by"
        ),
        pytest.param("Basic !!", id="no base64"),
        pytest.param("Basic é", id="none of its letters"),
        pytest.param("Bearer abc", id="an unknown token"),
        pytest.param("Bearer a,b", id="a character that no token has"),
        pytest.param("Bearer", id="no token"),
        pytest.param("Digest abc", id="another scheme"),
    ],
)
async def test_credentials_that_are_not_accepted_are_challenged(header: str) -> None:
    authorizer = ScriptedAuthorizer(anonymous=["plain"], users={"alice": ("secret", ["plain"])})
    async with open_service(authorizer=authorizer) as service:
        status, _, headers = await service.get(f"{PLAIN}/batches?offset=0", headers={"Authorization": header})
        assert status == 401
        assert headers["WWW-Authenticate"] == 'Basic realm="kafka", charset="UTF-8", Bearer realm="kafka"'


async def test_a_service_that_demands_credentials_asks_the_broker_nothing_without_them() -> None:
    settings = ReaderServiceSettings(port=0, requires_credentials=True)
    async with open_service(settings=settings) as service:
        assert (await problem(service, "/topics/plain/partitions"))["status"] == 401
        assert (await problem(service, "/topics"))["status"] == 401
        assert service.authorizer.asked == []


async def test_a_broker_that_is_away_makes_it_unavailable_not_open() -> None:
    """Rule 7: no path around Kafka's ACLs."""
    fault = BrokerUnreachableError(address="127.0.0.1:9092", reason="refused")
    async with open_service(authorizer=ScriptedAuthorizer(anonymous=ALL_TOPICS, fault=fault)) as service:
        document = await problem(service, f"{PLAIN}/batches?offset=0")
        assert document["status"] == 503
        assert "127.0.0.1" not in document["detail"]


class UsedUpQuota:
    def throttle_s(self) -> float:
        return 2.5

    def record(self, size_bytes: int) -> None:
        raise AssertionError("nothing is read")


async def test_a_used_up_fetch_quota_sheds_at_once_and_says_when_to_come_back() -> None:
    """S-138."""
    async with open_service(quota=UsedUpQuota()) as service:
        status, _, headers = await service.get(f"{PLAIN}/batches?offset=0&max_bytes=1000")
        assert (status, headers["Retry-After"]) == (429, "3")
        assert (await problem(service, f"{PLAIN}/records?offset=0"))["status"] == 429


ALICE = "Basic " + base64.b64encode(b"alice:secret").decode()


async def test_a_user_over_its_budget_is_sent_away_and_others_are_not() -> None:
    rules = [ReaderQuotaRule(user="ANONYMOUS", bytes_per_s=100)]
    async with open_service(
        budgets=rules, authorizer=ScriptedAuthorizer(anonymous=ALL_TOPICS, users={"alice": ("secret", ["plain"])})
    ) as service:
        url = f"{PLAIN}/batches?offset=0&max_bytes=1000"
        status, body, _ = await service.get(url)
        assert status == 200
        status, _, headers = await service.get(url)
        assert (status, headers["Retry-After"]) == (429, str(-(-len(body) // 100)))
        status, alices, _ = await service.get(url, headers={"Authorization": ALICE})
        assert (status, alices) == (200, body), "its budget is its own"
        read = {
            reading.principal: (reading.client_id, reading.topic, reading.requests, reading.size_bytes)
            for reading in service.path.cold.readings
        }
        assert read == {
            "User:ANONYMOUS": ("http", "plain", 1, len(body)),
            "User:alice": ("http", "plain", 1, len(body)),
        }


async def test_a_store_that_is_away_makes_it_unavailable() -> None:
    """S-152."""
    async with open_service(store=lambda inner: FaultyStore(inner, away)) as service:
        status, body, headers = await service.get(f"{PLAIN}/batches?offset=0")
        assert (status, headers["Retry-After"]) == (503, "5")
        assert b"OrpMwEoTQh6VZ" not in body, "keys of objects are nobody's business"


@pytest.mark.parametrize(
    ("error", "name", "retry_after"),
    [
        pytest.param(
            KeyServiceError(service="AWS KMS", verb="unwrap", reason="connection refused"),
            "unavailable",
            "5",
            id="away",
        ),
        pytest.param(
            KeyRefusedError(verb="unwrap", key_id="arn:k", reason="enable the key again"),
            "key-refused",
            "60",
            id="refuses",
        ),
        pytest.param(
            DataKeyError(key_id="arn:k", reason="not of mine"),
            "data-key",
            "60",
            id="does not open this one",
        ),
    ],
)
async def test_what_the_key_service_does_is_no_damage(error: TiersidecarError, name: str, retry_after: str) -> None:
    def bend(key: str, byte_range: ByteRange | None, data: bytes) -> bytes:
        raise error

    async with open_service(store=lambda inner: FaultyStore(inner, bend)) as service:
        status, body, headers = await service.get(f"{PLAIN}/batches?offset=0")
        assert (status, headers["Retry-After"]) == (503, retry_after)
        assert json.loads(body)["type"] == f"urn:tiersidecar:problem:{name}"
        assert b"arn:k" not in body, "keys are nobody's business"


async def receive_all(response: aiohttp.ClientResponse, received: bytearray) -> None:
    async for data in response.content.iter_any():
        received += data


async def test_damage_met_in_mid_stream_cuts_the_connection_so_that_no_part_is_taken_for_the_whole() -> None:
    def bend(key: str, byte_range: ByteRange | None, data: bytes) -> bytes:
        return flip_bit(data, 8 * 3000) if key.endswith(".log") and "000070-" in key else data

    async with open_service(store=lambda inner: FaultyStore(inner, bend)) as service:
        async with service.client.get(f"{PLAIN}/batches?offset=0") as response:
            assert response.status == 200
            received = bytearray()
            with pytest.raises(aiohttp.ClientPayloadError):
                await receive_all(response, received)
        assert batches_between("plain-0", 0, 245).startswith(bytes(received))
        assert (await problem(service, f"{PLAIN}/batches?offset=75"))["type"].endswith("corrupt-data")


async def test_a_client_that_leaves_ends_its_read_but_not_the_fetch_in_flight() -> None:
    """U2: the chunk is there when the client comes back."""
    stores: list[FaultyStore] = []

    def hold(inner: Any) -> FaultyStore:
        stores.append(FaultyStore(inner))
        stores[0].gate.clear()
        return stores[0]

    async with open_service(store=hold) as service:
        store = stores[0]
        request = asyncio.create_task(service.get(f"{PLAIN}/batches?offset=0&max_bytes=1000"))
        await store.log_fetch_begun.wait()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        store.gate.set()
        status, _, _ = await service.get(f"{PLAIN}/batches?offset=0&max_bytes=1000")
        assert status == 200
        assert len(store.log_fetches()) == 1


async def test_more_requests_than_it_bears_are_shed() -> None:
    """S-140."""
    stores: list[FaultyStore] = []

    def hold(inner: Any) -> FaultyStore:
        stores.append(FaultyStore(inner))
        stores[0].gate.clear()
        return stores[0]

    async with open_service(store=hold, settings=ReaderServiceSettings(port=0, max_requests=1)) as service:
        request = asyncio.create_task(service.get(f"{PLAIN}/batches?offset=0&max_bytes=1000"))
        await stores[0].log_fetch_begun.wait()
        assert (await problem(service, "/topics"))["status"] == 429
        stores[0].gate.set()
        assert (await request)[0] == 200
        assert (await service.get("/topics"))[0] == 200


async def test_the_description_matches_what_is_served() -> None:
    async with open_service() as service:
        description: Any = await service.json("/openapi.json")
        assert description["openapi"].startswith("3.1")
        assert set(description["paths"]) == {route.path for route in ROUTES}
        for route in ROUTES:
            operation = description["paths"][route.path]["get"]
            named = {one["name"] for one in operation["parameters"] if one["in"] == "query"}
            path = route.path.format(topic="plain", partition=0, segment="A" * 22, kind="offset")
            # What it describes is understood, and nothing else is.
            for name in sorted(named):
                required = {
                    one["name"]: "0" for one in operation["parameters"] if one["required"] and one["in"] == "query"
                }
                detail = (await problem(service, path, params={**required, name: "?"}))["detail"]
                assert name in detail
                assert "must be" in detail
            document = await problem(service, path, params={"undescribed": "1"})
            assert "unknown parameter" in document["detail"]
            assert ("206" in operation["responses"]) == route.is_ranged
        operations = [path["get"]["operationId"] for path in description["paths"].values()]
        assert len(set(operations)) == len(ROUTES)


@pytest.mark.parametrize("run", ["transactions", "plain", "compressed", "logappend", "idempotent"])
async def test_every_operation_answers_what_its_schema_says(run: str) -> None:
    """Each answer is held against the description (``Service.get``), as are those of all other tests here."""
    partition = f"/topics/{run}/partitions/0"
    async with open_service() as service:
        segments: Any = await service.json(f"{partition}/segments")
        segment = f"{partition}/segments/{segments['segments'][0]['id']}"
        paths = [
            "/openapi.json", "/topics", f"/topics/{run}/partitions", f"{segment}/log", f"{segment}/indexes/offset",
            f"{partition}/batches?offset=0", f"{partition}/batches?offset=0&max_bytes=1",
            f"{partition}/records?offset=0", f"{partition}/records?offset=0&format=utf8",
            *(f"{partition}/offsets?timestamp={timestamp}" for timestamp in (0, -1, 99999999999999)),
        ]  # fmt: skip
        tried = set()
        for path in paths:
            status, body, _ = await service.get(path)
            assert (status, body != b"") == (200, True)
            tried.add(DESCRIPTION.operation_of(path.partition("?")[0]))
        assert tried | {"list_segments"} == {route.operation for route in ROUTES}


@pytest.mark.parametrize(
    ("path", "status", "content_type", "body"),
    [
        pytest.param("/topics", 200, "application/json", b'{"topics": [{"topic": "a"}]}', id="a member is missing"),
        pytest.param("/topics", 200, "application/json", b'{"topics": [], "more": 1}', id="a member too many"),
        pytest.param("/topics", 418, "application/problem+json", b"{}", id="a status"),
        pytest.param("/topics", 200, "text/plain", b"", id="a media type"),
        pytest.param("/topics", 400, "application/problem+json", b'{"status": 400}', id="a problem without its type"),
    ],
)
def test_what_is_not_described_is_noticed(path: str, status: int, content_type: str, body: bytes) -> None:
    with pytest.raises((AssertionError, ValidationError)):
        DESCRIPTION.check(path, status, {"Content-Type": content_type}, body)


async def test_every_response_says_that_it_is_not_to_be_kept_or_guessed_at() -> None:
    async with open_service() as service:
        for path in ("/topics", f"{PLAIN}/batches?offset=0", "/nothing"):
            _, _, headers = await service.get(path)
            assert headers["Cache-Control"] == "no-store"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Server"] == "tiersidecar"


async def test_the_remote_tier_alone_is_read_where_that_is_asked_for() -> None:
    """It ends there, and the broker is not asked: of a compacted topic nothing else shows what was cleaned remotely."""
    local = ScriptedLocal(log_start=0, high_watermark=300)
    async with open_service(local=local) as service:
        for tier, end in (("remote", 245), ("all", 300)):
            status, body, _ = await service.get(f"{PLAIN}/batches", params={"offset": 0, "tier": tier})
            assert (status, body) == (200, batches_between("plain-0", 0, end))
            assert bool(local.fetched) == (tier == "all")
            local.fetched.clear()
            status, body, _ = await service.get(
                f"{PLAIN}/batches", params={"offset": 240, "tier": tier, "max_bytes": 1_000_000}
            )
            assert (status, body) == (200, batches_between("plain-0", 240, 245))
        status, body, _ = await service.get(f"{PLAIN}/records", params={"offset": 244, "tier": "remote"})
        assert [json.loads(line)["offset"] for line in body.splitlines()] == [244]
        refused = await problem(service, f"{PLAIN}/records", params={"offset": 0, "tier": "local"})
        assert "tier must be one of all, remote" in refused["detail"]
