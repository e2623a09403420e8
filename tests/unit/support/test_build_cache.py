"""What is built once must be built whole, by one run, or not be there."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.build_cache import MissingProgramError, build_once, require_program


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tiersidecar"


def test_a_build_happens_once(cache: Path) -> None:
    builds: list[Path] = []

    def build(directory: Path) -> None:
        builds.append(directory)
        (directory / "jar").touch()

    assert build_once("tool-1", build) == build_once("tool-1", build) == cache / "tool-1"
    assert len(builds) == 1
    assert (cache / "tool-1" / "jar").exists()


def test_an_interrupted_build_leaves_nothing_of_its_name_and_nothing_half_done(cache: Path) -> None:
    def build(directory: Path) -> None:
        (directory / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once("tool-1", build)
    assert [path.name for path in cache.iterdir()] == [".tool-1.lock"]


def test_a_second_run_waits_for_the_first_and_builds_nothing() -> None:
    building, may_finish, builds = threading.Event(), threading.Event(), 0

    def build(directory: Path) -> None:
        nonlocal builds
        builds += 1
        building.set()
        assert may_finish.wait(10)

    runs = [threading.Thread(target=build_once, args=("tool-1", build)) for _ in range(2)]
    runs[0].start()
    assert building.wait(10)
    runs[1].start()
    may_finish.set()
    for run in runs:
        run.join(10)
    assert builds == 1


def test_a_missing_program_is_named_with_its_packages() -> None:
    with pytest.raises(MissingProgramError, match=r"no-such-program .*apt install some-deb .*dnf install some-rpm"):
        require_program("no-such-program", debian="some-deb", rpm="some-rpm")
