"""``tiersidecar mount plan`` as an operator gives it (issue 21)."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from tiersidecar.app.cli import app
from tiersidecar.app.mount_file import MountPlan, write_plan


def test_a_file_that_is_in_the_way_is_named_before_the_bucket_is_listed(tmp_path: Path) -> None:
    """And before the configuration is read: there is none."""
    out = tmp_path / "mount.json"
    out.touch()
    arguments = ["mount", "plan", "--brokers", "1", "--config", str(tmp_path / "none.yaml"), "--out"]
    done = CliRunner().invoke(app, [*arguments, str(out)])
    assert (done.exit_code, "another plan may be in use" in done.stderr) == (2, True)
    done = CliRunner().invoke(app, [*arguments, str(tmp_path / "none" / "mount.json")])
    assert (done.exit_code, "is no directory" in done.stderr) == (2, True)


def test_a_read_only_mount_is_never_as_of_an_earlier_time(tmp_path: Path) -> None:
    arguments = ["mount", "plan", "--brokers", "1", "--read-only", "--at", "2026-01-31", "--config", "none.yaml"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "mount.json")])
    assert (done.exit_code, "follows its source" in done.stderr) == (2, True)


def test_the_plan_of_a_read_only_mount_is_not_published(tmp_path: Path) -> None:
    """The source, which lives on, would lose its data."""
    plan = MountPlan(
        made_ms=1,
        former_cluster_id="source",
        topics=(),
        next_producer_id=0,
        open_transactions={},
        is_read_only=True,
    )
    path = tmp_path / "mount.json"
    write_plan(plan, path)
    done = CliRunner().invoke(app, ["mount", "publish", str(path), "--config", str(tmp_path / "none.yaml")])
    assert (done.exit_code, "there is nothing to publish" in done.stderr) == (1, True)
