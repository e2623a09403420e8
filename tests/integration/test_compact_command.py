"""``tiersidecar compact`` beside a sidecar whose topic is never dirty enough for its own cleaner: killed in a swap, run again,
and the sidecar goes on from there (S-273, S-276, S-281, issue 23)."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_daemon import started
from tests.integration.test_daemon_expiry import UNGUARDED, finished
from tests.integration.test_erase_compacted import CONFIGS, NEVER_DIRTY_ENOUGH, SEGMENT_BYTES, TOPIC, Run, live
from tests.support.command_line import answer_of, program_environment, run_command
from tests.support.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]


ON_SPARK = ("--spark", "--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=4")


@pytest.mark.parametrize(
    "engine",
    [pytest.param((), id="in process"), pytest.param(ON_SPARK, id="on Spark", marks=pytest.mark.spark)],
)
def test_a_backlog_is_cleaned_by_command_killed_in_a_swap_and_run_again(
    kafka_cluster: Callable[..., KafkaCluster], tmp_path: Path, engine: tuple[str, ...]
) -> None:
    kafka = kafka_cluster()
    kafka.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES, configs={**CONFIGS, **NEVER_DIRTY_ENOUGH})
    settings: dict[str, Any] = {
        **UNGUARDED,
        "user.delete.delay": "1h",
        "delete.delay": "1h",
        "compaction.enabled": True,
        "compaction.interval.ms": 300,
    }
    daemon = started(tmp_path / "tier", kafka, TOPIC, rule={}, **settings)
    run = Run(kafka, daemon)
    config, command = daemon.config_path, ("compact", "--topic", TOPIC, *engine)
    with daemon:
        daemon.wait_until_ready()
        stop = run.plant(seed=1)
        run.wait_until_copied(stop)
        before = live(run.over_http(stop, "read_committed"))
        assert daemon.events("partition.cleaned") == []

        shown = answer_of(config, *command)
        assert (shown["done"], shown["cleanable_segments"]) == (False, len(finished(kafka, daemon)))
        assert len(shown["steps"]) == 1
        killed = _killed(config, *command, failpoint="clean.finished=kill@2")
        assert killed == -9
        assert live(run.over_http(stop, "read_committed")) == before

        done = answer_of(config, *command, "--carry-out")
        (cleaned,) = done["cleaned"]
        assert (done["complete"], cleaned["clean_up_to"], cleaned["left"]) == (True, stop, None)
        assert cleaned["bytes_after"] < cleaned["bytes_before"]
        records = run.over_http(stop, "read_committed")
        assert live(records) == before
        assert [key for key, count in Counter(one[2] for one in records).items() if count > 1] == [], "one of each key"
        assert answer_of(config, *command)["steps"] == [], "nothing is left to clean"
        verified = run_command(config, "verify", TOPIC)
        assert verified.returncode == 0, verified.stdout

        # The sidecar's cleaner goes on from the claim: below it nothing is dirty.
        kafka.admin.alter_topic(TOPIC, {"min.cleanable.dirty.ratio": "0.01"})
        last = run.plant(seed=20)
        run.wait_until_copied(last)
        run.wait_until_cleaned(last)
        answer_of(config, "trash", "purge", TOPIC, "--yes")
        assert daemon.events("lane.halted") == []
        assert daemon.stop() == 0


def _killed(config: Path, *arguments: str, failpoint: str) -> int:
    """Return how the command ended that carries it out."""
    program = [sys.executable, "-m", "tiersidecar", *arguments, "--carry-out", "--config", str(config)]
    environment = {**program_environment(), "TIERSIDECAR_FAILPOINTS": failpoint}
    return subprocess.run(program, env=environment, capture_output=True, timeout=300, check=False).returncode
