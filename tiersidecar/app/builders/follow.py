"""The follow lane of the role ``tier``, the keeper of all pins, and the watch of their disks."""

from __future__ import annotations

import asyncio

from tiersidecar.app.config.config import Config
from tiersidecar.app.config.top_level import Mode
from tiersidecar.app.parts import Parts
from tiersidecar.decide.pin_room import PinLimits
from tiersidecar.tasks.disk_watch import DiskSettings, DiskWatch
from tiersidecar.tasks.follow import FollowTask
from tiersidecar.tasks.lanes import Lane
from tiersidecar.tasks.ownership import MayDelete
from tiersidecar.tasks.pictures import Pictures
from tiersidecar.tasks.pin_keeper import PinKeeper, PinSettings
from tiersidecar.tasks.trusted_copies import TrustedCopies


def build_follow(parts: Parts) -> tuple[PinKeeper, FollowTask]:
    """Build it by plain constructor calls.  The keeper has to run, or nothing is copied: it reads the pins on disk."""
    config, pins, copies = parts.config, parts.pins, TrustedCopies(parts.metadata, parts.state)
    keeper = PinKeeper(
        sources=parts.sources, edges=parts.edges, settings=pin_settings(config), pins=pins, copies=copies
    )
    follow = FollowTask(
        sources=parts.sources,
        edges=parts.edges,
        pins=pins,
        keeper=keeper,
        log_dirs=parts.log_dirs,
        copies=copies,
        slots=asyncio.Semaphore(config.remote_log_manager_follower_thread_pool_size),
        pictures=Pictures(sources=parts.sources, edges=parts.edges, pins=pins, copies=copies),
    )
    return keeper, follow


def build_disk_watch(parts: Parts, guard: MayDelete) -> DiskWatch:
    """Build it by plain constructor calls."""
    config = parts.config
    settings = DiskSettings(
        limits=pin_settings(config).limits,
        policy=config.disk_pressure_policy,
        alarm_s=config.disk_full_alarm_ms / 1000,
    )
    return DiskWatch(
        settings=settings,
        table=parts.table,
        disks=parts.pins,
        copies=TrustedCopies(parts.metadata, parts.state, places=config.places),
        why_halted=lambda topic_id_partition: parts.status.why_halted(topic_id_partition, Lane.RETAIN),
        guard=guard,
        clock=parts.clock,
        telemetry=parts.telemetry,
    )


def pin_settings(config: Config) -> PinSettings:
    """Return the settings of pins; none are made or removed but in enforce mode."""
    enforces = config.mode is Mode.ENFORCE
    return PinSettings(
        limits=PinLimits(max_bytes=config.pins_max_bytes, disk_reserve_percent=config.disk_reserve),
        makes_pins=enforces and config.pins_enabled,
        drops_pins=enforces,
    )
