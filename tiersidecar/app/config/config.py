"""The configuration: one YAML file, validated once, all faults at once (issue texts and S-196 to S-220).

Dotted names are Kafka's or the Aiven plugin's and keep name, meaning and default; sections are ours.

The plugin prefixes of a broker's server.properties, accepted as they stand there (S-196).

``rsm.config.chunk.size`` is ``chunk.size`` of section store, ``rsm.config.storage.s3.region`` its ``s3.region``, and
``rlmm.config.remote.log.metadata.topic.num.partitions`` is the top-level key without the prefix.

Faults in people's words: key, line, what was expected, and what may have been meant.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import PrivateAttr, ValidationError, model_validator
from pydantic_core import ErrorDetails

from tiersidecar.adapters.stores.installed import installed_kinds
from tiersidecar.app.config.document import Document, Fault, KeyPath, format_path, parse_document, read_document
from tiersidecar.app.config.exposed_secrets import SecretPlace, secret_places
from tiersidecar.app.config.keys import KEYS_OF_KAFKA, all_key_paths, keys_of
from tiersidecar.app.config.places import place_faults, with_keys_of_the_store
from tiersidecar.app.config.section import CrossFaultsError, Section, refuse
from tiersidecar.app.config.store import BUILT_IN, INSTALLED, FilesystemStore, StoreSection
from tiersidecar.app.config.top_level import Role, TopLevelKeys
from tiersidecar.app.config.topics import RetentionDefaults
from tiersidecar.app.config.values import Address, shown
from tiersidecar.decide.topics import INTERNAL_TOPICS
from tiersidecar.domain.errors import ConfigError
from tiersidecar.domain.ids import DEFAULT_PLACE, place_prefix
from tiersidecar.domain.policy import UNLIMITED, TopicPolicy, TrimHolds

_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a section (key: value lines)",
    "model_type": "a section (key: value lines)",
    "model_attributes_type": "a section (key: value lines)",
}
_NUMBERED = {
    "greater_than_equal": ("must be at least {ge}", "ge"),
    "less_than_equal": ("must be at most {le}", "le"),
}


def document_faults(document: Document) -> list[Fault]:
    """Return the faults that reading the file alone has shown: duplicate keys and the like."""
    return list(document.faults)


def validation_faults(error: ValidationError, document: Document, model: type[Section]) -> list[Fault]:
    """Return every error of pydantic's as a :class:`Fault`."""
    faults: list[Fault] = []
    for details in error.errors(include_url=False):
        path = _path_in(document, details["loc"])
        cross = details.get("ctx", {}).get("error")
        if isinstance(cross, CrossFaultsError):
            faults += [_fault(document, (*path, *below), message) for below, message in cross.faults]
        elif details["type"] == "extra_forbidden":
            faults.append(_fault(document, path, _unknown_key(path, document, model)))
        else:
            faults.append(_fault(document, path, _sentence(details)))
    return faults


def _fault(document: Document, path: KeyPath, message: str) -> Fault:
    return Fault(document.line_of(path), format_path(path), message)


def _path_in(document: Document, loc: KeyPath) -> KeyPath:
    """Return ``loc`` without what pydantic adds to it: tags of unions, and the names of validators."""
    value: Any = document.data
    path: list[str | int] = []
    for position, part in enumerate(loc):
        if _holds(value, part):
            value = value[part]
        elif not _is_absent_key(value, part) or position + 1 < len(loc):
            continue
        path.append(part)
    return tuple(path)


def _holds(value: Any, part: str | int) -> bool:
    if isinstance(part, int):
        return isinstance(value, list) and part < len(value)
    return isinstance(value, dict) and part in value


def _is_absent_key(value: Any, part: str | int) -> bool:
    return isinstance(value, dict) and isinstance(part, str) and part not in (value.get("type"), INSTALLED)


def _sentence(details: ErrorDetails) -> str:
    kind, value, context = details["type"], details.get("input"), details.get("ctx", {})
    if kind == "missing":
        return "is required"
    if kind in {"union_tag_not_found", "union_tag_invalid"}:
        return _wrong_type_of_store(kind, value, context)
    if kind in {"literal_error", "enum"}:
        return f"expected {_alternatives(str(context['expected']))}, got {shown(value)}"
    if kind in _EXPECTED:
        hint = "; put it into quotes" if kind == "string_type" and isinstance(value, int | float | bool) else ""
        got = "a text" if "section" in _EXPECTED[kind] and isinstance(value, str) else shown(value)
        return f"expected {_EXPECTED[kind]}, got {got}{hint}"
    if kind in _NUMBERED:
        return f"{_NUMBERED[kind][0].format(**context)}, got {shown(value)}"
    if kind in {"too_short", "string_too_short"}:
        return "must not be empty"
    if kind == "string_pattern_mismatch":
        return f"{shown(value)} does not have the form {context['pattern']}"
    return details["msg"]


