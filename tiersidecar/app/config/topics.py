"""Which topics are tiered, and how: rules of which the first that matches counts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from tiersidecar.app.config.document import KeyPath
from tiersidecar.app.config.section import Section, refuse
from tiersidecar.app.config.values import (
    LocalRetentionBytes,
    LocalRetentionMs,
    Quantity,
    RetentionBytes,
    RetentionMs,
    shown,
)
from tiersidecar.decide.topics import INTERNAL_TOPICS
from tiersidecar.domain.policy import AS_TOTAL, UNLIMITED, RetentionMode, ShareGroupHold, TopicPolicy, TrimHolds

AS_LOCAL = -1
"""A copy lag of -1: the local retention (RemoteLogManagerConfig)."""


def _regular_expression(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        details = {"got": shown(pattern), "reason": str(error)}
        raise PydanticCustomError("pattern", "{got} is not a regular expression: {reason}", details) from None
    return pattern


def _topic_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name) or name in {".", ".."}:
        details = {"got": shown(name)}
        raise PydanticCustomError("topic", "{got} is not a topic name; use pattern for a regular expression", details)
    if name in INTERNAL_TOPICS:
        raise PydanticCustomError("topic", "{name} is internal and cannot be tiered", {"name": name})
    return name


GroupName = Annotated[str, Field(min_length=1)]
Pattern = Annotated[str, AfterValidator(_regular_expression)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionDefaults:
    """The broker-level keys, which hold for topics that say nothing else."""

    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED
    local_retention_ms: int = AS_TOTAL
    local_retention_bytes: int = AS_TOTAL
    copy_lag_ms: int = 0
    copy_lag_bytes: int = 0
    holds: TrimHolds = field(default_factory=TrimHolds)

    @property
    def policy(self) -> TopicPolicy:
        """Return the policy of a topic that no rule matches, and that ``tiersidecar enable`` tiers all the same."""
        return _with_lag(
            TopicPolicy(
                retention_ms=self.retention_ms,
                retention_bytes=self.retention_bytes,
                local_retention_ms=self.local_retention_ms,
                local_retention_bytes=self.local_retention_bytes,
                holds=self.holds,
            ),
            self.copy_lag_ms,
            self.copy_lag_bytes,
        )


class TopicRule(Section):
    """One entry of `topics`.  Retentions are per partition and default to the keys `log.…` at the top level."""

    name: Annotated[Annotated[str, AfterValidator(_topic_name)] | None, Field(examples=["orders"])] = None
    """A topic, by its exact name; either this or `pattern`."""

    pattern: Annotated[Pattern | None, Field(examples=["'orders[.].*'"])] = None
    """A regular expression for the whole name of a topic (Python's syntax). Names that begin with two underscores are
    never matched by a pattern."""

    exclude: Annotated[tuple[Pattern, ...], Field(examples=["[]"])] = ()
    """Regular expressions for topic names that this rule does not match."""

    mode: RetentionMode = RetentionMode.STRICT
    """`strict`: the broker keeps everything and the sidecar trims after copying. `race`: the broker's own retention
    applies, and records that it deletes before they are copied are missing from the remote tier."""

    retention_ms: Annotated[RetentionMs | None, Field(examples=["365d"])] = None
    """Total retention by time; default: log.retention.ms."""

    retention_bytes: Annotated[RetentionBytes | None, Field(examples=["1TiB"])] = None
    """Total retention by size; default: log.retention.bytes."""

    local_retention_ms: Annotated[LocalRetentionMs | None, Field(examples=["6h"])] = None
    """Retention on the broker's disk by time; default: log.local.retention.ms."""

    local_retention_bytes: Annotated[LocalRetentionBytes | None, Field(examples=["10GiB"])] = None
    """Retention on the broker's disk by size; default: log.local.retention.bytes."""

    place: Annotated[str | None, Field(examples=["cold"])] = None
    """The place of new segments, a name in `places`; default: section `store`. Segments that are already remote stay where
    they are."""

    remote_log_copy_disable: bool = False
    """Stop copying; remote segments stay readable and expire."""

    remote_copy_lag_ms: Annotated[RetentionMs | None, Field(examples=["1h"])] = None
    """Copy a sealed segment only when it is this old; default: log.remote.copy.lag.ms."""

    remote_copy_lag_bytes: Annotated[RetentionBytes | None, Field(examples=["1GiB"])] = None
    """Copy a sealed segment only when this many bytes follow it; default: log.remote.copy.lag.bytes."""

    trim_consumer_groups: Annotated[tuple[GroupName, ...] | None, Field(examples=["[billing]"])] = None
    """Consumer groups whose committed offsets trims do not pass; default: trim.consumer.groups at the top level."""

    trim_consumer_groups_pattern: Annotated[Pattern | None, Field(examples=["'audit-.*'"])] = None
    """The same by a regular expression for whole names; default: trim.consumer.groups.pattern at the top level."""

    trim_share_groups: ShareGroupHold | None = None
    """Effect of share groups on trims; default: trim.share.groups at the top level."""

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Self:
        faults: list[tuple[KeyPath, str]] = []
        if (self.name is None) == (self.pattern is None):
            faults.append(((), "needs either name or pattern" + (", not both" if self.name else "")))
        faults += self.faults_with(RetentionDefaults())
        refuse(faults)
        return self

    def matches(self, topic: str) -> bool:
        """Return whether this rule matches ``topic``."""
        if self.name is not None:
            return self.name == topic
        if self.pattern is None or topic.startswith("__") or not re.fullmatch(self.pattern, topic):
            return False
        return not any(re.fullmatch(excluded, topic) for excluded in self.exclude)

    def policy(self, defaults: RetentionDefaults) -> TopicPolicy:
        """Return the rule's policy; a copy lag of -1 is resolved to the local retention."""
        policy = TopicPolicy(
            mode=self.mode,
            retention_ms=_either(self.retention_ms, defaults.retention_ms),
            retention_bytes=_either(self.retention_bytes, defaults.retention_bytes),
            local_retention_ms=_either(self.local_retention_ms, defaults.local_retention_ms),
            local_retention_bytes=_either(self.local_retention_bytes, defaults.local_retention_bytes),
            copy_disabled=self.remote_log_copy_disable,
            holds=self._holds(defaults.holds),
        )
        lag_ms = _either(self.remote_copy_lag_ms, defaults.copy_lag_ms)
        lag_bytes = _either(self.remote_copy_lag_bytes, defaults.copy_lag_bytes)
        return _with_lag(policy, lag_ms, lag_bytes)

    def _holds(self, default: TrimHolds) -> TrimHolds:
        groups, pattern = self.trim_consumer_groups, self.trim_consumer_groups_pattern
        return TrimHolds(
            groups=default.groups if groups is None else groups,
            groups_pattern=default.groups_pattern if pattern is None else pattern,
            share_groups=self.trim_share_groups or default.share_groups,
        )

    def faults_with(self, defaults: RetentionDefaults) -> list[tuple[KeyPath, str]]:
        """Return retentions that contradict each other (T-77)."""
        policy = self.policy(defaults)
        return [
            *_retention_faults("ms", policy.retention_ms, policy.local_retention_ms, policy.copy_disabled),
            *_retention_faults("bytes", policy.retention_bytes, policy.local_retention_bytes, policy.copy_disabled),
        ]


def _with_lag(policy: TopicPolicy, lag_ms: int, lag_bytes: int) -> TopicPolicy:
    """Resolve a lag of -1 to the local retention."""
    return replace(
        policy,
        copy_lag_ms=policy.effective_local_retention_ms if lag_ms == AS_LOCAL else lag_ms,
        copy_lag_bytes=policy.effective_local_retention_bytes if lag_bytes == AS_LOCAL else lag_bytes,
    )


def _either(value: int | None, default: int) -> int:
    return default if value is None else value


def _retention_faults(
    unit: Literal["ms", "bytes"], total: int, local: int, copy_disabled: bool
) -> list[tuple[KeyPath, str]]:
    written = Quantity("duration_ms" if unit == "ms" else "size").format
    key: KeyPath = (f"local.retention.{unit}",)
    if local in {AS_TOTAL, total}:
        return []
    if copy_disabled:
        return [
            (key, f"must be {AS_TOTAL} or equal to retention.{unit} ({written(total)}) with remote.log.copy.disable")
        ]
    if total != UNLIMITED and (local == UNLIMITED or local > total):
        amount = "without limit (-1)" if local == UNLIMITED else written(local)
        return [(key, f"is {amount}, more than retention.{unit} ({written(total)})")]
    return []
