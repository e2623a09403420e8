"""A store of another package: installed, named in the configuration, and checked by the contract suite."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.build_cache import cache_dir

PACKAGE = Path(__file__).parents[1] / "support" / "third_party_store"
CONFIGURATION = """\
log.dirs: [/d]
broker: {{bootstrap.servers: "127.0.0.1:9092"}}
store:
  type: sqlite
  options: {options}
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package as an installer leaves it, beside nothing else."""
    directory = tmp_path_factory.mktemp("installed")
    uv = max(cache_dir().glob("uv-*/bin/uv"))
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", directory, PACKAGE],
        check=True,
        capture_output=True,
        timeout=120,
    )
    return directory


def run(installed: Path, *arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(installed), **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def check_config(installed: Path, file: Path, options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    file.write_text(CONFIGURATION.format(options=options))
    return run(installed, Path(sys.executable).with_name("tiersidecar"), "check-config", file, **environ)


def test_it_passes_the_contract_suite(installed: Path) -> None:
    done = run(
        installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", PACKAGE / "pyproject.toml", PACKAGE / "tests"
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"\b[5-9]\d passed", done.stdout), done.stdout


def test_its_options_arrive_and_secrets_are_masked(installed: Path, tmp_path: Path) -> None:
    options = f"{{path: {tmp_path}/o.db, passphrase: {{env: PHRASE}}}}"
    done = check_config(installed, tmp_path / "t.yaml", options, PHRASE="hunter2")
    assert done.returncode == 0, done.stderr
    assert "type: sqlite" in done.stdout
    assert f"path: {tmp_path}/o.db" in done.stdout
    assert "hunter2" not in done.stdout + done.stderr


def test_what_is_wrong_with_an_option_is_told_by_its_name(installed: Path, tmp_path: Path) -> None:
    done = check_config(installed, tmp_path / "t.yaml", "{path: o.db, colour: red}")
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "store.options.path: expected an absolute path, got 'o.db'" in said
    assert "store.options.colour: unknown option" in said
