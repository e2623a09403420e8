"""``tiersidecar reconcile``: compare the store with the metadata, on Spark or in this process.

Exit codes: 0 clean, 3 findings, 1 failed, 2 wrong usage.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tiersidecar.adapters.ending_loop import run_to_end
from tiersidecar.app.commands.complaints import FAILED, complain, log_errors_alone
from tiersidecar.app.commands.options import ConfigFile, quantity, spark_setting
from tiersidecar.app.config.config import Config, load_config
from tiersidecar.decide.reconcile_findings import Graces
from tiersidecar.domain.errors import TiersidecarError
from tiersidecar.domain.readable import duration_text

if TYPE_CHECKING:  # Spark is slow to import, and --help needs none
    from tiersidecar.app.reconcile_parts import RunOptions
    from tiersidecar.reconcile.report import Summary

CLEAN, FINDINGS = 0, 3
_TIME = quantity("ms", at_least=0)

Master = Annotated[str, typer.Option(metavar="URL", help="Spark's master, unless spark-submit names one.")]
SparkConf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; repeatable.")
]
Report = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Directory of the report; default: ./reconcile-<time>.")
]
Grace = Annotated[
    int,
    typer.Option(
        metavar="TIME",
        parser=_TIME,
        help="Minimum age of a finding. For a deleted topic it counts from each segment's last event.",
    ),
]
CopyGrace = Annotated[int, typer.Option(metavar="TIME", parser=_TIME, help="The same, for an unfinished copy.")]
Inventory = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH", help="Read this inventory instead of listing the store: files, or a manifest.json."),
]
InventoryForm = Annotated[str, typer.Option("--inventory-format", metavar="FORMAT", help="csv, orc or parquet.")]
InventoryColumns = Annotated[str, typer.Option(metavar="NAMES", help="A CSV inventory's columns, by its fileSchema.")]
InventoryTime = Annotated[
    datetime | None,
    typer.Option(
        help="When the inventory was begun (UTC); later events are not compared with it. A manifest contains it."
    ),
]
Manifests = Annotated[bool, typer.Option(help="Read every live manifest: one request per segment.")]
Deep = Annotated[bool, typer.Option("--deep", help="Read whole segments: chunks, batch checksums, offsets, indexes.")]
DeepShare = Annotated[
    float, typer.Option(metavar="SHARE", min=0.001, max=1.0, help="Share of segments that --deep reads.")
]
PutReport = Annotated[
    bool,
    typer.Option(
        "--put-report", help="Also write the report to the store, where the daemons read it for their metrics."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON document.")]


Local = Annotated[
    bool,
    typer.Option(
        "--local",
        help="Run in this process, without Spark: up to a million objects, with a kilobyte of memory for each.",
    ),
]


def reconcile(
    config_file: ConfigFile,
    local: Local = False,
    master: Master = "local[*]",
    conf: SparkConf = None,
    report: Report = None,
    grace: Grace = "1h",  # type: ignore[assignment]  # typer parses defaults too
    copy_grace: CopyGrace = "3h",  # type: ignore[assignment]
    inventory: Inventory = None,
    inventory_format: InventoryForm = "parquet",
    inventory_columns: InventoryColumns = "",
    inventory_time: InventoryTime = None,
    manifests: Manifests = True,
    deep: Deep = False,
    deep_share: DeepShare = 1.0,
    put_report: PutReport = False,
    as_json: AsJson = False,
) -> None:
    """Compare all objects of the store with all remote log metadata, on Spark or with --local in this process.

    Changes nothing. The report lists what is missing, superfluous, stuck or contradictory, and what to do about each;
    `tiersidecar repair` does part of it. Exit codes: 0 clean, 3 findings, 1 failed, 2 wrong usage.
    """
    if inventory and inventory_time is None and not inventory[0].endswith("manifest.json"):
        raise typer.BadParameter("an inventory needs --inventory-time", param_hint="--inventory")
    if local and inventory:
        raise typer.BadParameter("--local lists the store: an inventory needs Spark", param_hint="--inventory")
    if inventory_format not in {"csv", "orc", "parquet"}:
        raise typer.BadParameter(
            f"{inventory_format!r} is not one of csv, orc, parquet", param_hint="--inventory-format"
        )
    console = Console(stderr=True, highlight=False)
    try:
        config = load_config(config_file, os.environ)
        config.require_own()
        log_errors_alone(config.logging)
        # Not before the configuration: without the extra `spark`, a wrong file name is still the first thing to say.
        from tiersidecar.app.reconcile_parts import RunOptions
        from tiersidecar.spark.inventory_manifest import InventoryFormat

        options = RunOptions(
            config_file=config_file,
            report=report or Path(f"reconcile-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"),
            graces=Graces(finding_ms=grace, copy_ms=copy_grace),
            inventory=tuple(inventory or ()),
            inventory_format=InventoryFormat(inventory_format),
            inventory_columns=inventory_columns,
            inventory_time_ms=None
            if inventory_time is None
            else int(inventory_time.replace(tzinfo=UTC).timestamp() * 1000),
            reads_manifests=manifests,
            deep_share=deep_share if deep else 0.0,
            puts_report=put_report,
        )
        with _progress(console) as say:
            if local:
                summary = _run_locally(config, options, say)
            else:
                summary = _run(config, options, master, dict(spark_setting(text) for text in conf or ()), say)
    except TiersidecarError as error:
        raise typer.Exit(complain(error, console, config_file)) from None
    except ImportError as error:
        console.print(
            f"[red]error:[/red] {escape(str(error))}: install tiersidecar with its extra `spark`, or give --local for a "
            "store of up to a million objects",
            soft_wrap=True,
        )
        raise typer.Exit(FAILED) from None
    if as_json:
        typer.echo(json.dumps(summary.document(), indent=2))
    else:
        _show(summary, options, console)
    raise typer.Exit(FINDINGS if summary.finding_count else CLEAN)


def _run_locally(config: Config, options: RunOptions, say: Callable[[str], None]) -> Summary:
    from tiersidecar.app.reconcile_local_run import run_local_reconcile

    return run_to_end(run_local_reconcile(config, options, say))


def _run(
    config: Config, options: RunOptions, master: str, settings: dict[str, str], say: Callable[[str], None]
) -> Summary:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from tiersidecar.app.reconcile_run import run_reconcile
    from tiersidecar.domain.errors import SparkJobError
    from tiersidecar.spark.session import close_session, open_session

    say("starting Spark")
    spark = open_session(app_name="tiersidecar reconcile", master=master, settings=settings)
    try:
        return run_reconcile(spark, config, options, say)
    except (PySparkException, Py4JError) as error:
        raise SparkJobError(job="reconcile", reason=str(error)) from error
    finally:
        close_session(spark)


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the step: on a terminal with its time, else one line per step (the text before a colon)."""
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True
    ) as progress:
        running = progress.add_task("")

        last = ""

        def say(text: str) -> None:
            nonlocal last
            step = text.partition(":")[0]
            if step != last:
                progress.reset(running, description=text)
                if not console.is_terminal:
                    console.print(step)
            last = step
            progress.update(running, description=text)

        yield say


