"""Fixtures of aiokafka's own tests, for a broker or gateway that runs already (scripts/client_suites/aiokafka.py).

They stand as ``conftest.py`` in a copy of those tests, whose own would start Kafka in a container.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator

import pytest


class NoAcls:
    """The broker has no authorizer: none are there to list, or to take away."""

    def list_acl(self) -> bytes:
        return b""

    def cleanup(self) -> None:
        return None


class FormattedUsers:
    """The broker was formatted with the credentials of user ``test``."""

    def add_scram_user(self, username: str, password: str) -> None:
        assert (username, password) == ("test", "test")


@pytest.fixture(scope="class")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    if not loop.is_closed():
        loop.close()
    gc.collect()
    asyncio.set_event_loop(None)


@pytest.fixture(scope="class")
def setup_test_class_serverless(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> None:
    request.cls.loop = loop


@pytest.fixture(scope="class")
def setup_test_class(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> None:
    """Set what the tests' base class reads."""
    host, port = os.environ["STAND_BROKER"].split(":")
    request.cls.loop = loop
    request.cls.hosts = [f"{host}:{port}"]
    request.cls.kafka_host, request.cls.kafka_port = host, int(port)
    request.cls.kafka_sasl_plain_port = int(os.environ["STAND_SASL_BROKER"].split(":")[1])
    request.cls.kafka_version = os.environ["STAND_KAFKA_VERSION"]
    request.cls.acl_manager = NoAcls()
    request.cls.kafka_config = FormattedUsers()
