"""How long tests wait for what must come, before they fail.

Waits of 20 seconds and more, and the limits of whole tests, are there to end what hangs.  A shared CI machine at times gives
a test a third of what it has at a desk, so where ``CI`` is set they are three times as long.  Shorter waits may be promises of
the product, and are the same everywhere.
"""

from __future__ import annotations

import os

PATIENCE = 3.0 if os.environ.get("CI") else 1.0
_PROMISES_BELOW_S = 20.0


def patient_s(timeout_s: float) -> float:
    """Return how long to wait here for what a desk would wait ``timeout_s`` for."""
    return timeout_s if timeout_s < _PROMISES_BELOW_S else timeout_s * PATIENCE
