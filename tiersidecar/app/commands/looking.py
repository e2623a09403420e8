"""Run a command that changes nothing: read the configuration, print an error as a sentence, exit with a code."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tiersidecar.app.commands.complaints import complain, log_errors_alone
from tiersidecar.app.config.config import Config, load_config
from tiersidecar.domain.errors import TiersidecarError

DONE, FOUND = 0, 3
"""``FOUND``: the result was shown, and an operator must act."""

LookAsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document; sizes in bytes, times in ms.")]
Sidecar = Annotated[
    list[str] | None,
    typer.Option(
        "--sidecar",
        metavar="HOST:PORT",
        help="Ask this sidecar for the list of the others; default: status.listen of the configuration, then the state "
        "topic. Repeatable.",
    ),
]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.05, help="Time limit for each sidecar.")]


def look(config_file: Path, act: Callable[[Config], int]) -> None:
    """Run ``act``, which opens broker or store, and exit with the code that it returns."""

    def logging_errors(config: Config) -> int:
        log_errors_alone(config.logging)
        return act(config)

    look_at_sidecars(config_file, logging_errors)


def look_at_sidecars(config_file: Path, act: Callable[[Config], int]) -> None:
    """Run ``act``, which needs only the answers of sidecars, and exit with the code that it returns."""
    try:
        config = load_config(config_file, os.environ)
        config.require_own()
        code = act(config)
    except TiersidecarError as error:
        raise typer.Exit(complain(error, Console(stderr=True, highlight=False), config_file)) from None
    except KeyboardInterrupt:
        code = DONE
    raise typer.Exit(code)
