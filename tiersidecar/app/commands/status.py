"""``tiersidecar status`` and ``topics``: the cluster as all its sidecars report it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated

import typer

from tiersidecar.app.commands.asking import KnownSidecar, ask, find_sidecars, seconds_since_start
from tiersidecar.app.commands.cluster_picture import (
    ClusterPicture,
    cluster_document,
    cluster_text,
    picture_of,
    topic_text,
)
from tiersidecar.app.commands.looking import DONE, FOUND, LookAsJson, Sidecar, Timeout, look_at_sidecars
from tiersidecar.app.commands.options import ConfigFile
from tiersidecar.app.config.config import Config
from tiersidecar.domain.errors import NoSidecarError

_CLEAR = "\x1b[H\x1b[2J"


def status(
    config_file: ConfigFile,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.2, help="With --watch: pause between two refreshes.")
    ] = 2.0,
    as_json: LookAsJson = False,
    sidecar: Sidecar = None,
    timeout: Timeout = 1.0,
) -> None:
    """Show the whole cluster: brokers, disks, topics, and what needs an operator.

    Asks all sidecars at once. One that does not answer in time has a row that reports it. Exits with 3 if one does not answer
    or is not ready, or a partition is halted or not known.
    """

    def act(config: Config) -> int:
        known = find_sidecars(config, sidecar or ())
        spent_s = seconds_since_start()
        while True:
            picture = _picture(known, timeout, spent_s)
            spent_s = 0.0
            typer.echo(_shown(picture, as_json=as_json, watch=watch))
            if not watch:
                return FOUND if picture.needs_somebody else DONE
            time.sleep(interval)
            with suppress(NoSidecarError):  # then they are asked again, one by one, and say why
                through = [one.address for one in known if one.address]
                known = find_sidecars(config, sidecar or (), through=through)

    look_at_sidecars(config_file, act)


def topics(
    config_file: ConfigFile, as_json: LookAsJson = False, sidecar: Sidecar = None, timeout: Timeout = 1.0
) -> None:
    """List tiered topics: bytes remote and on the leaders' disks, and what is not remote yet.

    Exits with 3 if a sidecar does not answer, or partitions are not known because their leader's sidecar did not report them.
    """

    def act(config: Config) -> int:
        picture = _picture(find_sidecars(config, sidecar or ()), timeout, seconds_since_start())
        rows = [asdict(row) for row in picture.topics]
        unanswered = [row for row in picture.brokers if not row.answers]
        if as_json:
            missing = [{"node_id": row.node_id, "problem": row.trouble} for row in unanswered]
            typer.echo(json.dumps({"topics": rows, "unanswered": missing}, indent=2, ensure_ascii=False))
        else:
            typer.echo(topic_text(picture.topics))
            for row in unanswered:
                name = row.address if row.node_id is None else f"broker {row.node_id}"
                typer.echo(f"{name} did not answer: {row.trouble}", err=True)
        return FOUND if unanswered or any(row.unknown for row in picture.topics) else DONE

    look_at_sidecars(config_file, act)


def _picture(known: Sequence[KnownSidecar], timeout_s: float, spent_s: float) -> ClusterPicture:
    return picture_of(ask(known, "/status", timeout_s, spent_s=spent_s))


def _shown(picture: ClusterPicture, *, as_json: bool, watch: bool) -> str:
    if as_json:
        return json.dumps(cluster_document(picture), indent=None if watch else 2, ensure_ascii=False)
    return f"{_CLEAR if watch else ''}{cluster_text(picture)}"
