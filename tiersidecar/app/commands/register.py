"""The commands that act on a running cluster, put into the command line in one call."""

from __future__ import annotations

import typer

from tiersidecar.app.commands.accept_log_loss import accept_log_loss
from tiersidecar.app.commands.delete_records import delete_records
from tiersidecar.app.commands.reconcile import reconcile
from tiersidecar.app.commands.repair import repair
from tiersidecar.app.commands.tiering import disable, enable


def register_commands(app: typer.Typer) -> None:
    """Add ``enable``, ``disable``, ``delete-records``, ``accept-log-loss``, ``reconcile`` and ``repair`` to ``app``."""
    app.command("enable")(enable)
    app.command("disable")(disable)
    app.command("delete-records")(delete_records)
    app.command("accept-log-loss")(accept_log_loss)
    app.command("reconcile")(reconcile)
    app.command("repair")(repair)
