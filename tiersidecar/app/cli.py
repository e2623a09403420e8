"""The command line.  Exit codes: 0 done, 1 failed, 2 wrong configuration or wrong usage, 3 something needs somebody."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import structlog
import typer
from rich.console import Console
from rich.markup import escape

from tiersidecar.app.commands.complaints import FAILED, WRONG_USAGE, complain
from tiersidecar.app.commands.options import address
from tiersidecar.app.commands.register import register_commands
from tiersidecar.app.config.config import Config, load_config
from tiersidecar.app.config.exposed_secrets import exposed_secrets
from tiersidecar.app.config.report import effective_settings, render_yaml, warnings_of
from tiersidecar.app.config.top_level import Role
from tiersidecar.app.config.values import Address
from tiersidecar.app.logging import configure_logging
from tiersidecar.domain.errors import ConfigError, TiersidecarError
from tiersidecar.formats import native

app = typer.Typer(
    name="tiersidecar",
    help="Tiered storage (KIP-405) for an unmodified Kafka broker, from a daemon beside it.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong configuration or usage, 3 something needs somebody.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point of the ``tiersidecar`` command."""
    app()


@app.command()
def run(
    config_file: Annotated[
        Path,
        typer.Option("--config", "-c", metavar="FILE", envvar="TIERSIDECAR_CONFIG", help="The configuration (YAML)."),
    ],
    roles: Annotated[
        str,
        typer.Option(
            metavar="ROLE,...",
            envvar="TIERSIDECAR_ROLES",
            help="What this process does: tier copies, trims and follows; read serves HTTP; gateway Kafka clients.",
        ),
    ] = ",".join(Role),
    status_listen: Annotated[
        Address | None,
        typer.Option(
            metavar="HOST:PORT",
            parser=address,
            help="In place of status.listen: for a second process with the same configuration.",
        ),
    ] = None,
) -> None:
    """Run the daemon until SIGTERM or SIGINT.

    A broker, metadata topic or store that is away does not end it: it stays up, says why on /readyz, and tries again.
    SIGHUP reads the configuration again and changes the rates that it sets; the reference says which keys these are.
    """
    wanted = _roles(roles)

    def load() -> Config:
        config = load_config(config_file, os.environ)
        return config if status_listen is None else config.with_status_listen(status_listen)

    with _expected_errors():
        config = load()
    configure_logging(config.logging)
    log = structlog.get_logger(__name__)
    names = sorted(wanted)
    log.info("daemon.starting", version=_version(), roles=names, mode=config.mode.value, config=str(config_file))
    _tell_core()
    for warning in warnings_of(config):
        log.warning("config.warning", warning=warning)
    raise typer.Exit(_run_daemon(config, wanted, load))


@app.command("check-config", short_help="Check a configuration, and with --connect what it names.")
def check_config(
    config_file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration (YAML).")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document; sizes and times as numbers.")
    ] = False,
    connect: Annotated[
        bool, typer.Option("--connect", help="Also open store and broker, and compare what they say with it.")
    ] = False,
) -> None:
    """Check a configuration; without --connect touching neither broker nor store.

    Prints the effective configuration, secrets masked, and warnings; or every fault with its line, and exits with 2.
    Run it as the daemon's user: it warns of secrets in files that group or others can read, with the command against it.

    With --connect it says instead what of the store, the broker, the topics, the gateway's addresses and this machine does not
    fit, and what to do about each. It changes nothing: one small object is written under key.prefix, and removed. Exit codes:
    0 all fits, 3 something does not, 2 wrong configuration or usage.
    """
    try:
        config = load_config(config_file, os.environ)
    except ConfigError as error:
        if as_json:
            typer.echo(json.dumps({"valid": False, "file": str(config_file), "faults": list(error.faults)}, indent=2))
        else:
            complain(error, _console())
        raise typer.Exit(WRONG_USAGE) from None
    if connect:
        from tiersidecar.app.commands.connect_check import check_connected

        raise typer.Exit(check_connected(config, config_file, as_json=as_json))
    warnings = warnings_of(config)
    if as_json:
        exposed = [
            {"file": one.file, "mode": f"{one.mode:04o}", "keys": one.keys, "command": one.command}
            for one in exposed_secrets(config.secret_places)
        ]
        settings = effective_settings(config, units=False)
        document = {"valid": True, "warnings": warnings, "exposed_secrets": exposed, "config": settings}
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    typer.echo(render_yaml(effective_settings(config, units=True)), nl=False)
    for warning in warnings:
        _console().print(f"[yellow]warning:[/yellow] {escape(warning)}", soft_wrap=True)
    _console().print(f"[green]{escape(str(config_file))} is valid[/green]", soft_wrap=True)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"tiersidecar {_version()} ({native.core})")


def _version_asked_for(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_version_asked_for, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """What is asked of the program itself; its help is the application's."""


register_commands(app)


def _tell_core() -> None:
    """Say which core runs; with a warning where one is installed that cannot be used, since somebody believes that it runs."""
    core, log = native.core, structlog.get_logger(__name__)
    tell = log.warning if core.is_mismatch else log.info
    tell("daemon.core", core=core.name, native_version=core.version, reason=core.reason)


def _version() -> str:
    return installed_version("tiersidecar")


def _roles(text: str) -> frozenset[Role]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = ", ".join(Role)
    unknown = [name for name in names if name not in set(Role)]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is not a role; there are {known}", param_hint="--roles")
    if not names:
        raise typer.BadParameter(f"at least one of {known} is needed", param_hint="--roles")
    return frozenset(Role(name) for name in names)


def _run_daemon(config: Config, roles: frozenset[Role], load: Callable[[], Config]) -> int:
    # Imported late: check-config and version need neither clients nor event loops, and start at once.
    from tiersidecar.app.supervise import run_daemon

    try:
        return run_daemon(config, roles, load)
    except TiersidecarError as error:
        structlog.get_logger(__name__).error("daemon.failed", error=type(error).__name__, reason=str(error))
        return WRONG_USAGE if isinstance(error, ConfigError) else FAILED


@contextmanager
def _expected_errors() -> Iterator[None]:
    """Errors that have a sentence of their own end the command without a traceback."""
    try:
        yield
    except TiersidecarError as error:
        raise typer.Exit(complain(error, _console())) from None


def _console() -> Console:
    return Console(stderr=True, highlight=False)
