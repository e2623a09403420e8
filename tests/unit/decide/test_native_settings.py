"""Which settings of a broker agree with ours, as far as it shows them (issue 21)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiersidecar.decide.native_settings import (
    BLIND,
    BLIND_SETTINGS,
    RLMM_PREFIX,
    Setting,
    Verdict,
    decide_settings,
    is_blind,
)

PREFIX = Setting(name="rsm.config.key.prefix", wanted="tier/", default="")
BUCKET = Setting(name="rsm.config.storage.s3.bucket.name", wanted="kafka-tier")
SYSTEM = Setting(name="remote.log.storage.system.enable", wanted="true", default="false")

ROWS: dict[str, tuple[Setting, dict[str, str | None], Verdict]] = {
    "it says the same": (PREFIX, {"rsm.config.key.prefix": "tier/"}, Verdict.SAME),
    "it says another": (PREFIX, {"rsm.config.key.prefix": "Tier/"}, Verdict.DIFFERENT),
    "it is not set, and the default is another": (PREFIX, {}, Verdict.DIFFERENT),
    "it is not set, and has no default": (BUCKET, {}, Verdict.MISSING),
    "the broker hides its value": (BUCKET, {"rsm.config.storage.s3.bucket.name": None}, Verdict.HIDDEN),
    "Kafka takes any case of a flag": (SYSTEM, {"remote.log.storage.system.enable": "TRUE"}, Verdict.SAME),
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


def test_a_metadata_manager_that_was_sent_elsewhere_is_blind() -> None:
    assert is_blind({RLMM_PREFIX + BLIND: None}), "hidden, but it is there"
    assert is_blind({"remote.log.metadata.manager.impl.prefix": "r.", f"r.{BLIND}": "127.0.0.1:1"})
    assert not is_blind({RLMM_PREFIX + "remote.log.metadata.topic.num.partitions": "5"})


def test_the_page_has_the_lines_that_make_a_broker_blind() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operations" / "handover.md").read_text()
    for name, value in BLIND_SETTINGS.items():
        assert f"\n{RLMM_PREFIX}{name}={value}\n" in page
