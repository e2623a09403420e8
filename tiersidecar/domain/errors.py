"""The one error tree of tiersidecar: an error is its fields, and a sentence made of them.

Every error belongs to one fate, decided by its base class and nowhere else (STYLE.md, tasks and supervision):

* ``RetriableError``: back off with jitter and try again;
* ``PartitionHaltedError``: this partition is parked with its reason; the others go on;
* ``FatalError``: the process ends non-zero.

docs/operations/errors.md has a row for each: message, cause and remedy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, dataclass_transform


@dataclass_transform(kw_only_default=True, eq_default=False)
class TiersidecarError(Exception):
    """Base of all errors that tiersidecar raises on purpose.

    A subclass is a dataclass without a decorator; ``message`` is its sentence, with the fields' names in braces.
    """

    _message: ClassVar[str] = ""

    def __init_subclass__(cls, *, message: str | None = None) -> None:
        if message is not None:
            cls._message = message
        dataclass(kw_only=True, eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        self.args = tuple(vars(self).values())

    def __str__(self) -> str:
        return self._message.format_map(vars(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by fields: constructors take them by name."""
        return _of_class, (type(self), self.args), vars(self)


def _of_class(kind: type[TiersidecarError], args: tuple[object, ...]) -> TiersidecarError:
    """Return an error of ``kind`` whose fields are set later."""
    error = kind.__new__(kind)
    error.args = args
    return error


class RetriableError(TiersidecarError):
    """An outside system is away or busy: the same step may succeed later."""


class PartitionHaltedError(TiersidecarError):
    """One partition cannot go on until its cause is mended; no other partition is affected.

    ``is_watched``: the cause is mended outside, and is checked as often as after an error that mends itself.
    """

    is_watched: ClassVar[bool] = False


class FatalError(TiersidecarError):
    """The process must not go on: wrong configuration, wrong cluster, wrong partition count."""


@dataclass(kw_only=True, eq=False, repr=False)
class _Because:
    reason: str


@dataclass(kw_only=True, eq=False, repr=False)
class _AtPath:
    path: str
    reason: str


@dataclass(kw_only=True, eq=False, repr=False)
class _OfSubject:
    subject: str
    reason: str


class StoreError(RetriableError, message="store could not {verb} {key!r}: {reason}"):
    """The object store failed an operation.  ``key`` names the object or prefix.  ``is_away``: there was no answer, or one that
    says that the store can serve no caller now; any other says something of this object, or of our rights."""

    verb: str
    key: str
    reason: str
    is_away: bool = False


class ObjectNotFoundError(StoreError):
    """The object is not in the store."""


class UnknownPlaceError(StoreError):
    """The object lies in a place that the configuration does not have (any more)."""

    def __init__(self, *, verb: str, key: str, place: str) -> None:
        reason = f"it lies in place {place!r}, which the configuration does not name: put it back under places"
        super().__init__(verb=verb, key=key, reason=reason)
        self.place = place


class ObjectTooLargeError(StoreError):
    """The object is larger than anything that may stand under its key; nothing of it was kept."""

    def __init__(self, *, key: str, max_bytes: int) -> None:
        super().__init__(verb="fetch", key=key, reason=f"it has more than {max_bytes} bytes")
        self.max_bytes = max_bytes


class ObjectExistsError(StoreError):
    """A conditional put found an object there already."""


class StoreStalledError(StoreError):
    """The object store neither answered nor failed in time, and the request was given up (U1)."""

    is_away: bool = True


class SourceStalledError(
    RetriableError,
    message="upload of {key!r} was given up: reading its source has made no progress for {waited_s:g} s",
):
    """The upload of ``key`` was given up, because its source did not deliver: the disk of a log dir hangs."""

    key: str
    waited_s: float


class BrokerUnreachableError(RetriableError, message="broker at {address} could not be reached: {reason}"):
    """The broker did not answer, or refused the connection."""

    address: str
    reason: str


class BrokerRefusedError(RetriableError, message="broker refused {api} for {subject}: {error}"):
    """The broker answered a request with an error code.  ``error`` is Kafka's name of it."""

    api: str
    subject: str
    error: str
    retriable: bool = True

    @property
    def is_missing_right(self) -> bool:
        """Return whether an ACL is missing, which no waiting cures; clients of aiokafka have its own names of errors."""
        return "AUTHORIZATION_FAILED" in self.error or "AuthorizationFailed" in self.error


class WrongSourceError(
    RetriableError,
    message="source.bootstrap.servers lead to cluster {actual}, but source.mount.plan is of cluster {planned}",
):
    """The source of a read-only mount is another cluster than the plan's: what it says is of another history."""

    actual: str
    planned: str


