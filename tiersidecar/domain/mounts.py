"""Read-only mounts: partitions whose whole history is another cluster's, and whose log here stays empty."""

from __future__ import annotations

from tiersidecar.domain.offsets import Offset

MOUNTED_START = Offset(2**62)
"""Where the log of a read-only mounted partition begins: above every offset of its history, however long the source goes on.
So the broker answers each Fetch of the history OFFSET_OUT_OF_RANGE, and no log that was written from 0 on gets there."""
