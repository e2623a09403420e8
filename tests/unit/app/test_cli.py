"""The command line as a shell sees it: what it prints where, and its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from structlog.contextvars import clear_contextvars, get_contextvars
from typer.testing import CliRunner, Result

from tiersidecar.app import supervise
from tiersidecar.app.cli import app
from tiersidecar.app.commands.register import COMMANDS
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.top_level import Role
from tiersidecar.app.gateway_workers.place import WorkerPlace
from tiersidecar.app.supervise import changed_keys
from tiersidecar.formats import native

GOOD = """\
log.dirs: [/no/such/dir]
broker: {bootstrap.servers: "127.0.0.1:9092"}
store: {type: filesystem, root: /srv/tier}
topics: [{name: orders}]
"""
BAD = GOOD + "mode: sideways\nmodee: observe\n"


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def good(tmp_path: Path) -> str:
    file = tmp_path / "good.yaml"
    file.write_text(GOOD)
    return str(file)


@pytest.fixture
def bad(tmp_path: Path) -> str:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    return str(file)


def test_a_valid_configuration_is_printed_and_its_warnings_go_to_standard_error(good: str) -> None:
    result = invoke("check-config", good)
    assert result.exit_code == 0
    assert "chunk.size: 4MiB" in result.stdout
    assert "warning: log.dirs: /no/such/dir is not a directory on this machine" in result.stderr
    assert "is valid" in result.stderr


def test_every_fault_is_printed_and_the_exit_code_is_2(bad: str) -> None:
    result = invoke("check-config", bad)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f"error: {bad}: line 5: mode: expected enforce or observe, got 'sideways'",
        f"error: {bad}: line 6: modee: unknown key; did you mean mode?",
    ]


def test_json_is_one_document_either_way(good: str, bad: str) -> None:
    result = invoke("check-config", "--json", good)
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["valid"] is True
    assert document["config"]["store"]["chunk.size"] == 4194304
    assert [warning.partition(":")[0] for warning in document["warnings"]] == ["log.dirs", "store.root"]
    result = invoke("check-config", "--json", bad)
    assert result.exit_code == 2
    refused = json.loads(result.stdout)
    assert refused["faults"][0].startswith("line 5: mode:")
    assert (refused["valid"], refused["file"]) == (False, bad)


@pytest.mark.parametrize("arguments", [("check-config", "/no/such.yaml"), ("run", "--config", "/no/such.yaml")])
def test_a_file_that_is_not_there_is_named(arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stderr == "error: /no/such.yaml: cannot be read: no such file or directory\n"


def test_run_refuses_a_wrong_configuration_with_every_fault(bad: str) -> None:
    result = invoke("run", "--config", bad)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 2


@pytest.mark.parametrize("roles", ["tier,reed", "", ","])
def test_run_refuses_roles_that_there_are_not(good: str, roles: str) -> None:
    result = invoke("run", "--config", good, "--roles", roles)
    assert result.exit_code == 2
    assert "tier, read" in result.stderr


@pytest.mark.parametrize("address", ["8092", "127.0.0.1", "127.0.0.1:65536"])
def test_run_refuses_a_status_address_without_host_or_port(good: str, address: str) -> None:
    result = invoke("run", "--config", good, "--status-listen", address)
    assert result.exit_code == 2
    assert "expected host:port such as 127.0.0.1:9092" in result.stderr


def test_a_second_process_with_the_same_file_has_a_status_address_of_its_own(
    good: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reload as well: what was given on the command line is no change of the file."""
    started: list[tuple[Config, frozenset[Role], Config]] = []

    def run_daemon(config: Config, roles: frozenset[Role], load: Callable[[], Config], _: WorkerPlace | None) -> int:
        started.append((config, roles, load()))
        return 0

    monkeypatch.setattr(supervise, "run_daemon", run_daemon)
    monkeypatch.setenv("TIERSIDECAR_ROLES", "tier,read")
    assert invoke("run", "--config", good).exit_code == 0
    assert invoke("run", "--config", good, "--roles", "gateway", "--status-listen", "[::1]:8092").exit_code == 0
    (sidecar, its_roles, _), (gateway, other_roles, reloaded) = started
    assert its_roles == frozenset({Role.TIER, Role.READ})
    assert other_roles == frozenset({Role.GATEWAY})
    assert str(sidecar.status.listen) == "127.0.0.1:8091"
    assert str(gateway.status.listen) == str(reloaded.status.listen) == "[::1]:8092"
    assert changed_keys(gateway, reloaded) == frozenset()
    assert changed_keys(sidecar, gateway) == {"status.listen"}
    assert gateway.file == sidecar.file == Path(good)