class HistoryChangedError(
    RetriableError,
    message="{subject} got another history below {end_offset} while it was read (unclean election)",
):
    """An election chose a leader with another log below the end of the remote tier, after a reader had looked."""

    subject: str
    end_offset: int


class MetadataNotReadyError(RetriableError, message="remote log metadata of {subject} is not ready yet"):
    """Remote log metadata of the partition has not been replayed yet (S-096)."""

    subject: str


class PublishTimeoutError(RetriableError, message="event of {subject} was not read back within {waited_ms} ms"):
    """A published event was not read back in time (S-092); whether it is durable is unknown."""

    subject: str
    waited_ms: int


class LeaseHeldError(RetriableError, message="the lease {name!r} is held by {holder}"):
    """Another process holds the lease, or has taken it over."""

    name: str
    holder: str


class SegmentNotReadyError(_AtPath, RetriableError, message="segment {path} is not ready to be copied: {reason}"):
    """A sealed segment lacks something that the broker is still writing, such as its producer snapshot."""


class SegmentChangedError(_AtPath, RetriableError, message="segment {path} changed while it was copied: {reason}"):
    """The files of a segment changed while it was copied: truncated, deleted or rewritten."""


class PinError(_AtPath, RetriableError, message="pin {path}: {reason}"):
    """Links to a segment could not be made or removed (docs/design/0004-pins.md)."""


class QuotaExceededError(RetriableError, message="{what} is exhausted: try again in {retry_after_ms} ms"):
    """A read was shed because a pool or the fetch quota is exhausted (S-138, S-140)."""

    what: str
    retry_after_ms: int


class NoMemoryLeftError(QuotaExceededError):
    """Opened record batches of other reads take all the memory for them: there will be room again."""

    def __init__(self, *, wanted_bytes: int) -> None:
        super().__init__(what="the memory for opened record batches", retry_after_ms=1000)
        self.wanted_bytes = wanted_bytes


class NotSmallError(TiersidecarError):
    """A record batch does not open to little: it is opened elsewhere, in pieces (``reading/opening.py``)."""


class TooLargeToOpenError(
    TiersidecarError,
    message="a record batch takes {wanted_bytes} bytes to open, and read.opened.memory.bytes is {most_bytes}: raise it, "
    "or read the batches as they are stored",
):
    """A record batch that takes more memory to open than there is for all of them."""

    wanted_bytes: int
    most_bytes: int


class OffsetOutOfRangeError(TiersidecarError, message="offset {offset} of {subject} is outside [{start}, {stop})"):
    """No tier holds the offset.  ``start`` is inclusive, ``stop`` exclusive."""

    subject: str
    offset: int
    start: int
    stop: int


class OffsetInHoleError(
    OffsetOutOfRangeError,
    message="offset {offset} of {subject} is in a hole: no segment holds [{hole_start}, {hole_stop})",
):
    """Out of range though there is data before and behind it: the remote tier has lost [``hole_start``, ``hole_stop``)."""

    hole_start: int
    hole_stop: int


class UndecidedTransactionError(
    RetriableError,
    message="at offset {offset} of {subject} no record is known to be committed: the transaction that began at "
    "{first_offset} ended in a hole, no segment holds [{hole_start}, {hole_stop})",
):
    """A read_committed reader has come to ``offset``, and at or before it a transaction began, at ``first_offset``, whose end
    lies in a hole: whether it was committed is not known.  read_uncommitted readers get these records."""

    subject: str
    offset: int
    first_offset: int
    hole_start: int
    hole_stop: int


class OffsetBetweenTiersError(
    RetriableError,
    message="offset {offset} of {subject} is in neither tier for now: the remote one ends at {remote_end}, the broker's "
    "begins at {local_start}",
):
    """The broker has dropped the offset, and the remote tier has not got it: it is still on its way there, as pins keep it or
    the reader's own metadata lag behind; or it is lost, which only an operator can find out.  No reader is made to skip it."""

    subject: str
    offset: int
    remote_end: int
    local_start: int


class CorruptDataError(PartitionHaltedError, message="{where} is corrupt at byte {position}: {reason}"):
    """Bytes that fail their own check.  ``where`` names the file or object, ``position`` the byte in it."""

    where: str
    position: int
    reason: str


class TruncatedDataError(CorruptDataError):
    """Data that end in the middle of something: damage, or a file that is still being written."""


class OffsetMapTooSmallError(
    PartitionHaltedError,
    message="{where}: one batch has more keys than the {keys} that an offset map of {size_bytes} bytes holds; a larger "
    "dedupe.buffer.size is needed",
):
    """One batch has more keys than the offset map of a cleaner may hold: no round would get past it."""

    where: str
    size_bytes: int
    keys: int


