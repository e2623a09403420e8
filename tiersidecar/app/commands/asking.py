"""Asks the sidecars of a cluster over HTTP, all at once, each for a short time.

Which there are, any of them tells that has read the state topic: first the one whose ``status.listen`` the configuration
has; if it does not answer, the state topic itself is read, which takes a second longer.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import urllib.error
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiersidecar.app.commands.direct_http import direct_opener, is_host_and_port
from tiersidecar.app.config.config import Config
from tiersidecar.domain.errors import NoSidecarError

LOCAL_TIMEOUT_S = 0.5
_MOST_BYTES = 256 * 1024 * 1024
_DIRECT = direct_opener()
"""Addresses come from the state topic, where a forged lease may name any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSidecar:
    """``node_id`` is None while only its address is known; ``note`` is why it need not be asked, empty where it is."""

    address: str
    node_id: int | None = None
    host: str = ""
    version: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``document`` is None where ``problem`` says why there is none; ``code`` is HTTP's, 0 where nothing came."""

    sidecar: KnownSidecar
    document: Mapping[str, Any] | None = None
    code: int = 0
    problem: str = ""


def find_sidecars(config: Config, addresses: Sequence[str] = ()) -> list[KnownSidecar]:
    """The sidecars of the cluster; ``addresses`` are those of whom a caller wants to have it asked.

    Raises:
        TiersidecarError: none answers, and the state topic cannot be read either.
    """
    first = [KnownSidecar(address=one) for one in addresses or (str(config.status.advertised_by("127.0.0.1")),)]
    for answer in ask(first, "/sidecars", LOCAL_TIMEOUT_S):
        if answer.code == 200 and answer.document is not None:
            return known_sidecars(answer.document["sidecars"]) or first
    if addresses:
        raise NoSidecarError(reason=f"none of {', '.join(addresses)} answers; is it the address of a status.listen?")
    found = known_sidecars(_from_state_topic(config))
    if not found:
        raise NoSidecarError(
            reason="no sidecar has been seen in this cluster's state topic, and none listens at "
            f"{first[0].address} (status.listen): is one running in mode enforce?"
        )
    return found


def known_sidecars(rows: Sequence[Mapping[str, Any]]) -> list[KnownSidecar]:
    """From what a sidecar, or the state topic, says of them."""
    return [
        KnownSidecar(
            address=row["address"],
            node_id=row["node_id"],
            host=row["host"],
            version=row["version"],
            note=_note(row),
        )
        for row in rows
    ]


def _note(row: Mapping[str, Any]) -> str:
    if row["address"]:
        return ""
    if row["is_over"]:
        return f"it ended, or stands still: {row['host']} has not renewed its lease"
    return "it is of a former release, which tells nobody its address; its own status page has its state"


def _from_state_topic(config: Config) -> list[dict[str, Any]]:
    from dataclasses import asdict

    from tiersidecar.app.commands.session import open_session
    from tiersidecar.app.process_status import sidecars_of

    async def look() -> list[dict[str, Any]]:
        async with open_session(config, with_metadata=False) as session:
            return [asdict(one) for one in sidecars_of(session.state.known_leases(), session.clock.now_ms())]

    return asyncio.run(look())


def ask(sidecars: Sequence[KnownSidecar], path: str, timeout_s: float) -> list[Answer]:
    """Their answers, in their order, after ``timeout_s`` at most."""
    answers: dict[int, Answer] = {}
    deadline_s = time.monotonic() + timeout_s

    def run(number: int) -> None:
        answers[number] = _ask_one(sidecars[number], path, timeout_s)

    # Daemon threads: the timeout of a socket is for each read, and one that trickles must not hold up the command's end.
    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(sidecars))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline_s - time.monotonic(), 0))
    late = f"it did not answer within {timeout_s:g} s"
    return [answers.get(number, Answer(sidecar=one, problem=late)) for number, one in enumerate(sidecars)]


def _ask_one(sidecar: KnownSidecar, path: str, timeout_s: float) -> Answer:
    if sidecar.note:
        return Answer(sidecar=sidecar, problem=sidecar.note)
    if not is_host_and_port(sidecar.address):
        return Answer(sidecar=sidecar, problem=f"its address is {sidecar.address!r}, must be HOST:PORT")
    try:
        with _DIRECT.open(f"http://{sidecar.address}{path}", timeout=timeout_s) as response:
            return Answer(sidecar=sidecar, code=response.status, document=json.loads(response.read(_MOST_BYTES)))
    except urllib.error.HTTPError as error:
        return Answer(sidecar=sidecar, code=error.code, document=_document_of(error))
    except TimeoutError:
        return Answer(sidecar=sidecar, problem=f"it did not answer within {timeout_s:g} s")
    except (OSError, ValueError) as error:
        return Answer(sidecar=sidecar, problem=_sentence(sidecar, error))


def _document_of(error: urllib.error.HTTPError) -> Mapping[str, Any] | None:
    try:
        document = json.loads(error.read(_MOST_BYTES))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _sentence(sidecar: KnownSidecar, error: Exception) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return "it did not answer in time"
    text = f"{sidecar.address} cannot be reached: {reason}"
    is_loopback = sidecar.address.startswith(("127.", "localhost:", "[::1]"))
    if is_loopback and sidecar.host not in ("", socket.gethostname()):
        return (
            f"{text}; it listens on {sidecar.host} for that machine alone: set its status.listen or status.advertised"
        )
    return text
