"""Anomalies in a cluster that an operator must look at, each with what to do: a table of checks of the cluster's picture."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from tiersidecar.domain.readable import duration_text
from tiersidecar.services.status.cluster import Cluster, Overview, Sidecar

RECONCILE_OLD_S = 8 * 86_400
"""Same limit as in the alert TiersidecarReconcileOld."""
_MOST_DETAILS = 8


class Severity(IntEnum):
    """``ACT``: data or service is at stake.  ``LOOK``: it will be, or an operator has chosen it."""

    ACT = 0
    LOOK = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """``topic`` and ``partition`` name its subject, if it is about one."""

    severity: Severity
    title: str
    details: tuple[str, ...]
    advice: str
    topic: str | None = None
    partition: int | None = None


def find_anomalies(cluster: Cluster) -> list[Anomaly]:
    """Return all of them, the most urgent first."""
    found = [one for look in _LOOKS for one in look(cluster)]
    return sorted(found, key=lambda one: one.severity)


def _silent(cluster: Cluster) -> Iterator[Anomaly]:
    for sidecar in cluster.sidecars:
        if sidecar.overview is None and not sidecar.is_of_another_cluster:
            yield Anomaly(
                severity=Severity.ACT,
                title=f"The sidecar of {_asked(sidecar)} does not answer",
                details=(sidecar.problem,),
                advice="Check its process and its log. While it is down, no partition that its broker "
                "leads is copied or trimmed, and that broker's disk grows; producing and local reading continue.",
            )


def _not_ready(cluster: Cluster) -> Iterator[Anomaly]:
    for answer in cluster.answers:
        if answer.reasons:
            yield Anomaly(
                severity=Severity.ACT,
                title=f"The sidecar of {_name(answer)} is not ready",
                details=answer.reasons,
                advice="It waits for what is named here, and continues by itself once that is available.",
            )
        if answer.standing_by:
            yield Anomaly(
                severity=Severity.LOOK,
                title=f"A process beside {_name(answer)} stands by",
                details=(answer.standing_by,),
                advice="Only one process beside a broker has the tier role. If the other one should not run, stop it: this one "
                "then takes over.",
            )


def _halted(cluster: Cluster) -> Iterator[Anomaly]:
    for topic, partitions, details in _by_topic(cluster, "halted"):
        yield Anomaly(
            severity=Severity.ACT,
            title=_title(topic, partitions, "halted"),
            details=details,
            advice="Fix the named cause. The partition is tried again after a long pause, and at once when the sidecar is "
            "restarted; until then the log grows on the broker's disk.",
            topic=topic,
            partition=partitions[0] if len(partitions) == 1 else None,
        )


def _paused(cluster: Cluster) -> Iterator[Anomaly]:
    paused = {sentence for one in cluster.answers for sentence in one.paused}
    if paused:
        yield Anomaly(
            severity=Severity.LOOK,
            title="Paused by an operator",
            details=tuple(sorted(paused)),
            advice="`tiersidecar resume` ends the pause. Until then disks and the store grow.",
        )


def _held_back(cluster: Cluster) -> Iterator[Anomaly]:
    for topic, partitions, details in _by_topic(cluster, "held back"):
        yield Anomaly(
            severity=Severity.LOOK,
            title=_title(topic, partitions, "held back"),
            details=details,
            advice="Data past its retention stays until the reason is gone. Let the group catch up, or see the partition's "
            "page for the rule that waits.",
            topic=topic,
            partition=partitions[0] if len(partitions) == 1 else None,
        )


def _by_topic(cluster: Cluster, kind: str) -> Iterator[tuple[str, list[int], tuple[str, ...]]]:
    """Yield topic, partitions, and their reasons: a reason of many partitions appears once."""
    found: defaultdict[str, defaultdict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for answer in cluster.answers:
        for trouble in answer.troubles:
            if trouble.kind == kind and trouble.topic not in answer.untrimmable_topics:
                found[trouble.topic][trouble.reason].add(trouble.partition)
    for topic, reasons in sorted(found.items()):
        partitions = sorted(set().union(*reasons.values()))
        several = len(partitions) > 1
        reasons_shown = [f"{_numbers(sorted(numbers))}: {why}" if several else why for why, numbers in reasons.items()]
        rest = len(reasons_shown) - _MOST_DETAILS
        yield topic, partitions, (*reasons_shown[:_MOST_DETAILS], *([f"and {rest} more reasons"] if rest > 0 else []))


def _title(topic: str, partitions: list[int], what: str) -> str:
    return (
        f"{topic}/{partitions[0]} is {what}"
        if len(partitions) == 1
        else f"{topic}: {len(partitions)} partitions {what}"
    )


def _lost(cluster: Cluster) -> Iterator[Anomaly]:
    for answer in cluster.answers:
        if answer.losses:
            yield Anomaly(
                severity=Severity.ACT,
                title=f"{_name(answer).capitalize()}: data is lost, or the store is not the same as before",
                details=answer.losses,
                advice="These partitions are not processed until you have decided: the runbook for disasters "
                "(docs/operations/disasters.md) describes the cases.",
            )


def _other_clusters(cluster: Cluster) -> Iterator[Anomaly]:
    for sidecar in cluster.sidecars:
        if sidecar.is_of_another_cluster:
            yield Anomaly(
                severity=Severity.ACT,
                title=f"The address of {_asked(sidecar)} leads to another cluster's sidecar",
                details=(sidecar.problem,),
                advice="Set `status.advertised` of this broker's sidecar to an address of its own, or remove the address from "
                "`status.also.ask`. Nothing of the other cluster is shown, and nothing is known of this sidecar.",
            )


def _topics(cluster: Cluster) -> Iterator[Anomaly]:
    for title, advice, reasons in (
        (
            "is not tiered",
            "Change the topic, or remove it from the rules of this configuration.",
            _merged(answer.refused_topics for answer in cluster.answers),
        ),
        (
            "is not trimmed: the broker's own settings do not fit",
            "Act soon: the broker may delete data by its own retention before it is copied. `tiersidecar enable` "
            "corrects the settings.",
            _merged(answer.untrimmable_topics for answer in cluster.answers),
        ),
    ):
        for topic, reason in sorted(reasons.items()):
            yield Anomaly(
                severity=Severity.LOOK, title=f"{topic} {title}", details=(reason,), advice=advice, topic=topic
            )


def _log_dirs(cluster: Cluster) -> Iterator[Anomaly]:
    for answer in cluster.answers:
        if answer.log_dir_faults:
            yield Anomaly(
                severity=Severity.ACT,
                title=f"{_name(answer).capitalize()}: log dirs cannot be read",
                details=_lines(answer.log_dir_faults),
                advice="Check permissions, mounts and the disk: partitions there are not copied.",
            )
        if answer.misplaced:
            yield Anomaly(
                severity=Severity.ACT,
                title=f"{_name(answer).capitalize()}: led partitions whose directory is not here",
                details=_lines(answer.misplaced),
                advice="Give the sidecar the broker's log.dirs, by the same mounts, and restart it. Until then these "
                "partitions are not copied or trimmed.",
            )


def _disks(cluster: Cluster) -> Iterator[Anomaly]:
    for answer in cluster.answers:
        if answer.disk_troubles:
            yield Anomaly(
                severity=Severity.ACT,
                title=f"{_name(answer).capitalize()}: a disk fills up",
                details=_lines(answer.disk_troubles),
                advice="Find what keeps data local (lag, held-back trims, a long local retention), or add space. A broker with "
                "a full disk stops.",
            )


def _deletes(cluster: Cluster) -> Iterator[Anomaly]:
    blocked = {answer.deletes_blocked for answer in cluster.answers if answer.deletes_blocked}
    if blocked:
        yield Anomaly(
            severity=Severity.LOOK,
            title="Nothing remote is deleted",
            details=tuple(sorted(blocked)),
            advice="Start a sidecar beside every broker, or list those that intentionally have none in "
            "deletes.brokers.without.sidecar.",
        )
    off = [_name(answer) for answer in cluster.answers if not answer.deletes_enabled]
    if off:
        yield Anomaly(
            severity=Severity.LOOK,
            title="All deletes are switched off",
            details=(", ".join(off),),
            advice="Set deletes.enabled back to true, and reload, once the reason for it is gone: disks and the store grow "
            "meanwhile.",
        )


def _unmapped(cluster: Cluster) -> Iterator[Anomaly]:
    for answer in cluster.answers:
        for gateway in answer.gateways:
            if gateway.unmapped_brokers:
                where = f"The gateway {gateway.listener} of {_name(answer)}"
                yield Anomaly(
                    severity=Severity.ACT,
                    title=f"{where} has no address for {gateway.unmapped_brokers} brokers",
                    details=(),
                    advice="Its clients cannot reach the partitions that these lead. Set advertised.pattern, or "
                    "advertised.nodes, on every gateway.",
                )


def _reconciled(cluster: Cluster) -> Iterator[Anomaly]:
    last = cluster.reconcile
    if last is None:
        if cluster.topics:
            yield Anomaly(
                severity=Severity.LOOK,
                title="The store has never been compared with the metadata",
                details=("no run of reconcile has put its report into the store",),
                advice="Run `tiersidecar reconcile --put-report` (with --local if there is no Spark), and schedule it.",
            )
        return
    if last.age_s > RECONCILE_OLD_S:
        yield Anomaly(
            severity=Severity.LOOK,
            title=f"The last reconcile run ended {duration_text(last.age_s * 1000)} ago",
            details=(),
            advice="Find out why it no longer runs: each form of deployment has a timer or a CronJob for it.",
        )
    if last.findings:
        yield Anomaly(
            severity=Severity.ACT,
            title="Metadata and store do not match",
            details=tuple(f"{count:,} {kind}" for kind, count in sorted(last.findings.items())),
            advice="The report names each object. `tiersidecar repair` shows what it would do about them, and with `--apply` "
            "does it.",
        )


def _versions(cluster: Cluster) -> Iterator[Anomaly]:
    versions = Counter(sidecar.version for sidecar in cluster.sidecars if sidecar.version)
    if len(versions) > 1:
        yield Anomaly(
            severity=Severity.LOOK,
            title="Sidecars are of different versions",
            details=tuple(f"{count} of {version}" for version, count in sorted(versions.items())),
            advice="Complete the roll-out: new features are used only when all have the same version.",
        )


_LOOKS: tuple[Callable[[Cluster], Iterator[Anomaly]], ...] = (
    _silent,
    _lost,
    _other_clusters,
    _halted,
    _log_dirs,
    _disks,
    _not_ready,
    _unmapped,
    _reconciled,
    _topics,
    _held_back,
    _paused,
    _deletes,
    _versions,
)


def _asked(one: Sidecar) -> str:
    return one.address if one.node_id is None else f"broker {one.node_id}"


def _name(one: Overview) -> str:
    return "this process" if one.node_id < 0 else f"broker {one.node_id}"


def _lines(reasons: Mapping[str, str]) -> tuple[str, ...]:
    rest = len(reasons) - _MOST_DETAILS
    shown = (f"{name}: {reason}" for name, reason in sorted(reasons.items())[:_MOST_DETAILS])
    return (*shown, *([f"and {rest} more"] if rest > 0 else []))


def _merged(several: Iterable[Mapping[str, str]]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for one in several:
        merged |= one
    return merged


def _numbers(numbers: list[int]) -> str:
    shown = ("partition " if len(numbers) == 1 else "partitions ") + ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown} and {len(numbers) - 8} more"