def _wrong_type_of_store(kind: str, value: object, context: dict[str, Any]) -> str:
    if kind == "union_tag_not_found":
        return f"type is required: {_kinds()}" if isinstance(value, dict) else f"expected a section, got {shown(value)}"
    return f"type: expected {_kinds()}, got {shown(context['tag'])}"


def _kinds() -> str:
    return " or ".join((*BUILT_IN, *sorted(installed_kinds() - set(BUILT_IN))))


def _alternatives(expected: str) -> str:
    """Return pydantic's ``'a', 'b' or 'c'`` without quotes."""
    return expected.replace("'", "").replace(", ", " or ") if " or " not in expected else expected.replace("'", "")


def _unknown_key(path: KeyPath, document: Document, model: type[Section]) -> str:
    key = str(path[-1])
    if key in KEYS_OF_KAFKA:
        return f"is not a key of the sidecar: {KEYS_OF_KAFKA[key]}"
    here = keys_of(model, path[:-1], document.data)
    close = difflib.get_close_matches(key, here, n=1, cutoff=0.75)
    if close:
        return f"unknown key; did you mean {format_path((*path[:-1], close[0]))}?"
    elsewhere = [known for known in all_key_paths(model) if known[-1] == key or format_path(known) == key]
    if any(known[:-1] == path[:-1] for known in elsewhere):
        return "is a key of another type of store"
    if elsewhere:
        return f"unknown key here; it belongs to {_section_name(elsewhere[0])}"
    return "unknown key"


def _section_name(path: KeyPath) -> str:
    section = format_path(path[:-1]).replace("[0]", "[]")
    return f"section {section}" if section else "the top level"


_BACKENDS = {
    "io.aiven.kafka.tieredstorage.storage.s3.S3Storage": "s3",
    "io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage": "filesystem",
    "io.aiven.kafka.tieredstorage.storage.azure.AzureBlobStorage": "azure",
    "io.aiven.kafka.tieredstorage.storage.gcs.GcsStorage": "gcs",
}
_KEY_PAIR = re.compile(r"encryption\.key\.pairs\.(.+)\.((?:public|private)\.key\.file)")


def without_plugin_prefixes(document: Document) -> Document:
    """Return ``document`` with such keys moved to where they belong; a key that is set there already becomes a fault."""
    for key in [key for key in document.data if key.startswith(("rsm.config.", "rlmm.config."))]:
        value, line = document.data.pop(key), document.lines[(key,)]
        target, value = _target(key, value)
        if target is not None:
            _put(document, target, value, line)
    return document


def _target(key: str, value: Any) -> tuple[KeyPath | None, Any]:
    if key.startswith("rlmm.config."):
        return (key.removeprefix("rlmm.config."),), value
    name = key.removeprefix("rsm.config.")
    if name == "storage.backend.class":
        return ("store", "type"), _BACKENDS.get(str(value), value)
    if name == "encryption.key.pairs":
        return None, value  # the list of ids: each id has keys of its own
    pair = _KEY_PAIR.fullmatch(name)
    if pair is not None:
        return ("store", "encryption.key.pairs", pair.group(1), pair.group(2)), value
    return ("store", name.removeprefix("storage.")), value


def _put(document: Document, path: KeyPath, value: Any, line: int) -> None:
    section: Any = document.data
    for depth, part in enumerate(path[:-1], start=1):
        section = section.setdefault(part, {})
        document.lines.setdefault(path[:depth], line)
        if not isinstance(section, dict):
            return
    if path[-1] in section:
        first = document.line_of(path)
        document.faults.append(Fault(line, format_path(path), f"is set twice, first on line {first}"))
        return
    section[path[-1]] = value
    document.lines[path] = line


READ_ONLY_ROLES = (
    "a read-only mount is served by a process with --roles gateway alone: the data are the source's, whose sidecars copy, trim "
    "and expire them"
)
READ_ONLY_COMMANDS = (
    "this is the configuration of a read-only mount: commands look at tiered data, and change them, by that of a sidecar of "
    "the source"
)


