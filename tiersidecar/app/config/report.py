"""Print the effective configuration, and warn of what is allowed but questionable.

``WITHOUT_EFFECT`` lists keys that are accepted, because a broker's or a plugin's configuration has them, and change nothing in
this release.  ``check-config`` warns if one is set, the reference marks it, and a test compares the list with the code.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from ruamel.yaml import YAML

from tiersidecar.app.config.broker import BrokerSection
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.document import KeyPath, format_path
from tiersidecar.app.config.exposed_secrets import exposed_secrets
from tiersidecar.app.config.keys import keys_in, quantity_of
from tiersidecar.app.config.section import Section, undotted
from tiersidecar.app.config.store import FilesystemStore, S3Store, StoreSection
from tiersidecar.app.config.store_azure import AzureStore
from tiersidecar.app.config.store_base import CustomMetadataField
from tiersidecar.app.config.store_gcs import GcsStore
from tiersidecar.app.config.top_level import Mode
from tiersidecar.app.config.values import Address
from tiersidecar.domain.policy import RetentionMode

WITHOUT_EFFECT: dict[KeyPath, str] = {
    (
        "remote.log.metadata.topic.retention.ms",
    ): "the topic is made with -1, and any other setting on it stops all trims",
}


def settings_without_effect(section: Section, below: KeyPath = ()) -> Iterator[str]:
    """Yield one sentence for each such key that is set to another value than its default."""
    for path, why in WITHOUT_EFFECT.items():
        name = undotted(str(path[-1]))
        if path[:-1] == below and getattr(section, name) != type(section).model_fields[name].default:
            yield f"{format_path(path)}: has no effect in this release: {why}"


MASK = "********"


def effective_settings(section: Section, *, units: bool) -> dict[str, Any]:
    """Return every key that has a value, by its name in the file, secrets masked.  ``units``: 4MiB rather than 4194304."""
    settings: dict[str, Any] = {}
    for key, field in keys_in(type(section)):
        value = getattr(section, undotted(key))
        if value is None:
            continue
        quantity = quantity_of(field) if units else None
        settings[key] = _plain(value, units) if quantity is None else _number(quantity.format(value))
    return settings


def render_yaml(settings: Mapping[str, Any]) -> str:
    """Return the settings as YAML, in the order of the models."""
    yaml, out = YAML(typ="safe", pure=True), io.StringIO()
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 120
    yaml.dump(dict(settings), out)
    return out.getvalue()


def warnings_of(config: Config) -> tuple[str, ...]:
    """Return settings that work but may not be what was wanted, on this machine; one sentence each."""
    kinds = (_intent_warnings, _topic_warnings, _security_warnings, _store_warnings, _secret_warnings)
    return tuple(warning for kind in kinds for warning in kind(config))


def _intent_warnings(config: Config) -> Iterator[str]:
    if config.mode is Mode.OBSERVE:
        yield "mode: observe decides and logs, and writes nothing"
    if not config.deletes_enabled:
        yield "deletes.enabled: false stops all trims and all expiry; disks and the store only grow"
    yield from settings_without_effect(config)
    yield from settings_without_effect(config.store, ("store",))
    for log_dir in config.log_dirs:
        if not Path(log_dir).is_dir():
            yield f"log.dirs: {log_dir} is not a directory on this machine"


def _topic_warnings(config: Config) -> Iterator[str]:
    if not config.topics and config.source is None:
        yield "topics: no rule, so that no topic is tiered"
    names: set[str] = set()
    catch_all: int | None = None
    for index, rule in enumerate(config.topics):
        if rule.name in names or catch_all is not None:
            earlier = "an earlier rule" if catch_all is None else f"topics[{catch_all}]"
            yield f"topics[{index}]: never used, {earlier} matches first"
        if rule.name is not None:
            names.add(rule.name)
        if rule.pattern == ".*" and not rule.exclude and catch_all is None:
            catch_all = index
        if rule.mode is RetentionMode.RACE and not config.pins_enabled:
            yield f"topics[{index}].mode: race loses to the remote tier what the broker deletes before it was copied"


def _security_warnings(config: Config) -> Iterator[str]:
    yield from _connection_warnings("broker", config.broker)
    if config.source is not None:
        yield from _connection_warnings("source", config.source)
    for index, listener in enumerate(config.gateway.listeners):
        if listener.ssl_certificate_location is None and not listener.listen.is_loopback:
            yield (
                f"gateway.listeners[{index}]: {listener.listen} takes clients without TLS; SASL PLAIN sends their passwords as "
                "they are"
            )
    asked = config.read.authorization_security_protocol or config.broker.security_protocol
    if config.read.callers and "SASL" not in asked:
        yield f"read.callers are not used: the listener on which callers are authorized is {asked}"


def _connection_warnings(name: str, brokers: BrokerSection) -> Iterator[str]:
    if brokers.uses_tls and brokers.ssl_endpoint_identification_algorithm == "":
        yield f"{name}.ssl.endpoint.identification.algorithm: the host name of the broker's certificate is not checked"
    away = [address for address in brokers.bootstrap_servers if not address.is_loopback]
    if brokers.security_protocol == "SASL_PLAINTEXT" and away:
        yield f"{name}.security.protocol: SASL_PLAINTEXT sends credentials to {away[0]} without encryption"


def _store_warnings(config: Config) -> Iterator[str]:
    store = config.store
    recorded = set(store.custom_metadata_fields_include)
    if CustomMetadataField.OBJECT_KEY in recorded and config.remote_log_metadata_custom_metadata_max_bytes < 512:
        yield (
            "store.custom.metadata.fields.include: OBJECT_KEY needs more than "
            "remote.log.metadata.custom.metadata.max.bytes for long topic names; such partitions would halt"
        )
    for key_id, pair in store.encryption_key_pairs.items():
        for path in (pair.public_key_file, pair.private_key_file):
            if not Path(path).is_file():
                yield f"store.encryption.key.pairs.{key_id}: {path} is not a file on this machine"
    yield from _warnings_of_store("store", store)
    for name, place in config.places.items():
        yield from _warnings_of_store(f"places.{name}", place)
    unused = sorted(set(config.places) - {rule.place for rule in config.topics})
    for name in unused:
        yield f"places.{name}: no rule under topics names it, so that nothing new goes there"


def _warnings_of_store(section: str, store: StoreSection) -> Iterator[str]:
    if store.key_prefix and not store.key_prefix.endswith("/"):
        yield f"{section}.key.prefix: objects will be named {store.key_prefix}<topic>…, for it does not end with /"
    if str(store.encryption_key_wrapping_options.get("endpoint.url", "")).startswith("http:"):
        yield f"{section}.encryption.key.wrapping.options.endpoint.url: http sends data keys as they are"
    if isinstance(store, FilesystemStore) and not Path(store.root).is_dir():
        yield f"{section}.root: {store.root} is not a directory on this machine"
    if isinstance(store, S3Store) and not store.aws_certificate_check_enabled:
        yield f"{section}.aws.certificate.check.enabled: false accepts any certificate"
    if isinstance(store, AzureStore) and not store.azure_certificate_check_enabled:
        yield f"{section}.azure.certificate.check.enabled: false accepts any certificate"
    if isinstance(store, AzureStore) and (store.azure_endpoint_url or "").startswith("http:"):
        yield f"{section}.azure.endpoint.url: http sends objects without encryption, and a SAS token in plain text"
    if isinstance(store, GcsStore) and not store.gcs_certificate_check_enabled:
        yield f"{section}.gcs.certificate.check.enabled: false accepts any certificate"
    if isinstance(store, GcsStore) and (store.gcs_endpoint_url or "").startswith("http:"):
        yield f"{section}.gcs.endpoint.url: http sends objects without encryption, and access tokens as they are"


def _secret_warnings(config: Config) -> Iterator[str]:
    yield from map(str, exposed_secrets(config.secret_places))


def _plain(value: Any, units: bool) -> Any:
    match value:
        case Section():
            return effective_settings(value, units=units)
        case SecretStr():
            return MASK
        case Address():
            return str(value)
        case tuple():
            return [_plain(item, units) for item in value]
        case Mapping():
            return {key: _plain(item, units) for key, item in value.items()}
        case str():
            return str(value)  # an enum's value
        case _:
            return value


def _number(text: str) -> int | str:
    return text if not text.lstrip("-").isdigit() else int(text)
