"""Subprocesses at idle priority, which end with this process when it is asked to end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Sequence

from tiersidecar.ports.programs import ProgramEnd

_SAID_BYTES = 4000
_GRACE_S = 10.0


class IdlePrograms:
    """A :class:`~tiersidecar.ports.programs.RunProgram`; each program has a process group of its own."""

    async def run_idle(self, arguments: Sequence[str]) -> ProgramEnd:
        process = await asyncio.create_subprocess_exec(
            *_at_idle_priority(),
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            said = b""
            while part := await process.stdout.read(65_536):
                said = (said + part)[-_SAID_BYTES:]
            return ProgramEnd(code=await process.wait(), said=said.decode(errors="replace").strip())
        finally:
            if process.returncode is None:
                await _end(process)


def _at_idle_priority() -> list[str]:
    """Return what to put in front of a command: setting it in the child before exec is not safe in a process with threads."""
    known = {"nice": ("-n", "19"), "ionice": ("-c", "3")}
    return [word for name, words in known.items() if (path := shutil.which(name)) for word in (path, *words)]


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the whole group: a JVM and its workers."""
    _signal(process.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(_GRACE_S):
            await process.wait()
    except TimeoutError:
        _signal(process.pid, signal.SIGKILL)
        await process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
