"""Options of the data source: what Spark's Kafka source takes, and a fault by name for what it does not."""

from __future__ import annotations

import pytest

from tiersidecar.app.data_source import parse_options
from tiersidecar.domain.errors import ConfigError
from tiersidecar.spark.datasource.options import (
    EARLIEST,
    LATEST,
    AtOffset,
    AtTimestamp,
    Missing,
    ReadOptions,
    Subscription,
    read_options,
)

SUBSCRIBED = {"subscribe": "a"}


def test_the_least_that_must_be_said() -> None:
    parsed = read_options(SUBSCRIBED)
    assert parsed == ReadOptions(subscription=Subscription(topics=("a",)))
    assert (parsed.start, parsed.end, parsed.read_committed, parsed.fail_on_data_loss) == (
        EARLIEST,
        LATEST,
        False,
        True,
    )


ACCEPTED = {
    "topics separated by commas": ({"subscribe": " a, b,a "}, {"subscription": Subscription(topics=("a", "b"))}),
    "partitions of topics": (
        {"assign": '{"a": [2, 0, 2], "b": [1]}'},
        {"subscription": Subscription(assigned={"a": (0, 2), "b": (1,)})},
    ),
    "names in any case": ({"SUBSCRIBE": "a", "includeheaders": "TRUE"}, {"include_headers": True}),
    "the word earliest": ({**SUBSCRIBED, "startingOffsets": "earliest"}, {"start": EARLIEST}),
    "the word latest": ({**SUBSCRIBED, "endingOffsets": "Latest"}, {"end": LATEST}),
    "offsets by partition": (
        {**SUBSCRIBED, "startingOffsets": '{"a": {"0": 23, "1": -2}}', "endingOffsets": '{"a": {"0": -1, "1": 7}}'},
        {"start": {("a", 0): AtOffset(23), ("a", 1): EARLIEST}, "end": {("a", 0): LATEST, ("a", 1): AtOffset(7)}},
    ),
    "a timestamp for all": (
        {**SUBSCRIBED, "startingTimestamp": "1000", "endingTimestamp": "2000"},
        {"start": AtTimestamp(1000), "end": AtTimestamp(2000)},
    ),
    "timestamps by partition": (
        {**SUBSCRIBED, "startingOffsetsByTimestamp": '{"a": {"0": 1000}}'},
        {"start": {("a", 0): AtTimestamp(1000)}},
    ),
    "a timestamp counts before timestamps by partition, and these before offsets": (
        {
            **SUBSCRIBED,
            "startingTimestamp": "5",
            "startingOffsetsByTimestamp": '{"a": {"0": 6}}',
            "startingOffsets": '{"a": {"0": 7}}',
            "endingOffsetsByTimestamp": '{"a": {"0": 8}}',
            "endingOffsets": '{"a": {"0": 9}}',
        },
        {"start": AtTimestamp(5), "end": {("a", 0): AtTimestamp(8)}},
    ),
    "the strategy": ({**SUBSCRIBED, "startingOffsetsByTimestampStrategy": "latest"}, {"missing_start": Missing.LATEST}),
    "isolation level": ({**SUBSCRIBED, "isolation.level": "read_committed"}, {"read_committed": True}),
    "isolation level by Kafka's name": ({**SUBSCRIBED, "kafka.isolation.level": "read_committed"}, {"read_committed": True}),
    "sizes": (
        {**SUBSCRIBED, "maxBytesPerPartition": "64m", "minPartitions": "9"},
        {"max_bytes_per_partition": 67108864, "min_partitions": 9},
    ),
    "data loss": ({**SUBSCRIBED, "failOnDataLoss": "false"}, {"fail_on_data_loss": False}),
}  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_what_is_accepted(given: dict[str, str], expected: dict[str, object]) -> None:
    parsed = read_options(given)
    assert {name: getattr(parsed, name) for name in expected} == expected


def test_a_pattern_is_of_whole_names() -> None:
    pattern = read_options({"subscribePattern": "a.*|b"}).subscription.pattern
    assert pattern is not None
    assert pattern.fullmatch("abc")
    assert not pattern.fullmatch("bc")


