"""``tiersidecar compact``: clean now what may be cleaned of a compacted topic's remote log."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from tiersidecar.app.commands.carry_out import Intent, Manner, StepProgress, carry_out
from tiersidecar.app.commands.complaints import FAILED, complain
from tiersidecar.app.commands.options import ConfigFile, quantity, spark_setting
from tiersidecar.app.commands.plain_text import scratch_of_command
from tiersidecar.app.config.config import load_config
from tiersidecar.app.scratch import COMPACT_PREFIX
from tiersidecar.domain.errors import TiersidecarError

if TYPE_CHECKING:
    from tiersidecar.app.commands.session import Session
    from tiersidecar.app.compact_run import Compactor, EngineOf, PartitionCompacted, PartitionLook

Partition = Annotated[
    int | None, typer.Option("--partition", "-p", metavar="N", min=0, help="The partition; without it, each.")
]
Scratch = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        exists=True,
        file_okay=False,
        help="Directory for one rewritten segment at a time; else the system's for such files.",
    ),
]
DedupeBuffer = Annotated[
    int | None,
    typer.Option(
        metavar="SIZE",
        parser=quantity("bytes", 24 * 1024),
        help="Most memory for the map of keys, 27 bytes a key; default: compaction.dedupe.buffer.size. A map that holds all "
        "keys of the backlog takes one round.",
    ),
]


Spark = Annotated[
    bool,
    typer.Option(
        "--spark",
        help="Read and rewrite segments on Spark. Executors need the configuration file and the store; --dedupe-buffer and "
        "--scratch do not apply. spark.speculation is always false.",
    ),
]
Master = Annotated[str, typer.Option(metavar="URL", help="Spark's master, unless spark-submit names one.")]
SparkConf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; repeatable.")
]


SPARK_SETTINGS = {
    # Little data does not mean little work: as many tasks as there are shuffle partitions share the segments.
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    # Files of the shuffle have the MD5 of each key, and stay on an executor's disk where it is killed.
    "spark.io.encryption.enabled": "true",
}
"""Unless ``--conf`` says otherwise."""
ALWAYS_SETTINGS = {
    # A second attempt to put a segment up can only fail, or make the first one fail.
    "spark.speculation": "false",
}


def compact(
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The topic's name.")],
    config_file: ConfigFile,
    partition: Partition = None,
    dedupe_buffer: DedupeBuffer = None,
    scratch: Scratch = None,
    spark: Spark = False,
    master: Master = "local[*]",
    conf: SparkConf = None,
    carry: Annotated[
        bool, typer.Option("--carry-out", help="Do it; without this option only show what would be done.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Clean a backlog of a compacted topic's remote log now.

    The sidecars clean by themselves, in chunks of segment.bytes or of what is clean already, beside their other work. This
    command takes all that may be cleaned at once, on any machine that reaches brokers and store, whatever
    min.cleanable.dirty.ratio is; a larger map needs fewer rounds, each of which reads what is dirty twice and what is clean
    once. The rules, and which records stay, are the sidecars' own, and they go on from where it ends: at what was dirty when it
    came to a partition. Their cleaners wait at the partition it is at and at those that are next. It may be ended and run again
    at any time. With --spark executors do the work, segment by segment, and no map bounds a round. Exit code 3: done, but a
    partition was not finished.
    """
    progress = StepProgress()
    manner = Manner(
        config_file=config_file, yes=carry, dry_run=not carry, as_json=as_json, makes_topics=carry, progress=progress
    )
    settings = dict(spark_setting(text) for text in conf or ())
    with ExitStack() as stack:
        directory = stack.enter_context(scratch_of_command(scratch, COMPACT_PREFIX, manner.console))
        engine_of = stack.enter_context(_spark_engines(manner, topic, master, settings)) if spark and carry else None
        wanted = Wanted(
            topic=topic,
            partition=partition,
            scratch=directory,
            dedupe_buffer_bytes=dedupe_buffer,
            progress=progress,
            engine_of=engine_of,
            is_on_spark=spark,
        )
        carry_out(lambda session: look_at_compaction(session, wanted), manner)