class PlaceRemovedError(
    PartitionHaltedError,
    message="{count} remote segments of {subject} lie in place {place!r}, which the configuration does not name: put it back "
    "under places. Remove it only once they have expired",
):
    """Segments lie in a place that was taken out of the configuration: nothing of the partition is copied, trimmed or expired,
    for the objects could be neither read nor deleted; but see ``disk.pressure.policy: drop-oldest``, which waits for no place
    once a disk is full."""

    is_watched: ClassVar[bool] = True
    subject: str
    place: str
    count: int


class CleanedBeforePinnedError(
    _OfSubject,
    PartitionHaltedError,
    message="{subject}: {reason}: tombstones may have been removed, and a copy could restore old values",
):
    """A broker's cleaner may have taken away what had to be pinned first: this broker's, or that of the one it fetched from."""


class CleanedByLostRecordsError(
    _OfSubject,
    PartitionHaltedError,
    message="{subject}: {reason}: the remote log may lack keys that the broker still has",
):
    """What a cleaner took out of the remote log had been replaced by records that are in no log any more."""


class UncleanedError(
    _OfSubject, RetriableError, message="{subject} still has, at offset {offset}, {reason}: it is not trimmed yet"
):
    """The local log of a compacted topic has what a reader of the remote one would miss, until the broker's cleaner removes
    it."""

    offset: int
    reason: str


class DataKeyError(PartitionHaltedError, message="data key under key id {key_id!r} cannot be opened: {reason}"):
    """The data key of a segment cannot be opened with the keys that are configured."""

    key_id: str
    reason: str


class KeyRefusedError(PartitionHaltedError, message="key {key_id!r} may not {verb} data keys: {reason}"):
    """The key service refuses, and an operator has to do what the reason says.  No segment is damaged."""

    verb: str
    key_id: str
    reason: str


class KeyServiceError(RetriableError, message="{service} could not {verb} a data key: {reason}"):
    """The key service gave no data key.  No segment is damaged.  ``is_away``: it did not answer, failed, or turns callers away
    for now, so that no other request would fare better, or with ``key_id`` none under that key; else another may succeed."""

    service: str
    verb: str
    reason: str
    is_away: bool = True
    key_id: str = ""


class IllegalTransitionError(PartitionHaltedError, message="segment {segment} cannot go from {source} to {target}"):
    """An event that the state machine forbids."""

    segment: str
    source: str
    target: str


class UnknownSegmentError(PartitionHaltedError, message="segment {segment} is not known"):
    """An update names a segment that no event has added (T-63)."""

    segment: str


class SegmentWithoutEpochError(_OfSubject, PartitionHaltedError, message="{subject}: {reason}"):
    """A segment with offsets without a known leader epoch: it could never be read once it is remote."""


class CustomMetadataTooLargeError(
    PartitionHaltedError,
    message="custom metadata of segment {segment} has {size_bytes} bytes, more than the limit of {limit_bytes}: leave "
    "OBJECT_PREFIX or OBJECT_KEY out of custom.metadata.fields.include, shorten key.prefix, or raise "
    "remote.log.metadata.custom.metadata.max.bytes",
):
    """Custom metadata over ``remote.log.metadata.custom.metadata.max.bytes`` (S-040, S-296)."""

    segment: str
    size_bytes: int
    limit_bytes: int


class LogDirError(_AtPath, PartitionHaltedError, message="log dir {path} cannot be used: {reason}"):
    """A log dir, or a file in it, could not be read."""


class NotOwnedError(PartitionHaltedError, message="the remote data of {topic} are not this cluster's: {key} {reason}"):
    """The remote data of a topic id are another cluster's, by the owner object in the store, or their owner is not known."""

    topic: str
    key: str
    reason: str


class OwnerMissingError(
    PartitionHaltedError,
    message="the store has no {key}, though segments of {topic} were copied to it: it is not the same store as before (not "
    "mounted, emptied, or another endpoint, bucket or key.prefix). Nothing is copied, trimmed or deleted until "
    "the object is back, or an operator runs `tiersidecar adopt {topic_id}`",
):
    """The store has no owner object of a topic id whose segments were seen in it: it is not the same store as before."""

    is_watched: ClassVar[bool] = True
    topic: str
    topic_id: str
    key: str


