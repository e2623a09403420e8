"""Which rule a topic falls under, and what it then means."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.domain.policy import AS_TOTAL, UNLIMITED, RetentionMode, TopicPolicy

TOPICS = """\
log.local.retention.ms: 12h
topics:
  - name: orders.raw
    mode: race
    retention.ms: 30d
    local.retention.bytes: 10GiB
    remote.copy.lag.ms: -1
  - pattern: "orders\\\\..*"
    exclude: [".*\\\\.tmp", "orders\\\\.scratch"]
    retention.ms: 365d
  - pattern: ".*"
    remote.log.copy.disable: true
    local.retention.ms: -2
"""


@pytest.mark.parametrize(
    ("topic", "policy"),
    [
        pytest.param(
            "orders.raw",
            TopicPolicy(
                mode=RetentionMode.RACE,
                retention_ms=30 * 86_400_000,
                retention_bytes=UNLIMITED,
                local_retention_ms=43_200_000,
                local_retention_bytes=10 * 1024**3,
                copy_lag_ms=43_200_000,
            ),
            id="the first rule counts; a lag of -1 is the local retention",
        ),
        pytest.param(
            "orders.paid",
            TopicPolicy(retention_ms=365 * 86_400_000, local_retention_ms=43_200_000),
            id="a pattern, with the inherited local retention",
        ),
        pytest.param(
            "orders.a.tmp",
            TopicPolicy(copy_disabled=True, local_retention_ms=AS_TOTAL),
            id="an excluded name falls to the next rule",
        ),
        pytest.param(
            "xorders.paid",
            TopicPolicy(copy_disabled=True, local_retention_ms=AS_TOTAL),
            id="a pattern is for the whole name",
        ),
        pytest.param("__consumer_offsets", None, id="an internal topic"),
        pytest.param("__remote_log_metadata", None, id="the metadata topic"),
        pytest.param("__tiersidecar_state", None, id="our state topic"),
        pytest.param("__something_of_tomorrow", None, id="no pattern takes a name with two underscores"),
    ],
)
def test_policy_of_a_topic(tmp_path: Path, topic: str, policy: TopicPolicy | None) -> None:
    assert load(tmp_path, LEAST + TOPICS).policy_for(topic) == policy


def test_no_rule_means_not_tiered(tmp_path: Path) -> None:
    assert load(tmp_path, LEAST).policy_for("orders") is None


def test_a_renamed_metadata_topic_is_internal_too(tmp_path: Path) -> None:
    text = LEAST + "remote.log.metadata.topic.name: tier-metadata\ntopics: [{pattern: '.*'}]\n"
    config = load(tmp_path, text)
    assert config.policy_for("tier-metadata") is None
    assert config.policy_for("other") == TopicPolicy()
