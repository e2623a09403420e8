"""The sentence that each error makes of its fields, word for word."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from tiersidecar.domain import errors
from tiersidecar.domain.errors import (
    BrokerRefusedError,
    FatalError,
    NotLedHereError,
    OwnerMissingError,
    PartitionHaltedError,
    RetriableError,
    StoreError,
    TiersidecarError,
    WrongPlaceError,
)

MESSAGES: list[tuple[str, dict[str, Any], str]] = [
    (
        "AlreadyRunningError",
        {"directory": "a directory", "pid": "a pid"},
        "another tiersidecar with the role tier uses state.dir a directory (pid a pid): stop it first",
    ),
    (
        "BrokerRefusedError",
        {"api": "a api", "subject": "a subject", "error": "a error"},
        "broker refused a api for a subject: a error",
    ),
    (
        "BrokerUnreachableError",
        {"address": "a address", "reason": "a reason"},
        "broker at a address could not be reached: a reason",
    ),
    (
        "CleanedBeforePinnedError",
        {"subject": "a subject", "reason": "a reason"},
        "a subject: a reason: tombstones may have been removed, and a copy could restore old values",
    ),
    ("ConfigError", {"source": "a source", "faults": ("first", "second")}, "a source: first\na source: second"),
    (
        "CorruptDataError",
        {"where": "a where", "position": 22, "reason": "a reason"},
        "a where is corrupt at byte 22: a reason",
    ),
    (
        "CustomMetadataTooLargeError",
        {"segment": "a segment", "size_bytes": 22, "limit_bytes": 33},
        "custom metadata of segment a segment has 22 bytes, more than the limit of 33: leave OBJECT_PREFIX "
        "or OBJECT_KEY out of custom.metadata.fields.include, shorten key.prefix, or raise "
        "remote.log.metadata.custom.metadata.max.bytes",
    ),
    (
        "DataKeyError",
        {"key_id": "a key id", "reason": "a reason"},
        "data key under key id 'a key id' cannot be opened: a reason",
    ),
    ("HandoverError", {"subject": "a subject", "reason": "a reason"}, "hand-over of a subject: a reason"),
    (
        "HistoryChangedError",
        {"subject": "a subject", "end_offset": 22},
        "a subject got another history below 22 while it was read (unclean election)",
    ),
    (
        "IllegalTransitionError",
        {"segment": "a segment", "source": "a source", "target": "a target"},
        "segment a segment cannot go from a source to a target",
    ),
    (
        "KeyRefusedError",
        {"verb": "wrap", "key_id": "a key id", "reason": "a reason"},
        "key 'a key id' may not wrap data keys: a reason",
    ),
    (
        "KeyServiceError",
        {"service": "a service", "verb": "unwrap", "reason": "a reason"},
        "a service could not unwrap a data key: a reason",
    ),
    ("LeaseHeldError", {"name": "a name", "holder": "a holder"}, "the lease 'a name' is held by a holder"),
    ("LeaseLostError", {"reason": "a reason"}, "a reason"),
    (
        "ListenError",
        {"service": "a service", "address": "a address", "reason": "a reason"},
        "a service cannot listen on a address: a reason",
    ),
    ("LogDirError", {"path": "a path", "reason": "a reason"}, "log dir a path cannot be used: a reason"),
    ("MetadataNotReadyError", {"subject": "a subject"}, "remote log metadata of a subject is not ready yet"),
    (
        "MetadataTopicUnavailableError",
        {"topic": "a topic", "waited_ms": 22, "reason": "a reason"},
        "topic a topic could not be reached for 22 ms: a reason",
    ),
    ("MountRefusedError", {"reason": "a reason"}, "a reason"),
    (
        "NoMemoryLeftError",
        {"wanted_bytes": 11},
        "the memory for opened record batches is exhausted: try again in 1000 ms",
    ),
    ("NoSidecarError", {"reason": "a reason"}, "a reason"),
    (
        "NobodyDecidesError",
        {"broker_id": 11, "version": "a version"},
        "the sidecar of broker 11 (a version) decides no proposed deletes yet: upgrade it, then delete again",
    ),
    (
        "NotLedHereError",
        {"topic": "a topic", "partition": 22, "leader_id": 33},
        "a topic-22 is led by broker 33, whose sidecar has the answer",
    ),
    (
        "NotOwnedError",
        {"topic": "a topic", "key": "a key", "reason": "a reason"},
        "the remote data of a topic are not this cluster's: a key a reason",
    ),
    ("NotSmallError", {}, ""),
    (
        "ObjectExistsError",
        {"verb": "a verb", "key": "a key", "reason": "a reason"},
        "store could not a verb 'a key': a reason",
    ),
    (
        "ObjectNotFoundError",
        {"verb": "a verb", "key": "a key", "reason": "a reason"},
        "store could not a verb 'a key': a reason",
    ),
    (
        "ObjectTooLargeError",
        {"key": "a key", "max_bytes": 22},
        "store could not fetch 'a key': it has more than 22 bytes",
    ),
    (
        "OffsetBetweenTiersError",
        {"subject": "a subject", "offset": 22, "remote_end": 33, "local_start": 44},
        "offset 22 of a subject is in neither tier for now: the remote one ends at 33, the broker's begins at 44",
    ),
    (
        "OffsetInHoleError",
        {"subject": "a subject", "offset": 22, "start": 33, "stop": 44, "hole_start": 55, "hole_stop": 66},
        "offset 22 of a subject is in a hole: no segment holds [55, 66)",
    ),
    (
        "OffsetMapTooSmallError",
        {"where": "a where", "size_bytes": 22, "keys": 33},
        "a where: one batch has more keys than the 33 that an offset map of 22 bytes holds; a larger "
        "dedupe.buffer.size is needed",
    ),
    (
        "OffsetOutOfRangeError",
        {"subject": "a subject", "offset": 22, "start": 33, "stop": 44},
        "offset 22 of a subject is outside [33, 44)",
    ),
    (
        "OwnerMissingError",
        {"topic": "a topic", "topic_id": "a topic id", "key": "a key"},
        "the store has no a key, though segments of a topic were copied to it: it is not the same store "
        "as before (not mounted, emptied, or another endpoint, bucket or key.prefix). Nothing is copied, trimmed "
        "or deleted until the object is back, or an operator runs `tiersidecar adopt a topic id`",
    ),
    (
        "PartitionCountError",
        {"topic": "a topic", "actual": 22, "configured": 33},
        "topic a topic has 22 partitions but 33 are configured: set remote.log.metadata.topic.num.partitions "
        "to 22; the count can never change",
    ),
    ("PinError", {"path": "a path", "reason": "a reason"}, "pin a path: a reason"),
    (
        "PublishTimeoutError",
        {"subject": "a subject", "waited_ms": 22},
        "event of a subject was not read back within 22 ms",
    ),
    ("QuotaExceededError", {"what": "a what", "retry_after_ms": 22}, "a what is exhausted: try again in 22 ms"),
    ("ReadRefusedError", {"url": "a url", "reason": "a reason"}, "the read service at a url: a reason"),
    (
        "SegmentChangedError",
        {"path": "a path", "reason": "a reason"},
        "segment a path changed while it was copied: a reason",
    ),
    (
        "SegmentNotReadyError",
        {"path": "a path", "reason": "a reason"},
        "segment a path is not ready to be copied: a reason",
    ),
    ("SegmentWithoutEpochError", {"subject": "a subject", "reason": "a reason"}, "a subject: a reason"),
    (
        "SourceStalledError",
        {"key": "a key", "waited_s": 1.5},
        "upload of 'a key' was given up: reading its source has made no progress for 1.5 s",
    ),
    ("SparkJobError", {"job": "a job", "reason": "a reason"}, "a job failed on Spark: a reason"),
    (
        "SparkUnavailableError",
        {"reason": "a reason", "remedy": "a remedy"},
        "Spark cannot be used here: a reason: a remedy",
    ),
    ("StateDirError", {"path": "a path", "reason": "a reason"}, "a path cannot be written: a reason"),
    (
        "StoreError",
        {"verb": "a verb", "key": "a key", "reason": "a reason"},
        "store could not a verb 'a key': a reason",
    ),
    (
        "CleanedByLostRecordsError",
        {"subject": "a subject", "reason": "a reason"},
        "a subject: a reason: the remote log may lack keys that the broker still has",
    ),
    (
        "UncleanedError",
        {"subject": "a subject", "offset": 22, "reason": "a reason"},
        "a subject still has, at offset 22, a reason: it is not trimmed yet",
    ),
    (
        "UnknownPlaceError",
        {"verb": "a verb", "key": "a key", "place": "a place"},
        "store could not a verb 'a key': it lies in place 'a place', which the configuration does not name: put it back under "
        "places",
    ),
    (
        "PlaceRemovedError",
        {"subject": "a subject", "place": "a place", "count": 22},
        "22 remote segments of a subject lie in place 'a place', which the configuration does not name: put it back under "
        "places. Remove it only once they have expired",
    ),
    (
        "StoreStalledError",
        {"verb": "a verb", "key": "a key", "reason": "a reason"},
        "store could not a verb 'a key': a reason",
    ),
    (
        "TooLargeToOpenError",
        {"wanted_bytes": 11, "most_bytes": 22},
        "a record batch takes 11 bytes to open, and read.opened.memory.bytes is 22: raise it, or read the "
        "batches as they are stored",
    ),
    ("TopicLossError", {"subject": "a subject", "reason": "a reason"}, "a subject: a reason"),
    ("TrashError", {"subject": "a subject", "reason": "a reason"}, "trash of a subject: a reason"),
    ("ErasureError", {"subject": "a topic", "reason": "a reason"}, "erasure of a topic: a reason"),
    ("CompactionError", {"subject": "a topic", "reason": "a reason"}, "compaction of a topic: a reason"),
    (
        "TruncatedDataError",
        {"where": "a where", "position": 22, "reason": "a reason"},
        "a where is corrupt at byte 22: a reason",
    ),
    (
        "UndecidedTransactionError",
        {"subject": "a subject", "offset": 22, "first_offset": 33, "hole_start": 44, "hole_stop": 55},
        "at offset 22 of a subject no record is known to be committed: the transaction that began at 33 ended "
        "in a hole, no segment holds [44, 55)",
    ),
    ("UnformattedLogDirError", {"path": "a path", "reason": "a reason"}, "log dir a path cannot be used: a reason"),
    ("UnknownSegmentError", {"segment": "a segment"}, "segment a segment is not known"),
    ("WrongClusterError", {"reason": "a reason"}, "wrong cluster or node: a reason"),
    (
        "WrongPlaceError",
        {"topic": "a topic", "topic_id": "a topic id", "key": "a key", "here": "a here", "said": "a said"},
        "the store of a here is that of a said, as its a key says: correct section store and places, of which two may be "
        "exchanged. Nothing of a topic is copied, trimmed or deleted until then. If the place was renamed, run "
        "`tiersidecar adopt a topic id`",
    ),
    (
        "WrongSourceError",
        {"actual": "a cluster", "planned": "a plan's"},
        "source.bootstrap.servers lead to cluster a cluster, but source.mount.plan is of cluster a plan's",
    ),
]


@pytest.mark.parametrize(("name", "fields", "message"), MESSAGES, ids=[name for name, _, _ in MESSAGES])
def test_an_error_says_what_happened_and_keeps_its_fields(name: str, fields: dict[str, Any], message: str) -> None:
    error = getattr(errors, name)(**fields)
    assert str(error) == message
    assert {field: getattr(error, field) for field in fields} == fields


@pytest.mark.parametrize(("name", "fields"), [row[:2] for row in MESSAGES], ids=[name for name, _, _ in MESSAGES])
@pytest.mark.parametrize(
    "copied",
    [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deep"],
)
def test_a_copy_of_an_error_says_the_same(
    copied: Callable[[TiersidecarError], TiersidecarError], name: str, fields: dict[str, Any]
) -> None:
    """An error that goes to another process arrives as what it is, instead of as a TypeError of its constructor."""
    error = getattr(errors, name)(**fields)
    other = copied(error)
    assert type(other) is type(error)
    assert (str(other), other.args, vars(other)) == (str(error), error.args, vars(error))


def test_every_error_is_in_the_table() -> None:
    bases = {TiersidecarError, RetriableError, PartitionHaltedError, FatalError}
    found = {
        name
        for name, error in inspect.getmembers(errors, inspect.isclass)
        if issubclass(error, TiersidecarError) and error not in bases
    }
    assert found == {name for name, _, _ in MESSAGES}


def test_a_partition_that_nobody_here_knows_has_a_sentence_of_its_own() -> None:
    error = NotLedHereError(topic="orders", partition=3, leader_id=-1)
    assert str(error) == "orders-3 is not a tiered partition of this broker"


def test_a_refusal_is_retriable_unless_it_says_otherwise() -> None:
    refused: dict[str, Any] = {"api": "Fetch", "subject": "orders-0", "error": "TOPIC_AUTHORIZATION_FAILED"}
    assert BrokerRefusedError(**refused).retriable
    assert not BrokerRefusedError(**refused, retriable=False).retriable


def test_two_errors_of_the_same_fields_are_two_errors() -> None:
    """Whoever keeps errors in a set, or compares the last one with the one before, means this very one."""
    first, second = (StoreError(verb="fetch", key="a", reason="b") for _ in range(2))
    assert first != second
    assert len({first, second}) == 2


def test_braces_in_a_field_stay_as_they_are() -> None:
    assert str(StoreError(verb="fetch", key="{key}", reason="{0}")) == "store could not fetch '{key}': {0}"


def test_who_watches_for_a_remedy_is_said_by_the_class() -> None:
    assert OwnerMissingError.is_watched
    assert WrongPlaceError.is_watched
    assert not PartitionHaltedError.is_watched
