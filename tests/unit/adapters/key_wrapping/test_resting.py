"""A key service that failed is left alone for a while: who wants a key meanwhile hears so at once."""

from __future__ import annotations

import pytest
import structlog

from tiersidecar.adapters.key_wrapping.resting import RestingWrapping
from tiersidecar.domain.data_keys import KeyContext, WrappedKey
from tiersidecar.domain.errors import DataKeyError, KeyRefusedError, KeyServiceError, TiersidecarError

AWAY = KeyServiceError(service="vault", verb="wrap", reason="no answer")
REFUSED = KeyRefusedError(verb="wrap", key_id="k", reason="enable the key again")
OF_KEY = KeyServiceError(service="vault", verb="unwrap", reason="its store is off", key_id="k")
OF_REQUEST = KeyServiceError(service="vault", verb="unwrap", reason="what is that?", is_away=False)
NO_KEY = DataKeyError(key_id="k", reason="not of mine")
WRAPPED = WrappedKey("k", b"wrapped")


class Vault:
    """``KeyWrapping`` that raises ``error``, if there is one."""

    def __init__(self) -> None:
        self.now_s, self.asked = 100.0, 0
        self.error: TiersidecarError | None = None
        self.resting = RestingWrapping(self, lambda: self.now_s)

    def wrap(self, data_key: bytes, context: KeyContext) -> WrappedKey:
        self.unwrap(WRAPPED, context)
        return WRAPPED

    def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return bytes(32)

    def outcome(self, verb: str) -> type[Exception] | None:
        try:
            if verb == "wrap":
                self.resting.wrap(bytes(32), {})
            else:
                self.resting.unwrap(WRAPPED, {})
        except TiersidecarError as error:
            return type(error)
        return None


@pytest.mark.parametrize(
    ("verb", "error", "asked"),
    [
        pytest.param("wrap", AWAY, 1, id="away, a new key"),
        pytest.param("unwrap", AWAY, 1, id="away, an old one"),
        pytest.param("wrap", REFUSED, 1, id="refused, a new key: there is one to wrap with"),
        pytest.param("unwrap", REFUSED, 3, id="refused, an old one: others may be opened"),
        pytest.param("unwrap", NO_KEY, 3, id="not its own: an answer"),
        pytest.param("unwrap", OF_REQUEST, 3, id="a complaint of one request"),
        pytest.param("wrap", OF_REQUEST, 1, id="a complaint of a new key: the next is no better"),
        pytest.param("unwrap", OF_KEY, 1, id="away, for one key"),
    ],
)
def test_whether_it_rests(verb: str, error: TiersidecarError, asked: int) -> None:
    vault = Vault()
    vault.error = error
    assert [vault.outcome(verb) for _ in range(3)] == [type(error)] * 3
    assert vault.asked == asked


def test_one_key_rests_without_the_others() -> None:
    vault = Vault()
    vault.error = OF_KEY
    assert vault.outcome("unwrap") is KeyServiceError
    vault.error = None
    assert vault.resting.unwrap(WrappedKey("another", b"wrapped"), {}) == bytes(32)
    assert (vault.outcome("unwrap"), vault.asked) == (KeyServiceError, 2)
    vault.now_s += 1
    assert (vault.outcome("unwrap"), vault.asked) == (None, 3)


def test_a_rest_of_the_service_says_nothing_of_a_key_that_is_away() -> None:
    vault = Vault()
    vault.error = OF_KEY
    vault.outcome("unwrap")
    vault.error = AWAY
    with pytest.raises(KeyServiceError):
        vault.resting.unwrap(WrappedKey("another", b"wrapped"), {})
    vault.now_s += 0.5
    vault.error = None
    with pytest.raises(KeyServiceError, match="its store is off"):
        vault.resting.unwrap(WRAPPED, {})
    with pytest.raises(KeyServiceError, match="no answer"):
        vault.resting.unwrap(WrappedKey("another", b"wrapped"), {})


def test_one_at_a_time_tries_whether_it_is_back() -> None:
    """A service that hangs took one thread more with each rest that ended, until all hung."""
    vault = Vault()
    vault.error = AWAY
    vault.outcome("unwrap")
    vault.now_s += 1
    outcomes = list[object]()

    def while_it_hangs(wrapped: WrappedKey, context: KeyContext) -> bytes:
        for _ in range(3):
            vault.now_s += 60
            with pytest.raises(KeyServiceError) as raised:
                vault.resting.unwrap(WRAPPED, {})
            outcomes.append(raised.value.reason)
        return bytes(32)

    vault.unwrap = while_it_hangs  # type: ignore[method-assign]
    assert vault.resting.unwrap(WRAPPED, {}) == bytes(32)
    assert outcomes == ["it is away (no answer), and asked again in 0.0 s"] * 3


def test_why_reads_fail_is_logged_once_and_that_they_work_again() -> None:
    vault = Vault()
    vault.error = AWAY
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            vault.outcome("unwrap")
            vault.now_s += 5
        vault.error = None
        vault.outcome("unwrap")
    assert [(one["event"], one["verb"], one["log_level"]) for one in logs] == [
        ("key_service.away", "unwrap", "warning"),
        ("key_service.back", "unwrap", "info"),
    ]
    assert "no answer" in logs[0]["error"]


def test_one_verb_rests_without_the_other() -> None:
    vault = Vault()
    vault.error = AWAY
    vault.outcome("wrap")
    vault.error = None
    assert vault.outcome("unwrap") is None
    assert vault.outcome("wrap") is KeyServiceError


def test_rests_grow_up_to_half_a_minute_and_end_with_the_first_success() -> None:
    vault = Vault()
    vault.error = AWAY
    vault.outcome("wrap")
    for rest_s in (1, 2, 4, 8, 16, 30, 30):
        vault.now_s += rest_s - 0.01
        before = vault.asked
        assert (vault.outcome("wrap"), vault.asked) == (KeyServiceError, before)
        vault.now_s += 0.01
        assert (vault.outcome("wrap"), vault.asked) == (KeyServiceError, before + 1)
    vault.error = None
    vault.now_s += 30
    assert [vault.outcome("wrap") for _ in range(3)] == [None] * 3


def test_the_reason_is_told_until_it_answers_again() -> None:
    vault = Vault()
    assert vault.resting.closed_reason == ""
    vault.error = AWAY
    vault.outcome("wrap")
    assert vault.resting.closed_reason == "vault could not wrap a data key: no answer"
    vault.now_s += 1
    vault.error = None
    vault.outcome("wrap")
    assert vault.resting.closed_reason == ""
