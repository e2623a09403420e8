"""The configuration as a whole: every fault at once, each with its key and line (issue 1 of 8; S-196)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.app.config.config_files import LEAST, faults_of, load
from tiersidecar.app.config.broker import BrokerSection
from tiersidecar.app.config.config import Config, load_config
from tiersidecar.app.config.store import FilesystemStore
from tiersidecar.app.config.store_base import VerifyReadBack
from tiersidecar.app.config.top_level import Mode
from tiersidecar.domain.errors import ConfigError


def test_the_least_configuration_has_the_defaults_of_kafka_and_the_plugin(tmp_path: Path) -> None:
    """S-205 S-206 S-207 S-208 S-209 S-210 S-211 S-212 S-213 S-214 S-215 S-216, S-220: names, meanings and defaults are kept."""
    config = load(tmp_path, LEAST)
    assert config.mode is Mode.ENFORCE
    assert config.deletes_enabled
    assert (config.log_local_retention_ms, config.log_local_retention_bytes) == (-2, -2)
    assert (config.log_remote_copy_lag_ms, config.log_remote_copy_lag_bytes) == (0, 0)
    assert config.remote_log_manager_task_interval_ms == 30_000
    assert config.remote_log_manager_copier_thread_pool_size == 10
    assert config.remote_log_manager_expiration_thread_pool_size == 10
    assert config.remote_log_manager_follower_thread_pool_size == 2
    assert (config.remote_log_reader_threads, config.remote_log_reader_max_pending_tasks) == (10, 100)
    assert config.remote_log_index_file_cache_total_size_bytes == 1_073_741_824
    assert config.remote_log_index_file_cache_ttl_ms == 900_000
    assert config.remote_log_metadata_custom_metadata_max_bytes == 128
    assert config.remote_log_manager_copy_max_bytes_per_second == 2**63 - 1
    assert config.remote_log_manager_fetch_quota_window_num == 11
    assert config.remote_log_manager_copy_quota_window_size_seconds == 1
    assert (config.remote_fetch_max_wait_ms, config.remote_list_offsets_request_timeout_ms) == (500, 30_000)
    assert config.remote_log_metadata_topic_num_partitions == 50
    assert config.remote_log_metadata_topic_replication_factor == 3
    assert config.remote_log_metadata_topic_min_isr == 2
    assert config.remote_log_metadata_topic_retention_ms == -1
    assert config.remote_log_metadata_consume_wait_ms == 120_000
    assert (config.store.key_prefix, config.store.upload_rate_limit_bytes_per_second) == ("", None)


def test_all_faults_come_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = """\
mode: enfrce
deletes.enabled: maybe
log.dirs: [data]
kafka.version: 4.3
chunk.size: 4MiB
remote.log.storage.system.enable: true
broker:
  bootstrap.servers: localhost
  security.protocol: SASL_SSL
  sasl.pasword: hunter2
store:
  type: filesystem
  root: /srv/tier
  chunk.size: lots
  s3.region: eu-central-1
topics:
  - pattern: "ord("
    retention.ms: 1h
    retention.ms: 2h
  - name: a
    pattern: b
    retention.ms: 1h
    local.retention.ms: 2h
