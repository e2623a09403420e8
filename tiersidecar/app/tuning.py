"""The settings that a reload of the configuration changes while the process runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.config.config import Config
from tiersidecar.decide.quota import UNLIMITED_BYTES_PER_S, RateQuota
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.shares import Shared, Shares
from tiersidecar.reading.disk_cache import CacheBound
from tiersidecar.tasks.copy_admission import CopySlots

RELOADABLE = frozenset(
    {
        "copy.backfill.max.bytes.per.second",
        "remote.log.index.file.cache.total.size.bytes",
        "remote.log.manager.copier.thread.pool.size",
        "remote.log.manager.copy.max.bytes.per.second",
        "remote.log.manager.fetch.max.bytes.per.second",
        "read.store.requests.per.minute",
        "store.upload.rate.limit.bytes.per.second",
    }
)
"""Keys that :meth:`Tuning.apply` puts into force; every other one needs a restart."""


_LEAST_RATE = 1024 * 1024
"""The least ``upload.rate.limit.bytes.per.second``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The settings in force: a holder of one of these objects uses a new rate or size from its next step on."""

    upload_pace: UploadPace
    copy_slots: CopySlots
    copy_quota: RateQuota
    backfill_quota: RateQuota
    fetch_quota: RateQuota
    store_requests: RateQuota
    index_cache: CacheBound

    def apply(self, config: Config) -> None:
        """Put what ``config`` says into force."""
        self.upload_pace.bytes_per_s = _upload_rate(config)
        self.copy_slots.size = config.remote_log_manager_copier_thread_pool_size
        self.copy_quota.bytes_per_s = config.remote_log_manager_copy_max_bytes_per_second
        self.backfill_quota.bytes_per_s = config.copy_backfill_max_bytes_per_second
        self.fetch_quota.bytes_per_s = config.remote_log_manager_fetch_max_bytes_per_second
        self.store_requests.bytes_per_s = _per_s(config.read.store_requests_per_minute)
        self.index_cache.max_bytes = config.remote_log_index_file_cache_total_size_bytes

    def look_again(self, now_s: float) -> None:
        """Show other processes what is left of what was taken of shared quotas."""
        self.fetch_quota.look_again(now_s)
        self.store_requests.look_again(now_s)


def initial_tuning(config: Config, clock: Clock, shares: Shares | None = None) -> Tuning:
    """Return the tuning that ``config`` has at start; what is read counts for all processes of ``shares`` together."""
    return Tuning(
        upload_pace=UploadPace(_upload_rate(config), clock),
        copy_slots=CopySlots(
            config.remote_log_manager_copier_thread_pool_size, reserved=1, places=config.places_of_topics
        ),
        backfill_quota=RateQuota(
            bytes_per_s=config.copy_backfill_max_bytes_per_second,
            window_num=config.remote_log_manager_copy_quota_window_num,
            window_size_s=config.remote_log_manager_copy_quota_window_size_seconds,
        ),
        copy_quota=RateQuota(
            bytes_per_s=config.remote_log_manager_copy_max_bytes_per_second,
            window_num=config.remote_log_manager_copy_quota_window_num,
            window_size_s=config.remote_log_manager_copy_quota_window_size_seconds,
        ),
        fetch_quota=_shared(
            RateQuota(
                bytes_per_s=config.remote_log_manager_fetch_max_bytes_per_second,
                window_num=config.remote_log_manager_fetch_quota_window_num,
                window_size_s=config.remote_log_manager_fetch_quota_window_size_seconds,
            ),
            Shared.FETCH_QUOTA,
            shares,
        ),
        store_requests=_shared(
            RateQuota(bytes_per_s=_per_s(config.read.store_requests_per_minute), window_num=1, window_size_s=60),
            Shared.STORE_REQUESTS,
            shares,
        ),
        index_cache=CacheBound(config.remote_log_index_file_cache_total_size_bytes),
    )


def _shared(quota: RateQuota, what: Shared, shares: Shares | None) -> RateQuota:
    if shares is not None:
        quota.others, quota.show = partial(shares.everywhere_else, what), partial(shares.show, what)
    return quota


def _upload_rate(config: Config) -> int | None:
    """Return bytes per second within uploads; None: no limit.

    The copy quota lets whole segments in, and averages over no more than its windows: a segment that went as fast as it can
    would be a burst of the disk and of a core, and one larger than all windows' worth would be forgotten before it is paid
    for (U14).  Below 1 MiB/s only the average holds: a slower upload would be taken for a dead one by servers.
    """
    limit = config.store.upload_rate_limit_bytes_per_second
    quota = max(config.remote_log_manager_copy_max_bytes_per_second, _LEAST_RATE)
    if quota >= UNLIMITED_BYTES_PER_S:
        return limit
    return quota if limit is None else min(limit, quota)


def _per_s(per_minute: int | None) -> float:
    return UNLIMITED_BYTES_PER_S if per_minute is None else per_minute / 60
