"""What the Compose file runs, run as processes: its configuration and commands, with paths and ports of this machine."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.go_tool import go_tool
from tests.support.daemon import Daemon, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.loopback_ports import free_port
from tests.unit.deploy.test_compose import COMPOSE, loaded, services

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

QUICKSTART = Path(__file__).parents[2] / "docs" / "quickstart.md"


def here(directory: Path, cluster: KafkaCluster) -> dict[str, Any]:
    """The configuration of the Compose file for a broker of the tests."""
    settings = loaded("tiersidecar.yaml")
    broker, gateway = cluster.brokers[0], free_port()
    store = directory / "tier"
    store.mkdir(parents=True)
    listener = {
        **settings["gateway"]["listeners"][0],
        "listen": f"127.0.0.1:{gateway}",
        "broker": cluster.bootstrap_servers,
        "advertised.nodes": {broker.node_id: f"127.0.0.1:{gateway}"},
    }
    return {
        **settings,
        "log.dirs": [str(path) for path in broker.log_dirs],
        "state.dir": str(directory / "state"),
        "broker": {"bootstrap.servers": cluster.bootstrap_servers},
        "store": {**settings["store"], "root": str(store)},
        "remote.log.metadata.topic.name": "__rlm_compose",
        "state.topic.name": "__state_compose",
        "read": {"listen": f"127.0.0.1:{free_port()}"},
        "status": {"listen": f"127.0.0.1:{free_port()}"},
        "gateway": {"listeners": [listener]},
    }


class ComposeService(Daemon):
    """A service's own command, with our configuration and a status address of its own."""

    service = "sidecar"

    @property
    def command(self) -> list[str]:
        run, config, _, roles_option, roles, *_ = services()[self.service]["command"]
        first, *_ = super().command
        told = [first, "-m", "tiersidecar", run, config, str(self.config_path), roles_option, roles]
        return [*told, "--status-listen", self.settings["status"]["listen"]]


class ComposeGateway(ComposeService):
    service = "gateway"


TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-producer-perf-test.sh": "org.apache.kafka.tools.ProducerPerformance",
}


def commands_of_the_walk(container: str) -> list[list[str]]:
    """What docs/quickstart.md runs in a container."""
    text = QUICKSTART.read_text().replace("\\\n", " ")
    lines = [line.partition(" # ")[0] for line in text.splitlines() if line.startswith(f"at {container} ")]
    return [shlex.split(line)[2:] for line in lines]


def test_the_walk_of_the_quickstart(kafka_cluster: Callable[..., KafkaCluster], tmp_path: Path) -> None:
    """Its commands in their order: a topic is made, filled, tiered, trimmed, looked at, and read back whole."""
    cluster = kafka_cluster()
    settings = here(tmp_path, cluster)
    of_gateway = {**settings, "status": {"listen": f"127.0.0.1:{free_port()}"}}
    with (
        ComposeService(tmp_path / "sidecar", settings) as sidecar,
        ComposeGateway(tmp_path / "gateway", of_gateway) as gateway,
    ):
        sidecar.wait_until_ready()
        gateway.wait_until_ready()
        for path, *arguments in commands_of_the_walk("kafka"):
            told = [argument.replace("kafka:9092", cluster.bootstrap_servers) for argument in arguments]
            cluster.run_tool(TOOLS[Path(path).name], *told)
        wait_for(lambda: cluster.admin.earliest_offset("orders", 0) > 20_000, "orders is trimmed", sidecar, 120)
        printed = [run_beside(sidecar, *arguments) for _, *arguments in commands_of_the_walk("sidecar")]
        bootstrap = settings["gateway"]["listeners"][0]["listen"]
        records = cluster.run_tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", bootstrap, "--topic", "orders", "--partition", "0", "--offset", "earliest"),
            *("--timeout-ms", "8000", "--formatter-property", "print.offset=true"),
            *("--formatter-property", "print.value=false"),
        ).stdout
    assert [line for line in records.splitlines() if line.startswith("Offset:")] == [
        f"Offset:{n}" for n in range(40_000)
    ]
    assert any('"offset":0' in line.replace(" ", "") for line in printed)


def run_beside(sidecar: Daemon, *arguments: str) -> str:
    """A command with the sidecar's configuration, as ``docker compose exec`` gives it."""
    program, *_ = sidecar.command
    done = subprocess.run(
        [program, "-m", "tiersidecar", *arguments],
        env={**os.environ, "TIERSIDECAR_CONFIG": str(sidecar.config_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"tiersidecar {shlex.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


def test_promtool_reads_the_scrape_sample(tmp_path: Path) -> None:
    """With the rules beside it, as Compose mounts them."""
    (tmp_path / "tiersidecar.rules.yaml").write_bytes(
        (COMPOSE.parent / "prometheus" / "tiersidecar.rules.yaml").read_bytes()
    )
    text = (COMPOSE / "prometheus.yml").read_text().replace("/etc/prometheus/", f"{tmp_path}/")
    (tmp_path / "prometheus.yml").write_text(text)
    command = [str(go_tool("promtool")), "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