def test_a_worker_of_a_gateway_has_its_part_of_the_configuration(good: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reload as well.  The option is for the process that starts workers, and not shown."""
    started: list[tuple[Config, Config, WorkerPlace | None]] = []

    def run_daemon(config: Config, _: frozenset[Role], load: Callable[[], Config], place: WorkerPlace | None) -> int:
        started.append((config, load(), place))
        return 0

    monkeypatch.setattr(supervise, "run_daemon", run_daemon)
    place = WorkerPlace(number=2, starter_pid=1, control_fd=3, table_fd=4, ports=())
    try:
        assert invoke("run", "--config", good, "--roles", "gateway", "--gateway-worker", str(place)).exit_code == 0
        assert get_contextvars() == {"worker": 2}, "in each of its events"
    finally:
        clear_contextvars()  # it is of the process, and other tests log as well
    ((config, reloaded, its_place),) = started
    assert its_place == place
    assert config.state_dir == reloaded.state_dir
    assert config.state_dir.endswith("/gateway-worker-2")
    assert "gateway-worker" not in invoke("run", "--help").stdout
    assert invoke("run", "--config", good, "--gateway-worker", "me").exit_code == 2


def test_a_read_only_mount_is_for_gateways_alone(good: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data are another cluster's: nothing that copies or deletes them goes by such a file, nor does any command."""
    started: list[frozenset[Role]] = []

    def run_daemon(config: Config, roles: frozenset[Role], load: Callable[[], Config], _: WorkerPlace | None) -> int:
        started.append(roles)
        return 0

    monkeypatch.setattr(supervise, "run_daemon", run_daemon)
    with Path(good).open("a") as file:
        file.write("source: {bootstrap.servers: 'source:9092', mount.plan: /etc/mount.json}\n")
    for arguments in (["run"], ["run", "--roles", "tier,gateway"], ["run", "--roles", "read"]):
        result = invoke(*arguments, "--config", good)
        assert (result.exit_code, "with --roles gateway alone" in result.stderr) == (2, True)
    assert invoke("run", "--config", good, "--roles", "gateway").exit_code == 0
    assert started == [frozenset({Role.GATEWAY})]
    for arguments in (
        ["ls", "orders"],
        ["delete-records", "orders", "-p", "0", "--offset", "5", "--yes"],
        ["reconcile"],
    ):
        result = invoke(*arguments, "--config", good)
        assert (result.exit_code, "by that of a sidecar of the source" in result.stderr) == (2, True), result.stderr


def test_run_needs_a_configuration() -> None:
    result = invoke("run")
    assert result.exit_code == 2
    assert "--config" in result.stderr


def test_version_is_the_installed_one() -> None:
    for spelling in ("version", "--version"):
        assert invoke(spelling).stdout == f"tiersidecar {version('tiersidecar')} ({native.core})\n"


def test_no_line_of_the_list_of_commands_is_cut_short() -> None:
    result = invoke("--help")
    _, commands = result.stdout.split("Commands:")
    assert "..." not in commands
    assert "3 done, and an" in commands


@pytest.mark.parametrize("command", [(), ("run",), ("check-config",), ("version",)])
def test_every_command_explains_itself(command: tuple[str, ...]) -> None:
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ")


def test_a_configuration_whose_broker_is_away_is_looked_at_all_the_same(tmp_path: Path) -> None:
    file, store = tmp_path / "away.yaml", tmp_path / "store"
    store.mkdir()
    file.write_text(
        f'log.dirs: [/no/such/dir]\nbroker: {{bootstrap.servers: "127.0.0.1:1"}}\nstate.dir: {tmp_path}/state\n'
        f'store: {{type: filesystem, root: {store}}}\nstatus: {{listen: "127.0.0.1:8090"}}\n'
    )
    result = invoke("check-config", str(file), "--connect", "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["valid"], document["fits"]) == (3, True, False)
    levels = {(one["check"], one["level"]) for one in document["findings"]}
    assert levels >= {
        ("broker", "error"),
        ("log.dirs", "error"),
        ("ports", "error"),
        ("store", "ok"),
        ("state.dir", "ok"),
    }
    assert all(bool(one["do"]) == (one["level"] != "ok") for one in document["findings"])
    assert [path for path in store.rglob("*") if path.is_file()] == []
    shown = invoke("check-config", str(file), "--connect")
    assert (shown.exit_code, "-> check broker.bootstrap.servers" in shown.stdout) == (3, True)


def test_a_command_that_asks_sidecars_starts_without_what_it_does_not_need() -> None:
    """A third of the processor time of `status` went into importing the clients of stores and HTTP, and loggers."""
    program = (
        "import sys, tiersidecar.app.cli, tiersidecar.app.commands.status; "
        "heavy = {'aiobotocore', 'botocore', 'aiohttp', 'aiokafka', 'kio', 'structlog', 'obstore', 'pyspark', 'pyarrow'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_a_command_imports_no_other_and_all_are_in_the_help() -> None:
    program = (
        "import sys; from typer.testing import CliRunner; from tiersidecar.app.cli import app; "
        "CliRunner().invoke(app, ['status', '--help']); "
        "print(sorted(name for name in sys.modules if name.startswith('tiersidecar.app.commands.m')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
    shown = invoke("--help").stdout
    assert [name for name in (*COMMANDS, "run", "version") if f"  {name} " not in shown] == []
    assert "Did you mean 'status'" in invoke("sttus").output


def test_a_daemon_starts_without_the_clients_of_stores_that_it_does_not_have() -> None:
    """A quarter of the processor time of its start went into importing them, and what opens and seals data keys."""
    program = (
        "import sys, tiersidecar.app.cli, tiersidecar.app.supervise; "
        "print(sorted({'aiobotocore', 'botocore', 'obstore', 'Crypto', 'pyspark', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
