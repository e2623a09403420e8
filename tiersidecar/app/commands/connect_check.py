"""``tiersidecar check-config --connect``: what of store, broker and machine does not fit the configuration.

Exit codes: 0 all fits, 3 something does not, 2 certificates or keys that cannot be used.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console

from tiersidecar.app.commands.complaints import complain
from tiersidecar.app.commands.looking import DONE, FOUND
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.report import warnings_of
from tiersidecar.app.logging import configure_logging
from tiersidecar.decide.config_check import Finding, Level, warning
from tiersidecar.domain.errors import TiersidecarError
from tiersidecar.domain.readable import printable


def check_connected(config: Config, config_file: Path, *, as_json: bool) -> int:
    """Look, print what was found, and return the exit code."""
    from tiersidecar.app.config_look import look_at_config

    configure_logging(config.logging.model_copy(update={"level": "error"}))
    console = Console(stderr=True, highlight=False)
    try:
        with console.status("asking the broker and the store"):
            found = asyncio.run(look_at_config(config))
    except TiersidecarError as error:  # certificates and keys that cannot be used
        return complain(error, console, config_file)
    found = [*(warning("configuration", one, "see docs/configuration.md") for one in warnings_of(config)), *found]
    fits = all(one.level is Level.OK for one in found)
    if as_json:
        document = {"valid": True, "fits": fits, "file": str(config_file), "findings": [asdict(one) for one in found]}
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        typer.echo(text(found))
    return DONE if fits else FOUND


def text(found: Sequence[Finding]) -> str:
    """For people: what is wrong comes last, where it is seen."""
    order = {Level.OK: 0, Level.WARNING: 1, Level.ERROR: 2}
    lines = []
    for one in sorted(found, key=lambda one: order[one.level]):
        lines.append(printable(f"{one.level:8} {one.check:10} {one.says}"))
        if one.do:
            lines.append(printable(f"{'':8} {'':10} -> {one.do}"))
    counts = ", ".join(f"{sum(one.level is level for one in found)} {level}" for level in Level)
    return "\n".join([*lines, counts])
