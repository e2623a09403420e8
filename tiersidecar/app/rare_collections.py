"""Keep the cycle collector from walking over what a command holds of a whole bucket."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS = 50_000


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect, while the body runs, what is new after fifty thousand objects rather than seven hundred, and what is old hardly
    ever: else that is a fifth of the time of looking through a bucket.  Never would be too rare: what requests and their errors
    leave has to go."""
    young, middle, old = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS, middle, old * 10)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)