@contextmanager
def _spark_engines(manner: Manner, topic: str, master: str, settings: dict[str, str]) -> Iterator[EngineOf]:
    """Open the session of Spark, in which the engines work, for as long as the body runs.

    Raises:
        typer.Exit: the configuration is wrong, or there is no Spark.
    """
    try:
        config = load_config(manner.config_file, os.environ)  # a wrong one is the first thing to say
        from tiersidecar.app.compact_layout import layout_of
        from tiersidecar.app.compact_spark import SparkEngines
        from tiersidecar.spark.session import close_session, open_session

        with manner.console.status("starting Spark"):
            chosen = SPARK_SETTINGS | settings | ALWAYS_SETTINGS
            session = open_session(app_name="tiersidecar compact", master=master, settings=chosen)
    except TiersidecarError as error:
        raise typer.Exit(complain(error, manner.console, manner.config_file)) from None
    except ImportError as error:
        reason = f"[red]error:[/red] {escape(str(error))}: install tiersidecar with its extra `spark`"
        manner.console.print(reason, soft_wrap=True)
        raise typer.Exit(FAILED) from None
    try:
        layout = layout_of(config, topic)
        yield SparkEngines(spark=session, config_file=manner.config_file, topic=topic, layout=layout)
    finally:
        close_session(session)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The operator's request."""

    topic: str
    scratch: Path
    partition: int | None = None
    dedupe_buffer_bytes: int | None = None
    progress: Callable[[str], None] = field(default=lambda text: None)
    engine_of: EngineOf | None = None
    is_on_spark: bool = False


async def look_at_compaction(session: Session, wanted: Wanted) -> Intent:
    """Return what is dirty, and what would be done about it."""
    from tiersidecar.adapters.failpoints import EnvironmentFailpoints
    from tiersidecar.app.compact_run import Compacting, Compactor
    from tiersidecar.tasks.rewriting_commands import LEAST_SETTLE_S

    facts: dict[str, Any] = {"topic": wanted.topic}
    if refused := await _refusal(session, wanted):
        return Intent(facts=facts, refusal=refused)
    buffer_bytes = wanted.dedupe_buffer_bytes or session.config.compaction_dedupe_buffer_size
    engine = {} if wanted.engine_of is None else {"engine_of": wanted.engine_of}
    compactor = Compactor(
        session,
        Compacting(
            topic=wanted.topic,
            partition=wanted.partition,
            scratch=wanted.scratch,
            dedupe_buffer_bytes=buffer_bytes,
            settle_s=LEAST_SETTLE_S,
        ),
        progress=wanted.progress,
        failpoints=EnvironmentFailpoints.from_environment(),
        **engine,
    )
    found = await compactor.look()
    steps = [step for one in found for step in _step(one)]
    partitions = [_partition(one) for one in found]
    return Intent(
        facts=facts
        | {
            "partitions": len(found),
            **({"engine": "spark"} if wanted.is_on_spark else {"engine": "local", "dedupe_buffer_bytes": buffer_bytes}),
            "cleanable_segments": sum(one["cleanable_segments"] for one in partitions),
            "cleanable_bytes": sum(one["cleanable_bytes"] for one in partitions),
            "clean_bytes": sum(one["clean_bytes"] for one in partitions),
        },
        steps=tuple(steps),
        notes=tuple(_notes(found)),
        details={"looked_at": partitions},
        complete=False if any(_must_act(one) for one in found) else None,
        apply=lambda: _do(compactor),
    )


