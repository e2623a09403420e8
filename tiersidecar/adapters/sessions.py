"""Background work that outlives its connection: tried again without end, with back-off, and ended with its owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager

import structlog

from tiersidecar.domain.errors import BrokerRefusedError, MetadataTopicUnavailableError, RetriableError
from tiersidecar.ports.clock import Clock, Ids

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def running(work: Coroutine[object, object, None], *, name: str) -> AsyncIterator[None]:
    """Run ``work`` beside the body.  When it fails, the body is cancelled and its own error is raised, not a group; when
    the body ends, it is cancelled."""
    try:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(work, name=name)
            try:
                yield
            finally:
                task.cancel()
    except BaseExceptionGroup as group:
        raise only_error(group) from None


async def run_until_one_ends(work: Mapping[str, Coroutine[object, object, None]]) -> None:
    """Run all of ``work``, by task name, until one ends, and cancel the rest.

    None of them is meant to end; a TaskGroup alone would not notice one that a library cancelled.
    """
    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(one, name=name) for name, one in work.items()]
        await asyncio.wait(started, return_when=asyncio.FIRST_COMPLETED)
        for task in started:
            task.cancel()


def missing_right_of(error: BaseException) -> BrokerRefusedError | None:
    """Return ``error`` if a right is missing: trying again helps only once an operator has given it."""
    return error if isinstance(error, BrokerRefusedError) and error.is_missing_right else None


def only_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the one error in nested groups of one; else the group itself."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def keep_trying(
    session: Callable[[Callable[[], None]], Awaitable[None]],
    *,
    topic: str,
    clock: Clock,
    ids: Ids,
    first_interval_ms: int,
    max_interval_ms: int,
    give_up_after_ms: int | None,
    on_failure: Callable[[BaseException], None],
) -> None:
    """Run ``session`` again and again.  It calls its argument once it is connected; a connection that lasted ends the
    backing off.

    Raises:
        MetadataTopicUnavailableError: it was never connected for ``give_up_after_ms``; None tries without end.
    """
    began_s, failures = clock.monotonic_s(), 0
    connections_s: list[float] = []

    def connected() -> None:
        connections_s.append(clock.monotonic_s())

    was_connected = False
    while True:
        connections_s.clear()
        try:
            await session(connected)
            continue
        except* RetriableError as group:
            error = only_error(group)
        on_failure(error)
        reason = str(error)
        now_s = clock.monotonic_s()
        was_connected = was_connected or bool(connections_s)
        waited_ms = round((now_s - began_s) * 1000)
        if give_up_after_ms is not None and not was_connected and waited_ms >= give_up_after_ms:
            raise MetadataTopicUnavailableError(topic=topic, waited_ms=waited_ms, reason=reason)
        if connections_s and (now_s - connections_s[0]) * 1000 >= max_interval_ms:
            failures = 0
        if failures == 0:
            _log.warning("internal_topic.unreachable", topic=topic, reason=reason)
        failures += 1
        interval_ms = min(first_interval_ms * 2 ** min(failures, 20), max_interval_ms)
        await clock.sleep(interval_ms * (0.5 + 0.5 * ids.random()) / 1000)
