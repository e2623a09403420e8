"""Running a seed to its outcome."""

from __future__ import annotations

import asyncio
import gc
import shutil
import tempfile
import traceback
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from tests.simulation.chances import Chances
from tests.simulation.faults import inject
from tests.simulation.hazard_steps import steps_of_hazard
from tests.simulation.oracle import check_end
from tests.simulation.scenario import Kind, scenario_of
from tests.simulation.virtual_time import MOST_TURNS, NoEndError, VirtualTimeLoop, current_process
from tests.simulation.world import World

_MEMORY = Path("/dev/shm")
"""Thousands of small files per run: on a disk they would cost more than all else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of one run.  ``faults`` are names of those that happened, in order; ``reads`` counts consumers' by how they
    ended, and the records that were compared."""

    kind: Kind
    seed: int
    violations: tuple[str, ...]
    faults: tuple[str, ...]
    trace: tuple[str, ...]
    virtual_s: float
    reads: Mapping[str, int] = field(default_factory=dict)


_BURIAL_TURNS = 100_000


def simulate(kind: Kind, seed: int, muted: frozenset[str] = frozenset(), *, most_turns: int = MOST_TURNS) -> Outcome:
    """Run once; the same arguments give the same outcome, trace and all.  ``muted`` faults are left out; a run that has not
    ended after ``most_turns`` of the loop is a violation like others."""
    directory = Path(tempfile.mkdtemp(prefix="tiersidecar-simulation-", dir=_MEMORY if _MEMORY.is_dir() else None))
    chances = Chances(seed, muted)
    loop = VirtualTimeLoop(most_turns)
    gc_was_on = gc.isenabled()
    gc.disable()
    try:
        world = World(scenario_of(kind, seed, chances), chances, directory, loop)
        loop.set_exception_handler(lambda _, context: _unheard(world, context))
        with _log_into(world):
            run = loop.create_task(_run(world))
            try:
                loop.run_until_complete(run)
            except NoEndError as error:
                world.complain(f"it does not end: {error}")
                loop.allow(_BURIAL_TURNS)
                run.cancel()
                with suppress(NoEndError, asyncio.CancelledError):
                    loop.run_until_complete(run)
        return Outcome(
            kind=kind,
            seed=seed,
            violations=tuple(world.violations),
            faults=tuple(chances.faults),
            trace=tuple(line.replace(str(directory), "") for line in world.trace),
            virtual_s=loop.time() - 1000,
            reads=dict(world.consumers.outcomes),
        )
    finally:
        loop.close()
        shutil.rmtree(directory, ignore_errors=True)
        if gc_was_on:
            gc.enable()


async def _run(world: World) -> None:
    try:
        await world.live([*(inject(world, planned) for planned in world.scenario.faults), *steps_of_hazard(world)])
        await world.end()
        await check_end(world)
    finally:
        await world.bury()


def _unheard(world: World, context: dict[str, Any]) -> None:
    """Complain of an error that nothing waited for; at the very end nothing waits any more."""
    if not world.is_over:
        error = context.get("exception")
        trace = "".join(traceback.format_exception(error)) if error is not None else ""
        world.complain(f"unheard: {context.get('message')} {trace}")


@contextmanager
def _log_into(world: World) -> Iterator[None]:
    """Make the sidecars' logs part of the trace; an error that only we are to blame for is a breach."""

    def keep(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if world.is_over:
            raise structlog.DropEvent
        process = current_process()
        what = event.pop("event")
        is_bug = bool(event.pop("exc_info", None))
        facts = " ".join(f"{key}={value}" for key, value in event.items())
        world.note(f"{process.name if process else 'world'}: {what} {facts}")
        if what == "lane.halted":
            world.halted_at_s = world.loop.time()
        if is_bug:
            world.complain(f"{what}: {traceback.format_exc()}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[keep],
        wrapper_class=structlog.make_filtering_bound_logger(20),
        context_class=dict,
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)
