"""Sidecar and gateway as two processes beside one broker, by the command lines of the shipped units."""

from __future__ import annotations

import asyncio
import configparser
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT, produce, started, wait_until_trimmed
from tests.support.daemon import Daemon
from tests.support.kafka_cluster import KafkaCluster
from tests.support.loopback_ports import free_port
from tests.support.patience import patient_s
from tests.support.produce import ProducedRecord

pytestmark = pytest.mark.broker

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
TOPIC = "two-processes"


class UnitDaemon(Daemon):
    """What ``unit`` starts, with this test's configuration and status address in place of those below /etc."""

    def __init__(self, directory: Path, settings: Mapping[str, Any], *, unit: str, status_listen: str) -> None:
        super().__init__(directory, settings)
        self.log_path = directory / f"{unit}.log"
        self._unit, self._status_listen = unit, status_listen

    @property
    def command(self) -> list[str]:
        unit = configparser.ConfigParser(interpolation=None, strict=False)
        unit.read(UNITS / f"{self._unit}.service")
        instead = {"/etc/tiersidecar/tiersidecar.yaml": str(self.config_path), "127.0.0.1:8092": self._status_listen}
        _, *arguments = shlex.split(unit["Service"]["ExecStart"])
        return [sys.executable, "-m", "tiersidecar", *(instead.get(argument, argument) for argument in arguments)]

    @property
    def status_url(self) -> str:
        return f"http://{self._status_listen}"


def read_through(gateway: str, stop: int) -> list[tuple[int, bytes | None]]:
    """Offsets and values of all records below ``stop``."""
    return asyncio.run(_read_through(gateway, stop))


async def _read_through(gateway: str, stop: int) -> list[tuple[int, bytes | None]]:
    partition, found = TopicPartition(TOPIC, 0), list[tuple[int, bytes | None]]()
    async with AIOKafkaConsumer(bootstrap_servers=gateway, auto_offset_reset="none") as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        async with asyncio.timeout(patient_s(60)):
            while await consumer.position(partition) < stop:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    found += [(record.offset, record.value) for record in records]
    return [record for record in found if record[0] < stop]


def shown(produced: list[ProducedRecord], stop: int) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in produced if record.offset < stop]


def test_the_units_run_beside_each_other_with_one_configuration_and_one_state_directory(
    kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway reads what the sidecar has trimmed; killed, it holds up no copy, and comes back by itself."""
    monkeypatch.setenv("TIERSIDECAR_ROLES", "tier,read")  # as docs/gateway.md has it: the gateway's unit says its own
    kafka.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced = produce(kafka, TOPIC, total_bytes=600_000)
    listen = f"127.0.0.1:{free_port()}"
    settings = started(tmp_path, kafka, TOPIC, gateway={"listeners": [{"listen": listen}]}).settings
    sidecar = UnitDaemon(tmp_path, settings, unit="tiersidecar", status_listen=settings["status"]["listen"])
    gateway = UnitDaemon(tmp_path, settings, unit="tiersidecar-gateway", status_listen=f"127.0.0.1:{free_port()}")
    with sidecar, gateway:
        sidecar.wait_until_ready()
        gateway.wait_until_ready()
        first_stop = wait_until_trimmed(kafka, sidecar, TOPIC)
        assert read_through(listen, first_stop) == shown(produced, first_stop)

        gateway.kill9()
        produced += produce(kafka, TOPIC, total_bytes=300_000, seed=1)
        stop = wait_until_trimmed(kafka, sidecar, TOPIC)
        assert stop > first_stop
        gateway.start()
        gateway.wait_until_ready()
        assert read_through(listen, stop) == shown(produced, stop)
        assert (sidecar.stop(), gateway.stop()) == (0, 0)
