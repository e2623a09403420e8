"""What is said where an internal topic has lost data: operators of its cluster and of a replica do different things."""

from __future__ import annotations

from pathlib import Path

from tests.unit.adapters.state_topic.test_catch_up import Behind
from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.app.builders.logs import recovery_of_source
from tiersidecar.app.config.top_level import Role

SOURCE = "source: {bootstrap.servers: 'source:9092', mount.plan: /etc/mount.json}\nstate.dir: /var/lib/gateway\n"


def test_of_a_mount_s_source_the_operator_is_sent_to_the_source(tmp_path: Path) -> None:
    said = recovery_of_source(load(tmp_path, LEAST + SOURCE), frozenset({Role.GATEWAY}))
    assert "`tiersidecar recover --carry-out` there, and do nothing here before that has ended" in said
    assert "/var/lib/gateway/remote-log-metadata.gateway.sqlite and /var/lib/gateway/state-topic.gateway.json" in said
    assert "accept-topic-loss is of no use here" in said


def test_of_the_cluster_s_own_topics_they_say_so_themselves(tmp_path: Path) -> None:
    assert recovery_of_source(load(tmp_path, LEAST), frozenset({Role.TIER})) == ""
    own = Behind()
    own.replica._lost = "state is gone"
    assert "accept the loss with `tiersidecar accept-topic-loss`" in str(own.log.halted_reason)


def test_the_state_topic_says_it_in_place_of_its_own_advice() -> None:
    of_source = Behind(recovery="Recover it at the source.")
    of_source.replica._lost = "state is gone"
    assert of_source.log.halted_reason == "state is gone: the topic lost data. Recover it at the source."
