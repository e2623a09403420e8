"""What the commands that only look have in common: the configuration read, an error in its own words, an exit code."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tiersidecar.app.commands.complaints import complain
from tiersidecar.app.config.config import Config, load_config
from tiersidecar.app.logging import configure_logging
from tiersidecar.domain.errors import TiersidecarError

DONE, FOUND = 0, 3
"""``FOUND``: it was shown, and something in it needs somebody."""

LookAsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document; sizes in bytes, times in ms.")]
Sidecar = Annotated[
    list[str] | None,
    typer.Option(
        "--sidecar",
        metavar="HOST:PORT",
        help="Ask this sidecar's status service where the others are; by default status.listen of the configuration, "
        "then the state topic. May be given more than once.",
    ),
]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.05, help="How long each may take.")]


def look(config_file: Path, act: Callable[[Config], int]) -> None:
    """Do ``act``, and leave with the code that it gives."""
    console = Console(stderr=True, highlight=False)
    try:
        config = load_config(config_file, os.environ)
        configure_logging(config.logging.model_copy(update={"level": "error"}))
        code = act(config)
    except TiersidecarError as error:
        raise typer.Exit(complain(error, console, config_file)) from None
    except KeyboardInterrupt:
        code = DONE
    raise typer.Exit(code)