class WrongPlaceError(
    PartitionHaltedError,
    message="the store of {here} is that of {said}, as its {key} says: correct section store and places, of which two may be "
    "exchanged. Nothing of {topic} is copied, trimmed or deleted until then. If the place was renamed, run `tiersidecar adopt "
    "{topic_id}`",
):
    """The store that the configuration gives a place is another place's, by the owner object of a topic id in it."""

    is_watched: ClassVar[bool] = True
    topic: str
    topic_id: str
    key: str
    here: str
    said: str


class TopicLossError(_OfSubject, PartitionHaltedError, message="{subject}: {reason}"):
    """One of the sidecars' own topics has lost its records of a partition: another one proves it."""

    is_watched: ClassVar[bool] = True


class LeaseLostError(_Because, RetriableError, message="{reason}"):
    """This process does not hold the lease of its broker's tier role now."""


class NobodyDecidesError(
    RetriableError,
    message="the sidecar of broker {broker_id} ({version}) decides no proposed deletes yet: upgrade it, then delete again",
):
    """The sidecar of a partition's leader is of a release that carries out no delete that a gateway proposes."""

    broker_id: int
    version: str


class StateDirError(_AtPath, RetriableError, message="{path} cannot be written: {reason}"):
    """A file in ``state.dir`` could not be written."""


class UnformattedLogDirError(LogDirError):
    """A directory that no broker has formatted yet, or where what should be mounted is not."""


class ConfigError(FatalError):
    """Configuration that cannot be used; ``faults`` has one sentence per fault, all at once."""

    source: str
    faults: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(f"{self.source}: {fault}" for fault in self.faults)


class ListenError(FatalError, message="{service} cannot listen on {address}: {reason}"):
    """A service cannot listen on its configured address."""

    service: str
    address: str
    reason: str


class WrongClusterError(_Because, FatalError, message="wrong cluster or node: {reason}"):
    """The log dirs, the broker and the topics do not belong to one cluster or node."""


class AlreadyRunningError(
    FatalError,
    message="another tiersidecar with the role tier uses state.dir {directory} (pid {pid}): stop it first",
):
    """Another process has the role ``tier`` beside this broker; ``pid`` is what its lock file says."""

    directory: str
    pid: str


class PartitionCountError(
    FatalError,
    message="topic {topic} has {actual} partitions but {configured} are configured: set "
    "remote.log.metadata.topic.num.partitions to {actual}; the count can never change",
):
    """The metadata topic has another partition count than configured (S-103)."""

    topic: str
    actual: int
    configured: int


class MetadataTopicUnavailableError(
    FatalError,
    message="topic {topic} could not be reached for {waited_ms} ms: {reason}",
):
    """A topic of ours was out of reach for longer than an operator's limit allows (S-102)."""

    topic: str
    waited_ms: int
    reason: str


class SparkUnavailableError(FatalError, message="Spark cannot be used here: {reason}: {remedy}"):
    """A Spark session cannot be had on this machine; ``remedy`` says what to do."""

    reason: str
    remedy: str


class SparkJobError(TiersidecarError, message="{job} failed on Spark: {reason}"):
    """A job on Spark failed; ``reason`` is Spark's, including the executor's error."""

    job: str
    reason: str


class NotLedHereError(TiersidecarError):
    """A question about a partition that this process cannot answer; ``leader_id`` is -1 where the partition is unknown here."""

    topic: str
    partition: int
    leader_id: int

    def __str__(self) -> str:
        if self.leader_id < 0:
            return f"{self.topic}-{self.partition} is not a tiered partition of this broker"
        return f"{self.topic}-{self.partition} is led by broker {self.leader_id}, whose sidecar has the answer"


class ReadRefusedError(TiersidecarError, message="the read service at {url}: {reason}"):
    """The read service refused a command's request."""

    url: str
    reason: str


class NoSidecarError(_Because, TiersidecarError, message="{reason}"):
    """A command found no sidecar that could answer it."""


class TrashError(_OfSubject, TiersidecarError, message="trash of {subject}: {reason}"):
    """A request about the trash of ``subject`` cannot be carried out, or was not carried out in full."""


class ErasureError(_OfSubject, TiersidecarError, message="erasure of {subject}: {reason}"):
    """Records of ``subject``, a topic, cannot be erased."""


class CompactionError(_OfSubject, TiersidecarError, message="compaction of {subject}: {reason}"):
    """A partition whose remote log no command may clean."""


class HandoverError(_OfSubject, TiersidecarError, message="hand-over of {subject}: {reason}"):
    """A hand-over between the sidecar and native tiering cannot go on.  ``subject`` is a topic, a file or a directory."""


class MountRefusedError(_Because, TiersidecarError, message="{reason}"):
    """A step of ``tiersidecar mount`` would miss its purpose, or would harm what is there."""
