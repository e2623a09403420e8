"""Records erased by key from a compacted topic of a real broker: gone from every remote byte, while the broker still has them,
and all else as it was (issue 23)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from tests.integration.test_daemon import started
from tests.integration.test_daemon_expiry import UNGUARDED, finished
from tests.integration.test_erase import KEY, consumed, marked, plant
from tests.integration.test_trash import in_trash
from tests.support.bucket_server import BucketServer
from tests.support.command_line import answer_of, run_command
from tests.support.compacted_topic import write_at_random
from tests.support.daemon import Daemon, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.read_service import Shape, fetch_records

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

TOPIC, SEGMENT_BYTES = "erased-compacted", 16 * 1024
CONFIGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "3600000"}
NEVER_DIRTY_ENOUGH = {"min.cleanable.dirty.ratio": "1"}
ISOLATIONS = ("read_uncommitted", "read_committed")


class Run:
    """One compacted topic and its sidecar."""

    def __init__(self, kafka: KafkaCluster, daemon: Daemon) -> None:
        self.kafka, self.daemon = kafka, daemon

    def write(self, seed: int) -> None:
        """Write random records, and roll: what has the key is in sealed segments alone."""
        draw = random.Random(seed)
        asyncio.run(write_at_random(self.kafka.client_settings, TOPIC, 0, draw, steps=60, keys=30, null_keys=0))
        asyncio.run(self._fill(seed))

    def plant(self, seed: int) -> int:
        """Return up to where the log is sealed, with records of the key below in all codecs, and in transactions."""
        self.write(seed)
        planted = asyncio.run(plant(self.kafka, TOPIC, has_keyless=False))
        self.write(seed + 1)
        assert planted[-1].offset < self.sealed_end
        return self.sealed_end

    @property
    def sealed_end(self) -> int:
        return max(int(path.stem) for path in self.kafka[1].partition_dir(TOPIC, 0).glob("*.log"))

    def wait_until_copied(self, stop: int) -> None:
        wait_for(
            lambda: max((one.next_offset for one in finished(self.kafka, self.daemon)), default=0) == stop,
            f"all up to {stop} is remote",
            self.daemon,
        )

    def wait_until_cleaned(self, stop: int, since: int = 0) -> None:
        """Wait for a round that came to ``stop``, none of the first ``since``."""

        def is_cleaned() -> bool:
            rounds = self.daemon.events("partition.cleaned")[since:]
            return any(one["cleaner_offset"] == stop for one in rounds)

        wait_for(is_cleaned, f"all up to {stop} is clean", self.daemon)

    def over_http(self, stop: int, isolation: str) -> list[Shape]:
        """Return what is remote."""
        return list(fetch_records(self.daemon.read_url, TOPIC, 0, stop=stop, isolation=isolation, tier="remote"))

    @property
    def cache(self) -> Path:
        return Path(self.daemon.settings["state.dir"]) / "remote-log-chunk-cache"

    def purge(self) -> None:
        answer_of(self.daemon.config_path, "trash", "purge", TOPIC, "--yes")
        wait_for(lambda: in_trash(self.daemon) == [], "all that was replaced is deleted", self.daemon)
        wait_for(lambda: marked(self.cache) == [], "the chunks of what was deleted are gone", self.daemon)

    async def _fill(self, seed: int) -> None:
        async with AIOKafkaProducer(**self.kafka.client_settings) as producer:
            for number in range(6):
                await producer.send_and_wait(TOPIC, bytes(6000), key=b"filler-%d-%d" % (seed, number), partition=0)


def without_key(records: Iterable[Shape]) -> list[Shape]:
    return [one for one in records if one[2] != KEY]


def live(records: Iterable[Shape]) -> dict[bytes, bytes]:
    """Return the last value of each key, without tombstones."""
    last = {key: value for _, _, key, value, _ in records if key is not None}
    return {key: value for key, value in last.items() if value is not None}


def test_what_has_the_key_is_gone_from_every_remote_byte_though_the_broker_has_it(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    kafka.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES, configs=CONFIGS)
    (keys := tmp_path / "keys").write_bytes(KEY + b"\n")
    settings: dict[str, Any] = {
        **UNGUARDED,
        "user.delete.delay": "1h",
        "delete.delay": "1h",
        "compaction.enabled": True,
        "compaction.interval.ms": 300,
    }
    daemon = started(tmp_path / "tier", kafka, TOPIC, rule={}, **settings)
    daemon.settings["read"]["chunk.cache.disk.bytes"] = "16MiB"  # what is read before the erasure is kept on the disk
    command = (daemon.config_path, "erase", "--topic", TOPIC, "--keys", str(keys))
    acting = (*command, "--carry-out", "--settle", "30s")
    run = Run(kafka, daemon)
    with daemon:
        daemon.wait_until_ready()
        # What the cleaner has replaced has the key too, and is in the trash.
        first = run.plant(seed=1)
        run.wait_until_copied(first)
        run.wait_until_cleaned(first)
        # And what is dirty yet.
        kafka.admin.alter_topic(TOPIC, NEVER_DIRTY_ENOUGH)
        stop = run.plant(seed=10)
        run.wait_until_copied(stop)
        before = {isolation: run.over_http(stop, isolation) for isolation in ISOLATIONS}
        table = live(without_key(before["read_committed"]))
        assert marked(daemon.store_root), "planted in vain"
        assert marked(run.cache), "read in vain"

        shown = answer_of(*command)
        assert (shown["done"], shown["rewrite"] > 0) == (False, True)
        done = answer_of(*acting)
        assert (done["complete"], done["remaining"]) == (True, [])
        assert all(one["read_back"] and one["sha256_before"] != one["sha256_after"] for one in done["erased"])
        for isolation in ISOLATIONS:
            assert run.over_http(stop, isolation) == without_key(before[isolation])
        with BucketServer(tmp_path / "serve", daemon.store_root) as server:
            server.wait_until_ready()
            access = {"bootstrap_servers": server.access().servers}
            of_bucket = asyncio.run(consumed(access, TOPIC, stop, "read_committed"))
        assert of_bucket == without_key(before["read_committed"])

        # What lies elsewhere is named: the broker's own log has it all.
        assert marked(kafka[1].partition_dir(TOPIC, 0))
        assert done["held_by_brokers"] == [{"partition": 0, "from_offset": 0}]
        assert done["not_looked_at"] == [{"partition": 0, "from_offset": stop}]
        assert "the logs of the brokers" in done["copies_may_remain"][0]
        assert "an erasure replaced" in answer_of(daemon.config_path, "undelete", TOPIC, "--apply", code=1)["refusal"]

        run.purge()
        assert marked(daemon.store_root) == []
        assert list(run.cache.iterdir()), "the chunks of what is there stay"
        assert answer_of(*command)["records"] == 0
        verified = run_command(daemon.config_path, "verify", TOPIC)
        assert verified.returncode == 0, verified.stdout

        # The cleaner goes on from there, and brings nothing back.
        rounds = len(daemon.events("partition.cleaned"))
        kafka.admin.alter_topic(TOPIC, {"min.cleanable.dirty.ratio": "0.01"})
        last = run.plant(seed=20)
        run.wait_until_copied(last)
        run.wait_until_cleaned(last, since=rounds)
        cleaned = live(run.over_http(last, "read_committed"))
        assert {key: cleaned[key] for key in table if key.startswith(b"filler")} == {
            key: value for key, value in table.items() if key.startswith(b"filler")
        }
        # What was copied since has the key again: another run takes that out.
        assert marked(daemon.store_root)
        kafka.admin.alter_topic(TOPIC, NEVER_DIRTY_ENOUGH)
        again = answer_of(*acting)
        assert (again["complete"], again["erased_records"] > 0) == (True, True)
        run.purge()
        assert marked(daemon.store_root) == []
        assert live(run.over_http(last, "read_committed")) == live(
            without_key(asyncio.run(consumed(kafka.client_settings, TOPIC, last, "read_committed")))
        )
        assert daemon.events("lane.halted") == []
        assert daemon.stop() == 0
    pins = Path(f"{kafka.brokers[0].log_dirs[0]}.tiersidecar-pins")
    assert marked(pins) == [], "no pin has one"
    assert marked(tmp_path) == [keys], "no cache and no state of the sidecar has one"
