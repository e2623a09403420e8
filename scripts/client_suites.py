"""franz-go's own tests, directly against a broker and through a gateway, on topics that are trimmed while they run.

``scripts/client_suites.py [REGEX]`` prints how many of the tests (of such names) pass both ways, and exits with 1 where one
that passes directly does not pass through the gateway.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from tests.support.build_cache import require_program  # noqa: E402
from tests.support.daemon import Daemon, daemon_settings, get  # noqa: E402
from tests.support.kafka_cluster import KafkaCluster  # noqa: E402
from tests.support.loopback_ports import free_port  # noqa: E402

MODULE = REPOSITORY / "tests" / "support" / "franz_tests"
PACKAGE = "github.com/twmb/franz-go/pkg/kgo"
RECORDS = 20_000
TIMEOUT_S = 900
# Segments roll by time: whatever a test writes is sealed, copied and trimmed while it goes on.
BROKER = {
    "log.roll.ms": "1000",
    "log.retention.ms": "-1",
    "log.retention.bytes": "-1",
    "log.segment.delete.delay.ms": "0",
}


def build(directory: Path) -> Path:
    """The tests as a program."""
    go, program = require_program("go", debian="golang-go", rpm="golang"), directory / "kgo.test"
    subprocess.run([go, "test", "-c", "-mod=readonly", "-o", str(program), PACKAGE], cwd=MODULE, check=True)
    return program


def run(program: Path, seeds: str, log: Path, names: str) -> dict[str, str]:
    """Outcome by test, those within others left out: pass, fail or skip."""
    go = require_program("go", debian="golang-go", rpm="golang")
    environment = {
        **os.environ,
        "KGO_SEEDS": seeds,
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": str(RECORDS),
        "KGO_LOG_LEVEL": "none",
    }
    command = [
        go,
        "tool",
        "test2json",
        "-t",
        str(program),
        "-test.v=test2json",
        f"-test.timeout={TIMEOUT_S}s",
        f"-test.run={names}",
    ]
    outcomes: dict[str, str] = {}
    with log.open("w") as out:
        process = subprocess.Popen(
            command, env=environment, cwd=log.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            out.write(line)
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("Action") in ("pass", "fail", "skip") and "Test" in event and "/" not in event["Test"]:
                outcomes[event["Test"]] = event["Action"]
        process.wait()
    return outcomes


def directly(program: Path, directory: Path, names: str) -> dict[str, str]:
    """Against a broker without tiering."""
    with KafkaCluster(directory / "direct", properties=BROKER) as cluster:
        return run(program, cluster.bootstrap_servers, directory / "direct.json", names)


def through(program: Path, directory: Path, names: str) -> tuple[dict[str, str], str]:
    """Through a gateway, every topic tiered and trimmed; also what was trimmed meanwhile."""
    with ExitStack() as stack:
        cluster, port = stack.enter_context(KafkaCluster(directory / "behind", properties=BROKER)), free_port()
        settings = daemon_settings(
            directory / "daemon",
            bootstrap_servers=cluster[1].bootstrap_server,
            log_dirs=list(cluster[1].log_dirs),
            topics=[{"pattern": ".*", "local.retention.bytes": 1}],
            gateway={"listeners": [{"listen": f"127.0.0.1:{port}"}]},
        )
        daemon = stack.enter_context(Daemon(directory / "daemon", settings, roles="tier,gateway"))
        daemon.wait_until_ready()
        outcomes = run(program, f"127.0.0.1:{port}", directory / "through.json", names)
        _, metrics = get(f"{daemon.status_url}/metrics")
        told = [
            line
            for line in metrics.splitlines()
            if line.startswith(("tiersidecar_trim", "tiersidecar_gateway_fills_total"))
        ]
        return outcomes, "\n".join(told)


def compare(direct: Mapping[str, str], behind: Mapping[str, str]) -> list[str]:
    """Those that pass directly only."""
    return sorted(name for name, outcome in direct.items() if outcome == "pass" and behind.get(name) != "pass")


def main(arguments: list[str]) -> int:
    names = arguments[0] if arguments else "."
    directory = Path(tempfile.mkdtemp(prefix="tiersidecar-client-suites-"))
    program = build(directory)
    direct = directly(program, directory, names)
    behind, trimmed = through(program, directory, names)
    print(trimmed)
    for name, outcomes in (("directly", direct), ("through the gateway", behind)):
        print(f"franz-go, kgo, {name}: {dict(sorted(Counter(outcomes.values()).items()))}")
    worse = compare(direct, behind)
    for name in worse:
        print(f"passes directly, and not through the gateway: {name} ({behind.get(name, 'no outcome')})")
    print(f"what they said: {directory}/direct.json, {directory}/through.json")
    return 1 if worse or not direct else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
