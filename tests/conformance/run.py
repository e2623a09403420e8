"""Both histories of a script, side by side."""

from __future__ import annotations

import time
from pathlib import Path

from tests.conformance.normalised import differences, normalised
from tests.conformance.observation import NotYetError, Observation
from tests.conformance.on_kafka import KafkaStage, observe_kafka
from tests.conformance.on_model import run_on_model
from tests.conformance.script import Script
from tests.support.kafka_cluster import KafkaCluster

_SETTLES_S = 45.0
"""What brokers do by themselves (follow, trim, write checkpoints) they have done by then, also on a busy machine."""
_STAYS_S = 1.0
"""Some rounds of retention: what was left by then stays."""


def compare(script: Script, cluster: KafkaCluster, directory: Path, settles_s: float = _SETTLES_S) -> list[str]:
    """All that differs after the first step that differs."""
    began_ms = time.time_ns() // 1_000_000
    modelled = run_on_model(script, cluster.version, directory, began_ms)
    stage = KafkaStage(script, cluster, began_ms)
    try:
        found = _differences(stage, "", modelled[0], began_ms, settles_s)
        if found:
            return ["at first", *found]
        outcome = ""
        for number, step in enumerate(script.steps):
            outcome = stage.act(step)
            found = _differences(stage, outcome, modelled[number + 1], began_ms, settles_s)
            if found:
                return [f"after step {number}, {step}", *found]
        time.sleep(_STAYS_S)
        found = _differences(stage, outcome, modelled[-1], began_ms, settles_s)
        return ["in the end", *found] if found else []
    finally:
        stage.close()


def _differences(stage: KafkaStage, outcome: str, modelled: Observation, began_ms: int, settles_s: float) -> list[str]:
    """Those that stay."""
    expected = normalised(modelled, began_ms)
    until_s = time.monotonic() + settles_s
    while True:
        try:
            found = differences(expected, normalised(observe_kafka(stage, outcome), began_ms))
        except NotYetError as error:
            found = [f"cannot be looked at: {error}"]
        if not found or time.monotonic() > until_s:
            return found
        time.sleep(0.05)
