"""Failpoints do what the variable says, where it says, and nothing anywhere else."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from tiersidecar.adapters.failpoints import VARIABLE, EnvironmentFailpoints, FailpointError
from tiersidecar.domain.errors import ConfigError, RetriableError
from tiersidecar.ports.failpoints import AllFailpoints, NoFailpoints


def failpoints(monkeypatch: pytest.MonkeyPatch, text: str) -> AllFailpoints:
    monkeypatch.setenv(VARIABLE, text)
    return EnvironmentFailpoints.from_environment()


@pytest.mark.parametrize("text", [None, ""], ids=["unset", "empty"])
def test_without_the_variable_there_are_none(monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if text is not None:
        monkeypatch.setenv(VARIABLE, text)
    assert isinstance(EnvironmentFailpoints.from_environment(), NoFailpoints)


async def test_raise_is_a_retriable_error_that_names_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    points = failpoints(monkeypatch, "copy.manifest.stored=raise; trim.sent=raise")
    await points.reach("copy.started.published")
    for _ in range(2):
        with pytest.raises(FailpointError, match=r"copy\.manifest\.stored") as raised:
            await points.reach("copy.manifest.stored")
        assert isinstance(raised.value, RetriableError)


async def test_a_hit_count_picks_one_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    points = failpoints(monkeypatch, "copy.log.half=raise@3")
    failed = []
    for hit in range(1, 7):
        try:
            await points.reach("copy.log.half")
        except FailpointError:
            failed.append(hit)
    assert failed == [3]


async def test_stall_never_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    stalled = asyncio.create_task(failpoints(monkeypatch, "trim.sent=stall").reach("trim.sent"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not stalled.done()
    stalled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stalled


def test_kill_is_sigkill() -> None:
    program = (
        "import asyncio; from tiersidecar.adapters.failpoints import EnvironmentFailpoints as E\n"
        "async def main():\n"
        "    points = E.from_environment()\n"
        "    await points.reach('a'); print('first', flush=True); await points.reach('a'); print('second')\n"
        "asyncio.run(main())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], env={VARIABLE: "a=kill@2"}, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, "first\n")


def test_freeze_stands_still_until_it_is_told_to_go_on() -> None:
    program = (
        "import asyncio; from tiersidecar.adapters.failpoints import EnvironmentFailpoints as E\n"
        "asyncio.run(E.from_environment().reach('a')); print('went on')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], env={VARIABLE: "a=freeze"}, stdout=subprocess.PIPE, text=True
    )
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    process.send_signal(signal.SIGCONT)
    assert process.communicate()[0] == "went on\n"


def test_all_faults_of_the_variable_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError) as raised:
        failpoints(monkeypatch, "a=explode;b;=kill;c=kill@0;d=kill@x;e=kill@;f=kill")
    assert len(raised.value.faults) == 6
    assert VARIABLE in str(raised.value)
    assert "'a=explode'" in str(raised.value)


def test_code_in_a_thread_passes_the_same_places(monkeypatch: pytest.MonkeyPatch) -> None:
    points = failpoints(monkeypatch, "pin.half=raise@2")
    points.reach_blocking("pin.half")
    points.reach_blocking("unpin.half")
    with pytest.raises(FailpointError, match=r"pin\.half"):
        points.reach_blocking("pin.half")
