"""Where the crash tests end the daemon with SIGKILL: one table, in the order of the protocol (docs/design/0001 and 0003)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class StoreKind(StrEnum):
    """``S3_PARTS``: segments so big that each is a multipart upload."""

    FILESYSTEM = "filesystem"
    S3 = "S3"
    S3_PARTS = "S3 in parts"


class Job(StrEnum):
    """``TIER``: copy all, trim all but the active segment.  ``EXPIRE``: and keep only the newest remotely.
    ``EXPIRE_AFTER_STOP``: the same, once the guard has stopped it and an operator has allowed it."""

    TIER = "tier"
    EXPIRE = "expire"
    EXPIRE_AFTER_STOP = "expire after a stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashPoint:
    """``places``: failpoints and their hit numbers, each the end of one process, in turn.  ``often``: in ``make test`` too."""

    sentence: str
    places: tuple[tuple[str, int], ...]
    job: Job = Job.TIER
    store: StoreKind = StoreKind.FILESYSTEM
    often: bool = False


def _at(
    sentence: str,
    *places: tuple[str, int],
    job: Job = Job.TIER,
    store: StoreKind = StoreKind.FILESYSTEM,
    often: bool = False,
) -> CrashPoint:
    return CrashPoint(sentence=sentence, places=places, job=job, store=store, often=often)


CRASH_POINTS = (
    # a segment is pinned
    _at("its companions are linked, the .log is not", ("pin.half", 2), often=True),
    _at("pinned", ("pin.made", 3)),
    # it is copied
    _at("looked at, nothing is published", ("copy.checked", 2)),
    _at("COPY_SEGMENT_STARTED is written, not read back", ("copy.started.sent", 1)),
    _at("COPY_SEGMENT_STARTED is read back", ("copy.started.published", 3)),
    _at("half of the .log is sent", ("copy.log.half", 2), often=True),
    _at("the .log is stored", ("copy.log.stored", 1)),
    _at("the indexes are stored", ("copy.indexes.stored", 2)),
    _at("the manifest is stored", ("copy.manifest.stored", 2)),
    _at("everything is looked at once more", ("copy.proven", 3)),
    _at("COPY_SEGMENT_FINISHED is written, not read back", ("copy.finished.sent", 2), often=True),
    _at("COPY_SEGMENT_FINISHED is read back", ("copy.finished.published", 4)),
    _at("S3 has one part, or is given it", ("copy.log.half", 2), store=StoreKind.S3_PARTS),
    _at("S3 has all parts", ("copy.log.stored", 1), store=StoreKind.S3_PARTS),
    _at("S3 has the .log", ("copy.log.stored", 2), store=StoreKind.S3),
    _at("S3 has the manifest", ("copy.manifest.stored", 1), store=StoreKind.S3, often=True),
    # the pin is not needed any more
    _at("its .log is unlinked, its companions are not", ("unpin.half", 1), often=True),
    _at("unpinned", ("pin.dropped", 2)),
    # what a crash left is cleaned up, and that crashes too
    _at("the copy, then before its deletion", ("copy.log.stored", 2), ("delete.begun", 1)),
    _at("the copy, then DELETE_SEGMENT_STARTED not read back", ("copy.manifest.stored", 2), ("delete.started.sent", 1)),
    _at("the copy, then its objects deleted", ("copy.indexes.stored", 1), ("delete.objects.deleted", 1), often=True),
    _at(
        "the copy to S3, then its objects deleted",
        ("copy.manifest.stored", 2),
        ("delete.objects.deleted", 1),
        store=StoreKind.S3,
    ),
    _at(
        "the copy, then its deletion, then the copy anew",
        ("copy.manifest.stored", 2),
        ("delete.started.published", 1),
        ("copy.manifest.stored", 1),
    ),
    # the first start is said, before the first copy
    _at("the remote log start of the first copy is read back", ("copy.start.published", 1)),
    # the local log is trimmed
    _at("the remote log start is written, not read back", ("state.sent", 1)),
    _at("the remote segments are read back", ("trim.verified", 1)),
    _at("the intended trim is read back", ("trim.intended.published", 1), often=True),
    _at("settings and leadership are looked at once more", ("trim.allowed", 1)),
    _at("the records are deleted", ("trim.records.deleted", 1)),
    _at("the records are deleted, copied to S3", ("trim.records.deleted", 1), store=StoreKind.S3),
    # the oldest expire
    _at("the remote log start has moved", ("expire.start.published", 1), job=Job.EXPIRE),
    _at("a stop by the guard is read back", ("expire.stop.published", 1), job=Job.EXPIRE_AFTER_STOP),
    _at("DELETE_SEGMENT_STARTED of an expired segment is read back", ("delete.started.published", 2), job=Job.EXPIRE),
    _at("the objects of an expired segment are deleted", ("delete.objects.deleted", 2), job=Job.EXPIRE, often=True),
    _at("DELETE_SEGMENT_FINISHED is written, not read back", ("delete.finished.sent", 3), job=Job.EXPIRE),
    _at(
        "the objects of an expired segment are deleted from S3",
        ("delete.objects.deleted", 1),
        job=Job.EXPIRE,
        store=StoreKind.S3,
    ),
)
"""36 points.  Hit numbers differ so that the first segment, later ones, and those after a restart all have their crash."""
