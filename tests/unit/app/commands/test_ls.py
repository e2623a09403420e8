"""Segments and explanations as texts, and whose answer counts."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from tests.support.expiry import HOUR_MS, segments
from tests.unit.decide.test_explain import Given
from tiersidecar.app.commands.asking import Answer, KnownSidecar
from tiersidecar.app.commands.ls import explanation_text, leaders_answer, segments_text
from tiersidecar.app.commands.options import parse_target
from tiersidecar.decide.explain import Stops, explain
from tiersidecar.decide.segment_rows import segment_rows
from tiersidecar.services.status.documents import explanation_document, row_document

VIEW = Given(remote=segments(5), local=(300, 400, 500), log_start=300, policy={"local_retention_ms": 12 * HOUR_MS}).view


def test_the_segments_of_a_partition_are_a_table() -> None:
    rows = [row_document(row) for row in segment_rows(VIEW)]
    lines = segments_text({"topic": "orders", "partition": 3, "segments": rows}).splitlines()
    assert lines[0] == "orders/3: 6 segments (3 remote, 2 both, 1 active)"
    assert lines[1].split()[:4] == ["state", "first", "last", "size"]
    assert lines[2].startswith("remote      0    99  1.0 KiB  2023-11-14T18:13:20Z")
    assert lines[-1].split()[:2] == ["active", "500"]


def test_a_partition_without_segments() -> None:
    assert segments_text({"topic": "t", "partition": 0, "segments": []}) == "t/0: 0 segments"


def explained(offset: int | None) -> str:
    return explanation_text({"topic": "orders", "partition": 3, **explanation_document(explain(VIEW, Stops(), offset))})


def test_an_explanation_has_a_line_for_each_rule_and_tells_until_when() -> None:
    assert explained(350).splitlines() == [
        "offsets 300 to 399 (1.0 KiB): both",
        "  local: local retention keeps it: its newest record is 1h old, and local.retention.ms is 12h; "
        "local.retention.bytes has no limit -> until 2023-11-15T09:13:20Z",
        "  kept: total retention keeps it: retention.ms has no limit; retention.bytes has no limit",
    ]


def test_without_an_offset_runs_are_told() -> None:
    heads = [line for line in explained(None).splitlines() if line.startswith(("offsets", "from offset"))]
    assert heads == [
        "offsets 0 to 99 (1.0 KiB): remote, the first of 3 such segments",
        "offsets 300 to 399 (1.0 KiB): both, the first of 2 such segments",
        "from offset 500 (1.0 KiB): active",
    ]


def test_what_is_missing_is_told() -> None:
    gone = Given(remote=segments(2, first=100), local=(300,), log_start=300, start=100).view
    document = explanation_document(explain(gone, Stops(), 7))
    assert "below the remote log start 100" in explanation_text({"topic": "t", "partition": 0, **document})


@pytest.mark.parametrize(
    ("text", "target"),
    [("orders", ("orders", None)), ("orders/0", ("orders", 0)), ("a.b-c_d/12", ("a.b-c_d", 12))],
)
def test_a_target(text: str, target: tuple[str, int | None]) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize("text", ["", "/0", "orders/", "orders/x", "orders/-1", "a/0/1"])
def test_no_target(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="TOPIC/PARTITION"):
        parse_target(text)


def answer(node_id: int, code: int, **document: Any) -> Answer:
    problem = "it did not answer within 1 s" if code == 0 else ""
    return Answer(
        sidecar=KnownSidecar(address=f"b{node_id}:8091", node_id=node_id),
        code=code,
        document=document or None,
        problem=problem,
    )


FOLLOWER = {"problem": "orders-0 is led by broker 3, whose sidecar has the answer"}
STRANGER = {"problem": "orders-0 is not a tiered partition of this broker"}


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        pytest.param([answer(1, 404, **FOLLOWER), answer(3, 200, segments=[])], {"segments": []}, id="the leader's"),
        pytest.param(
            [answer(1, 404, **FOLLOWER), answer(3, 0)],
            f"{FOLLOWER['problem']}; broker 3: it did not answer within 1 s",
            id="the leader's sidecar stands still",
        ),
        pytest.param(
            [answer(1, 404, **FOLLOWER), answer(3, 503, problem="the store is away")],
            "the store is away",
            id="the leader cannot tell",
        ),
        pytest.param([answer(1, 404, **STRANGER)], STRANGER["problem"], id="nobody knows it"),
        pytest.param([], "no sidecar leads it", id="nobody was asked"),
    ],
)
def test_whose_answer_counts(answers: list[Answer], told: object) -> None:
    assert leaders_answer(answers) == told
