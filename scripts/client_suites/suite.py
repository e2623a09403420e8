"""What every suite is: tests that can be run on a stand, whole or by name."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Protocol

from scripts.client_suites.outcomes import Outcomes
from scripts.client_suites.stands import Stand

_EXCLUDED = Path(__file__).with_name("excluded.toml")


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

    def run(self, stand: Stand, directory: Path, names: Collection[str], *, attempt: int) -> Outcomes:
        """Run the tests of these names, or all of the suite if there are none, and return how each ended.

        ``directory`` gets what the tests print.  ``attempt`` counts from 0: seeds follow from it, and after the first no
        two tests run at once.
        """


@cache
def excluded(suite: str) -> Mapping[str, str]:
    """Return the reason by test of those that cannot run, or show nothing, here (excluded.toml)."""
    reasons = tomllib.loads(_EXCLUDED.read_text(encoding="utf-8"))[suite]
    return {str(name): str(reason) for name, reason in reasons.items()}
