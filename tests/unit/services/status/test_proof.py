"""What proves that a question, and its answer, come from a holder of the cluster's secret."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiersidecar.services.status.proof import MAX_AGE_MS, SignedRequest, Verifier, answer_proof, is_proven

SECRET, OTHER = "s" * 32, "o" * 32
NOW_MS = 1_790_000_000_000
NONCE = "0123456789abcdef" * 2
ASKED = SignedRequest(method="GET", target="/overview?x=%2F", time_ms=NOW_MS, nonce=NONCE)


def taken(authorization: str, *, now_ms: int = NOW_MS, target: str = ASKED.target, method: str = "GET") -> bool:
    return Verifier(SECRET).nonce_of(authorization, method=method, target=target, now_ms=now_ms) == NONCE


@pytest.mark.parametrize("skew_ms", [0, MAX_AGE_MS, -MAX_AGE_MS])
def test_a_request_that_is_rightly_signed_is_taken(skew_ms: int) -> None:
    assert taken(ASKED.authorization(SECRET), now_ms=NOW_MS + skew_ms)


@pytest.mark.parametrize(
    "signed",
    [
        pytest.param(ASKED.authorization(OTHER), id="another secret"),
        pytest.param(replace(ASKED, method="POST").authorization(SECRET), id="another method"),
        pytest.param(replace(ASKED, target="/status").authorization(SECRET), id="another path"),
        pytest.param(
            replace(ASKED, target="/overview?x=/").authorization(SECRET), id="a query that is quoted otherwise"
        ),
        pytest.param(replace(ASKED, time_ms=NOW_MS - MAX_AGE_MS - 1).authorization(SECRET), id="old"),
        pytest.param(replace(ASKED, time_ms=NOW_MS + MAX_AGE_MS + 1).authorization(SECRET), id="of the future"),
        pytest.param(ASKED.authorization(SECRET).replace(NONCE, NONCE[::-1]), id="its nonce changed"),
        pytest.param(ASKED.authorization(SECRET).replace(str(NOW_MS), str(NOW_MS + 1)), id="its time changed"),
        pytest.param(ASKED.authorization(SECRET) + " ", id="something behind it"),
        pytest.param("", id="none"),
        pytest.param("Basic dXNlcjpwYXNz", id="a password"),
    ],
)
def test_any_other_is_not(signed: str) -> None:
    assert not taken(signed)


def test_it_is_taken_once_as_long_as_it_is_recent() -> None:
    verifier, authorization = Verifier(SECRET), ASKED.authorization(SECRET)

    def nonce_at(now_ms: int) -> str:
        return verifier.nonce_of(authorization, method="GET", target=ASKED.target, now_ms=now_ms)

    assert [bool(nonce_at(NOW_MS + late)) for late in (-MAX_AGE_MS, 0, MAX_AGE_MS)] == [True, False, False]


def test_an_answer_is_that_to_the_very_request() -> None:
    proof = answer_proof(SECRET, nonce=NONCE, code=200, body=b"{}")
    assert is_proven(SECRET, proof, nonce=NONCE, code=200, body=b"{}")
    assert not is_proven(OTHER, proof, nonce=NONCE, code=200, body=b"{}")
    assert not is_proven(SECRET, proof, nonce=NONCE[::-1], code=200, body=b"{}")
    assert not is_proven(SECRET, proof, nonce=NONCE, code=404, body=b"{}")
    assert not is_proven(SECRET, proof, nonce=NONCE, code=200, body=b"{ }")
    assert not is_proven(SECRET, "é", nonce=NONCE, code=200, body=b"{}")


def test_a_request_is_no_answer() -> None:
    """A listener that is asked must not be able to give the question back as the answer to another."""
    mac = ASKED.authorization(SECRET).rpartition("mac=")[2]
    assert mac != answer_proof(SECRET, nonce=NONCE, code=200, body=b"")
