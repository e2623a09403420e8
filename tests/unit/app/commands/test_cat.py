"""What ``tiersidecar cat`` takes, before anything is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.unit.app.commands.test_commands import CONFIG
from tiersidecar.app.cli import app
from tiersidecar.app.commands.cat import parse_time


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        pytest.param("1700000000000", 1_700_000_000_000, id="milliseconds"),
        pytest.param("2023-11-14T22:13:20Z", 1_700_000_000_000, id="UTC"),
        pytest.param("2023-11-14T22:13:20", 1_700_000_000_000, id="without a zone it is UTC"),
        pytest.param("2023-11-15T00:13:20.5+02:00", 1_700_000_000_500, id="of another zone"),
    ],
)
def test_a_time(text: str, time_ms: int) -> None:
    assert parse_time(text) == time_ms


def test_no_time() -> None:
    with pytest.raises(typer.BadParameter, match="yesterday"):
        parse_time("yesterday")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        pytest.param(["orders", "--offset", "0"], 2, "has no partition", id="which partition"),
        pytest.param(["orders/0"], 2, "either --offset or --time", id="from where"),
        pytest.param(
            ["orders/0", "--offset", "0", "--time", "0"], 2, "either --offset or --time", id="from two places"
        ),
        pytest.param(["orders/0", "--offset", "0", "--raw"], 2, "--until", id="raw without an end"),
        pytest.param(["orders/0", "--offset", "0", "--url", "http://127.0.0.1:9"], 1, "role read", id="nobody there"),
        pytest.param(["orders/0", "--offset", "0", "--token-file", "/no/such"], 2, "cannot be read", id="no token"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    file = tmp_path / "tiersidecar.yaml"
    file.write_text(CONFIG)
    done = CliRunner().invoke(app, ["cat", *arguments, "--config", str(file)])
    assert (done.exit_code, words in " ".join(done.output.replace("│", " ").split())) == (code, True), done.output
