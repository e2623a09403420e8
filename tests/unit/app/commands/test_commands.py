"""The commands as a shell sees them, before any broker is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tiersidecar.app.cli import app
from tiersidecar.app.commands.options import quantity

CONFIG = """\
log.dirs: [/no/such/dir]
broker: {bootstrap.servers: "127.0.0.1:1"}
store: {type: filesystem, root: /srv/tier}
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "tiersidecar.yaml"
    file.write_text(CONFIG)
    return str(file)


CHANGES = ["enable", "disable", "delete-records", "accept-log-loss", "accept-topic-loss", "pause", "resume"]


@pytest.mark.parametrize("command", CHANGES)
def test_each_command_says_what_it_does(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"])
    assert shown.exit_code == 0
    for option in ("--yes", "--dry-run", "--json", "--config"):
        assert option in shown.output


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        pytest.param(["enable", "t", "--json"], 2, "--yes or --dry-run", id="JSON asks nothing"),
        pytest.param(["enable", "t", "--mode", "lax", "--yes"], 2, "lax", id="no such mode"),
        pytest.param(["enable", "t", "--retention-bytes", "1 furlong", "--yes"], 2, "furlong", id="no such unit"),
        pytest.param(["delete-records", "t", "-p", "0", "--offset", "-2", "--yes"], 2, "--offset", id="no such offset"),
        pytest.param(["delete-records", "t", "--offset", "5", "--yes"], 2, "--partition", id="which partition"),
        pytest.param(["pause", "--yes"], 2, "--all", id="pause what"),
        pytest.param(["resume", "t", "--all", "--yes"], 2, "--all", id="one topic or all"),
        pytest.param(["verify", "a/b/c"], 2, "TOPIC", id="verify what"),
        pytest.param(["verify", "t", "--rate", "1 furlong"], 2, "furlong", id="no such rate"),
        pytest.param(["disable", "t", "--yes"], 1, "could not be reached", id="no broker"),
    ],
)
def test_what_is_wrong_is_told_without_a_traceback(config: str, arguments: list[str], code: int, words: str) -> None:
    done = CliRunner().invoke(app, [*arguments, "--config", config])
    assert (done.exit_code, words in done.output) == (code, True), done.output
    assert "Traceback" not in done.output


def test_a_configuration_with_a_fault_is_wrong_usage(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(CONFIG + "modee: observe\n")
    done = CliRunner().invoke(app, ["enable", "t", "--yes", "--config", str(file)])
    assert done.exit_code == 2
    assert "modee" in done.output


@pytest.mark.parametrize(
    ("kind", "least", "text", "expected"),
    [("ms", -1, "7d", 604_800_000), ("ms", -1, "-1", -1), ("bytes", -2, "-2", -2), ("bytes", -1, "10GiB", 10 * 2**30)],
)
def test_amounts_are_written_as_in_the_configuration(kind: str, least: int, text: str, expected: int) -> None:
    assert quantity(kind, least)(text) == expected


def test_an_amount_below_its_least_is_refused() -> None:
    with pytest.raises(typer.BadParameter):
        quantity("ms", -1)("-2")
