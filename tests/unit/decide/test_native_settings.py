"""Which settings of a broker agree with ours, as far as it shows them (issue 21)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiersidecar.decide.native_settings import (
    BLIND,
    BLIND_SETTINGS,
    RLMM_PREFIX,
    Setting,
    Sight,
    Verdict,
    decide_settings,
    sight_of,
    with_file,
)

PREFIX = Setting(name="rsm.config.key.prefix", wanted="tier/", default="")
BUCKET = Setting(name="rsm.config.storage.s3.bucket.name", wanted="kafka-tier")
SYSTEM = Setting(name="remote.log.storage.system.enable", wanted="true", default="false")
OFF = Setting(name="rsm.config.compression.enabled", wanted="false", default="false")

ROWS: dict[str, tuple[Setting, dict[str, str | None], Verdict]] = {
    "it says the same": (PREFIX, {"rsm.config.key.prefix": "tier/"}, Verdict.SAME),
    "it says another": (PREFIX, {"rsm.config.key.prefix": "Tier/"}, Verdict.DIFFERENT),
    "it is not set, and the default is another": (PREFIX, {}, Verdict.DIFFERENT),
    "it is not set, and the default is what is wanted": (OFF, {}, Verdict.SAME),
    "it is not set, and has no default": (BUCKET, {}, Verdict.MISSING),
    "the broker hides its value": (BUCKET, {"rsm.config.storage.s3.bucket.name": None}, Verdict.HIDDEN),
    "Kafka takes any case of a flag": (SYSTEM, {"remote.log.storage.system.enable": "TRUE"}, Verdict.SAME),
    "of a flag that is to be off, too": (OFF, {OFF.name: "FALSE"}, Verdict.SAME),
    "and of nothing else": (PREFIX, {PREFIX.name: "TIER/"}, Verdict.DIFFERENT),
    "the broker has a prefix of its own for the plugin": (
        PREFIX,
        {"remote.log.storage.manager.impl.prefix": "mine.", "mine.key.prefix": "tier/"},
        Verdict.SAME,
    ),
    "what stands under the usual prefix counts for nothing then": (
        BUCKET,
        {"remote.log.storage.manager.impl.prefix": "mine.", BUCKET.name: "kafka-tier"},
        Verdict.MISSING,
    ),
}


@pytest.mark.parametrize("sentence", ROWS)
def test_one_setting(sentence: str) -> None:
    setting, found, verdict = ROWS[sentence]
    (row,) = decide_settings([setting], found)
    assert row.verdict is verdict
    assert (row.setting.wanted, row.setting.default) == (setting.wanted, setting.default)


def test_a_setting_is_named_as_the_broker_has_it_with_what_was_found() -> None:
    own = {"remote.log.storage.manager.impl.prefix": "mine.", "mine.key.prefix": "tier/ "}
    rows = decide_settings([PREFIX, BUCKET, SYSTEM], {**own, f"mine.{BUCKET.name.removeprefix('rsm.config.')}": None})
    assert [(row.setting.name, row.found, row.verdict) for row in rows] == [
        ("mine.key.prefix", "tier/ ", Verdict.SAME),
        ("mine.storage.s3.bucket.name", None, Verdict.HIDDEN),
        ("remote.log.storage.system.enable", "false", Verdict.DIFFERENT),
    ]


SHOWN: dict[str, str | None] = {RLMM_PREFIX + name: value for name, value in BLIND_SETTINGS.items()}
HIDDEN: dict[str, str | None] = dict.fromkeys(SHOWN)
SERVERS = RLMM_PREFIX + BLIND
OVERRIDE = f"{RLMM_PREFIX}remote.log.metadata.consumer.bootstrap.servers"

SIGHTS: dict[str, tuple[dict[str, str | None], Sight]] = {
    "all lines are there, and shown": (SHOWN, Sight.BLIND),
    "all lines are there, and no value is shown": (HIDDEN, Sight.BLIND),
    "all lines under a prefix of its own": (
        {
            "remote.log.metadata.manager.impl.prefix": "r.",
            **{f"r.{name}": value for name, value in BLIND_SETTINGS.items()},
        },
        Sight.BLIND,
    ),
    "no line is there": ({f"{RLMM_PREFIX}remote.log.metadata.topic.num.partitions": "5"}, Sight.SEEING),
    "an address alone, as operators of tiered clusters write it, and it is hidden": ({SERVERS: None}, Sight.UNKNOWN),
    "an address alone, where nothing listens": ({SERVERS: "127.0.0.1:1"}, Sight.UNKNOWN),
    "an address alone, of the cluster": ({SERVERS: "my-cluster-kafka-brokers:9091"}, Sight.SEEING),
    "all lines, with the cluster's address": ({**SHOWN, SERVERS: "my-cluster-kafka-brokers:9091"}, Sight.SEEING),
    "all lines but the address": ({name: None for name in HIDDEN if name != SERVERS}, Sight.SEEING),
    "a line is missing": (dict.fromkeys(list(HIDDEN)[:-1]), Sight.UNKNOWN),
    "a line that is no address differs": ({**SHOWN, list(SHOWN)[-1]: "1"}, Sight.UNKNOWN),
    "the consumer's own address is the cluster's": ({**HIDDEN, OVERRIDE: "kafka:9092"}, Sight.SEEING),
    "the consumer's own address is hidden": ({**HIDDEN, OVERRIDE: None}, Sight.UNKNOWN),
    "the consumer's own address is where nothing listens": ({**HIDDEN, OVERRIDE: "127.0.0.1:1"}, Sight.BLIND),
}


@pytest.mark.parametrize("sentence", SIGHTS)
def test_whether_a_broker_sees_the_events(sentence: str) -> None:
    found, sight = SIGHTS[sentence]
    assert sight_of(found) is sight


def test_a_file_gives_the_values_that_the_broker_hides_and_no_line_that_it_does_not_run_with() -> None:
    assert sight_of(with_file(HIDDEN, {**SHOWN, SERVERS: "kafka:9092"})) is Sight.SEEING
    assert sight_of(with_file(HIDDEN, SHOWN)) is Sight.BLIND
    assert sight_of(with_file({}, SHOWN)) is Sight.SEEING, "the broker was not restarted yet"
    assert sight_of(with_file({SERVERS: None}, SHOWN)) is Sight.UNKNOWN, "nor here"
    assert sight_of(with_file({**HIDDEN, OVERRIDE: None}, {**SHOWN, OVERRIDE: "127.0.0.1:1"})) is Sight.BLIND
    assert sight_of(with_file(HIDDEN, {})) is Sight.SEEING, "it runs with another file"
    assert sight_of(with_file(SHOWN, {SERVERS: "kafka:9092"})) is Sight.BLIND, "what the broker shows counts"


def test_the_page_has_the_lines_that_make_a_broker_blind() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operations" / "handover.md").read_text()
    for name, value in BLIND_SETTINGS.items():
        assert f"\n{RLMM_PREFIX}{name}={value}\n" in page
