"""``tiersidecar check-config``: the file alone, or with ``--connect`` also broker, store and machine."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from tiersidecar.adapters.ending_loop import run_to_end
from tiersidecar.app.commands.complaints import WRONG_USAGE, complain, log_errors_alone
from tiersidecar.app.commands.looking import DONE, FOUND
from tiersidecar.app.config.config import Config, load_config
from tiersidecar.app.config.exposed_secrets import exposed_secrets
from tiersidecar.app.config.report import effective_settings, render_yaml, warnings_of
from tiersidecar.decide.config_check import Finding, Level, warning
from tiersidecar.domain.errors import ConfigError, TiersidecarError
from tiersidecar.domain.readable import printable


def check_config(
    config_file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration file (YAML).")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document; sizes and times as numbers.")
    ] = False,
    connect: Annotated[
        bool, typer.Option("--connect", help="Connect to store and broker, and compare them with it.")
    ] = False,
) -> None:
    """Check a configuration. Without --connect, neither broker nor store is contacted.

    Prints the effective configuration with its secrets masked, and warnings; or every fault with its line, and exits with 2.
    Run it as the daemon's user: it warns of secret files that group or others can read, and prints the command to run.

    With --connect it prints instead what does not fit at the store, the broker, the topics, the gateway's addresses and this
    machine, and what to do about each. It changes nothing: one small object is written under key.prefix, and removed. Exit
    codes: 0 everything fits, 3 something does not, 2 wrong configuration or usage.
    """
    console = Console(stderr=True, highlight=False)
    try:
        config = load_config(config_file, os.environ)
    except ConfigError as error:
        if as_json:
            typer.echo(json.dumps({"valid": False, "file": str(config_file), "faults": list(error.faults)}, indent=2))
        else:
            complain(error, console)
        raise typer.Exit(WRONG_USAGE) from None
    if connect:
        raise typer.Exit(_check_connected(config, config_file, console, as_json=as_json))
    warnings = warnings_of(config)
    if as_json:
        exposed = [
            {"file": secret.file, "mode": f"{secret.mode:04o}", "keys": secret.keys, "command": secret.command}
            for secret in exposed_secrets(config.secret_places)
        ]
        settings = effective_settings(config, units=False)
        document = {"valid": True, "warnings": warnings, "exposed_secrets": exposed, "config": settings}
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    typer.echo(render_yaml(effective_settings(config, units=True)), nl=False)
    for text in warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(text)}", soft_wrap=True)
    console.print(f"[green]{escape(str(config_file))} is valid[/green]", soft_wrap=True)


def _check_connected(config: Config, config_file: Path, console: Console, *, as_json: bool) -> int:
    """Connect, print the findings and return the exit code."""
    from tiersidecar.app.config_look import look_at_config

    log_errors_alone(config.logging)
    try:
        config.require_own()
        with console.status("contacting the broker and the store"):
            found = run_to_end(look_at_config(config))
    except TiersidecarError as error:  # certificates and keys that cannot be used
        return complain(error, console, config_file)
    found = [*(warning("configuration", text, "see docs/configuration.md") for text in warnings_of(config)), *found]
    fits = all(finding.level is Level.OK for finding in found)
    if as_json:
        document = {
            "valid": True,
            "fits": fits,
            "file": str(config_file),
            "findings": [asdict(finding) for finding in found],
        }
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        typer.echo(_text(found))
    return DONE if fits else FOUND


def _text(found: Sequence[Finding]) -> str:
    """Return the findings as lines, the errors last, where they are seen."""
    order = {Level.OK: 0, Level.WARNING: 1, Level.ERROR: 2}
    lines = []
    for finding in sorted(found, key=lambda finding: order[finding.level]):
        lines.append(printable(f"{finding.level:8} {finding.check:10} {finding.says}"))
        if finding.do:
            lines.append(printable(f"{'':8} {'':10} -> {finding.do}"))
    counts = ", ".join(f"{sum(finding.level is level for finding in found)} {level}" for level in Level)
    return "\n".join([*lines, counts])