REFUSED = {
    "nothing is subscribed": ({}, "exactly one of"),
    "subscribed twice": ({"subscribe": "a", "assign": '{"a": [0]}'}, "assign and subscribe: exactly one of"),
    "no topic": ({"subscribe": " , "}, "subscribe: names no topic"),
    "no pattern": ({"subscribePattern": "("}, "subscribePattern: '(' is not a regular expression"),
    "assign is no JSON": ({"assign": "a:0"}, "assign: not JSON"),
    "assign is no object": ({"assign": "[0]"}, "assign: expected a JSON object"),
    "assign has no numbers": ({"assign": '{"a": ["0"]}'}, 'assign: a: expected {"topic": [0, 1], ...}'),
    "assign has nothing": ({"assign": '{"a": []}'}, "assign: names no partition"),
    "a start of latest": ({**SUBSCRIBED, "startingOffsets": "latest"}, "startingOffsets: latest is not allowed"),
    "a start of -1": (
        {**SUBSCRIBED, "startingOffsets": '{"a": {"0": -1}}'},
        "startingOffsets: a-0: -1 (latest) is not",
    ),
    "an end of earliest": ({**SUBSCRIBED, "endingOffsets": "earliest"}, "endingOffsets: earliest is not allowed"),
    "an end of -2": ({**SUBSCRIBED, "endingOffsets": '{"a": {"0": -2}}'}, "endingOffsets: a-0: -2 (earliest) is not"),
    "an offset below all": ({**SUBSCRIBED, "endingOffsets": '{"a": {"0": -3}}'}, "endingOffsets: a-0: -3 is below"),
    "a partition that is no number": (
        {**SUBSCRIBED, "startingOffsets": '{"a": {"x": 1}}'},
        "startingOffsets: a: expected",
    ),
    "an offset that is a truth": (
        {**SUBSCRIBED, "startingOffsets": '{"a": {"0": true}}'},
        "startingOffsets: a: expected",
    ),
    "a timestamp of letters": (
        {**SUBSCRIBED, "startingTimestamp": "noon"},
        "startingTimestamp: 'noon' is not a number",
    ),
    "a negative timestamp": (
        {**SUBSCRIBED, "endingOffsetsByTimestamp": '{"a": {"0": -1}}'},
        "endingOffsetsByTimestamp: a-0",
    ),
    "an unknown strategy": (
        {**SUBSCRIBED, "startingOffsetsByTimestampStrategy": "zero"},
        "'zero' is none of error, latest",
    ),
    "an unknown isolation level": ({**SUBSCRIBED, "isolation.level": "read"}, "isolation.level: 'read' is none of"),
    "two isolation levels": (
        {**SUBSCRIBED, "isolation.level": "read_committed", "kafka.isolation.level": "read_uncommitted"},
        "isolation.level: kafka.isolation.level says otherwise",
    ),
    "a truth that is none": ({**SUBSCRIBED, "includeHeaders": "yes"}, "includeHeaders: 'yes' is none of true, false"),
    "no partitions": ({**SUBSCRIBED, "minPartitions": "0"}, "minPartitions: must be 1 or more"),
    "no size": ({**SUBSCRIBED, "maxBytesPerPartition": "lots"}, "maxBytesPerPartition: 'lots' is no size"),
}


@pytest.mark.parametrize(("given", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused_is_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_options(given)
    assert named in str(raised.value)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_options({"includeHeaders": "yes", "startingOffset": "earliest", "minPartitions": "0"})
    assert [fault.partition(":")[0] for fault in raised.value.faults] == [
        "startingOffset",
        "assign, subscribe, subscribePattern",
        "includeHeaders",
        "minPartitions",
        "give config (a sidecar's configuration file), or kafka.bootstrap.servers and the store as store.* options",
    ]


def test_the_configuration_is_a_file_or_its_keys() -> None:
    _, source = parse_options({**SUBSCRIBED, "config": "/etc/tiersidecar.yaml"})
    assert source.path == "/etc/tiersidecar.yaml"
    keys = {
        "kafka.bootstrap.servers": "one:9092,two:9092",
        "store.type": "s3",
        "store.s3.bucket.name": "tiered",
        "store.s3.region": "eu-central-1",
        "store.key.prefix": "some/",
        "remote.log.metadata.topic.num.partitions": "7",
    }
    _, source = parse_options({**SUBSCRIBED, **keys})
    config = source.load()
    assert [server.host for server in config.broker.bootstrap_servers] == ["one", "two"]
    assert (config.store.type, config.store.key_prefix) == ("s3", "some/")
    assert config.remote_log_metadata_topic_num_partitions == 7


def test_keys_beside_a_file_and_keys_that_are_wrong_are_named() -> None:
    with pytest.raises(ConfigError, match=r"store\.type: config names a file"):
        parse_options({**SUBSCRIBED, "config": "/etc/tiersidecar.yaml", "store.type": "s3"})
    _, source = parse_options({**SUBSCRIBED, "kafka.bootstrap.servers": "one:9092", "store.type": "s3"})
    with pytest.raises(ConfigError, match=r"store\.s3\.bucket\.name"):
        source.load()
