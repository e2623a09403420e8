"""What is done to one partition, as plain data: a script runs on the simulated brokers and on Kafka alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

END = -1
"""Of :class:`DeleteRecords`: the high watermark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Produce:
    """``batches`` of ``records`` records with values of ``size`` bytes each; of ``producer``'s transaction if there is one.
    The records are ``age_s`` old, the later ones of a batch ``step_ms`` younger each."""

    batches: int = 1
    records: int = 1
    size: int = 100
    producer: str = ""
    age_s: float = 0.0
    step_ms: int = 0


@dataclass(frozen=True, slots=True)
class End:
    """The end of ``producer``'s transaction."""

    producer: str
    commit: bool = False


@dataclass(frozen=True, slots=True)
class DeleteRecords:
    """Up to ``offset`` (exclusive)."""

    offset: int


@dataclass(frozen=True, slots=True)
class Stop:
    """A controlled shutdown of ``broker``."""

    broker: int = 1


@dataclass(frozen=True, slots=True)
class Kill:
    """kill -9 of ``broker``; what it wrote is in the page cache."""

    broker: int = 1


@dataclass(frozen=True, slots=True)
class Start:
    """``broker`` is started again; what it lacks it fetches."""

    broker: int = 1


@dataclass(frozen=True, slots=True)
class LoseCheckpoints:
    """The files of offsets in the log dirs of ``broker``, which does not run, are gone."""

    broker: int = 1


@dataclass(frozen=True, slots=True)
class LoseReplica:
    """The partition's directory at ``broker``, which does not run, is gone: a replaced disk."""

    broker: int = 1


@dataclass(frozen=True, slots=True)
class MoveLogDir:
    """The replica of ``broker`` moves to its other log dir (AlterReplicaLogDirs)."""

    broker: int = 1


@dataclass(frozen=True, slots=True)
class Lead:
    """``broker``, which is in sync, leads from now on."""

    broker: int


@dataclass(frozen=True, slots=True)
class LeadUncleanly:
    """``broker`` leads from now on, though it was not in sync when the last leader went."""

    broker: int


@dataclass(frozen=True, slots=True)
class Configure:
    """Settings of the topic; None takes one away."""

    settings: Mapping[str, str | None]


Step = (
    Produce
    | End
    | DeleteRecords
    | Stop
    | Kill
    | Start
    | LoseCheckpoints
    | LoseReplica
    | MoveLogDir
    | Lead
    | LeadUncleanly
    | Configure
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """``replicas`` are the brokers that have the partition at first, of one or of three; ``segment_bytes`` is the size at which
    segments roll."""

    name: str
    steps: tuple[Step, ...]
    replicas: tuple[int, ...] = (1,)
    segment_bytes: int = 1000
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def brokers(self) -> int:
        return 1 if self.replicas == (1,) else 3
