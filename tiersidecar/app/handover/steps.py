"""The steps of a hand-over in their order, as text: what this program does, and what an operator does to brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiersidecar.app.handover.back_to_local import ReturnLook
from tiersidecar.app.handover.run import HandoverLook, TopicLook
from tiersidecar.app.handover.settings import NATIVE_METADATA_TOPIC
from tiersidecar.app.handover.takeover import TakeoverLook
from tiersidecar.decide.native_settings import BLIND, BLIND_SETTINGS, RLMM_PREFIX

_UNTIL_THE_END = "retention.ms=-1,retention.bytes=-1"
_BLIND = f"{RLMM_PREFIX}{BLIND}={BLIND_SETTINGS[BLIND]} and the lines beside it in docs/operations/handover.md"


def steps_to_native(look: HandoverLook, path: Path | None) -> tuple[str, ...]:
    """Return all of the steps to native; with ``path``, only what the command does now."""
    if path is not None:
        return tuple(_written(look, path))
    return tuple(_to_native(look))


def _written(look: HandoverLook, path: Path) -> Iterator[str]:
    if displaced := sum(len(seen.plan.displaced) for seen in look.partitions):
        yield f"metadata topic: COPY_SEGMENT_FINISHED once more for {displaced} segments that other copies have displaced"
    if unpublished := sum(len(seen.unpublished) for seen in look.partitions):
        yield f"{NATIVE_METADATA_TOPIC}: {unpublished} events, which are in the sidecar's own metadata topic only"
    yield f"{path}: the plan for {len(look.partitions)} partitions"


def _to_native(look: HandoverLook) -> Iterator[str]:
    names = look.names
    if any(True for _ in look.obstacles()):
        yield "do what is named first, then look again until nothing is"
    yield "stop the sidecars of all brokers (gateways with --roles gateway may run)" + (
        f": those of brokers {', '.join(map(str, look.running))} run" if look.running else ""
    )
    yield f"tiersidecar handover to-native {names} --write-plan plan.json"
    yield (
        "brokers: native tiering into server.properties, with a metadata manager that reads nothing yet "
        f"({_BLIND}); restart one after the other"
    )
    for topic in look.topics:
        yield f"topic {topic.topic}: {_UNTIL_THE_END},remote.storage.enable=true"
    yield (
        "stop all brokers, in order; on each: tiersidecar handover files plan.json --broker-properties server.properties "
        "--carry-out"
    )
    yield "take the lines of the blind metadata manager out of server.properties, and start the brokers"
    yield "tiersidecar handover verify plan.json"
    for topic in look.topics:
        yield f"topic {topic.topic}: {_retention(topic)}; take it out of the sidecar's configuration"


def _retention(topic: TopicLook) -> str:
    policy = topic.policy
    settings = {
        "retention.ms": policy.retention_ms,
        "retention.bytes": policy.retention_bytes,
        "local.retention.ms": policy.local_retention_ms,
        "local.retention.bytes": policy.local_retention_bytes,
    }
    return ",".join(f"{name}={value}" for name, value in settings.items())


def steps_from_native(look: TakeoverLook, path: Path | None) -> tuple[str, ...]:
    """Return the steps from native; with ``path``, only what the command does now."""
    if path is not None:
        return (f"{path}: the plan for {len(look.partitions)} partitions",)
    return tuple(_from_native(look))


def _from_native(look: TakeoverLook) -> Iterator[str]:
    names = " ".join(look.topics)
    yield f"topics {names}: remote.log.copy.disable=true,{_UNTIL_THE_END}; wait until no copy is running"
    yield f"tiersidecar handover from-native {names} --write-plan back.json"
    yield f"brokers: a metadata manager that reads nothing, into server.properties ({_BLIND}); restart one after the other"
    yield f"tiersidecar handover from-native {names}, until it says of no broker that it sees the events, or may"
    yield f"topics {names}: remote.storage.enable=false,remote.log.delete.on.disable=true; brokers find nothing to delete"
    yield f"topics {names}: remove remote.log.delete.on.disable, remote.log.copy.disable and local.retention.*"
    yield (
        "take native tiering (or, where other topics keep it, the blind lines) out of server.properties; restart one after "
        "the other"
    )
    for topic in look.topics:
        yield f"start the sidecars; tiersidecar enable {topic}"
    for partition in look.partitions:
        if partition.hides_deleted:
            owner = partition.owner
            yield (
                f"before readers come: tiersidecar delete-records {owner.topic} -p {owner.partition} --offset "
                f"{partition.log_start_offset}, for segments begin below what users had"
            )
    yield "tiersidecar handover verify back.json"


def steps_back_to_local(look: ReturnLook, path: Path | None) -> tuple[str, ...]:
    """Return the steps back to the brokers' disks; with ``path``, only what the command does now."""
    if path is not None:
        return (f"{path}: the plan for {len(look.partitions)} partitions",)
    return tuple(_back_to_local(look))


def _back_to_local(look: ReturnLook) -> Iterator[str]:
    names = " ".join(look.topics)
    for topic in look.topics:
        yield f"tiersidecar disable {topic}; topic {topic}: {_UNTIL_THE_END}; tiersidecar pause {topic} --deletes"
    yield f"tiersidecar handover back-to-local {names} --write-plan plan.json --records GATEWAY"
    yield "on each broker, while it runs: tiersidecar handover restore plan.json --stage"
    yield (
        "stop all brokers that have replicas, by SIGTERM; on each: tiersidecar handover restore plan.json --carry-out "
        "--broker-properties server.properties, with --staged for the staged.json of every other one"
    )
    yield "start the brokers, all once each of them is done"
    yield "tiersidecar handover verify plan.json --records"
    for topic in look.topics:
        yield (
            f"topic {topic}: the retention that it is to have; once nothing needs its objects, tiersidecar resume {topic} "
            f"--deletes and tiersidecar disable {topic} --delete-remote"
        )
