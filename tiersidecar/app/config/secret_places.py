"""Which files hold the configuration's secrets: itself where one is written into it, password files, private keys, tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from tiersidecar.app.config.document import KeyPath, format_path
from tiersidecar.app.config.keys import keys_in
from tiersidecar.app.config.section import Section, undotted

_KEY_FILES = frozenset({"ssl.key.location", "private.key.file", "azure.federated.token.file"})
_CERTIFICATE, _KEY = "ssl.certificate.location", "ssl.key.location"
_TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"


@dataclass(frozen=True, slots=True)
class SecretPlace:
    """A secret's key, and the file that holds it."""

    key: str
    file: str


def secret_places(section: Section, data: Mapping[str, Any], source: str, path: KeyPath = ()) -> Iterator[SecretPlace]:
    """Those of ``section``, which was validated from ``data``; ``source`` is the file that holds what is written into it.

    Secrets from the environment have no file.
    """
    for key, _ in keys_in(type(section)):
        value, given = getattr(section, undotted(key)), data.get(key)
        if value is not None and given is not None:
            yield from _places_in(value, given, source, (*path, key))
    yield from _files_of(section, path)


def _places_in(value: Any, given: Any, source: str, path: KeyPath) -> Iterator[SecretPlace]:
    match value:
        case SecretStr():
            file = given.get("file") if isinstance(given, Mapping) else source
            if file is not None:
                yield SecretPlace(format_path(path), str(file))
        case Section() if isinstance(given, Mapping):
            yield from secret_places(value, given, source, path)
        case tuple() if isinstance(given, list):
            for index, (one, one_given) in enumerate(zip(value, given, strict=False)):
                yield from _places_in(one, one_given, source, (*path, index))
        case Mapping() if isinstance(given, Mapping):
            for name, one in value.items():
                yield from _places_in(one, given.get(name), source, (*path, name))


def _files_of(section: Section, path: KeyPath) -> Iterator[SecretPlace]:
    """Files that are secret whole: a private key, a certificate file that has its key in it, a token."""
    values = {key: getattr(section, undotted(key)) for key, _ in keys_in(type(section))}
    if values.get(_KEY) is None and values.get(_CERTIFICATE) is not None:
        yield SecretPlace(format_path((*path, _CERTIFICATE)), values[_CERTIFICATE])
    for key in sorted(_KEY_FILES & values.keys()):
        if values[key] is not None:
            yield SecretPlace(format_path((*path, key)), values[key])
    url = urlsplit(values.get(_TOKEN_URL) or "")
    if url.scheme == "file":
        yield SecretPlace(format_path((*path, _TOKEN_URL)), unquote(url.path))
