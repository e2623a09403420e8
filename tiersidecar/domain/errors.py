"""The one error tree of tiersidecar: fields first, the sentence from ``__str__``.

Every error belongs to one fate, decided by its base class and nowhere else (STYLE.md, tasks and supervision):

* ``RetriableError``: back off with jitter and try again;
* ``PartitionHaltedError``: this partition is parked with its reason; the others go on;
* ``FatalError``: the process ends non-zero.
"""

from __future__ import annotations


class TiersidecarError(Exception):
    """Base of all errors that tiersidecar raises on purpose."""


class RetriableError(TiersidecarError):
    """Something outside is away or busy: the same step may succeed later."""


class PartitionHaltedError(TiersidecarError):
    """One partition cannot go on without its cause being mended; no other partition is concerned.

    ``is_watched``: whoever mends it does so outside, and it is looked for as often as after an error that mends itself.
    """

    is_watched = False


class FatalError(TiersidecarError):
    """The process must not go on: wrong configuration, wrong cluster, wrong partition count."""


class StoreError(RetriableError):
    """The object store did not do what was asked.  ``key`` names the object or prefix."""

    def __init__(self, *, verb: str, key: str, reason: str) -> None:
        super().__init__(verb, key, reason)
        self.verb, self.key, self.reason = verb, key, reason

    def __str__(self) -> str:
        return f"store could not {self.verb} {self.key!r}: {self.reason}"


class ObjectNotFoundError(StoreError):
    """The object is not in the store."""


class ObjectTooLargeError(StoreError):
    """The object is larger than anything that may stand under its key; nothing of it was kept."""

    def __init__(self, *, key: str, max_bytes: int) -> None:
        super().__init__(verb="fetch", key=key, reason=f"it has more than {max_bytes} bytes")
        self.max_bytes = max_bytes


class ObjectExistsError(StoreError):
    """A conditional put found the object already there."""


class StoreStalledError(StoreError):
    """The object store neither answered nor failed in time, and the request was given up (U1)."""


class SourceStalledError(RetriableError):
    """The upload of ``key`` was given up, because what was to be stored did not come: the disk of a log dir hangs."""

    def __init__(self, *, key: str, waited_s: float) -> None:
        super().__init__(key, waited_s)
        self.key, self.waited_s = key, waited_s

    def __str__(self) -> str:
        return f"upload of {self.key!r} was given up: reading what it is made of has not moved for {self.waited_s:g} s"


