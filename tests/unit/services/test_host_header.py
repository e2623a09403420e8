"""Requests that a browser makes for another site are refused, and no others are."""

from __future__ import annotations

import socket
from pathlib import Path
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp import encode_basic_auth
from aiohttp.test_utils import make_mocked_request

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.remote_runs import load_run
from tests.support.served_bucket import follower_of
from tests.support.shown_cluster import empty_cluster, serving_cluster
from tests.unit.services.reader.service import open_service
from tiersidecar.services.bucket.picture import BucketPicture
from tiersidecar.services.bucket.status import serve_bucket_status
from tiersidecar.services.host_header import HostCheck
from tiersidecar.services.status.access import Secrets

PORT = 8091
HOSTS = "127.0.0.1 localhost\n127.0.0.1 Kafka-1.Internal kafka-1 # of this machine\n# 127.0.0.1 old.example\n"


@pytest.fixture
def hosts_file(tmp_path: Path) -> Path:
    path = tmp_path / "hosts"
    path.write_text(HOSTS)
    return path


def is_foreign(check: HostCheck, host: str | None) -> bool:
    transport = Mock()
    transport.get_extra_info.return_value = ("127.0.0.1", PORT)
    headers = {} if host is None else {"Host": host}
    return check.is_foreign(make_mocked_request("GET", "/", headers=headers, transport=transport))


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:8091",
        "EVIL.example.:8091",
        "localhost.evil.example:8091",
        "127.0.0.1.evil.example:8091",
        "old.example:8091",
    ],
)
def test_names_of_other_sites(hosts_file: Path, host: str) -> None:
    assert is_foreign(HostCheck("127.0.0.1", hosts_file=hosts_file), host)
    assert is_foreign(HostCheck("localhost", hosts_file=hosts_file), host)
    assert is_foreign(HostCheck("::1", hosts_file=hosts_file), host)
    for others_come_here in ("0.0.0.0", "::", "10.0.0.1", "kafka-1.example"):
        assert not is_foreign(HostCheck(others_come_here, hosts_file=hosts_file), host)


@pytest.mark.parametrize(
    "host",
    [
        pytest.param(None, id="none at all"),
        pytest.param("", id="an empty one"),
        pytest.param(f"{socket.gethostname()}:8091", id="this machine's own name"),
        "localhost:8091",
        "LOCALHOST:8091",
        "status.localhost:8091",
        "127.0.0.1:8091",
        "127.1:8091",
        "10.0.0.1:8091",
        "[::1]:8091",
        pytest.param("sidecar:8091", id="no site: one label, as of a container"),
        pytest.param("kafka-1.internal:8091", id="in the hosts file"),
        pytest.param("broker-1.example:8091", id="advertised"),
        pytest.param("status.example", id="a proxy's name, passed on"),
        pytest.param("status.example:443", id="with the proxy's port"),
        pytest.param("kafka-0.kafka.kafka.svc.cluster.local:8443", id="of a proxy in the same pod"),
        pytest.param(":8091", id="no name"),
    ],
)
def test_what_real_callers_send(hosts_file: Path, host: str | None) -> None:
    assert not is_foreign(HostCheck("127.0.0.1", names=["broker-1.example"], hosts_file=hosts_file), host)


def test_port_80_is_not_in_the_host() -> None:
    transport = Mock()
    transport.get_extra_info.return_value = ("127.0.0.1", 80)
    request = make_mocked_request("GET", "/", headers={"Host": "evil.example"}, transport=transport)
    assert HostCheck("127.0.0.1").is_foreign(request)


async def status_of(url: str, host: str, password: str | None = None) -> int:
    headers = {"Host": host} | ({} if password is None else {"Authorization": encode_basic_auth("me", password)})
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status


@pytest.mark.parametrize(
    ("secrets", "password", "refused"),
    [
        pytest.param(Secrets(), None, True, id="nobody is asked"),
        pytest.param(Secrets(), "made up", True, id="nobody is asked, whatever is sent"),
        pytest.param(Secrets(cluster="s" * 32), None, True, id="every browser of this machine is served"),
        pytest.param(Secrets(cluster="s" * 32, page="p" * 12), "p" * 12, False, id="one that has the password"),
    ],
)
async def test_the_status_service_shows_nothing_to_another_site(
    secrets: Secrets, password: str | None, refused: bool
) -> None:
    """A page of a site whose name meant 127.0.0.1 could read all of it."""
    async with serving_cluster(empty_cluster()[:1], secrets=secrets) as servers:
        url, evil = servers[1].url, f"evil.example:{servers[1].port}"
        for path in ("/", "/status", "/overview"):
            assert await status_of(url + path, evil, password) == (421 if refused else 200)
        assert await status_of(url + "/metrics", evil) == 421
        assert await status_of(url + "/healthz", evil) == 200
        assert await status_of(url + "/metrics", f"localhost:{servers[1].port}") == 200


async def test_what_a_password_would_show_to_others_is_not_for_other_sites_either() -> None:
    """With ``listen: 0.0.0.0``, a secret and no page password, callers of this machine alone are served: a page of another
    site, whose name meant 127.0.0.1, read all of it."""
    secrets, named = Secrets(cluster="s" * 32), ["kafka-1.example"]
    async with serving_cluster(empty_cluster()[:1], secrets=secrets, host="0.0.0.0", names=named) as servers:
        port = servers[1].port
        url = f"http://127.0.0.1:{port}"
        for path in ("/", "/overview", "/status", "/explain?topic=orders&partition=0"):
            assert await status_of(url + path, f"evil.example:{port}") == 421
            for own in ("localhost", "127.0.0.1", "kafka-1.example", socket.gethostname()):
                assert await status_of(url + path, f"{own}:{port}") == 200
        for path in ("/metrics", "/healthz"):
            assert await status_of(url + path, f"broker.example:{port}") == 200, (
                "others may ask for it without a browser"
            )


async def test_the_status_of_serve_shows_nothing_to_another_site() -> None:
    run = await load_run("plain")
    picture, telemetry = BucketPicture(InlineBlocking()), RecordedTelemetry()
    async with serve_bucket_status(
        host="127.0.0.1",
        port=0,
        picture=picture,
        follower=follower_of(run, picture, telemetry),
        render_metrics=lambda: b"",
        clock=ManualClock(),
        place="memory",
    ) as server:
        for path, code in (("/status", 421), ("/metrics", 421), ("/healthz", 200)):
            assert await status_of(server.url + path, f"evil.example:{server.port}") == code
            assert await status_of(server.url + path, f"127.0.0.1:{server.port}") == 200


async def test_records_that_everybody_on_this_machine_may_read_are_not_for_other_sites() -> None:
    async with open_service("plain") as service:
        url, port = f"{service.server.url}/topics", service.server.port
        assert await status_of(url, f"localhost:{port}") == 200
        assert await status_of(url, f"evil.example:{port}") == 421
        assert await status_of(url, f"evil.example:{port}", "made up") == 401
