"""A segment's files over HTTP: byte for byte those of the broker, in any range (RFC 9110)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.faulty_store import FaultyStore, flip_bit
from tests.support.golden import CLEAN_LOG_DIR
from tests.support.remote_runs import RUNS
from tests.support.scripted_authorizer import ScriptedAuthorizer
from tests.unit.services.reader.service import ALL_TOPICS, Service, open_service
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.formats.kafka.log_dir_files import read_leader_epochs

PLAIN = "/topics/plain/partitions/0"
SUFFIXES = {"offset": ".index", "timestamp": ".timeindex", "transaction": ".txnindex"}


async def listed(service: Service, partition: str) -> list[dict[str, Any]]:
    segments: Any = await service.json(f"{partition}/segments?limit=1000")
    return list(segments["segments"])


def local_file(partition: str, offset: int, suffix: str) -> Path:
    return CLEAN_LOG_DIR / partition / f"{offset:020}{suffix}"


@pytest.mark.parametrize("run", RUNS)
async def test_every_segment_is_the_brokers_file(run: str) -> None:
    everything = ScriptedAuthorizer(anonymous=ALL_TOPICS | {"retention.deleted_x"})
    async with open_service(run, authorizer=everything) as service:
        for partition in service.run.partitions:
            if partition.topic == "plain1m":
                continue
            base = f"/topics/{partition.topic}/partitions/{partition.partition}"
            for segment in await listed(service, base):
                status, body, headers = await service.get(f"{base}/segments/{segment['id']}/log")
                assert (status, headers["ETag"]) == (200, f'"{segment["id"]}"')
                assert int(headers["Content-Length"]) == segment["size_bytes"] == len(body)
                assert body == local_file(str(partition), segment["start_offset"], ".log").read_bytes()


@pytest.mark.parametrize("topic", ["plain", "transactions", "compressed", "epochs", "idempotent", "logappend"])
async def test_indexes_are_the_brokers_files(topic: str) -> None:
    async with open_service() as service:
        base, partition = f"/topics/{topic}/partitions/0", f"{topic}-0"
        for segment in await listed(service, base):
            indexes = f"{base}/segments/{segment['id']}/indexes"
            for kind, suffix in SUFFIXES.items():
                status, body, headers = await service.get(f"{indexes}/{kind}")
                path = local_file(partition, segment["start_offset"], suffix)
                assert (status, body) == (200, path.read_bytes() if path.exists() else b""), kind
                assert headers["Content-Type"] == "application/octet-stream"
            _, snapshot, _ = await service.get(f"{indexes}/producer-snapshot")
            assert snapshot == local_file(partition, segment["end_offset"] + 1, ".snapshot").read_bytes()
            _, epochs, _ = await service.get(f"{indexes}/leader-epoch")
            known = read_leader_epochs((CLEAN_LOG_DIR / partition / "leader-epoch-checkpoint").read_bytes())
            assert read_leader_epochs(epochs) == tuple(
                one for one in known if one.start_offset <= segment["end_offset"]
            )


async def test_every_range_of_a_segment_has_the_bytes_that_it_names() -> None:
    """Chunks are 4 KiB and batches 2 KiB here, so ranges begin and end within, on and across the borders of both."""
    whole = local_file("plain-0", 70, ".log").read_bytes()
    size = len(whole)
    async with open_service() as service:
        segment = (await listed(service, PLAIN))[2]
        path = f"{PLAIN}/segments/{segment['id']}/log"
        for start in range(0, size, 487):
            for length in (1, 100, 2100, 9000, size):
                status, body, headers = await service.get(
                    path, headers={"Range": f"bytes={start}-{start + length - 1}"}
                )
                assert (status, body) == (206, whole[start : start + length])
                last = min(start + length, size) - 1
                assert headers["Content-Range"] == f"bytes {start}-{last}/{size}"


@pytest.mark.parametrize(
    ("sent", "status", "expected"),
    [
        pytest.param({"Range": "bytes=100-"}, 206, slice(100, None), id="from a byte to the end"),
        pytest.param({"Range": "bytes=-100"}, 206, slice(-100, None), id="the last bytes"),
        pytest.param({"Range": "bytes=-999999"}, 206, slice(None), id="more last bytes than there are"),
        pytest.param({"Range": "bytes=0-0"}, 206, slice(0, 1), id="one byte"),
        pytest.param({"Range": "bytes=14427-99999999"}, 206, slice(14427, None), id="the last byte and more"),
        pytest.param({"Range": "bytes=14428-"}, 416, None, id="past the end"),
        pytest.param({"Range": "bytes=-0"}, 416, None, id="the last no bytes"),
        pytest.param({"Range": "bytes=9-5"}, 200, slice(None), id="backwards: no valid range, all of it"),
        pytest.param({"Range": "bytes=0-1,5-6"}, 200, slice(None), id="two ranges: all of it"),
        pytest.param({"Range": "lines=0-1"}, 200, slice(None), id="another unit: all of it"),
        pytest.param({"Range": "bytes=-"}, 200, slice(None), id="no numbers: all of it"),
        pytest.param({"Range": "bytes=0-1", "If-Range": '"other"'}, 200, slice(None), id="If-Range of another file"),
        pytest.param({"Range": "bytes=0-1", "If-Range": "ETAG"}, 206, slice(0, 2), id="If-Range of this file"),
    ],
)
async def test_the_range_header(sent: dict[str, str], status: int, expected: slice | None) -> None:
    whole = local_file("plain-0", 70, ".log").read_bytes()
    async with open_service() as service:
        segment = (await listed(service, PLAIN))[2]
        headers = {name: value.replace("ETAG", f'"{segment["id"]}"') for name, value in sent.items()}
        found, body, answered = await service.get(f"{PLAIN}/segments/{segment['id']}/log", headers=headers)
        assert found == status
        if expected is None:
            assert answered["Content-Range"] == f"bytes */{len(whole)}"
            assert json.loads(body)["type"].endswith("range-not-satisfiable")
        else:
            assert body == whole[expected]


@pytest.mark.parametrize(
    ("segment", "rest", "status"),
    [
        pytest.param("not-an-id", "log", 400, id="no segment id"),
        pytest.param("AAAAAAAAAAAAAAAAAAAAAA", "log", 404, id="an unknown segment"),
        pytest.param(None, "indexes/bloom", 404, id="an unknown kind of index"),
        pytest.param(None, "indexes/..%2Flog", 404, id="a traversal"),
    ],
)
async def test_what_there_is_not(segment: str | None, rest: str, status: int) -> None:
    async with open_service() as service:
        name = segment or (await listed(service, PLAIN))[0]["id"]
        assert (await service.get(f"{PLAIN}/segments/{name}/{rest}"))[0] == status


async def test_a_segment_of_another_partition_is_not_found_under_this_one() -> None:
    """Rule 7: the id alone opens nothing."""
    async with open_service() as service:
        other = (await listed(service, "/topics/epochs/partitions/0"))[0]["id"]
        assert (await service.get(f"{PLAIN}/segments/{other}/log"))[0] == 404


async def test_a_segment_into_which_records_were_deleted_is_not_given_out_whole() -> None:
    async with open_service() as service:
        first, second = (await listed(service, PLAIN))[:2]
        service.run.log_starts.offsets[service.run.partition("plain-0")] = 35
        assert (await service.get(f"{PLAIN}/segments/{first['id']}/log"))[0] == 404
        assert (await service.get(f"{PLAIN}/segments/{second['id']}/log"))[0] == 200
        service.run.log_starts.offsets[service.run.partition("plain-0")] = 36
        assert (await service.get(f"{PLAIN}/segments/{second['id']}/log"))[0] == 404


async def test_a_flipped_bit_on_the_way_is_fetched_anew_and_one_at_rest_is_an_error() -> None:
    """U23: a range is checked like a whole read, although the batches at its ends are cut."""
    whole, bent = local_file("plain-0", 70, ".log").read_bytes(), list[str]()
    is_at_rest = False

    def bend(key: str, byte_range: ByteRange | None, data: bytes) -> bytes:
        if not key.endswith(".log") or "000070-" not in key or (bent and not is_at_rest):
            return data
        bent.append(key)
        return flip_bit(data, 8 * 3000)

    async with open_service(store=lambda inner: FaultyStore(inner, bend)) as service:
        segment = (await listed(service, PLAIN))[2]
        path = f"{PLAIN}/segments/{segment['id']}/log"
        status, body, _ = await service.get(path, headers={"Range": "bytes=2990-3010"})
        assert (status, body, len(bent)) == (206, whole[2990:3011], 1)
    is_at_rest = True
    async with open_service(store=lambda inner: FaultyStore(inner, bend)) as service:
        status, body, _ = await service.get(path, headers={"Range": "bytes=2990-3010"})
        assert (status, json.loads(body)["type"]) == (500, "urn:tiersidecar:problem:corrupt-data")
        assert (await service.get(path))[0] == 500
