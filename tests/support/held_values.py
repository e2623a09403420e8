"""Everything that a running daemon holds: to see that what its configuration says has arrived somewhere.

A walk over tasks, frames, attributes and closures, from a task on.  The configuration itself is left out: that it knows its
own values says nothing.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import (
    AsyncGeneratorType,
    CellType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import Any

from pydantic import BaseModel, SecretStr

Leaf = int | float | str | bytes | bool | tuple[object, ...] | None
_NO_WAY_ON = (type, ModuleType, TracebackType, BaseModel)
_CONTAINERS = (list, tuple, set, frozenset, deque)


@dataclass(slots=True, repr=False)  # of all that a daemon holds it would take hours
class HeldValues:
    """``values`` are all plain values; ``attributes`` those of ``Class.attribute``; ``named`` the objects by their class."""

    values: set[Leaf] = field(default_factory=set)
    attributes: set[tuple[str, Leaf]] = field(default_factory=set)
    named: dict[str, list[Any]] = field(default_factory=dict)


def held_by(roots: Iterable[object], *, stop_at: Callable[[object], bool] = lambda _: False) -> HeldValues:
    """Return what can be reached from ``roots``, not going on from what ``stop_at`` says or from any configuration.

    Nor from the task that looks: a test knows what it wants to find, and whatever has a time limit leads to its task.
    """
    found, seen = HeldValues(), {id(_task_that_looks())}
    waiting: deque[object] = deque(roots)
    kept: list[object] = []  # so that no id is that of another object later
    while waiting:
        one = waiting.popleft()
        if id(one) in seen or isinstance(one, _NO_WAY_ON) or stop_at(one):
            continue
        seen.add(id(one))
        kept.append(one)
        found.named.setdefault(type(one).__name__, []).append(one)
        for name, value in _parts(one):
            plain = _plain(value)
            if plain is not _NOT_PLAIN:
                found.values.add(plain)
                if isinstance(plain, tuple):
                    found.values.update(part for part in plain if isinstance(part, (int, float, str)))
                if name:
                    found.attributes.add((f"{type(one).__name__}.{name}", plain))
            else:
                waiting.append(value)
    return found


def _task_that_looks() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs
        return None


_NOT_PLAIN: Any = object()


def _plain(value: object) -> Any:
    if isinstance(value, Enum):
        return value.value if isinstance(value.value, (int, float, str, bytes)) else value.name
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple) and value and all(isinstance(part, (int, float, str)) for part in value):
        return tuple(value)
    return value if value is None or isinstance(value, (int, float, str, bytes)) else _NOT_PLAIN


def _parts(one: object) -> Iterator[tuple[str, object]]:
    match one:
        case dict():
            for key, value in list(one.items()):
                yield "", key
                yield "", value
        case _ if isinstance(one, _CONTAINERS):
            yield from (("", value) for value in list(one))
        case MethodType():
            yield "", one.__self__
            yield "", one.__func__
        case FunctionType():
            yield from (("", cell) for cell in one.__closure__ or ())
            yield from (("", value) for value in one.__defaults__ or ())
        case CellType():
            try:
                yield "", one.cell_contents
            except ValueError:
                return
        case functools.partial():
            yield from (("", value) for value in (one.func, *one.args, *one.keywords.values()))
        case CoroutineType():
            yield from (("", part) for part in (one.cr_frame, one.cr_await))
        case AsyncGeneratorType():
            yield from (("", part) for part in (one.ag_frame, one.ag_await))
        case GeneratorType():
            yield from (("", part) for part in (one.gi_frame, one.gi_yieldfrom))
        case FrameType():
            yield from one.f_locals.items()
        case asyncio.Task():
            yield "", one.get_coro()
        case _:
            yield from _attributes(one)


def _attributes(one: object) -> Iterator[tuple[str, object]]:
    yield from list(getattr(one, "__dict__", {}).items())
    for kind in type(one).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            mangled = (
                f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
            )
            value = inspect.getattr_static(one, mangled, _NOT_PLAIN)
            if value is not _NOT_PLAIN and hasattr(one, mangled):
                yield name, getattr(one, mangled)
