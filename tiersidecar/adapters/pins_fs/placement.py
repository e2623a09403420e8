"""Where the pins of a log dir can lie: tried with a real link, for nothing else tells.  Blocks; runs in threads.

Two mounts of one file system have one device number, and yet no link crosses them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tiersidecar.adapters.os_errors import explain_os_error
from tiersidecar.adapters.pins_fs.pin_directory import Link
from tiersidecar.adapters.pins_fs.pin_names import PROBE_NAME
from tiersidecar.domain.errors import PinError
from tiersidecar.formats.kafka.checkpoints import META_PROPERTIES

PINS_SUFFIX = ".tiersidecar-pins"

_HINTS = {
    errno.EXDEV: "it is another mount, and hard links do not cross mounts",
    errno.EPERM: "fs.protected_hardlinks: only the owner of the broker's files may link them; run as the broker's user",
    errno.ENOSPC: "the disk is full",
}


def beside(log_dir: str) -> str:
    """The directory of ours next to ``log_dir``."""
    return f"{log_dir}{PINS_SUFFIX}"


def find_place(log_dir: str, log_dirs: Sequence[str], *, link: Link = os.link) -> str:
    """The directory in which new pins of ``log_dir`` are made: beside it, or the log dir itself.

    Raises:
        PinError: no link can be made in either; says why of both.
    """
    reasons = []
    for place in _places(log_dir, log_dirs):
        try:
            if place != log_dir:
                Path(place).mkdir(mode=0o700, exist_ok=True)
            _probe(log_dir, place, link)
        except OSError as error:
            reasons.append(explain_link_error(error))
            if place != log_dir:
                with suppress(OSError):  # an empty one is of no use; one that holds pins stays
                    Path(place).rmdir()
        else:
            return place
    raise PinError(path=log_dir, reason="; ".join(reasons))


def explain_link_error(error: OSError) -> str:
    """As :func:`explain_os_error`, with what it means for links."""
    hint = _HINTS.get(error.errno or 0)
    return explain_os_error(error) if hint is None else f"{explain_os_error(error).partition(' (')[0]} ({hint})"


def _places(log_dir: str, log_dirs: Sequence[str]) -> Iterator[str]:
    """In order of preference.  A directory of ours inside any log dir would keep a broker from starting."""
    parent = Path(log_dir).parent
    inside = any(parent.is_relative_to(other) for other in log_dirs)
    if not inside and not (parent / META_PROPERTIES).exists():
        yield beside(log_dir)
    yield log_dir


def _probe(log_dir: str, place: str, link: Link) -> None:
    """Link the log dir's own meta.properties, and take the link away."""
    probe = Path(place, PROBE_NAME)
    probe.unlink(missing_ok=True)
    link(f"{log_dir}/{META_PROPERTIES}", str(probe))
    probe.unlink()
