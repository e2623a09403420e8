"""The command line.  Exit codes: 0 done, 1 failed, 2 wrong configuration or usage, 3 done, and an operator must act."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tiersidecar.app.commands.complaints import FAILED, WRONG_USAGE, complain
from tiersidecar.app.commands.options import address
from tiersidecar.app.commands.register import CommandsOnDemand
from tiersidecar.app.config.config import Config, load_config
from tiersidecar.app.config.report import warnings_of
from tiersidecar.app.config.top_level import Role
from tiersidecar.app.config.values import Address
from tiersidecar.app.gateway_workers.place import WorkerPlace, worker_config
from tiersidecar.domain.errors import ConfigError, TiersidecarError
from tiersidecar.formats import native

app = typer.Typer(
    name="tiersidecar",
    cls=CommandsOnDemand,
    help="Tiered storage (KIP-405) for an unmodified Kafka broker, from a daemon beside it.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong configuration or usage, 3 done, and an operator must act.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the ``tiersidecar`` command."""
    try:
        app()
    except SystemExit as end:
        loops = sys.modules.get("tiersidecar.adapters.ending_loop")  # what has run no loop has no thread that hangs
        if loops is not None and isinstance(end.code, int):
            loops.exit_process(end.code)
        raise


def _worker_place(text: str) -> WorkerPlace:
    try:
        return WorkerPlace.parse(text)
    except ValueError:
        raise typer.BadParameter("is not for people to use") from None


@app.command()
def run(
    config_file: Annotated[
        Path,
        typer.Option(
            "--config", "-c", metavar="FILE", envvar="TIERSIDECAR_CONFIG", help="The configuration file (YAML)."
        ),
    ],
    roles: Annotated[
        str,
        typer.Option(
            metavar="ROLE,...",
            envvar="TIERSIDECAR_ROLES",
            help="Roles of this process: tier copies, trims and expires; read serves HTTP; gateway serves Kafka clients.",
        ),
    ] = ",".join(Role),
    status_listen: Annotated[
        Address | None,
        typer.Option(
            metavar="HOST:PORT",
            parser=address,
            help="Replaces status.listen, for a second process with the same configuration.",
        ),
    ] = None,
    gateway_worker: Annotated[
        WorkerPlace | None,
        typer.Option(hidden=True, parser=_worker_place, help="Given by the process that starts this one."),
    ] = None,
) -> None:
    """Run the daemon until SIGTERM or SIGINT.

    If broker, metadata topic or store is unavailable, the daemon stays up, reports the reason on /readyz and retries.
    SIGHUP reads the configuration again and applies its rates; the configuration reference marks these keys.
    """
    wanted = _roles(roles)

    def load() -> Config:
        config = load_config(config_file, os.environ)
        if gateway_worker is not None:
            return worker_config(config, gateway_worker)
        return config if status_listen is None else config.with_status_listen(status_listen)

    with _expected_errors():
        config = load()
        config.require_roles(wanted)
    # Imported late, here and below: the other commands start without clients, event loops and loggers.
    import structlog

    from tiersidecar.app.logging import configure_logging

    configure_logging(config.logging)
    if gateway_worker is not None:
        structlog.contextvars.bind_contextvars(worker=gateway_worker.number)
    log = structlog.get_logger(__name__)
    names = sorted(wanted)
    log.info("daemon.starting", version=_version(), roles=names, mode=config.mode.value, config=str(config_file))
    _log_core()
    for warning in warnings_of(config) if gateway_worker is None else ():
        log.warning("config.warning", warning=warning)
    raise typer.Exit(_run_daemon(config, wanted, load, gateway_worker))


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
    """Take the options of the program itself; its help is the application's."""


def _log_core() -> None:
    """Log which core runs: a warning if the installed native core cannot be used."""
    import structlog

    core, log = native.core, structlog.get_logger(__name__)
    report = log.warning if core.is_mismatch else log.info
    report("daemon.core", core=core.name, native_version=core.version, reason=core.reason)


def _version() -> str:
    return installed_version("tiersidecar")


def _roles(text: str) -> frozenset[Role]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = ", ".join(Role)
    unknown = [name for name in names if name not in set(Role)]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is not a role; the roles are {known}", param_hint="--roles")
    if not names:
        raise typer.BadParameter(f"name at least one of {known}", param_hint="--roles")
    return frozenset(Role(name) for name in names)


def _run_daemon(config: Config, roles: frozenset[Role], load: Callable[[], Config], worker: WorkerPlace | None) -> int:
    import structlog

    from tiersidecar.app.supervise import run_daemon

    try:
        return run_daemon(config, roles, load, worker)
    except TiersidecarError as error:
        structlog.get_logger(__name__).error("daemon.failed", error=type(error).__name__, reason=str(error))
        return WRONG_USAGE if isinstance(error, ConfigError) else FAILED


@contextmanager
def _expected_errors() -> Iterator[None]:
    """Print the product's own errors as one sentence, without a traceback, and exit."""
    try:
        yield
    except TiersidecarError as error:
        raise typer.Exit(complain(error, _console())) from None


def _console() -> Console:
    return Console(stderr=True, highlight=False)
