"""Secrets that other users of this machine can read, and what to run against it.

Which files hold the configuration's secrets: itself where one is written into it, password files, private keys, tokens.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from stat import S_IMODE, S_IRGRP, S_IROTH
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from tiersidecar.app.config.document import KeyPath, format_path
from tiersidecar.app.config.keys import keys_in
from tiersidecar.app.config.section import Section, undotted

_KEY_FILES = frozenset({"ssl.key.location", "private.key.file", "azure.federated.token.file", "gcs.credentials.path"})
_CERTIFICATE, _KEY = "ssl.certificate.location", "ssl.key.location"
_TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"


@dataclass(frozen=True, slots=True)
class SecretPlace:
    """A secret's key, and the file that holds it."""

    key: str
    file: str


def secret_places(section: Section, data: Mapping[str, Any], source: str, path: KeyPath = ()) -> Iterator[SecretPlace]:
    """Yield those of ``section``, which was validated from ``data``; ``source`` is the file that holds what is written into it.

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
    """Yield files that are secret whole: a private key, a certificate file that has its key in it, a token."""
    values = {key: getattr(section, undotted(key)) for key, _ in keys_in(type(section))}
    if values.get(_KEY) is None and values.get(_CERTIFICATE) is not None:
        yield SecretPlace(format_path((*path, _CERTIFICATE)), values[_CERTIFICATE])
    for key in sorted(_KEY_FILES & values.keys()):
        if values[key] is not None:
            yield SecretPlace(format_path((*path, key)), values[key])
    url = urlsplit(values.get(_TOKEN_URL) or "")
    if url.scheme == "file":
        yield SecretPlace(format_path((*path, _TOKEN_URL)), unquote(url.path))


@dataclass(frozen=True, slots=True)
class ExposedSecret:
    """A file with secrets that more than its owner can read.  ``command`` takes that away and keeps this user's access."""

    file: str
    mode: int
    readers: str
    keys: tuple[str, ...]
    command: str

    def __str__(self) -> str:
        held = ", ".join(self.keys)
        return f"{held}: {self.file} has mode {self.mode:04o}, {self.readers} can read it; run: {self.command}"


def exposed_secrets(places: Iterable[SecretPlace]) -> tuple[ExposedSecret, ...]:
    """Return them ascending by file.  Modes of directories do not count: they change for other reasons, and files are copied.

    No file is named that another user owns and that only a group of this process may read: that is how it is let in
    (root:kafka 0640, a secret on Kubernetes with fsGroup).
    """
    keys: dict[str, list[str]] = {}
    for place in places:
        keys.setdefault(place.file, []).append(place.key)
    exposed = (_exposed(file, tuple(dict.fromkeys(held))) for file, held in sorted(keys.items()))
    return tuple(one for one in exposed if one is not None)


def _exposed(file: str, keys: tuple[str, ...]) -> ExposedSecret | None:
    try:
        status = os.stat(file)  # noqa: PTH116 - one that is not there is reported elsewhere, or comes later
    except (OSError, ValueError):
        return None
    mode, is_owner = S_IMODE(status.st_mode), status.st_uid == os.geteuid()
    to_others = bool(mode & S_IROTH)
    is_let_in = not is_owner and os.geteuid() != 0 and status.st_gid in {os.getegid(), *os.getgroups()}
    to_group = bool(mode & S_IRGRP) and not (is_let_in and not to_others)
    if not to_group and not to_others:
        return None
    group = f"group {_group_name(status.st_gid)}"
    readers = f"{group} and others" if to_group and to_others else group if to_group else "others"
    command = f"chmod 600 {shlex.quote(file)}"
    if not is_owner:
        command = f"chown {_user_name(os.geteuid())} {shlex.quote(file)} && {command}"
    return ExposedSecret(file=file, mode=mode, readers=readers, keys=keys, command=command)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
