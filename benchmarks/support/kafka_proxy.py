"""grepplabs/kafka-proxy in front of one broker, from a binary that whoever measures has."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.kafka_admin import wait_until
from tests.support.loopback_ports import free_port


@contextmanager
def running_kafka_proxy(program: Path, directory: Path, upstream: str) -> Iterator[str]:
    """Where clients reach ``upstream``, the broker's advertised host and port, through it; killed at the end.

    Raises:
        OSError: ``program`` cannot be started.
        TimeoutError: it did not come up.
    """
    listen = f"127.0.0.1:{free_port()}"
    command = [str(program), "server", "--bootstrap-server-mapping", f"{upstream},{listen}"]
    command += ["--dynamic-listeners-disable", "--http-disable", "--log-level", "warn"]
    with (directory / "kafka-proxy.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_until(lambda: _listens(listen), "kafka-proxy listens", 20)
        yield listen
    finally:
        process.kill()
        process.wait()


def _listens(address: str) -> bool:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True
