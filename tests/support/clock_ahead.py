"""``python -m tests.support.clock_ahead FILE run ...``: the daemon, under a wall clock that is ahead by what FILE says.

FILE has milliseconds, or nothing yet; it is read whenever the time is asked for.  Nothing else of the daemon is changed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import patch

from tests.support.daemon import Daemon
from tiersidecar.adapters.clock import SystemClock


class DaemonAhead(Daemon):
    """A daemon whose wall clock can be set ahead, also while it runs."""

    @property
    def command(self) -> list[str]:
        python, _, _, *arguments = super().command
        return [python, "-m", "tests.support.clock_ahead", str(self._skew_path), *arguments]

    @property
    def _skew_path(self) -> Path:
        return self.directory / "clock-ahead-ms"

    def set_clock_ahead(self, by_ms: int) -> None:
        """Set it from now on; whole at once."""
        scratch = self._skew_path.with_suffix(".new")
        scratch.write_text(str(by_ms))
        scratch.replace(self._skew_path)


def main() -> None:
    """Run the command line as it is, but for the clock."""
    from tiersidecar.app.cli import main as run

    path, now_ms = Path(sys.argv.pop(1)), SystemClock.now_ms

    def ahead_ms(self: SystemClock) -> int:
        return now_ms(self) + (int(path.read_text()) if path.exists() else 0)

    with patch.object(SystemClock, "now_ms", ahead_ms):
        run()


if __name__ == "__main__":
    main()
