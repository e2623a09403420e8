"""Secrets that other users of this machine can read, and what to run against it."""

from __future__ import annotations

import grp
import os
import pwd
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from stat import S_IMODE, S_IRGRP, S_IROTH

from tiersidecar.app.config.secret_places import SecretPlace


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
    """Ascending by file.  Modes of directories do not count: they are changed for other reasons, and files are copied.

    No file is named that another user owns and that only a group of this process may read: that is how it is let in
    (root:kafka 0640, a secret on Kubernetes with fsGroup).
    """
    keys: dict[str, list[str]] = {}
    for place in places:
        keys.setdefault(place.file, []).append(place.key)
    judged = (_judge(file, tuple(dict.fromkeys(held))) for file, held in sorted(keys.items()))
    return tuple(one for one in judged if one is not None)


def _judge(file: str, keys: tuple[str, ...]) -> ExposedSecret | None:
    try:
        status = os.stat(file)  # noqa: PTH116 - one that is not there is told elsewhere, or brought later
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
