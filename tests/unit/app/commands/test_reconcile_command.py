"""The command lines of reconcile and repair: what is not given has the default that --help shows, in milliseconds."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

from tiersidecar.app.cli import app
from tiersidecar.app.commands.reconcile import _show
from tiersidecar.app.commands.repair import _name
from tiersidecar.app.reconcile_parts import RunOptions
from tiersidecar.decide.reconcile_findings import Finding, FindingKind, Graces
from tiersidecar.reconcile.report import Summary


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


@pytest.mark.parametrize(
    ("graces", "said"),
    [
        pytest.param(Graces(), "(--grace 1h, for unfinished copies --copy-grace 3h)", id="what is left out is named"),
        pytest.param(Graces(finding_ms=0, copy_ms=0), "", id="nothing is left out"),
    ],
)
def test_a_clean_run_names_the_ages_that_it_did_not_judge(graces: Graces, said: str) -> None:
    numbers = dict.fromkeys(
        ("object_count", "segment_count", "live_segment_count", "event_count", "started_ms", "finished_ms"), 0
    )
    summary = SimpleNamespace(findings={}, metadata_doubt="", **numbers)
    shown = StringIO()
    options = SimpleNamespace(report=Path("report"), graces=graces)
    _show(cast("Summary", summary), cast("RunOptions", options), Console(file=shown))
    assert "clean: report" in shown.getvalue()
    assert ("not reported: what is younger" in shown.getvalue()) is bool(said)
    assert said in shown.getvalue()


@pytest.mark.parametrize(
    ("finding", "name"),
    [
        pytest.param({"key": "orders/0/1.log", "segment_id": "AAAA"}, "orders/0/1.log", id="an object by its key"),
        pytest.param({"segment_id": "AAAA"}, "AAAA", id="a segment by its id"),
        pytest.param({}, "orders/0, offsets 10 to 19", id="a gap, which has neither, by its offsets"),
    ],
)
def test_a_step_of_repair_names_what_it_is_about(finding: dict[str, str], name: str) -> None:
    found = Finding(
        kind=FindingKind.OFFSET_GAP, topic="orders", partition=0, start_offset=10, end_offset=19, **cast("Any", finding)
    )
    assert _name(found) == name