class BrokerUnreachableError(RetriableError):
    """The broker did not answer, or refused the connection."""

    def __init__(self, *, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address, self.reason = address, reason

    def __str__(self) -> str:
        return f"broker at {self.address} could not be reached: {self.reason}"


class BrokerRefusedError(RetriableError):
    """The broker answered a request with an error code.  ``error`` is Kafka's name of it."""

    def __init__(self, *, api: str, subject: str, error: str, retriable: bool = True) -> None:
        super().__init__(api, subject, error)
        self.api, self.subject, self.error, self.retriable = api, subject, error, retriable

    def __str__(self) -> str:
        return f"broker refused {self.api} for {self.subject}: {self.error}"


class HistoryChangedError(RetriableError):
    """Leaders were elected whose log is another one below the end of the remote tier, after a reader had looked."""

    def __init__(self, *, subject: str, end_offset: int) -> None:
        super().__init__(subject, end_offset)
        self.subject, self.end_offset = subject, end_offset

    def __str__(self) -> str:
        return f"{self.subject} got another history below {self.end_offset} while it was read (unclean election)"


class MetadataNotReadyError(RetriableError):
    """Remote log metadata of the partition has not been replayed yet (S-096)."""

    def __init__(self, *, subject: str) -> None:
        super().__init__(subject)
        self.subject = subject

    def __str__(self) -> str:
        return f"remote log metadata of {self.subject} is not ready yet"


class PublishTimeoutError(RetriableError):
    """A published event was not read back in time (S-092); whether it is durable is unknown."""

    def __init__(self, *, subject: str, waited_ms: int) -> None:
        super().__init__(subject, waited_ms)
        self.subject, self.waited_ms = subject, waited_ms

    def __str__(self) -> str:
        return f"event of {self.subject} was not read back within {self.waited_ms} ms"


class LeaseHeldError(RetriableError):
    """Another process holds the lease, or has taken it over."""

    def __init__(self, *, name: str, holder: str) -> None:
        super().__init__(name, holder)
        self.name, self.holder = name, holder

    def __str__(self) -> str:
        return f"the lease {self.name!r} is held by {self.holder}"


class SegmentNotReadyError(RetriableError):
    """A sealed segment lacks something that the broker is still writing, such as its producer snapshot."""

    def __init__(self, *, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"segment {self.path} is not ready to be copied: {self.reason}"


class SegmentChangedError(RetriableError):
    """The files of a segment changed while it was copied: truncated, deleted or rewritten (DESIGN.md, pin)."""

    def __init__(self, *, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"segment {self.path} changed while it was copied: {self.reason}"


class PinError(RetriableError):
    """Links to a segment could not be made or removed (docs/design/0004-pins.md)."""

    def __init__(self, *, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"pin {self.path}: {self.reason}"


class QuotaExceededError(RetriableError):
    """A read was shed because a pool or the fetch quota is exhausted (S-138, S-140)."""

    def __init__(self, *, what: str, retry_after_ms: int) -> None:
        super().__init__(what, retry_after_ms)
        self.what, self.retry_after_ms = what, retry_after_ms

    def __str__(self) -> str:
        return f"{self.what} is exhausted: try again in {self.retry_after_ms} ms"


class NoMemoryLeftError(QuotaExceededError):
    """Record batches that others have opened take what memory there is for it: there will be room again."""

    def __init__(self, *, wanted_bytes: int) -> None:
        super().__init__(what="the memory for opened record batches", retry_after_ms=1000)
        self.wanted_bytes = wanted_bytes


class NotSmallError(TiersidecarError):
    """A record batch does not open to little: it is opened elsewhere, in pieces (``reading/opening.py``)."""


class TooLargeToOpenError(TiersidecarError):
    """A record batch that takes more memory to open than there is for all of them."""

    def __init__(self, *, wanted_bytes: int, most_bytes: int) -> None:
        super().__init__(wanted_bytes, most_bytes)
        self.wanted_bytes, self.most_bytes = wanted_bytes, most_bytes

    def __str__(self) -> str:
        return (
            f"a record batch takes {self.wanted_bytes} bytes to open, and read.opened.memory.bytes is {self.most_bytes}: "
            "raise it, or read the batches as they are stored"
        )


class OffsetOutOfRangeError(TiersidecarError):
    """No tier holds the offset.  ``start`` is inclusive, ``stop`` exclusive."""

    def __init__(self, *, subject: str, offset: int, start: int, stop: int) -> None:
        super().__init__(subject, offset, start, stop)
        self.subject, self.offset, self.start, self.stop = subject, offset, start, stop

    def __str__(self) -> str:
        return f"offset {self.offset} of {self.subject} is outside [{self.start}, {self.stop})"


class OffsetInHoleError(OffsetOutOfRangeError):
    """Out of range though there is data before and behind it: the remote tier has lost [``hole_start``, ``hole_stop``)."""

    def __init__(self, *, subject: str, offset: int, start: int, stop: int, hole_start: int, hole_stop: int) -> None:
        super().__init__(subject=subject, offset=offset, start=start, stop=stop)
        self.hole_start, self.hole_stop = hole_start, hole_stop

    def __str__(self) -> str:
        return f"offset {self.offset} of {self.subject} is in a hole: no segment holds [{self.hole_start}, {self.hole_stop})"


class UndecidedTransactionError(RetriableError):
    """A read_committed reader has come to ``offset``, and at or before it a transaction began, at ``first_offset``, whose end
    lies in a hole: whether it was committed is not known.  read_uncommitted readers get these records."""

    def __init__(self, *, subject: str, offset: int, first_offset: int, hole_start: int, hole_stop: int) -> None:
        super().__init__(subject, offset, first_offset, hole_start, hole_stop)
        self.subject, self.offset, self.first_offset = subject, offset, first_offset
        self.hole_start, self.hole_stop = hole_start, hole_stop

    def __str__(self) -> str:
        return (
            f"at offset {self.offset} of {self.subject} nothing is known to be committed: the transaction that began at"
            f" {self.first_offset} ended in a hole, no segment holds [{self.hole_start}, {self.hole_stop})"
        )


class OffsetBetweenTiersError(RetriableError):
    """The broker has dropped the offset, and the remote tier has not got it: it is still on its way there, as pins keep it or
    the reader's own metadata lag behind; or it is lost, which only an operator can tell.  No reader is told to skip it."""

    def __init__(self, *, subject: str, offset: int, remote_end: int, local_start: int) -> None:
        super().__init__(subject, offset, remote_end, local_start)
        self.subject, self.offset, self.remote_end, self.local_start = subject, offset, remote_end, local_start

    def __str__(self) -> str:
        return (
            f"offset {self.offset} of {self.subject} is in neither tier for now: the remote one ends at {self.remote_end}, "
            f"the broker's begins at {self.local_start}"
        )


class CorruptDataError(PartitionHaltedError):
    """Bytes that fail their own check.  ``where`` names the file or object, ``position`` the byte in it."""

    def __init__(self, *, where: str, position: int, reason: str) -> None:
        super().__init__(where, position, reason)
        self.where, self.position, self.reason = where, position, reason

    def __str__(self) -> str:
        return f"{self.where} is corrupt at byte {self.position}: {self.reason}"


class TruncatedDataError(CorruptDataError):
    """Data that end in the middle of something: damage, or a file that is still being written."""


class OffsetMapTooSmallError(PartitionHaltedError):
    """One batch has more keys than the offset map of a cleaner may hold: no round would get past it."""

    def __init__(self, *, where: str, size_bytes: int, keys: int) -> None:
        super().__init__(where, size_bytes, keys)
        self.where, self.size_bytes, self.keys = where, size_bytes, keys

    def __str__(self) -> str:
        return (
            f"{self.where}: one batch has more keys than the {self.keys} that an offset map of {self.size_bytes} bytes holds;"
            " a larger dedupe.buffer.size is needed"
        )


class DataKeyError(PartitionHaltedError):
    """The data key of a segment cannot be opened with the keys that are configured."""

    def __init__(self, *, key_id: str, reason: str) -> None:
        super().__init__(key_id, reason)
        self.key_id, self.reason = key_id, reason

    def __str__(self) -> str:
        return f"data key under key id {self.key_id!r} cannot be opened: {self.reason}"


class IllegalTransitionError(PartitionHaltedError):
    """An event that the state machine forbids (DESIGN.md section 4, rule 5)."""

    def __init__(self, *, segment: str, source: str, target: str) -> None:
        super().__init__(segment, source, target)
        self.segment, self.source, self.target = segment, source, target

    def __str__(self) -> str:
        return f"segment {self.segment} cannot go from {self.source} to {self.target}"


class UnknownSegmentError(PartitionHaltedError):
    """An update names a segment that no event has added (T-63)."""

    def __init__(self, *, segment: str) -> None:
        super().__init__(segment)
        self.segment = segment

    def __str__(self) -> str:
        return f"segment {self.segment} is not known"


class SegmentWithoutEpochError(PartitionHaltedError):
    """A segment with offsets that no leader epoch is known for: it can never be read where it is remote."""

    def __init__(self, *, subject: str, reason: str) -> None:
        super().__init__(subject, reason)
        self.subject, self.reason = subject, reason

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason}"


class CustomMetadataTooLargeError(PartitionHaltedError):
    """Custom metadata over ``remote.log.metadata.custom.metadata.max.bytes`` (S-040, S-296)."""

    def __init__(self, *, segment: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(segment, size_bytes, limit_bytes)
        self.segment, self.size_bytes, self.limit_bytes = segment, size_bytes, limit_bytes

    def __str__(self) -> str:
        return (
            f"custom metadata of segment {self.segment} has {self.size_bytes} bytes, more than the limit of "
            f"{self.limit_bytes}: leave OBJECT_PREFIX or OBJECT_KEY out of custom.metadata.fields.include, shorten "
            "key.prefix, or raise remote.log.metadata.custom.metadata.max.bytes"
        )


class LogDirError(PartitionHaltedError):
    """A log dir, or a file in it, could not be read."""

    def __init__(self, *, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"log dir {self.path} cannot be used: {self.reason}"


class NotOwnedError(PartitionHaltedError):
    """The remote data of a topic id are another cluster's, as the owner object in the store says, or nobody can tell."""

    def __init__(self, *, topic: str, key: str, reason: str) -> None:
        super().__init__(topic, key, reason)
        self.topic, self.key, self.reason = topic, key, reason

    def __str__(self) -> str:
        return f"the remote data of {self.topic} are not this cluster's: {self.key} {self.reason}"


class OwnerMissingError(PartitionHaltedError):
    """The store has no owner object of a topic id whose segments were seen in it: it is not the store that it was."""

    is_watched = True

    def __init__(self, *, topic: str, topic_id: str, key: str) -> None:
        super().__init__(topic, topic_id, key)
        self.topic, self.topic_id, self.key = topic, topic_id, key

    def __str__(self) -> str:
        return (
            f"the store has no {self.key}, though segments of {self.topic} were copied to it: it is not the store that it was "
            "(not mounted, emptied, or another endpoint, bucket or key.prefix). Nothing is copied, trimmed or deleted until "
            f"the object is back, or an operator says `tiersidecar adopt {self.topic_id}`"
        )


class TopicLossError(PartitionHaltedError):
    """One of the sidecars' own topics has lost what it knew of a partition: another one proves it."""

    is_watched = True

    def __init__(self, *, subject: str, reason: str) -> None:
        super().__init__(subject, reason)
        self.subject, self.reason = subject, reason

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason}"


class LeaseLostError(RetriableError):
    """This process does not hold the lease of its broker's tier role now."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class NobodyDecidesError(RetriableError):
    """The sidecar of a partition's leader is of a release that carries out no delete that a gateway proposes."""

    def __init__(self, *, broker_id: int, version: str) -> None:
        super().__init__(broker_id, version)
        self.broker_id, self.version = broker_id, version

    def __str__(self) -> str:
        return (
            f"the sidecar of broker {self.broker_id} ({self.version}) decides no proposed deletes yet: upgrade it, then delete "
            "again"
        )


class StateDirError(RetriableError):
    """A file in ``state.dir`` could not be written."""

    def __init__(self, *, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path} cannot be written: {self.reason}"


class UnformattedLogDirError(LogDirError):
    """There is a directory, and no broker has formatted it yet, or what should be mounted there is not."""


class ConfigError(FatalError):
    """Configuration that cannot be used; ``faults`` has one sentence per fault, all at once."""

    def __init__(self, *, source: str, faults: tuple[str, ...]) -> None:
        super().__init__(source, faults)
        self.source, self.faults = source, faults

    def __str__(self) -> str:
        return "\n".join(f"{self.source}: {fault}" for fault in self.faults)


class ListenError(FatalError):
    """A service cannot listen on the address that it was given."""

    def __init__(self, *, service: str, address: str, reason: str) -> None:
        super().__init__(service, address, reason)
        self.service, self.address, self.reason = service, address, reason

    def __str__(self) -> str:
        return f"{self.service} cannot listen on {self.address}: {self.reason}"


class WrongClusterError(FatalError):
    """The log dirs, the broker and the topics do not belong to one cluster or node."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"wrong cluster or node: {self.reason}"


class AlreadyRunningError(FatalError):
    """Another process has the role ``tier`` beside this broker; ``pid`` is what its lock file says."""

    def __init__(self, *, directory: str, pid: str) -> None:
        super().__init__(directory, pid)
        self.directory, self.pid = directory, pid

    def __str__(self) -> str:
        return f"another tiersidecar with the role tier uses state.dir {self.directory} (pid {self.pid}): stop it first"


class PartitionCountError(FatalError):
    """The metadata topic has another partition count than configured (S-103)."""

    def __init__(self, *, topic: str, actual: int, configured: int) -> None:
        super().__init__(topic, actual, configured)
        self.topic, self.actual, self.configured = topic, actual, configured

    def __str__(self) -> str:
        return (
            f"topic {self.topic} has {self.actual} partitions but {self.configured} are configured: set "
            f"remote.log.metadata.topic.num.partitions to {self.actual}; the count can never change"
        )


class MetadataTopicUnavailableError(FatalError):
    """A topic of ours was out of reach for longer than an operator's limit allows (S-102)."""

    def __init__(self, *, topic: str, waited_ms: int, reason: str) -> None:
        super().__init__(topic, waited_ms, reason)
        self.topic, self.waited_ms, self.reason = topic, waited_ms, reason

    def __str__(self) -> str:
        return f"topic {self.topic} could not be reached for {self.waited_ms} ms: {self.reason}"


class SparkUnavailableError(FatalError):
    """A Spark session cannot be had on this machine; ``remedy`` says what to do."""

    def __init__(self, *, reason: str, remedy: str) -> None:
        super().__init__(reason, remedy)
        self.reason, self.remedy = reason, remedy

    def __str__(self) -> str:
        return f"Spark cannot be used here: {self.reason}: {self.remedy}"


class SparkJobError(TiersidecarError):
    """A job on Spark failed; ``reason`` is Spark's, with the error of the executor in it."""

    def __init__(self, *, job: str, reason: str) -> None:
        super().__init__(job, reason)
        self.job, self.reason = job, reason

    def __str__(self) -> str:
        return f"{self.job} failed on Spark: {self.reason}"


class NotLedHereError(TiersidecarError):
    """A partition was asked about that this process has no answer for; ``leader_id`` is -1 where it does not know it at all."""

    def __init__(self, *, topic: str, partition: int, leader_id: int) -> None:
        super().__init__(topic, partition, leader_id)
        self.topic, self.partition, self.leader_id = topic, partition, leader_id

    def __str__(self) -> str:
        if self.leader_id < 0:
            return f"{self.topic}-{self.partition} is no tiered partition of this broker"
        return f"{self.topic}-{self.partition} is led by broker {self.leader_id}, whose sidecar has the answer"


class ReadRefusedError(TiersidecarError):
    """The read service did not give what a command asked of it."""

    def __init__(self, *, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url, self.reason = url, reason

    def __str__(self) -> str:
        return f"the read service at {self.url}: {self.reason}"


class NoSidecarError(TiersidecarError):
    """A command found no sidecar that could answer it."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class TrashError(TiersidecarError):
    """What was asked of the trash of ``subject`` cannot be done, or was not done in full."""

    def __init__(self, *, subject: str, reason: str) -> None:
        super().__init__(subject, reason)
        self.subject, self.reason = subject, reason

    def __str__(self) -> str:
        return f"trash of {self.subject}: {self.reason}"


class HandoverError(TiersidecarError):
    """A hand-over between the sidecar and native tiering cannot go on.  ``subject`` is a topic, a file or a directory."""

    def __init__(self, *, subject: str, reason: str) -> None:
        super().__init__(subject, reason)
        self.subject, self.reason = subject, reason

    def __str__(self) -> str:
        return f"hand-over of {self.subject}: {self.reason}"


class MountRefusedError(TiersidecarError):
    """A step of ``tiersidecar mount`` would not do what it is for, or would harm what is there."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason
