"""The commands that work on a running cluster: each one's module is imported when the command is asked for.

All of them together take longer to import than ``status`` takes to answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

import typer
from typer.core import TyperGroup

_PACKAGE = "tiersidecar.app.commands"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a command is: the function, or the Typer of a group of commands, ``name`` in ``module``."""

    module: str
    name: str
    short_help: str


COMMANDS: Mapping[str, _Place] = MappingProxyType(
    {
        "check-config": _Place(
            "check_config", "check_config", "Check a configuration; with --connect also the cluster."
        ),
        "status": _Place("status", "status", "Show the whole cluster."),
        "topics": _Place("status", "topics", "List tiered topics."),
        "ls": _Place("ls", "ls", "List segments."),
        "explain": _Place("ls", "explain", "Show why a segment is where it is."),
        "cat": _Place("cat", "cat", "Print records of a partition."),
        "verify": _Place("verify", "verify", "Read remote segments back and check them."),
        "events": _Place("events", "events", "Print the events of remote segments."),
        "enable": _Place("tiering", "enable", "Tier a topic."),
        "disable": _Place("tiering", "disable", "Stop tiering a topic; restore its retention."),
        "pause": _Place("pause", "pause", "Stop copies or deletes until resume."),
        "resume": _Place("pause", "resume", "End a pause."),
        "delete-records": _Place(
            "delete_records", "delete_records", "Delete records below an offset, remote and local."
        ),
        "erase": _Place("erase", "erase", "Erase the records of given keys from the remote log."),
        "compact": _Place("compact", "compact", "Clean the remote log of a compacted topic now."),
        "accept-log-loss": _Place(
            "accept_log_loss", "accept_log_loss", "Confirm that all replicas of a partition were lost."
        ),
        "accept-topic-loss": _Place(
            "accept_log_loss", "accept_topic_loss", "Confirm that the sidecars' own topics lost records."
        ),
        "adopt": _Place("adopt", "adopt", "Claim the remote data of a topic id for this cluster."),
        "reconcile": _Place("reconcile", "reconcile", "Compare the store with the metadata."),
        "repair": _Place("repair", "repair", "Repair what a reconcile report found."),
        "serve": _Place("serve", "serve", "Serve a bucket without any broker, read-only."),
        "recover": _Place("recover", "recover", "Rebuild lost topics of the sidecars from the store."),
        "undelete": _Place("undelete", "undelete", "Restore what is in the trash."),
        "release": _Place("undelete", "release", "Let retention continue after an undelete."),
        "handover": _Place("handover", "handover", "Move topics to native tiering, or back."),
        "mount": _Place("mount", "mount", "Set up a lost cluster's topics in a new one."),
        "store": _Place("store", "store", "Check the object store."),
        "trash": _Place("trash", "trash", "List, purge or export what will be deleted."),
    }
)


class CommandsOnDemand(TyperGroup):
    """Has the commands that were given to its Typer, and those of :data:`COMMANDS` after them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(dict.fromkeys([*(name for name in self.commands if name not in COMMANDS), *COMMANDS]))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        # A name that is none leads to a proposal, which takes all of them.
        for name in [cmd_name] if cmd_name in {*COMMANDS, *self.commands} else COMMANDS:
            if name not in self.commands:
                self.add_command(_imported(name, COMMANDS[name]), name)
        return super().get_command(ctx, cmd_name)


def _imported(name: str, place: _Place) -> Any:
    found = getattr(import_module(f"{_PACKAGE}.{place.module}"), place.name)
    alone = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name, short_help=place.short_help)
    else:
        alone.command(name, short_help=place.short_help)(found)
    return typer.main.get_group(alone).commands[name]
