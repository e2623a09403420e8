"""Proposals as bytes, from those who may write there whatever they like (issue 17)."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.decide.test_proposals import PROPOSAL
from tiersidecar.adapters.proposals_topic.log import MAX_VALUE_BYTES, read_proposal, write_proposal
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import Offset

GOOD = json.loads(write_proposal(PROPOSAL))


def test_golden() -> None:
    assert write_proposal(PROPOSAL) == (
        b'{"address":"192.0.2.7","client_id":"tool","cluster_id":"ours","gateway":1,"kind":"delete-records","leader_epoch":4,'
        b'"low_watermark":200,"offset":50,"partition":0,"principal":"User:alice","proposed_ms":1000,"start_generation":2,'
        b'"topic":"orders","topic_id":"AQEBAQEBAQEBAQEBAQEBAQ","v":1}'
    )


@given(offset=st.integers(0, 2**63 - 1), low=st.integers(-1, 2**63 - 1), name=st.text(max_size=100))
def test_what_is_written_is_read(offset: int, low: int, name: str) -> None:
    proposal = replace(PROPOSAL, offset=Offset(offset), low_watermark=Offset(low), client_id=name, principal=name)
    assert read_proposal(write_proposal(proposal), where="here") == proposal


def test_names_of_clients_are_cut_so_that_a_record_is_never_too_long() -> None:
    """One that nobody reads leaves the broker's part of the delete done, and the client told to ask again, for ever."""
    astral = "\U0001f600" * 40_000
    found = read_proposal(
        write_proposal(replace(PROPOSAL, client_id=astral, principal=astral, address=astral)), where="here"
    )
    assert {len(one) for one in (found.client_id, found.principal, found.address)} == {512}


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(None, id="a tombstone"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xff\xfe\x00", id="no text"),
        pytest.param(b"[" * 4000, id="nested deeply"),
        pytest.param(b" " * (MAX_VALUE_BYTES + 1), id="too long"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"1" * 8000, id="a number of 8,000 digits"),
        *(
            pytest.param(json.dumps({**GOOD, **fields}).encode(), id=f"{fields}")
            for fields in (
                {"v": 2},
                {"kind": "delete-topic"},
                {"offset": -1},
                {"offset": 2**63},
                {"offset": True},
                {"offset": 1.5},
                {"offset": "50"},
                {"partition": 2**31},
                {"low_watermark": -2},
                {"leader_epoch": -1},
                {"topic_id": "nothing"},
                {"topic": None},
                {"topic": "x" * 513},
                {"principal": ["User:alice"]},
            )
        ),
        *(
            pytest.param(
                json.dumps({key: value for key, value in GOOD.items() if key != name}).encode(), id=f"no {name}"
            )
            for name in GOOD
        ),
    ],
)
def test_anything_else_is_refused(value: bytes | None) -> None:
    with pytest.raises(CorruptDataError):
        read_proposal(value, where="here")


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), st.none() | st.integers() | st.text() | st.booleans()))
def test_no_value_does_more_than_be_refused(fields: dict[str, Any]) -> None:
    value = json.dumps({**GOOD, **fields}).encode()
    with suppress(CorruptDataError):
        read_proposal(value, where="here")