async def _refusal(session: Session, wanted: Wanted) -> str:
    """Return why nothing of the topic may be cleaned; "" if it may."""
    from tiersidecar.app.deletion_doubts import is_native, reason_not_to_delete
    from tiersidecar.decide.topics import is_compacted
    from tiersidecar.domain.lease import reason_to_wait_for_sidecars
    from tiersidecar.domain.policy import PauseKind

    topic = wanted.topic
    topic_id = (await session.partitions(topic))[0].topic_id_partition.topic_id
    policy = session.policy(topic, topic_id)
    configs = (await session.broker.describe_topic_configs([topic])).get(topic, {})
    if policy is None:
        return f"topic {topic} is not tiered"
    if policy.delete_remote:
        return "all that is remote of the topic is being deleted"
    if not is_compacted(configs):
        return "cleanup.policy has no compact: nothing of the topic is cleaned"
    if not session.config.compaction_enabled:
        return "compacted topics are tiered with compaction.enabled alone"
    if await is_native(session, topic):
        return "the broker tiers the topic itself: its segments are its own"
    if not session.config.deletes_enabled:
        return "deletes.enabled is false in the configuration: what was replaced would never be deleted"
    if reason := (reason_not_to_delete(session) or "") or session.state.why_paused(topic_id, PauseKind.COPIES):
        return reason
    # One of a former release knows nothing of this kind of entry in the trash, and could take what is replaced for live.
    brokers = (await session.broker.describe_cluster()).brokers
    return reason_to_wait_for_sidecars(brokers, session.state.lease, session.config.deletes_brokers_without_sidecar)


def _must_act(look: PartitionLook) -> bool:
    """Return whether something of the partition stays as it is until somebody acts."""
    return look.failed is not None or (not isinstance(look.planned, str) and look.planned.parted_at is not None)


def _step(look: PartitionLook) -> Iterable[str]:
    planned = look.planned
    if isinstance(planned, str) or planned.reason:
        return
    said = _partition(look)
    yield (
        f"partition {said['partition']}: clean {said['cleanable_segments']} dirty segments of {said['cleanable_bytes']} bytes, "
        f"offsets {said['first_dirty_offset']} to {said['cleanable_to']}, and {said['clean_bytes']} bytes before them; what is "
        "replaced goes into the trash"
    )


def _notes(found: Sequence[PartitionLook]) -> Iterable[str]:
    for look in found:
        name, planned = f"partition {look.view.topic_id_partition.partition}", look.planned
        if isinstance(planned, str):
            yield f"{name}: {planned}"
            continue
        if lost := planned.lost_records(look.view.topic_id_partition):
            yield str(lost)
        if planned.reason:
            yield f"{name}: {planned.reason}"
        elif planned.chain.stopped:
            yield f"{name}: nothing from offset {planned.chain.end_offset} on: {planned.chain.stopped}"


def _partition(look: PartitionLook) -> dict[str, Any]:
    planned, number = look.planned, look.view.topic_id_partition.partition
    if isinstance(planned, str):
        reason, stopped = planned, ""
        chunk: Sequence[Any] = ()
        offsets: dict[str, Any] = {"first_dirty_offset": None, "cleanable_to": None}
        clean_bytes = 0
    else:
        plan = planned.plan
        reason, stopped = planned.reason, planned.chain.stopped
        chunk = plan.chunks[0] if plan.chunks else ()
        offsets = {
            "first_dirty_offset": plan.first_dirty_offset,
            "cleanable_to": plan.first_uncleanable_offset - 1 if chunk else None,
        }
        clean = (one for one in planned.chain.segments if one.end_offset < plan.first_dirty_offset)
        clean_bytes = sum(one.segment_size_in_bytes for one in clean)
    return {
        "partition": number,
        "leader_epoch": look.view.leader_epoch,
        **offsets,
        "cleanable_segments": len(chunk),
        "cleanable_bytes": sum(one.size_bytes for one in chunk),
        "clean_bytes": clean_bytes,
        "reason": reason or None,
        "stopped": stopped or None,
    }


async def _do(compactor: Compactor) -> Mapping[str, Any]:
    """Clean, and return what was done."""
    done = await compactor.apply()
    return {
        "complete": not any(one.left for one in done),
        "cleaned": [_cleaned(one) for one in done],
    }


def _cleaned(one: PartitionCompacted) -> dict[str, Any]:
    swapped = [segment for each in one.rounds for segment in each.swapped]
    return {
        "partition": one.owner.partition,
        "rounds": len(one.rounds),
        "segments_rewritten": len(swapped),
        "bytes_before": sum(each.bytes_before for each in one.rounds),
        "bytes_after": sum(segment.segment_size_in_bytes for segment in swapped),
        "segments_not_read": sum(each.carried for each in one.rounds),
        "clean_up_to": one.cleaner_offset,
        "left": one.left or None,
        "then": one.stopped or None,
    }
