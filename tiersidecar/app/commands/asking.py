"""Ask the sidecars of a cluster over HTTP, all at once, each for a short time.

Any sidecar that has read the state topic returns their list.  The first one asked is at the configuration's ``status.listen``.
If it does not answer, the state topic itself is read, which takes a second longer.

An address may lead to another cluster's sidecar, by a mistake in ``status.advertised`` or behind a proxy.  What is answered for
another cluster than the configuration's is left out.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from tiersidecar.app.commands.complaints import log_errors_alone
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.values import plain
from tiersidecar.domain.errors import BrokerUnreachableError, CorruptDataError, MetadataNotReadyError, NoSidecarError
from tiersidecar.formats.kafka.log_dir_files import META_PROPERTIES, read_meta_properties
from tiersidecar.services.status.answers import (
    REFUSED,
    UNPROVEN,
    cluster_of,
    is_host_and_port,
    reason_of_another_cluster,
)
from tiersidecar.services.status.proof import PROOF_HEADER, SignedRequest, is_proven
from tiersidecar.services.status.source import SidecarStatus

LOCAL_TIMEOUT_S = 0.5
_STATUS_FIELDS = tuple(one.name for one in fields(SidecarStatus))
_MOST_BYTES = 256 * 1024 * 1024
_START_TIME = 19
"""Field 22 of /proc/PID/stat, counted from the one after the name."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as an answer: following it would send credentials, and the request itself, to any host."""

    def redirect_request(self, *_: Any) -> None:
        return None


def direct_opener(tls: ssl.SSLContext | None = None) -> urllib.request.OpenerDirector:
    """Return an opener that neither uses the proxy that the environment names nor follows redirects."""
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}), _NoRedirects, urllib.request.HTTPSHandler(context=tls)
    )


_DIRECT = direct_opener()
"""Addresses come from the state topic, where a forged lease may name any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSidecar:
    """A sidecar to ask; ``node_id`` is None while only its address is known, and ``note`` says why it is not asked.

    ``secret`` signs the request (``status.cluster.secret``); None if the cluster has none.  ``cluster_id`` is the cluster whose
    sidecar it must be; empty if that is not known.
    """

    address: str
    node_id: int | None = None
    host: str = ""
    version: str = ""
    note: str = ""
    cluster_id: str = ""
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A sidecar's answer; without a ``document`` the ``problem`` says why.  ``code`` is HTTP's, 0 without an answer."""

    sidecar: KnownSidecar
    document: Mapping[str, Any] | None = None
    code: int = 0
    problem: str = ""


def find_sidecars(config: Config, addresses: Sequence[str] = (), *, through: Sequence[str] = ()) -> list[KnownSidecar]:
    """Return the sidecars of the cluster, with those at ``addresses``, which a caller names, and at ``status.also.ask``.

    The first of ``addresses``, else of ``through``, else the one at ``status.listen`` that knows the others lists them.

    Raises:
        TiersidecarError: no sidecar answers, and the state topic cannot be read either.
    """
    secret = plain(config.status.cluster_secret)
    asked = addresses or through or (str(config.status.advertised_by("127.0.0.1")),)
    ours = cluster_of_log_dirs(config.log_dirs)
    first = [KnownSidecar(address=one, secret=secret, cluster_id=ours) for one in asked]
    named = dict.fromkeys([*addresses, *map(str, config.status.also_ask)])
    answers = ask(first, "/sidecars", LOCAL_TIMEOUT_S, enough=_lists_sidecars)
    for answer in answers:
        if answer.document is not None and _lists_sidecars(answer):
            # Without the broker's files, the sidecar at the configuration's own address says which cluster it is.
            ours = ours or cluster_of(answer.document)
            return _all_of(known_sidecars(answer.document["sidecars"], secret) or first, named, secret, ours)
    why = next((answer.problem for answer in answers if answer.problem), "it has no list of sidecars")
    if addresses or through:
        reason = f"none of {', '.join(asked)} answers as a sidecar: {why}. Is it the address of a status.listen?"
        raise NoSidecarError(reason=reason)
    own = f"the one at {asked[0]} (status.listen) does not answer as a sidecar: {why}"
    try:
        rows, ours = _from_state_topic(config)
    except (BrokerUnreachableError, MetadataNotReadyError) as error:
        reason = f"{own}; and the state topic, which has the addresses of all, cannot be read: {error}"
        raise NoSidecarError(reason=reason) from error
    if not rows:
        raise NoSidecarError(reason=f"{own}; and the state topic has none: is one running in mode enforce?")
    return _all_of(known_sidecars(rows, secret), named, secret, ours)


def cluster_of_log_dirs(log_dirs: Iterable[str]) -> str:
    """Return the id of the cluster whose broker has these log dirs; empty where they cannot be read, as on another machine."""
    for log_dir in log_dirs:
        path = Path(log_dir) / META_PROPERTIES
        with suppress(OSError, CorruptDataError):
            return read_meta_properties(path.read_bytes(), where=str(path)).cluster_id
    return ""


def _all_of(
    found: Iterable[KnownSidecar], named: Iterable[str], secret: str | None, cluster_id: str
) -> list[KnownSidecar]:
    """Add processes that no lease names: those without the role tier, and those that only observe."""
    ours = [replace(sidecar, cluster_id=cluster_id) for sidecar in found]
    known = {sidecar.address for sidecar in ours}
    more = (address for address in named if address not in known)
    return ours + [KnownSidecar(address=address, secret=secret, cluster_id=cluster_id) for address in more]


