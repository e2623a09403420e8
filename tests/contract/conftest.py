"""Servers for the stores that have one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from botocore.loaders import JSONFileLoader

from tests.support.azurite_server import AzuriteServer, running_azurite
from tests.support.gcs_server import GcsServer, running_gcs_server
from tests.support.s3_server import S3Server, running_s3_server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzuriteServer]:
    with running_azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    with running_gcs_server(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def _service_models_are_parsed_once() -> Iterator[None]:
    """Each store opens a botocore session of its own, and each session parses the same megabytes of JSON: a third of the time
    of these tests.  Sessions keep what they have read for all their clients, so nobody changes it."""
    read: Any = cache(JSONFileLoader().load_file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: read(path))
        yield
