"""``tiersidecar accept-log-loss``: confirm that a partition's log was lost and began anew.

``tiersidecar accept-topic-loss``: confirm that the sidecars' own topics lost records, and go on with what they have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiersidecar.app.commands.carry_out import Intent, Manner, carry_out
from tiersidecar.app.commands.options import AsJson, ConfigFile, DryRun, Partition, Topic, Yes

if TYPE_CHECKING:
    from tiersidecar.app.commands.session import Session
from tiersidecar.domain.ids import format_uuid


def accept_topic_loss(
    config_file: ConfigFile,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Confirm that the state topic or the metadata topic lost records, and that nobody can restore them.

    Until then sidecars that know of the loss copy, trim and delete nothing. Afterwards they go by what the topics have now:
    remote log starts, users' deletes, holds, pauses, the trash and tiering settings that are in no record are forgotten,
    and so are segments that no event names. Sidecars that ran when the topic was lost must be started again.
    """
    manner = Manner(config_file=config_file, yes=yes, dry_run=dry_run, as_json=as_json)
    carry_out(look_at_topic_loss, manner, with_metadata=False)


async def look_at_topic_loss(session: Session) -> Intent:
    """Both topics as they are now: a command cannot see what they were."""
    from tiersidecar.app.commands.session import operator

    names = [session.config.state_topic_name, session.config.remote_log_metadata_topic_name]
    views = await session.broker.describe_partitions(names)
    found = {view.topic_id_partition.topic: format_uuid(view.topic_id_partition.topic_id) for view in views}
    facts = {
        "state_topic": names[0],
        "state_topic_id": found.get(names[0]),
        "metadata_topic": names[1],
        "metadata_topic_id": found.get(names[1]),
        "partitions_with_a_state": len(session.state.partitions()),
    }
    steps = (
        "what these two topics lack is taken for lost for good; the sidecars go by what is in them now",
        "what users deleted, and no record says any more, is readable again where it is still remote",
    )
    by = operator("accept-topic-loss")
    return Intent(facts=facts, steps=steps, apply=lambda: session.state.accept_losses(found, by=by))


def accept_log_loss(
    topic: Topic,
    partition: Partition,
    config_file: ConfigFile,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Confirm that all replicas of a partition were lost and its log began anew.

    Until then nothing of it expires, so that its remote segments can serve to restore it. Afterwards those of the time before
    expire by their own retention.
    """
    manner = Manner(config_file=config_file, yes=yes, dry_run=dry_run, as_json=as_json)
    carry_out(lambda session: look_at_loss(session, topic, partition), manner)


async def look_at_loss(session: Session, topic: str, partition: int) -> Intent:
    """What is remote, and what accepting the loss means."""
    from tiersidecar.ports.state_log import PartitionState

    view = await session.partition(topic, partition)
    tip = view.topic_id_partition
    segments = (await session.remote_segments([tip]))[tip]
    accepted = session.state.partition_state(tip).accepted_loss_epoch
    facts = {
        "topic": topic,
        "partition": partition,
        "leader_epoch": view.leader_epoch,
        "accepted_loss_epoch": accepted,
        "remote_segments": len(segments),
        "remote_bytes": sum(one.segment_size_in_bytes for one in segments),
    }
    if accepted >= view.leader_epoch:
        return Intent(facts=facts)
    said = PartitionState(accepted_loss_epoch=view.leader_epoch)
    return Intent(
        facts=facts,
        steps=("remote segments of the time before the log began anew expire by their own retention from now on",),
        apply=lambda: session.state.publish_partition_state(tip, said),
    )
