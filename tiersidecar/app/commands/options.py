"""Arguments and options that several commands share, and their parsers."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from pydantic_core import PydanticCustomError

from tiersidecar.app.config.values import Address, Quantity

ConfigFile = Annotated[
    Path,
    typer.Option(
        "--config", "-c", metavar="FILE", envvar="TIERSIDECAR_CONFIG", help="The sidecar's configuration file (YAML)."
    ),
]
Target = Annotated[str, typer.Argument(metavar="TOPIC[/PARTITION]", help="A topic, or one partition of it.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
Partition = Annotated[int, typer.Option("--partition", "-p", metavar="N", min=0, help="The partition.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document; needs --yes or --dry-run.")]


def quantity(kind: str, at_least: int) -> Callable[[str], int]:
    """Return a parser for ``7d`` (``kind`` ms) or ``10GiB`` (bytes), as in the configuration."""
    known = Quantity("duration_ms", at_least=at_least) if kind == "ms" else Quantity("size", at_least=at_least)

    def parse(text: str) -> int:
        try:
            return known.parse(int(text) if text.lstrip("-").isdecimal() else text)
        except PydanticCustomError as error:
            raise typer.BadParameter(error.message()) from None

    return parse


def address(text: str) -> Address:
    """Parse ``host:port``, as in the configuration."""
    try:
        return Address.parse(text)
    except PydanticCustomError as error:
        raise typer.BadParameter(error.message()) from None


def moment_ms(text: str, *, option: str | None = None) -> int:
    """Parse an ISO 8601 time, which is UTC if it has no zone, to milliseconds since 1970.

    Raises:
        typer.BadParameter: it is none; typer names the option of a parser itself, and ``option`` elsewhere.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time such as 2026-01-31T08:15:00Z", param_hint=option) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def spark_setting(text: str) -> tuple[str, str]:
    """Return the name and the value of ``key=value``.

    Raises:
        typer.BadParameter: it is none.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"{text!r} is not key=value", param_hint="--conf")
    return key, value


def parse_target(text: str) -> tuple[str, int | None]:
    """Return the topic and the partition of ``TOPIC`` or ``TOPIC/PARTITION``; a topic's name has no slash.

    Raises:
        typer.BadParameter: it is neither.
    """
    match = re.fullmatch(r"([^/]+)(?:/(\d{1,9}))?", text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is neither TOPIC nor TOPIC/PARTITION, such as orders/0")
    return match.group(1), None if match.group(2) is None else int(match.group(2))
