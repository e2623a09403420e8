"""``tiersidecar mount plan`` as an operator gives it (issue 21)."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from tiersidecar.app.cli import app


def test_a_file_that_is_in_the_way_is_named_before_the_bucket_is_listed(tmp_path: Path) -> None:
    """And before the configuration is read: there is none."""
    out = tmp_path / "mount.json"
    out.touch()
    arguments = ["mount", "plan", "--brokers", "1", "--config", str(tmp_path / "none.yaml"), "--out"]
    done = CliRunner().invoke(app, [*arguments, str(out)])
    assert (done.exit_code, "another plan may be in use" in done.stderr) == (2, True)
    done = CliRunner().invoke(app, [*arguments, str(tmp_path / "none" / "mount.json")])
    assert (done.exit_code, "is no directory" in done.stderr) == (2, True)
