"""Kafka's Java producer and consumer in one warm process, driven window by window (PerfClients.java)."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.kafka_broker import java_command
from tests.support.kafka_jars import KAFKA_4

RECORD_BYTES = 1024
_SOURCE = Path(__file__).with_name("PerfClients.java")
_JVM = ("-XX:TieredStopAtLevel=4", "-Xms512m", "-Xmx1g")
"""Over the small one of the tests' brokers: what is measured is not how fast a client is compiled."""


class PerfClients:
    """``ways`` are bootstrap servers by name, with client settings behind them: ``host:port security.protocol=SSL``."""

    def __init__(self, ways: dict[str, str]) -> None:
        self._ways = ways
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        command = [*java_command(KAFKA_4, level="WARN", target="err"), *_JVM, str(_SOURCE)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        for name, servers in self._ways.items():
            self.add_way(name, servers)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def add_way(self, name: str, servers: str) -> None:
        """One more, or another one of that name that has not been used."""
        self._ask(f"way {name} {servers}")

    def produce(self, way: str, topic: str, records: int) -> float:
        """MiB/s of records of 1 KiB, acknowledged by all replicas.

        Raises:
            RuntimeError: one was not.
        """
        return float(self._ask(f"produce {way} {topic} {records}"))

    def consume(self, way: str, topic: str, records: int) -> float:
        """MiB/s from the beginning of all partitions on, until ``records`` have come.

        Raises:
            RuntimeError: they did not come.
        """
        return float(self._ask(f"consume {way} {topic} {records}"))

    def _ask(self, command: str) -> str:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        answer = self._process.stdout.readline().strip()
        if not answer or answer.startswith("error"):
            raise RuntimeError(f"{command}: {answer or 'the clients have ended'}")
        return answer
