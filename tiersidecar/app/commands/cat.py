"""``tiersidecar cat``: print records of a partition from both tiers, through the read service."""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tiersidecar.app.commands.asking import direct_opener
from tiersidecar.app.commands.looking import DONE, look
from tiersidecar.app.commands.options import ConfigFile, moment_ms, parse_target
from tiersidecar.app.config.config import Config
from tiersidecar.domain.errors import ReadRefusedError

PASSWORD_VARIABLE = "TIERSIDECAR_CAT_PASSWORD"
_TIMEOUT_S = 60.0
_PIECE_BYTES = 64 * 1024


def cat(
    target: Annotated[str, typer.Argument(metavar="TOPIC/PARTITION", help="A partition.")],
    config_file: ConfigFile,
    offset: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="From this offset; this or --time is needed.")
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="From the first record of this time, or of a later one: 2026-01-31T08:15:00Z, or ms since 1970.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Print at most this many records.")] = 100,
    until: Annotated[int | None, typer.Option(metavar="N", min=0, help="Stop before this offset.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Write Kafka's record batches, not NDJSON; needs --until.")
    ] = False,
    as_base64: Annotated[bool, typer.Option("--base64", help="Print keys and values as base64, not as text.")] = False,
    committed: Annotated[bool, typer.Option("--committed", help="Leave out records of aborted transactions.")] = False,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="The read service; by default read.listen of the configuration.")
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=f"The Kafka user to read as; the password is in {PASSWORD_VARIABLE}, or asked for."
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="A file with the bearer token to read with.")
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option("--ca", metavar="FILE", help="PEM file with the authority of the service's certificate."),
    ] = None,
) -> None:
    """Print records of a partition, from the remote log start to the high watermark, as JSON lines or raw batches.

    The broker decides who may read. Without --user or --token-file the request is made as ANONYMOUS.
    """
    topic, partition = parse_target(target)
    if partition is None:
        raise typer.BadParameter(f"{target} has no partition: TOPIC/PARTITION", param_hint="TOPIC/PARTITION")
    if (offset is None) == (time is None):
        raise typer.BadParameter("give either --offset or --time: where to begin", param_hint="--offset")
    if raw and until is None:
        raise typer.BadParameter("--raw needs --until: batches have no limit by number", param_hint="--until")
    time_ms = None if time is None else parse_time(time)

    def act(config: Config) -> int:
        base = (url or _url_of(config)).rstrip("/")
        service = _Service(base, _credentials(user, token_file), _tls(ca_file))
        path = f"/topics/{urllib.parse.quote(topic, safe='')}/partitions/{partition}"
        first = offset if offset is not None else service.offset_of(path, time_ms or 0)
        query: dict[str, Any] = {"offset": first}
        if until is not None:
            query["stop_offset"] = until
        if not raw:
            query |= {"limit": limit, "format": "base64" if as_base64 else "utf8"}
            query |= {"isolation": "read_committed"} if committed else {}
        service.copy(f"{path}/{'batches' if raw else 'records'}?{urllib.parse.urlencode(query)}")
        return DONE

    look(config_file, act)


def parse_time(text: str) -> int:
    """Return milliseconds since 1970 of either form; a time without a zone is UTC."""
    return int(text) if text.isascii() and text.isdecimal() else moment_ms(text, option="--time")


def _url_of(config: Config) -> str:
    host = "127.0.0.1" if config.read.listen.host == "0.0.0.0" else config.read.listen.host
    host = "::1" if host == "::" else host
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if config.read.uses_tls else 'http'}://{shown}:{config.read.listen.port}"


def _credentials(user: str | None, token_file: Path | None) -> Mapping[str, str]:
    if token_file is not None:
        try:
            return {"Authorization": f"Bearer {token_file.read_text().strip()}"}
        except OSError as error:
            raise typer.BadParameter(
                f"{token_file} cannot be read: {error.strerror}", param_hint="--token-file"
            ) from None
    if user is None:
        return {}
    password = os.environ.get(PASSWORD_VARIABLE) or typer.prompt(f"password of {user}", hide_input=True, err=True)
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise typer.BadParameter(f"{ca_file} cannot be used: {error}", param_hint="--ca") from None


@dataclass(frozen=True, slots=True)
class _Service:
    """Requests to the read service, as one caller."""

    base: str
    headers: Mapping[str, str]
    tls: ssl.SSLContext

    def offset_of(self, path: str, time_ms: int) -> int:
        """Return the offset of the first record at or after a time.

        Raises:
            ReadRefusedError: there is none, or the service refused.
        """
        with self._open(f"{path}/offsets?timestamp={time_ms}") as response:
            found = json.loads(response.read())["offset"]
        if found is None or found < 0:
            raise ReadRefusedError(url=self.base, reason="no record has this time or a later one")
        return int(found)

    def copy(self, path: str) -> None:
        """Copy a response to standard output.

        Raises:
            ReadRefusedError: the service refused, or ended the response early.
        """
        with self._open(path) as response:
            while piece := self._piece(response):
                sys.stdout.buffer.write(piece)  # a reader that went away is no failure of the service
        sys.stdout.flush()

    def _piece(self, response: Any) -> bytes:
        try:
            return bytes(response.read(_PIECE_BYTES))
        except (http.client.HTTPException, OSError) as error:
            sys.stdout.flush()
            reason = "the service ended the response early: the output is valid but incomplete; its log has the reason"
            raise ReadRefusedError(url=self.base, reason=reason) from error

    def _open(self, path: str) -> Any:
        try:
            return direct_opener(self.tls).open(
                urllib.request.Request(self.base + path, headers=dict(self.headers)), timeout=_TIMEOUT_S
            )
        except urllib.error.HTTPError as error:
            raise ReadRefusedError(url=self.base, reason=_problem(error)) from error
        except (OSError, ValueError) as error:
            reason = f"it cannot be reached ({getattr(error, 'reason', error)}): does a sidecar run with the role read?"
            raise ReadRefusedError(url=self.base, reason=reason) from error


def _problem(error: urllib.error.HTTPError) -> str:
    try:
        said = json.loads(error.read())
    except (OSError, ValueError):
        said = {}
    text = said.get("detail") or said.get("title") or error.reason
    bounds = f" (it has offsets {said['start_offset']} to {said['end_offset']})" if "end_offset" in said else ""
    return f"{error.code}: {text}{bounds}"
