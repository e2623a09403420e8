"""Options that the commands have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from pydantic_core import PydanticCustomError

from tiersidecar.app.config.values import Address, Quantity

ConfigFile = Annotated[
    Path,
    typer.Option(
        "--config", "-c", metavar="FILE", envvar="TIERSIDECAR_CONFIG", help="The sidecar's configuration (YAML)."
    ),
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
Partition = Annotated[int, typer.Option("--partition", "-p", metavar="N", min=0, help="The partition.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document; needs --yes or --dry-run.")]


def quantity(kind: str, at_least: int) -> Callable[[str], int]:
    """A parser for ``7d`` or ``10GiB``, as in the configuration."""
    known = Quantity("duration_ms", at_least=at_least) if kind == "ms" else Quantity("size", at_least=at_least)

    def parse(text: str) -> int:
        try:
            return known.parse(int(text) if text.lstrip("-").isdecimal() else text)
        except PydanticCustomError as error:
            raise typer.BadParameter(error.message()) from None

    return parse


def address(text: str) -> Address:
    """``host:port``, as in the configuration."""
    try:
        return Address.parse(text)
    except PydanticCustomError as error:
        raise typer.BadParameter(error.message()) from None
