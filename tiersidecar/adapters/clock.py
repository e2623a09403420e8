"""Provide time, ids and randomness from the operating system."""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid

from tiersidecar.domain.ids import Uuid, is_acceptable_random_uuid


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SystemIds:
    """Ids and keys from the kernel's generator."""

    def random_uuid(self) -> Uuid:
        while not is_acceptable_random_uuid(candidate := Uuid(uuid.uuid4().bytes)):
            pass
        return candidate

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def random(self) -> float:
        return random.random()
