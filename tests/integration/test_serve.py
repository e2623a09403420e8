"""``tiersidecar serve``: real clients read buckets without any broker, as the broker itself would have answered them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bucket_server import BucketServer, golden_records, shown
from tests.support.confluent_client import read_with_confluent
from tests.support.gateway_clients import CLIENTS
from tests.support.golden import AIVEN_OBJECTS
from tests.support.reading import Reading

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ENDS = {"plain": {0: 245, 1: 196}, "transactions": {0: 176}, "epochs": {0: 120}, "compressed": {0: 948}}
ISOLATIONS = ("read_uncommitted", "read_committed")


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    """A bucket that the real plugin filled."""
    directory = tmp_path_factory.mktemp("serve-plugins")
    root = directory / "bucket"
    shutil.copytree(AIVEN_OBJECTS / "plain", root)
    with BucketServer(directory, root, users=True) as server:
        server.wait_until_ready()
        yield server


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("client", CLIENTS)
def test_clients_read_what_the_plugin_wrote(plugins: BucketServer, client: str, isolation: str) -> None:
    for topic, ends in ENDS.items():
        reading = Reading(topic=topic, ends=ends, isolation=isolation)
        seen = CLIENTS[client](plugins.access("auditor"), reading)
        assert sorted(shown(seen)) == golden_records(topic, isolation, below=ends), topic
