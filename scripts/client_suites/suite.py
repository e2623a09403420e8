"""What every suite is: tests in pieces, of which each is one process on a stand."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from scripts.client_suites.outcomes import Outcomes
from scripts.client_suites.stands import Stand

_EXCLUDED = Path(__file__).with_name("excluded.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Tests that one process runs, in this order.  It is ended after ``limit_s``.

    The first test that has no outcome then has failed; those after it run in another process.
    """

    name: str
    tests: tuple[str, ...]
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A process to start."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    directory: Path


class Suite(Protocol):
    """One client's own tests, built and ready to run."""

    @property
    def title(self) -> str:
        """Client, its tests, version."""

    @property
    def brokers(self) -> int:
        """How many brokers its tests need."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Properties of a broker that its tests count on."""

    @property
    def untrimmed(self) -> Collection[str]:
        """Tests whose topics are tiered and not trimmed: they read what only the broker's own log can serve."""

    @property
    def least_remote(self) -> Mapping[str, float]:
        """How much a run of all tests trims, and reads remotely, at the least (``stands.TRIMMED``, ``FILLED``)."""

    @property
    def at_once(self) -> int:
        """How many pieces may run beside each other."""

    def tests(self) -> Sequence[str]:
        """Return the names of all tests, those that are left out by default included."""

    def pieces(self, tests: Collection[str]) -> Sequence[Piece]:
        """Return the processes that run these tests."""

    def command(self, piece: Piece, stand: Stand, home: Path, attempt: int) -> Command:
        """Return the process for a piece; seeds follow from ``attempt``, and ``home`` is an empty directory for it."""

    def outcomes(self, printed: str) -> Outcomes:
        """Return the outcome by test of what such a process has printed, whole or not."""


@cache
def excluded(suite: str) -> Mapping[str, str]:
    """Return the reason by test of those that cannot run, or show nothing, here (excluded.toml)."""
    reasons = tomllib.loads(_EXCLUDED.read_text(encoding="utf-8"))[suite]
    return {str(name): str(reason) for name, reason in reasons.items()}
