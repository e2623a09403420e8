"""Programs beside the daemon: work of hours that must not share its process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnd:
    """``code`` is the exit code, negative for a signal; ``said`` the end of its output, for the operator."""

    code: int
    said: str


class RunProgram(Protocol):
    async def run_idle(self, arguments: Sequence[str]) -> ProgramEnd:
        """Run it to its end at the lowest priority for processor and disk.  When cancelled, end the program.

        Raises:
            OSError: it cannot be started.
        """