class Config(TopLevelKeys):
    """All of it: what a file says, checked key by key and then as a whole."""

    _file: Path | None = PrivateAttr(None)
    _secret_places: tuple[SecretPlace, ...] = PrivateAttr(())

    def read_from(self, path: Path, data: Mapping[str, Any] | None = None) -> Self:
        """Return itself, with its :attr:`file` known, and the :attr:`secret_places` of ``data``, the file's."""
        self._file = path
        self._secret_places = tuple(secret_places(self, data or {}, str(path)))
        return self

    @property
    def secret_places(self) -> tuple[SecretPlace, ...]:
        """Return the files that hold its secrets."""
        return self._secret_places

    def with_status_listen(self, address: Address) -> Self:
        """Return the same but for ``status.listen``: two processes beside a broker have one file and an address each."""
        return self.model_copy(
            update={"status": self.status.model_copy(update={"listen": address, "advertised": None})}
        )

    @property
    def file(self) -> Path:
        """Return the file that it was read from, for a command to read it again."""
        assert self._file is not None, "this configuration was not read from a file"
        return self._file

    def require_roles(self, roles: frozenset[Role]) -> None:
        """
        Raises:
            ConfigError: it is not for these roles.
        """
        if self.source is not None and roles != {Role.GATEWAY}:
            raise ConfigError(source=str(self._file or ""), faults=(f"source: {READ_ONLY_ROLES}",))

    def require_own(self) -> None:
        """
        Raises:
            ConfigError: what it is about is another cluster's, by whose configuration commands are to go.
        """
        if self.source is not None:
            raise ConfigError(source=str(self._file or ""), faults=(f"source: {READ_ONLY_COMMANDS}",))

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
        """Return the policy of a topic that no rule matches, and that ``tiersidecar enable`` tiers."""
        return self.retention_defaults.policy

    @property
    def internal_topics(self) -> frozenset[str]:
        """Return topics that are never tiered, whatever the rules say."""
        own = {self.remote_log_metadata_topic_name, self.state_topic_name, self.proposals_topic_name}
        if self.gateway.audit_topic_name is not None:
            own.add(self.gateway.audit_topic_name)
        return INTERNAL_TOPICS | own

    def policy_for(self, topic: str) -> TopicPolicy | None:
        """Return how ``topic`` is tiered by the first rule that matches it; None: it is left alone."""
        if topic in self.internal_topics:
            return None
        for rule in self.topics:
            if rule.matches(topic):
                return rule.policy(self.retention_defaults)
        return None

    def place_of_topic(self, topic: str) -> str:
        """Return where new segments of ``topic`` go, by the first rule that matches; empty: the store of section ``store``."""
        return next((rule.place or DEFAULT_PLACE for rule in self.topics if rule.matches(topic)), DEFAULT_PLACE)

    @property
    def places_of_topics(self) -> frozenset[str]:
        """Return where new segments of any topic may go."""
        return frozenset(rule.place or DEFAULT_PLACE for rule in self.topics)

    @property
    def key_prefixes(self) -> tuple[str, ...]:
        """Return the prefixes of our keys: the configured one, and those of the places but the default one."""
        return self.store.key_prefix, *map(place_prefix, self.places)

    def require_one_place(self, command: str) -> None:
        """
        Raises:
            ConfigError: there are places, and ``command`` knows the store of section ``store`` alone.
        """
        if self.places:
            names = ", ".join(sorted(self.places))
            fault = f"places: {command} looks at section store alone, and segments may lie in {names} as well"
            raise ConfigError(source=str(self._file or ""), faults=(fault,))

    @model_validator(mode="before")
    @classmethod
    def _places_take_after_the_store(cls, data: Any) -> Any:
        return with_keys_of_the_store(data)

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Self:
        refuse([*self._path_faults(), *self._place_faults(), *self._topic_faults(), *self._limit_faults()])
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
            for section, store in self._stores():
                if isinstance(store, FilesystemStore) and _is_within(store.root, log_dir):
                    faults.append(
                        ((*section, "root"), f"must not lie in a log dir ({log_dir}): the broker would refuse to start")
                    )
        return faults

    def _stores(self) -> Iterator[tuple[KeyPath, StoreSection]]:
        yield ("store",), self.store
        for name, place in self.places.items():
            yield ("places", name), place

    def _place_faults(self) -> list[tuple[KeyPath, str]]:
        faults = list(place_faults(self.store, self.places))
        known = ", ".join(sorted(self.places)) or "none"
        for index, rule in enumerate(self.topics):
            if rule.place is not None and rule.place not in self.places:
                faults.append((("topics", index, "place"), f"{rule.place!r} is not in places, which has {known}"))
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
        """Return the faults: events that expire before their segments leave objects that nothing names (S-237)."""
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
        if self.compaction_enabled and not self.pins_enabled:
            faults.append((("compaction.enabled",), "needs pins.enabled: compacted topics are copied from links alone"))
        return faults


def load_config(path: Path, environ: Mapping[str, str]) -> Config:
    """Read, resolve secrets from ``environ`` and files, and validate.

    Raises:
        ConfigError: with every fault, each naming its line and key.
    """
    return _validated(read_document(path), path, environ)


def parse_config(text: str, path: Path, environ: Mapping[str, str]) -> Config:
    """Parse ``text`` as :func:`load_config` does; ``path`` is for messages."""
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
