"""The wheel that docs/operations/install.md installs: built from the source distribution, and run from an environment of its
own."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "tiersidecar"


def run(*command: str | Path, directory: Path, user: pwd.struct_passwd | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=directory,
        env={"PATH": os.defpath, "HOME": os.environ.get("HOME", "/")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        user=None if user is None else user.pw_uid,
        group=None if user is None else user.pw_gid,
        extra_groups=None if user is None else [],
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """Outside pytest's own, which nobody else may enter."""
    with tempfile.TemporaryDirectory(prefix="tiersidecar-wheel-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture(scope="module")
def wheel(directory: Path) -> Path:
    """By pip from the source distribution, so that both have what they need."""
    run(sys.executable, "-m", "venv", directory / "build", directory=directory)
    python = directory / "build" / "bin" / "python"
    [hatchling] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["build-system"]["requires"]
    run(python, "-m", "pip", "install", "--quiet", hatchling, directory=directory)
    run(python, "-m", "hatchling", "build", "-t", "sdist", "-d", directory / "sdist", directory=REPOSITORY)
    [sdist] = (directory / "sdist").iterdir()
    run(python, "-m", "pip", "wheel", "--no-deps", "-w", directory / "wheel", sdist, directory=directory)
    [made] = (directory / "wheel").iterdir()
    return made


@pytest.fixture(scope="module")
def environment(directory: Path, wheel: Path) -> Path:
    """Its ``bin``, with the wheel and the libraries that uv.lock names."""
    locked = tomllib.loads((REPOSITORY / "uv.lock").read_text())["package"]
    constraints = directory / "constraints.txt"
    constraints.write_text(
        "".join(f"{one['name']}=={one['version']}\n" for one in locked if one["name"] != PACKAGE.name)
    )
    venv.create(directory / "opt", with_pip=True)
    python = directory / "opt" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", "-c", constraints, wheel, directory=directory)
    return python.parent


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    ours = {
        str(path.relative_to(REPOSITORY))
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"tiersidecar/py.typed", "tiersidecar/spark/maven/pom.xml"} <= ours
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == ours


def test_the_wheel_carries_the_bill_of_materials(wheel: Path) -> None:
    """Where PEP 770 has it, so that scanners of installed environments find it."""
    archive = zipfile.ZipFile(wheel)
    [name] = [name for name in archive.namelist() if name.endswith(".dist-info/sboms/sbom.cdx.json")]
    assert archive.read(name) == (REPOSITORY / "sbom.cdx.json").read_bytes()


def test_the_command_runs_as_another_user_from_anywhere(environment: Path, tmp_path: Path) -> None:
    """Who may change users tries it as nobody: a container's USER, a unit's User=."""
    other = pwd.getpwnam("nobody") if os.getuid() == 0 else None
    command = environment / "tiersidecar"
    assert run(command, "--version", directory=Path("/"), user=other) == (
        f"tiersidecar {version('tiersidecar')} (Python core: tiersidecar-native is not installed)\n"
    )
    assert "check-config" in run(command, "--help", directory=Path("/"), user=other)
    shipped = environment.parent.parent / "tiersidecar.yaml"
    shipped.write_text((REPOSITORY / "config" / "examples" / "filesystem.yaml").read_text())
    assert "is valid" in run(command, "check-config", shipped, directory=Path("/"), user=other)
