"""The configuration: one YAML file, validated once, all faults at once (issue texts and S-196 to S-220).

Dotted names are Kafka's or the Aiven plugin's and keep name, meaning and default; sections are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import PrivateAttr, ValidationError, model_validator

from tiersidecar.app.config.document import Document, KeyPath, parse_document, read_document
from tiersidecar.app.config.faults import document_faults, validation_faults
from tiersidecar.app.config.prefixes import without_plugin_prefixes
from tiersidecar.app.config.secret_places import SecretPlace, secret_places
from tiersidecar.app.config.section import refuse
from tiersidecar.app.config.store import FilesystemStore
from tiersidecar.app.config.top_level import TopLevelKeys
from tiersidecar.app.config.topics import RetentionDefaults
from tiersidecar.app.config.values import Address
from tiersidecar.decide.topics import INTERNAL_TOPICS
from tiersidecar.domain.errors import ConfigError
from tiersidecar.domain.policy import UNLIMITED, TopicPolicy, TrimHolds


class Config(TopLevelKeys):
    """All of it: what a file says, checked key by key and then as a whole."""

    _source: Path | None = PrivateAttr(None)
    _secret_places: tuple[SecretPlace, ...] = PrivateAttr(())

    def read_from(self, path: Path, data: Mapping[str, Any] | None = None) -> Self:
        """Itself, with its :attr:`source` known, and the :attr:`secret_places` of ``data``, the file's."""
        self._source = path
        self._secret_places = tuple(secret_places(self, data or {}, str(path)))
        return self

    @property
    def secret_places(self) -> tuple[SecretPlace, ...]:
        """The files that hold its secrets."""
        return self._secret_places

    def with_status_listen(self, address: Address) -> Self:
        """The same but for ``status.listen``: two processes beside a broker have one file and an address each."""
        return self.model_copy(
            update={"status": self.status.model_copy(update={"listen": address, "advertised": None})}
        )

    @property
    def source(self) -> Path:
        """The file that it was read from, for a command to read it again."""
        assert self._source is not None, "this configuration was not read from a file"
        return self._source

    @property
    def retention_defaults(self) -> RetentionDefaults:
        return RetentionDefaults(
            retention_ms=self.log_retention_ms,
            retention_bytes=self.log_retention_bytes,
            local_retention_ms=self.log_local_retention_ms,
            local_retention_bytes=self.log_local_retention_bytes,
            copy_lag_ms=self.log_remote_copy_lag_ms,
            copy_lag_bytes=self.log_remote_copy_lag_bytes,
            holds=TrimHolds(
                groups=self.trim_consumer_groups,
                groups_pattern=self.trim_consumer_groups_pattern,
                share_groups=self.trim_share_groups,
            ),
        )

    @property
    def unnamed_policy(self) -> TopicPolicy:
        """Of a topic that no rule matches, and that ``tiersidecar enable`` tiers."""
        return self.retention_defaults.policy

    @property
    def internal_topics(self) -> frozenset[str]:
        """Topics that are never tiered, whatever the rules say."""
        own = {self.remote_log_metadata_topic_name, self.state_topic_name, self.proposals_topic_name}
        if self.gateway.audit_topic_name is not None:
            own.add(self.gateway.audit_topic_name)
        return INTERNAL_TOPICS | own

    def policy_for(self, topic: str) -> TopicPolicy | None:
        """How ``topic`` is tiered by the first rule that matches it; None: it is left alone."""
        if topic in self.internal_topics:
            return None
        for rule in self.topics:
            if rule.matches(topic):
                return rule.policy(self.retention_defaults)
        return None

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Self:
        refuse([*self._path_faults(), *self._topic_faults(), *self._limit_faults()])
        return self

    def _path_faults(self) -> list[tuple[KeyPath, str]]:
        faults: list[tuple[KeyPath, str]] = []
        for index, log_dir in enumerate(self.log_dirs):
            if log_dir in self.log_dirs[:index]:
                faults.append((("log.dirs", index), f"{log_dir} is listed twice"))
            if _is_within(self.state_dir, log_dir):
                faults.append(
                    (("state.dir",), f"must not lie in a log dir ({log_dir}): the broker would refuse to start")
                )
            if isinstance(self.store, FilesystemStore) and _is_within(self.store.root, log_dir):
                faults.append(
                    (("store", "root"), f"must not lie in a log dir ({log_dir}): the broker would refuse to start")
                )
        return faults

    def _topic_faults(self) -> list[tuple[KeyPath, str]]:
        faults: list[tuple[KeyPath, str]] = []
        if self.remote_log_metadata_topic_name == self.state_topic_name:
            faults.append((("state.topic.name",), "must differ from remote.log.metadata.topic.name"))
        if self.proposals_topic_name in {self.remote_log_metadata_topic_name, self.state_topic_name}:
            reason = "must differ from remote.log.metadata.topic.name and state.topic.name"
            faults.append((("proposals.topic.name",), reason))
        written = {self.remote_log_metadata_topic_name, self.state_topic_name, self.proposals_topic_name}
        if self.gateway.audit_topic_name in written:
            faults.append((("gateway", "audit.topic.name"), "must differ from the sidecar's own topics"))
        for index, rule in enumerate(self.topics):
            if rule.name in self.internal_topics:
                faults.append((("topics", index, "name"), f"{rule.name} is internal and cannot be tiered"))
            faults += [(("topics", index, *path), reason) for path, reason in rule.faults_with(self.retention_defaults)]
            faults += self._metadata_retention_faults(index, rule.policy(self.retention_defaults))
        return faults

    def _metadata_retention_faults(self, index: int, policy: TopicPolicy) -> list[tuple[KeyPath, str]]:
        """Events that expire before their segments leave objects that nothing names (S-237)."""
        kept_ms, total_ms = self.remote_log_metadata_topic_retention_ms, policy.retention_ms
        if kept_ms == UNLIMITED or (total_ms != UNLIMITED and kept_ms > total_ms):
            return []
        reason = f"must be -1, or longer than the total retention of topics[{index}]: its metadata would expire before its data"
        return [(("remote.log.metadata.topic.retention.ms",), reason)]

    def _limit_faults(self) -> list[tuple[KeyPath, str]]:
        faults: list[tuple[KeyPath, str]] = []
        if self.remote_log_manager_task_retry_backoff_max_ms < self.remote_log_manager_task_retry_backoff_ms:
            key = "remote.log.manager.task.retry.backoff.max.ms"
            faults.append(((key,), "must not be less than remote.log.manager.task.retry.backoff.ms"))
        if self.remote_log_metadata_topic_min_isr > self.remote_log_metadata_topic_replication_factor:
            key = "remote.log.metadata.topic.min.isr"
            faults.append(((key,), "must not be more than remote.log.metadata.topic.replication.factor"))
        return faults


def load_config(path: Path, environ: Mapping[str, str]) -> Config:
    """Read, resolve secrets from ``environ`` and files, and validate.

    Raises:
        ConfigError: with every fault, each naming its line and key.
    """
    return _validated(read_document(path), path, environ)


def parse_config(text: str, path: Path, environ: Mapping[str, str]) -> Config:
    """As :func:`load_config`, of ``text``; ``path`` is for messages."""
    return _validated(parse_document(text, path), path, environ)


def _validated(document: Document, path: Path, environ: Mapping[str, str]) -> Config:
    document = without_plugin_prefixes(document)
    faults = document_faults(document)
    try:
        config = Config.model_validate(document.data, context={"environ": environ}, by_alias=True, by_name=False)
    except ValidationError as error:
        faults += validation_faults(error, document, Config)
    else:
        if not faults:
            return config.read_from(path.absolute(), document.data)
    sentences = tuple(str(fault) for fault in sorted(dict.fromkeys(faults), key=lambda fault: (fault.line, fault.path)))
    raise ConfigError(source=str(path), faults=sentences)


def _is_within(path: str, directory: str) -> bool:
    return Path(path).is_relative_to(directory)
