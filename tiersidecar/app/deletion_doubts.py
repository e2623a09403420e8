"""Why a command may not delete or replace remote data: what the sidecars' topics, the broker and the store say."""

from __future__ import annotations

from tiersidecar.app.commands.session import Session
from tiersidecar.app.reconcile_parts import read_owner, reason_of_another_place
from tiersidecar.domain.ids import DEFAULT_PLACE, TopicIdPartition, format_uuid, place_prefix
from tiersidecar.domain.policy import PauseKind, pause_sentence
from tiersidecar.ports.store import Store


def reason_not_to_delete(session: Session) -> str | None:
    """Return why nothing may be deleted: the metadata topic and the state topic do not bear it, or an operator has paused it,
    of any topic; else None."""
    assert session.metadata is not None, "the session was opened with metadata"
    paused = (pause_sentence(pause) for pause in session.state.pauses() if pause.thing.kind is PauseKind.DELETES)
    return session.metadata.halted_reason or session.state.halted_reason or next(paused, None)


async def is_native(session: Session, topic: str) -> bool:
    """Return whether the broker itself tiers the topic."""
    configs = await session.broker.describe_topic_configs([topic])
    return configs.get(topic, {}).get("remote.storage.enable") == "true"


async def reason_not_ours(session: Session, store: Store, owner: TopicIdPartition, *, lives_here: bool) -> str:
    """Return why the topic id's data are not this cluster's, as the store says, or else because it has no such topic."""
    cluster_id = (await session.broker.describe_cluster()).cluster_id
    state, topic_id = session.state.partition_state(owner), format_uuid(owner.topic_id)
    said = await read_owner(store, session.config.store.key_prefix, topic_id)
    if said is None and state.owner_seen_ms >= 0:
        return "the store had an owner object of it, and has none now: it is not the same store as before"
    for place in session.config.places:
        if said is None or place in state.places_seen:
            in_place = await read_owner(store, place_prefix(place), topic_id)
            if in_place is None and place in state.places_seen:
                return f"place {place} had an owner object of it, and has none now: it is not the same store as before"
            said = said or in_place
    if said is None:
        return "" if lives_here else "the cluster has no topic of this id, and the store does not say whose it is"
    if said == cluster_id:
        for place in (DEFAULT_PLACE, *(place for place in session.config.places if place in state.places_seen)):
            if reason := await reason_of_another_place(store, session.config.store.key_prefix, place, topic_id):
                return reason
        return ""
    return f"the store says that its topic's data are cluster {said}'s, this is {cluster_id}"
