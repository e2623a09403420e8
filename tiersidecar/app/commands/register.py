"""Add the commands that work on a running cluster to the command line."""

from __future__ import annotations

import typer

from tiersidecar.app.commands.accept_log_loss import accept_log_loss, accept_topic_loss
from tiersidecar.app.commands.adopt import adopt
from tiersidecar.app.commands.cat import cat
from tiersidecar.app.commands.delete_records import delete_records
from tiersidecar.app.commands.events import events
from tiersidecar.app.commands.handover import handover
from tiersidecar.app.commands.ls import explain, ls
from tiersidecar.app.commands.mount import mount
from tiersidecar.app.commands.pause import pause, resume
from tiersidecar.app.commands.reconcile import reconcile
from tiersidecar.app.commands.recover import recover
from tiersidecar.app.commands.repair import repair
from tiersidecar.app.commands.serve import serve
from tiersidecar.app.commands.status import status, topics
from tiersidecar.app.commands.store import store
from tiersidecar.app.commands.tiering import disable, enable
from tiersidecar.app.commands.trash import trash
from tiersidecar.app.commands.undelete import release, undelete
from tiersidecar.app.commands.verify import verify


def register_commands(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command("status", short_help="Show the whole cluster.")(status)
    app.command("topics", short_help="List tiered topics.")(topics)
    app.command("ls", short_help="List segments.")(ls)
    app.command("explain", short_help="Show why a segment is where it is.")(explain)
    app.command("cat", short_help="Print records of a partition.")(cat)
    app.command("verify", short_help="Read remote segments back and check them.")(verify)
    app.command("events", short_help="Print the events of remote segments.")(events)
    app.command("enable", short_help="Tier a topic.")(enable)
    app.command("disable", short_help="Stop tiering a topic; restore its retention.")(disable)
    app.command("pause", short_help="Stop copies or deletes for a while.")(pause)
    app.command("resume", short_help="End a pause.")(resume)
    app.command("delete-records", short_help="Delete records below an offset, remote and local.")(delete_records)
    app.command("accept-log-loss", short_help="Confirm that all replicas of a partition were lost.")(accept_log_loss)
    app.command("accept-topic-loss", short_help="Confirm that the sidecars' own topics lost records.")(
        accept_topic_loss
    )
    app.command("adopt", short_help="Make the remote data of a topic id this cluster's.")(adopt)
    app.command("reconcile", short_help="Compare the store with the metadata.")(reconcile)
    app.command("repair", short_help="Repair what a reconcile report found.")(repair)
    app.command("serve", short_help="Serve a bucket without any broker, read-only.")(serve)
    app.command("recover", short_help="Make lost topics of the sidecars anew from the store.")(recover)
    app.add_typer(handover, name="handover", short_help="Move topics to native tiering, or back.")
    app.add_typer(mount, name="mount", short_help="Set a lost cluster's topics up in a new one, from the store.")
    app.add_typer(store, name="store", short_help="Check the object store.")
    app.add_typer(trash, name="trash", short_help="List, purge or export what will be deleted.")
    app.command("undelete", short_help="Restore what is in the trash.")(undelete)
    app.command("release", short_help="Let retention continue after an undelete.")(release)
