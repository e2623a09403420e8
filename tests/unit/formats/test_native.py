"""Which core runs, and what is said of it (docs/design/0014)."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tiersidecar.formats.native import MODULE, VERSION, NativeCore, find_core

REPOSITORY = Path(__file__).resolve().parents[3]


def installed(monkeypatch: pytest.MonkeyPatch, version: str, *, is_off: bool = False) -> NativeCore:
    module = ModuleType(MODULE)
    module.__dict__.update(__version__=version, is_off=lambda: is_off)
    monkeypatch.setitem(sys.modules, MODULE, module)
    return find_core()


def test_a_core_of_our_version_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    core = installed(monkeypatch, VERSION)
    assert core.walks is sys.modules[MODULE]
    assert (core.name, core.is_mismatch, str(core)) == ("native", False, f"native core {VERSION}")


def test_one_of_another_version_does_not_and_that_is_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    core = installed(monkeypatch, "9.9.9")
    assert (core.name, core.is_mismatch) == ("python", True)
    assert str(core) == f"Python core: tiersidecar-native is 9.9.9, this tiersidecar takes {VERSION} alone"


def test_the_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    core = installed(monkeypatch, VERSION, is_off=True)
    assert (core.name, core.is_mismatch, core.reason) == ("python", False, "TIERSIDECAR_NATIVE=off")


def test_without_it_python_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULE, None)
    core = find_core()
    assert (core.name, core.version, core.reason) == ("python", "", "tiersidecar-native is not installed")


def test_all_that_name_its_version_name_the_same() -> None:
    def toml(path: str) -> dict[str, object]:
        return tomllib.loads((REPOSITORY / path).read_text())

    extras = toml("pyproject.toml")["project"]["optional-dependencies"]  # type: ignore[index]
    crates = {one["name"]: one["version"] for one in toml("native/Cargo.lock")["package"]}  # type: ignore[attr-defined]
    assert extras["native"] == [f"tiersidecar-native=={VERSION}"]
    assert toml("native/pyproject.toml")["project"]["version"] == VERSION  # type: ignore[index]
    assert toml("native/Cargo.toml")["package"]["version"] == VERSION  # type: ignore[index]
    assert crates["tiersidecar-native"] == VERSION