read: {listen: "0.0.0.0:8090"}
status: open
remote.log.reader.threads: 0
remote.log.manager.copier.thread.pool.size: many
"""
    assert faults_of(tmp_path, text) == [
        "line 1: mode: expected enforce or observe, got 'enfrce'",
        "line 2: deletes.enabled: expected true or false, got 'maybe'",
        "line 3: log.dirs[0]: expected an absolute path, got 'data'",
        "line 4: kafka.version: expected a text, got 4.3; put it into quotes",
        "line 5: chunk.size: unknown key here; it belongs to section store",
        "line 6: remote.log.storage.system.enable: is not a key of the sidecar: it is the broker's own switch for native "
        "tiering, which stays off",
        "line 8: broker.bootstrap.servers: expected host:port such as 127.0.0.1:9092, got 'localhost'",
        "line 10: broker.sasl.pasword: unknown key; did you mean broker.sasl.password?",
        "line 14: store.chunk.size: expected a size such as 64MiB, got 'lots'",
        "line 15: store.s3.region: is a key of another type of store",
        "line 17: topics[0].pattern: 'ord(' is not a regular expression: missing ), unterminated subpattern at position 3",
        "line 19: topics[0].retention.ms: is set twice, first on line 18",
        "line 20: topics[1]: needs either name or pattern, not both",
        "line 23: topics[1].local.retention.ms: is 2h, more than retention.ms (1h)",
        "line 24: read.authentication: must be required because listen (0.0.0.0:8090) is not a loopback address",
        "line 24: read.ssl.certificate.location: is required because listen (0.0.0.0:8090) is not a loopback address",
        "line 25: status: expected a section (key: value lines), got a text",
        "line 26: remote.log.reader.threads: must be at least 1, got 0",
        "line 27: remote.log.manager.copier.thread.pool.size: expected a whole number, got 'many'",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param(b"", "is empty; broker, log.dirs and store are required at least", id="an empty file"),
        pytest.param(
            b"# only a comment\n", "is empty; broker, log.dirs and store are required at least", id="comments only"
        ),
        pytest.param(b"a: 1\nb: \xff\n", "line 2: not UTF-8 text", id="another encoding"),
        pytest.param(
            b"a: [1\n", "line 2: not valid YAML: expected ',' or ']', but got '<stream end>'", id="broken YAML"
        ),
        pytest.param(b"- a\n", "expected keys and values (key: value lines) at the top level", id="a list"),
        pytest.param(
            b"a: \x00\n", "not valid YAML: unacceptable character #x0000: special characters are not allowed", id="NUL"
        ),
        pytest.param(b"a: 1\n---\nb: 1\n", "line 2: not valid YAML: but found another document", id="two documents"),
    ],
)
def test_a_file_that_is_no_configuration_is_told(tmp_path: Path, text: bytes, fault: str) -> None:
    assert faults_of(tmp_path, text) == [fault]


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read: no such file or directory"):
        load_config(tmp_path / "nowhere.yaml", {})


def test_a_directory_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: is a directory"):
        load_config(tmp_path, {})


def test_broken_yaml_never_quotes_the_line_which_may_hold_a_secret(tmp_path: Path) -> None:
    assert "hunter2" not in str(faults_of(tmp_path, LEAST + 'x: "hunter2\n'))


@pytest.mark.parametrize(
    ("lines", "faults"),
    [
        pytest.param("mode:\n", ["line 7: mode: expected enforce or observe, got nothing"], id="a key without a value"),
        pytest.param("log:\n  dirs: [/d]\n", ["line 7: log: unknown key"], id="a section that there is none"),
        pytest.param(
            "topics:\n  retention.ms: 1d\n",
            ["line 7: topics: expected a list, got a section"],
            id="topics as a section",
        ),
        pytest.param(
            "topics: [{}]\n", ["line 7: topics[0]: needs either name or pattern"], id="a rule without a topic"
        ),
        pytest.param(
            "topics: [orders]\n", ["line 7: topics[0]: expected a section (key: value lines), got a text"], id="a name"
        ),
        pytest.param(
            "topics: [{name: 'a*'}]\n",
            ["line 7: topics[0].name: 'a*' is not a topic name; use pattern for a regular expression"],
            id="a name that is a pattern",
        ),
        pytest.param(
            "topics:\n- name: __consumer_offsets\n",
            ["line 8: topics[0].name: __consumer_offsets is internal and cannot be tiered"],
            id="an internal topic by name",
        ),
        pytest.param(
            "topics:\n- name: __tiersidecar_state\n",
            ["line 8: topics[0].name: __tiersidecar_state is internal and cannot be tiered"],
            id="our own state topic by name",
        ),
        pytest.param(
            "a: &x\n  b: *x\n", ["line 7: a: unknown key", "line 8: a.b: an anchor cannot hold itself"], id="a loop"
        ),
        pytest.param("[1]: 2\n", ["line 7: a key must be a text"], id="a key that is a list"),
        pytest.param(
            "kafka.version: '4'\n",
            ["line 7: kafka.version: '4' does not have the form ^\\d+\\.\\d+(\\.\\d+)*$"],
            id="form",
        ),
        pytest.param(
            "log.retention.hours: 5\n",
            [
                "line 7: log.retention.hours: is not a key of the sidecar: write log.retention.ms, which takes units such as 7d"
            ],
            id="a key of Kafka's that the sidecar lacks",
        ),
        pytest.param(
            "bootstrap.servers: h:1\n",
            ["line 7: bootstrap.servers: unknown key here; it belongs to section broker"],
            id="a key in the wrong section",
        ),
        pytest.param(
            "state.dir: /var/lib/kafka/data/x\n",
            ["line 7: state.dir: must not lie in a log dir (/var/lib/kafka/data): the broker would refuse to start"],
            id="our files in a log dir",
        ),
        pytest.param(
            "remote.log.metadata.topic.min.isr: 4\n",
            [
                "line 7: remote.log.metadata.topic.min.isr: must not be more than remote.log.metadata.topic.replication.factor"
            ],
            id="more in-sync replicas than replicas",
        ),
        pytest.param(
            "remote.log.manager.task.retry.backoff.max.ms: 100ms\n",
            [
                "line 7: remote.log.manager.task.retry.backoff.max.ms: must not be less than "
                "remote.log.manager.task.retry.backoff.ms"
            ],
            id="a longest back-off below the first",
        ),
        pytest.param(
            "pins.enabled: false\ncompaction.enabled: true\n",
            ["line 8: compaction.enabled: needs pins.enabled: compacted topics are copied from links alone"],
            id="compacted topics without the links that they are copied from (issue 23)",
        ),
        pytest.param(
            "remote.log.metadata.topic.retention.ms: 30d\n"
            "topics: [{name: a, retention.ms: 7d}, {name: b, retention.ms: 30d}, {name: c}]\n",
            [
                "line 7: remote.log.metadata.topic.retention.ms: must be -1, or longer than the total retention of topics[1]: "
                "its metadata would expire before its data",
                "line 7: remote.log.metadata.topic.retention.ms: must be -1, or longer than the total retention of topics[2]: "
                "its metadata would expire before its data",
            ],
            id="metadata that expires before the data it names (S-237)",
        ),
        pytest.param(
            "log.local.retention.ms: 2d\ntopics:\n- name: a\n  retention.ms: 1d\n",
            ["line 9: topics[0].local.retention.ms: is 2d, more than retention.ms (1d)"],
            id="an inherited local retention above the topic's total (T-77)",
        ),
        pytest.param(
            "topics:\n- name: a\n  retention.bytes: 1GiB\n  local.retention.bytes: -1\n",
            ["line 10: topics[0].local.retention.bytes: is without limit (-1), more than retention.bytes (1GiB)"],
            id="local without limit under a limited total (T-77)",
        ),
        pytest.param(
            "topics:\n- name: a\n  retention.ms: 2d\n  local.retention.ms: 1d\n  remote.log.copy.disable: true\n",
            [
                "line 10: topics[0].local.retention.ms: must be -2 or equal to retention.ms (2d) with remote.log.copy.disable"
            ],
            id="copying disabled with a shorter local retention (T-77)",
        ),
        pytest.param(
            "read:\n  ssl.key.location: /k\n",
            ["line 7: read.ssl.certificate.location: is required with ssl.key.location"],
            id="a key without a certificate",
        ),
    ],
)
def test_a_fault_names_its_line_and_key(tmp_path: Path, lines: str, faults: list[str]) -> None:
    assert faults_of(tmp_path, LEAST + lines) == faults


def test_kafkas_comma_separated_forms_are_taken(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "log.dirs: /a,/b/\nbroker: {bootstrap.servers: 'h:1,i:2'}\n"
        "store: {type: filesystem, root: /r, custom.metadata.fields.include: 'REMOTE_SIZE, OBJECT_KEY'}\n",
    )
    assert config.log_dirs == ("/a", "/b")
    assert [str(server) for server in config.broker.bootstrap_servers] == ["h:1", "i:2"]
    assert [str(field) for field in config.store.custom_metadata_fields_include] == ["REMOTE_SIZE", "OBJECT_KEY"]


def test_code_may_construct_a_configuration_by_attribute_names() -> None:
    config = Config(
        log_dirs=("/d",),
        broker=BrokerSection(bootstrap_servers="h:1"),
        store=FilesystemStore(type="filesystem", root="/r"),
    )
    assert config.store.verify_read_back is VerifyReadBack.AUTO


def test_a_file_may_not_use_attribute_names(tmp_path: Path) -> None:
    assert faults_of(tmp_path, LEAST + "state_dir: /x\n") == ["line 7: state_dir: unknown key; did you mean state.dir?"]
