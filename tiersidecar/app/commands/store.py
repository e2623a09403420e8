"""``tiersidecar store check``: test the guarantees of a store, its speed, and how much can be tiered to it.

Exit codes: 0 all guarantees are kept, 3 one is broken, 1 failed, 2 wrong configuration or usage.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tiersidecar.adapters.ending_loop import run_to_end
from tiersidecar.app.commands.complaints import complain, log_errors_alone
from tiersidecar.app.commands.options import ConfigFile, quantity
from tiersidecar.app.commands.tables import Amount, table
from tiersidecar.app.config.config import Config, load_config
from tiersidecar.domain.errors import TiersidecarError
from tiersidecar.domain.ids import DEFAULT_PLACE, place_prefix
from tiersidecar.domain.readable import size_text

if TYPE_CHECKING:
    from tiersidecar.app.store_check import StoreCheck

KEPT, BROKEN = 0, 3
_INTERRUPTED = 130

store = typer.Typer(name="store", help="The object store.", no_args_is_help=True, rich_markup_mode=None)


@store.callback()
def _group() -> None:
    """The object store."""


@store.command("check", short_help="Test the store's guarantees, and measure it.")
def check(
    config_file: ConfigFile,
    samples: Annotated[int, typer.Option(min=1, max=10_000, help="Timed requests of each verb.")] = 50,
    object_size: Annotated[
        int,
        typer.Option(
            metavar="SIZE", parser=quantity("size", at_least=1), help="Size of the objects in the throughput test."
        ),
    ] = "16MiB",  # type: ignore[assignment]  # typer parses defaults too
    place: Annotated[
        str, typer.Option(metavar="NAME", help="A name in `places`; default: section store.")
    ] = DEFAULT_PLACE,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write, list, read, overwrite and delete below a separate prefix of the configured store.

    Nothing else is touched, and everything is removed at the end, also after Ctrl-C. Reports the guarantees that the store
    breaks (some accept a conditional write and ignore the condition), the latency of each verb, throughput by requests at once,
    and an estimate of what this machine can tier in an hour. Exit codes: 0 all kept, 3 one is broken, 1 failed, 2 wrong usage.
    """
    console = Console(stderr=True, highlight=False)
    try:
        config = load_config(config_file, os.environ)
        log_errors_alone(config.logging)
        if place and place not in config.places:
            known = ", ".join(sorted(config.places)) or "none"
            raise typer.BadParameter(f"{place!r} is not in places, which has {known}", param_hint="--place")
        found = run_to_end(_check(config, place, samples, object_size, lambda step: console.print(step)))
    except TiersidecarError as error:
        raise typer.Exit(complain(error, console, config_file)) from None
    except KeyboardInterrupt:
        console.print("interrupted: what was written has been removed")
        raise typer.Exit(_INTERRUPTED) from None
    typer.echo(json.dumps(found.document, indent=2) if as_json else _shown(found))
    raise typer.Exit(BROKEN if found.broken else KEPT)


async def _check(config: Config, place: str, samples: int, object_bytes: int, say: Callable[[str], None]) -> StoreCheck:
    # Imported late: every command imports this module, and few need a store's client.
    from tiersidecar.adapters.clock import SystemClock, SystemIds
    from tiersidecar.adapters.stores.paced import UploadPace
    from tiersidecar.app.builders.store import open_store
    from tiersidecar.app.store_check import CheckOptions, check_store
    from tiersidecar.ports.telemetry import NoTelemetry

    clock, ids = SystemClock(), SystemIds()
    section = config.places[place] if place else config.store
    limit = section.upload_rate_limit_bytes_per_second
    options = CheckOptions(
        key_prefix=place_prefix(place) or section.key_prefix,
        samples=samples,
        object_bytes=object_bytes,
        max_bytes_per_s=min(config.remote_log_manager_copy_max_bytes_per_second, limit or 2**63),
    )
    # Not paced: what the store can do is asked, not what it may.
    pace = UploadPace(None, clock)
    async with open_store(config, pace=pace, clock=clock, ids=ids, telemetry=NoTelemetry()) as opened:
        return await check_store(opened, options, clock=clock, ids=ids, say=say)


def _shown(found: StoreCheck) -> str:
    from tiersidecar.app.store_check import percentiles

    kept = [(promise.name, "broken: " + promise.fault if promise.fault else "kept") for promise in found.promises]
    sums = "keeps a CRC32C of each object" if found.keeps_checksums else "keeps no CRC32C: each byte is read back"
    verbs = [
        (verb, *(Amount(f"{value:.1f}") for value in percentiles(times).values()))
        for verb, times in found.latencies_ms.items()
    ]
    rates = [
        (at_once, *(Amount(f"{size_text(int(rate))}/s") for rate in (up, found.read_bytes_per_s[at_once])))
        for at_once, up in found.upload_bytes_per_s.items()
    ]
    return "\n".join([
        f"{found.store}: {sums}\n",
        table(("PROMISE", "STORE"), kept),
        "",
        table(("VERB (MS)", "P50", "P90", "P99", "MAX"), verbs),
        "",
        table(("AT ONCE", "UPLOAD", "READ"), rates),
        "",
        f"This machine can tier about {size_text(found.tiered_bytes_per_hour)} an hour: each byte is uploaded and read back.",
    ])  # fmt: skip