def _lists_sidecars(answer: Answer) -> bool:
    """Check the form: another program may listen at the address."""
    if answer.code != 200 or answer.document is None:
        return False
    rows, kinds = answer.document.get("sidecars"), (int, str, str, str, bool)
    return isinstance(rows, list) and all(
        isinstance(row, dict) and [type(row.get(name)) for name in _STATUS_FIELDS] == [*kinds] for row in rows
    )


def known_sidecars(rows: Sequence[Mapping[str, Any]], secret: str | None = None) -> list[KnownSidecar]:
    """Build the list from the rows of a sidecar or of the state topic; ``secret`` signs requests to them."""
    found = (SidecarStatus(**{name: row[name] for name in _STATUS_FIELDS}) for row in rows)
    return [
        KnownSidecar(
            address=sidecar.address,
            node_id=sidecar.node_id,
            host=sidecar.host,
            version=sidecar.version,
            note=sidecar.why_not_asked,
            secret=secret,
        )
        for sidecar in found
    ]


def _from_state_topic(config: Config) -> tuple[list[dict[str, Any]], str]:
    """Return the sidecars, and the id of the cluster."""
    from dataclasses import asdict

    from tiersidecar.adapters.ending_loop import run_to_end
    from tiersidecar.app.commands.session import open_session
    from tiersidecar.app.process_status import sidecars_of

    log_errors_alone(config.logging)

    async def look() -> tuple[list[dict[str, Any]], str]:
        async with open_session(config, with_metadata=False) as session:
            sidecars = sidecars_of(session.state.known_leases(), session.clock.now_ms())
            return [asdict(sidecar) for sidecar in sidecars], (await session.broker.describe_cluster()).cluster_id

    return run_to_end(look())


def ask(
    sidecars: Sequence[KnownSidecar],
    path: str,
    timeout_s: float,
    enough: Callable[[Answer], bool] = lambda answer: False,
    *,
    spent_s: float = 0.0,
) -> list[Answer]:
    """Return the answers in the order of ``sidecars``, after ``timeout_s`` at most; one that is ``enough`` ends the wait.

    Once one has answered, the silent ones are waited for ``spent_s`` less, by which the command is late already: but half of
    ``timeout_s``, and twice as long as the slowest answer took, they have in any case.
    """
    arriving: SimpleQueue[tuple[int, Answer]] = SimpleQueue()
    begun_s = time.monotonic()
    patience_s, waited_s = max(timeout_s - spent_s, timeout_s / 2), timeout_s

    def run(number: int) -> None:
        arriving.put((number, _ask_one(sidecars[number], path, timeout_s)))

    # Daemon threads: the timeout of a socket is for each read, and one that trickles must not hold up the command's end.
    for number in range(len(sidecars)):
        threading.Thread(target=run, args=(number,), daemon=True).start()
    answers: dict[int, Answer] = {}
    with suppress(Empty):
        while len(answers) < len(sidecars) and not any(map(enough, answers.values())):
            number, answer = arriving.get(timeout=max(begun_s + waited_s - time.monotonic(), 0))
            answers[number] = answer
            if answer.code:
                waited_s = min(timeout_s, max(patience_s, 2 * (time.monotonic() - begun_s)))
    late = f"it did not answer within {round(waited_s, 1):g} s"
    return [answers.get(number, Answer(sidecar=one, problem=late)) for number, one in enumerate(sidecars)]


def seconds_since_start() -> float:
    """Return how long this process has run: before its first line, it has imported modules for a while.  0 if unknown."""
    try:
        begun_ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[_START_TIME])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - begun_ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


def _ask_one(sidecar: KnownSidecar, path: str, timeout_s: float) -> Answer:
    if sidecar.note:
        return Answer(sidecar=sidecar, problem=sidecar.note)
    if not is_host_and_port(sidecar.address):
        return Answer(sidecar=sidecar, problem=f"its address is {sidecar.address!r}, must be HOST:PORT")
    nonce, headers = secrets.token_hex(16), dict[str, str]()
    if sidecar.secret is not None:
        signed = SignedRequest(method="GET", target=path, time_ms=time.time_ns() // 1_000_000, nonce=nonce)
        headers["Authorization"] = signed.authorization(sidecar.secret)
    request = urllib.request.Request(f"http://{sidecar.address}{path}", headers=headers)
    try:
        with _answer_of(request, timeout_s) as response:
            return _read(sidecar, response, nonce)
    except TimeoutError:
        return Answer(sidecar=sidecar, problem=f"it did not answer within {timeout_s:g} s")
    except (OSError, ValueError) as error:
        return Answer(sidecar=sidecar, problem=_sentence(sidecar, error))


def _answer_of(request: urllib.request.Request, timeout_s: float) -> Any:
    try:
        return _DIRECT.open(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        return error


def _read(sidecar: KnownSidecar, response: Any, nonce: str) -> Answer:
    code, body = response.status, response.read(_MOST_BYTES)
    if code in {401, 403}:
        return Answer(sidecar=sidecar, code=code, problem=REFUSED)
    proof = response.headers.get(PROOF_HEADER, "")
    if sidecar.secret is not None and not is_proven(sidecar.secret, proof, nonce=nonce, code=code, body=body):
        return Answer(sidecar=sidecar, code=code, problem=UNPROVEN)
    document = _document_of(body)
    if code == 200 and document is None:
        problem = f"{sidecar.address} did not answer with a document: is it the address of a status.listen?"
        return Answer(sidecar=sidecar, problem=problem)
    if reason := reason_of_another_cluster(sidecar.address, document or {}, sidecar.cluster_id):
        advice = "" if sidecar.node_id is None else ": set status.advertised of this broker's sidecar to its own"
        return Answer(sidecar=sidecar, problem=reason + advice)
    return Answer(sidecar=sidecar, code=code, document=document)


def _document_of(body: bytes) -> Mapping[str, Any] | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
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
