"""``tiersidecar repair REPORT``: correct those findings of a report whose correction can be proved to be right."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiersidecar.app.commands.carry_out import Intent, Manner, carry_out
from tiersidecar.app.commands.options import ConfigFile, quantity
from tiersidecar.decide.reconcile_findings import Finding
from tiersidecar.decide.reconcile_repair import MOST_ORPHANS, Repair, refusal

if TYPE_CHECKING:
    from tiersidecar.app.commands.session import Session
    from tiersidecar.app.repair_run import PlannedStep, Repairer, RepairSettings

OUTCOMES_FILE = "recopies.json"
"""File in the report's directory with the result of each request for another copy."""

_TIME = quantity("ms", at_least=0)
_SHOWN_STEPS = 50

ReportDir = Annotated[
    Path, typer.Argument(metavar="REPORT", exists=True, file_okay=False, help="Directory that `reconcile` wrote.")
]
Apply = Annotated[bool, typer.Option("--apply", help="Do it; without this option only show what would be done.")]
Grace = Annotated[
    int, typer.Option(metavar="TIME", parser=_TIME, help="Time between the mark on a leftover object and its deletion.")
]
CopyGrace = Annotated[
    int, typer.Option(metavar="TIME", parser=_TIME, help="Age at which an unfinished copy is given up.")
]
MostOrphans = Annotated[
    float, typer.Option(metavar="SHARE", min=0, max=1, help="Refuse a report with a larger share of orphans.")
]
Wait = Annotated[
    int, typer.Option(metavar="TIME", parser=_TIME, help="Maximum time to wait for the copies that sidecars make.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def repair(
    report: ReportDir,
    config_file: ConfigFile,
    apply: Apply = False,
    grace: Grace = "1d",  # type: ignore[assignment]  # typer parses defaults too
    copy_grace: CopyGrace = "3h",  # type: ignore[assignment]
    most_orphans: MostOrphans = MOST_ORPHANS,
    wait: Wait = "10m",  # type: ignore[assignment]
    as_json: AsJson = False,
) -> None:
    """Repair the findings of a reconcile report whose correction can be proved to be right.

    Each finding is checked again. Leftover objects are marked, and a later run deletes them after the grace. Stuck copies and
    dangling deletions are completed. Missing or damaged data is copied again by a sidecar whose broker still has it, or
    reported as unrecoverable. Nothing is changed without --apply.
    """
    from tiersidecar.app.repair_run import RepairSettings

    manner = Manner(config_file=config_file, yes=apply, dry_run=not apply, as_json=as_json)
    settings = RepairSettings(grace_ms=grace, copy_grace_ms=copy_grace, wait_ms=wait)
    carry_out(lambda session: look_at_report(session, report, settings, most_orphans, manner.progress), manner)


async def look_at_report(
    session: Session,
    report: Path,
    settings: RepairSettings,
    most_orphans: float,
    say: Callable[[str], None] = lambda text: None,
) -> Intent:
    """Return which findings of the report still hold, and the step for each."""
    from tiersidecar.app.reconcile_facts import read_topic_bounds
    from tiersidecar.app.repair_run import Repairer, read_report, report_facts

    summary, findings = read_report(report)
    cluster = await session.broker.describe_cluster()
    facts = {"run": summary["run_id"], "findings": sum(summary["findings"].values()), "repairable": len(findings)}
    bounds = await read_topic_bounds(session.broker, session.config.remote_log_metadata_topic_name)
    refused = refusal(report_facts(summary, session.config, cluster.cluster_id, bounds), most_orphans)
    if not refused and not session.config.deletes_enabled:
        refused = "deletes.enabled is false in the configuration: repair would delete"
    if refused:
        return Intent(facts=facts, refusal=refused)
    repairer = Repairer(session, settings, say)
    if reason := repairer.reason_not_to_delete:
        return Intent(facts=facts, refusal=reason)
    planned = await repairer.plan(findings)
    doing = [one for one in planned if one.step.repair is not Repair.LEAVE]
    left = Counter(one.step.reason for one in planned if one.step.repair is Repair.LEAVE)
    steps = [f"{one.step.repair}: {_name(one.finding)}: {one.step.reason}" for one in doing]
    if len(steps) > _SHOWN_STEPS:
        steps = [*steps[:_SHOWN_STEPS], f"and {len(doing) - _SHOWN_STEPS} more"]
    return Intent(
        facts=facts
        | {kind.value.replace("-", "_"): n for kind, n in Counter(one.step.repair for one in planned).items()},
        steps=tuple(steps),
        notes=tuple(f"left alone, {count}: {reason}" for reason, count in sorted(left.items())),
        apply=lambda: _do(repairer, doing, report),
    )


def _name(finding: Finding) -> str:
    """Return what an operator knows it by: a gap has neither object nor segment."""
    gap = f"{finding.topic}/{finding.partition}, offsets {finding.start_offset} to {finding.end_offset}"
    return finding.key or finding.segment_id or gap


async def _do(repairer: Repairer, doing: Sequence[PlannedStep], report: Path) -> dict[str, object]:
    """Apply the steps; return counts of what was copied, is lost and is pending, and write all outcomes to the report."""
    from tiersidecar.app.repair_recopy import counts

    outcomes = await repairer.apply(doing)
    if outcomes:
        documents = [outcome.document() for outcome in outcomes]
        (report / OUTCOMES_FILE).write_text(json.dumps(documents, indent=2) + "\n", encoding="utf-8")
    return dict(counts(outcomes))
