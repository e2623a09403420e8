"""The command lines of reconcile and repair: what is not given has the default that --help shows, in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tiersidecar.app.cli import app


def parameters(command: str, *arguments: str) -> dict[str, Any]:
    group: Any = get_command(app)
    found = group.get_command(click.Context(group), command)
    context = found.make_context(command, [*arguments, "--config", "c.yaml"])
    return dict(context.params)


def test_graces_of_reconcile() -> None:
    given = parameters("reconcile", "--copy-grace", "90s")
    assert (given["grace"], given["copy_grace"]) == (3_600_000, 90_000)
    assert (given["manifests"], given["deep"], given["put_report"]) == (True, False, False)


def test_graces_of_repair_which_is_dry_unless_told_otherwise(tmp_path: Path) -> None:
    given = parameters("repair", str(tmp_path))
    assert (given["grace"], given["copy_grace"], given["most_orphans"]) == (86_400_000, 10_800_000, 0.01)
    assert not given["apply"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--inventory", "x"], "needs --inventory-time"),
        (["--inventory-format", "xml"], "not one of csv, orc, parquet"),
        (["--grace", "soon"], "soon"),
    ],
)
def test_wrong_usage_is_told_before_anything_starts(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["reconcile", "--config", "c.yaml", *arguments])
    assert done.exit_code == 2
    assert said in done.output


def test_a_configuration_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["reconcile", "--config", str(tmp_path / "none.yaml")])
    assert done.exit_code == 2
    assert "none.yaml" in done.output
