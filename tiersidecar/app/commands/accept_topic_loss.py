"""``tiersidecar accept-topic-loss``: confirm that the sidecars' own topics lost records, and go on with what they have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiersidecar.app.commands.carry_out import Intent, Manner, carry_out
from tiersidecar.app.commands.options import AsJson, ConfigFile, DryRun, Yes
from tiersidecar.domain.ids import format_uuid

if TYPE_CHECKING:
    from tiersidecar.app.commands.session import Session


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