def _show(summary: Summary, options: RunOptions, console: Console) -> None:
    table = Table(title="findings" if summary.findings else None)
    table.add_column("finding")
    table.add_column("count", justify="right")
    for kind, count in sorted(summary.findings.items()):
        table.add_row(kind, f"{count:,}")
    if summary.findings:
        console.print(table)
    seen = f"{summary.object_count:,} objects, {summary.segment_count:,} segments ({summary.live_segment_count:,} live)"
    took_s = (summary.finished_ms - summary.started_ms) / 1000
    console.print(f"{seen}, {summary.event_count:,} events in {took_s:.0f} s", soft_wrap=True)
    if summary.metadata_doubt:
        doubt = f"[red]no orphan is proposed for deletion:[/red] {escape(summary.metadata_doubt)}"
        console.print(doubt, soft_wrap=True)
    verdict = f"[yellow]{summary.finding_count:,} findings[/yellow]" if summary.findings else "[green]clean[/green]"
    console.print(f"{verdict}: {escape(str(options.report))}", soft_wrap=True)
    graces = options.graces
    if graces.finding_ms or graces.copy_ms:
        grace, copy_grace = duration_text(graces.finding_ms), duration_text(graces.copy_ms)
        younger = f"--grace {grace}, for unfinished copies --copy-grace {copy_grace}"
        console.print(f"not reported: what is younger, and may only be in progress ({younger})", soft_wrap=True)
