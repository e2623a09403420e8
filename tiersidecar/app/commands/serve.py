"""``tiersidecar serve``: a bucket without any broker, read by Kafka clients and over HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tiersidecar.app.commands.complaints import complain
from tiersidecar.domain.errors import TiersidecarError


def serve(
    config_file: Annotated[
        Path,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            envvar="TIERSIDECAR_SERVE_CONFIG",
            help="The configuration of this service (YAML), with a section store like a sidecar's: docs/serve.md.",
        ),
    ],
) -> None:
    """Serve the contents of a bucket, read-only, until SIGTERM or SIGINT; no broker is contacted.

    The bucket may be from tiersidecar or from native tiered storage with Aiven's plugin, and may grow meanwhile. Kafka clients
    assign partitions themselves: there are no consumer groups. The configuration lists the users. Exit codes: 0 stopped, 1
    failed, 2 wrong configuration or usage.
    """
    # Imported late: every command imports this module, and most start without loggers.
    import structlog

    from tiersidecar.app.config.serve import load_serve_config
    from tiersidecar.app.logging import configure_logging

    try:
        config = load_serve_config(config_file, os.environ)
        configure_logging(config.logging)
        for warning in config.warnings:
            structlog.get_logger(__name__).warning("config.warning", warning=warning)
        # Imported late: a wrong configuration is reported at once.
        from tiersidecar.app.serve_run import run_serve

        run_serve(config)
    except TiersidecarError as error:
        raise typer.Exit(complain(error, Console(stderr=True, highlight=False))) from None
