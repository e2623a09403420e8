"""Data keys under a key service: asked once for each, bounded in number and time, and older segments still by the RSA ring."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import sleep

import pytest

from tests.support.remote_runs import key_ring
from tiersidecar.adapters.key_wrapping.service_keys import ServiceKeys
from tiersidecar.domain.data_keys import KeyContext, WrappedKey, context_of_ids
from tiersidecar.domain.errors import DataKeyError, KeyRefusedError, KeyServiceError, TiersidecarError
from tiersidecar.formats.aiven.key_ring import DataKeys
from tiersidecar.formats.aiven.wrapped_keys import read_wrapped_key, write_wrapped_key

ARN = "arn:aws:kms:eu-west-2:111122223333:key/4d2e1c"


class Vault:
    """``KeyWrapping``: reverses the bytes, counts what it is asked."""

    def __init__(self) -> None:
        self.key_id, self.asked = ARN, 0
        self.contexts = dict[bytes, dict[str, str]]()
        self.away = False
        self.denied: TiersidecarError | None = None
        self.bend: Callable[[bytes], bytes] = bytes
        self.gate = Event()
        self.gate.set()

    def wrap(self, data_key: bytes, context: KeyContext) -> WrappedKey:
        wrapped = WrappedKey(self.key_id, data_key[::-1])
        self.contexts[wrapped.data] = dict(context)
        return wrapped

    def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        self.asked += 1
        self.gate.wait(10)
        if self.denied is not None:
            raise self.denied
        if self.away:
            raise KeyServiceError(service="vault", verb="unwrap", reason="connection refused")
        if self.contexts.get(wrapped.data, {}) != context:
            raise DataKeyError(key_id=wrapped.key_id, reason="of another context")
        return self.bend(wrapped.data[::-1])


class World:
    def __init__(self, *, ring: DataKeys | None = None, max_keys: int = 100) -> None:
        self.now_s, self.vault = 0.0, Vault()
        self.keys = self.fresh(ring=ring, max_keys=max_keys)

    def fresh(self, *, ring: DataKeys | None = None, max_keys: int = 100) -> ServiceKeys:
        """As another process has them: nothing is kept yet."""
        return ServiceKeys("vault", self.vault, keep_s=60, now_s=lambda: self.now_s, ring=ring, max_keys=max_keys)

    def wrapped_elsewhere(self, key: bytes) -> str:
        """As another process has wrapped it; what that asked does not count."""
        text = self.fresh().wrap(key, NO_RANDOM)
        self.vault.asked = 0
        return text


def data_key(number: int = 1) -> bytes:
    return bytes([number, *range(31)])


NO_RANDOM: Callable[[int], bytes] = bytes


def test_a_manifest_has_the_kind_and_the_key_but_no_further_colon() -> None:
    text = World().keys.wrap(data_key(), NO_RANDOM)
    assert text.count(":") == 1
    assert text.startswith("vault/arn%3Aaws%3Akms%3Aeu-west-2%3A111122223333%3Akey/4d2e1c:")
    assert read_wrapped_key("vault", text) == WrappedKey(ARN, data_key()[::-1])


@pytest.mark.parametrize("key_id", ["", "a:b", "ä / b%20:", ARN])
def test_any_name_of_a_key_comes_back(key_id: str) -> None:
    wrapped = WrappedKey(key_id, b"\0\xff")
    assert read_wrapped_key("vault", write_wrapped_key("vault", wrapped)) == wrapped


def test_what_was_wrapped_here_was_opened_once_and_is_kept() -> None:
    world = World()
    text = world.keys.wrap(data_key(), NO_RANDOM)
    assert world.vault.asked == 1
    assert world.keys.unwrap(text) == data_key()
    assert world.vault.asked == 1


@pytest.mark.parametrize(
    ("denied", "error", "reason"),
    [
        pytest.param(
            KeyRefusedError(verb="unwrap", key_id=ARN, reason="give kms:Decrypt"),
            KeyRefusedError,
            "may not unwrap data keys: give kms:Decrypt",
            id="it may not be opened",
        ),
        pytest.param(
            DataKeyError(key_id=ARN, reason="not of mine"),
            KeyRefusedError,
            "may not wrap data keys: what it has just wrapped does not open: not of mine",
            id="it does not open",
        ),
        pytest.param(
            KeyServiceError(service="vault", verb="unwrap", reason="no answer"), KeyServiceError, "no answer", id="away"
        ),
    ],
)
def test_a_new_key_that_the_service_does_not_open_is_not_given(
    denied: TiersidecarError, error: type[TiersidecarError], reason: str
) -> None:
    """The read-back before a trim found the key in memory: local data went, and nobody could open the remote segment."""
    world = World()
    world.vault.denied = denied
    with pytest.raises(error, match=reason):
        world.keys.wrap(data_key(), NO_RANDOM)
    assert reason in world.keys.closed_reason
    world.vault.denied = None
    world.now_s += 1
    text = world.keys.wrap(data_key(), NO_RANDOM)
    assert (world.keys.unwrap(text), world.keys.closed_reason) == (data_key(), "")


@pytest.mark.parametrize(
    ("bend", "reason"),
    [
        pytest.param(lambda opened: opened[::-1], "opens to another data key", id="another key"),
        pytest.param(lambda opened: opened[1:], "does not open: it opens to 31 bytes", id="a shorter one"),
    ],
)
def test_a_new_key_that_opens_to_another_is_not_given(bend: Callable[[bytes], bytes], reason: str) -> None:
    world = World()
    world.vault.bend = bend
    with pytest.raises(KeyRefusedError, match=reason):
        world.keys.wrap(data_key(), NO_RANDOM)


def test_a_data_key_is_asked_for_once_and_again_when_its_time_is_over() -> None:
    world = World()
    text = world.wrapped_elsewhere(data_key())
    for now_s, asked in ((0.0, 1), (60.0, 1), (60.1, 2), (120.0, 2)):
        world.now_s = now_s
        assert world.keys.unwrap(text) == data_key()
        assert world.vault.asked == asked


def test_no_more_are_kept_than_may_be_and_the_one_used_longest_ago_goes() -> None:
    world = World(max_keys=2)
    texts = [world.wrapped_elsewhere(data_key(number)) for number in range(3)]
    for number, asked in ((0, 1), (1, 2), (0, 2), (2, 3), (0, 3), (1, 4)):
        assert world.keys.unwrap(texts[number]) == data_key(number)
        assert world.vault.asked == asked


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param(KeyError("Plaintext"), "unexpected KeyError: 'Plaintext'", id="raises what it must not"),
        pytest.param(None, "it returned NoneType for a data key", id="returns nothing"),
    ],
)
def test_what_a_service_must_not_do_fails_that_request(fault: Exception | None, reason: str) -> None:
    """A lane took it for a bug of its own."""
    world = World()
    text = world.wrapped_elsewhere(data_key())

    def bend(opened: bytes) -> bytes:
        if fault is not None:
            raise fault
        return None  # type: ignore[return-value]

    world.vault.bend = bend
    for keys in (world.keys, world.fresh()):
        with pytest.raises(KeyServiceError, match=reason) as raised:
            keys.unwrap(text)
        assert not raised.value.is_away
    world.vault.bend = bytes
    assert world.keys.unwrap(text) == data_key()


def test_a_service_that_wraps_to_nothing_fails_that_request() -> None:
    world = World()
    world.vault.wrap = lambda data_key, context: None  # type: ignore[assignment, method-assign, return-value]
    with pytest.raises(KeyServiceError, match="vault could not wrap a data key: unexpected AttributeError"):
        world.keys.wrap(data_key(), NO_RANDOM)


def test_after_a_change_of_keys_the_manifest_names_the_former_one() -> None:
    world = World()
    before = world.keys.wrap(data_key(1), NO_RANDOM)
    world.vault.key_id = "arn:next"
    assert read_wrapped_key("vault", world.keys.wrap(data_key(2), NO_RANDOM)).key_id == "arn:next"
    assert read_wrapped_key("vault", before).key_id == ARN


def test_segments_under_rsa_are_opened_by_the_ring() -> None:
    text = key_ring().wrap(data_key(), lambda count: bytes(range(count)))
    assert World(ring=key_ring()).keys.unwrap(text) == data_key()


def test_who_goes_back_to_rsa_still_opens_what_the_service_has_wrapped() -> None:
    world = World()
    before = world.keys.wrap(data_key(1), NO_RANDOM)
    keys = ServiceKeys("vault", world.vault, keep_s=60, now_s=lambda: 0.0, ring=key_ring(), ring_wraps=True)
    after = keys.wrap(data_key(2), lambda count: bytes(range(count)))
    assert after.startswith("key1:")
    assert (keys.unwrap(before), keys.unwrap(after)) == (data_key(1), data_key(2))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("key1:AAAA", "it is not of vault, and encryption.key.pairs has no keys", id="a key under RSA"),
        pytest.param("other/key:AAAA", "it is not of vault", id="a key of another service"),
        pytest.param("vault/key:!", "is not base64", id="no base64"),
        pytest.param("vault/key:", "has 0 bytes", id="nothing"),
        pytest.param(f"vault/key:{'AAAA' * 2049}", "has 6147 bytes", id="more than any service takes"),
        pytest.param(f"vault/{'k' * 2049}:AAAA", "the key id in the manifest has 2049 characters", id="a long name"),
        pytest.param("vault/key:AAAA", "it opens to 3 bytes", id="a data key of another size"),
    ],
)
def test_what_cannot_be_opened_says_why(text: str, reason: str) -> None:
    with pytest.raises(DataKeyError, match=reason):
        World().keys.unwrap(text)


def test_a_service_that_is_away_is_no_reason_to_give_a_segment_up() -> None:
    world = World()
    text = world.fresh().wrap(data_key(), NO_RANDOM)
    world.vault.away = True
    with pytest.raises(KeyServiceError):
        world.keys.unwrap(text)
    world.vault.away = False
    world.now_s += 1
    assert world.keys.unwrap(text) == data_key(), "nothing of the failure is kept"


def test_what_several_want_at_once_is_asked_for_once() -> None:
    world = World()
    text = world.wrapped_elsewhere(data_key())
    world.vault.gate.clear()
    with ThreadPoolExecutor(4) as threads:
        several = [threads.submit(world.keys.unwrap, text) for _ in range(4)]
        while not world.vault.asked:
            sleep(0.001)
        world.vault.gate.set()
        assert [one.result() for one in several] == [data_key()] * 4
    assert world.vault.asked == 1


def test_a_wrapped_key_opens_for_its_own_segment_alone() -> None:
    world = World()
    own, other = context_of_ids("topic", "one"), context_of_ids("topic", "two")
    text = world.keys.wrap(data_key(), NO_RANDOM, own)
    for keys in (world.keys, world.fresh()):  # the first has it in memory
        assert keys.unwrap(text, own) == data_key()
        with pytest.raises(DataKeyError, match="of another context"):
            keys.unwrap(text, other)
    assert not world.keys.is_at_hand(text, other)


@pytest.mark.parametrize(
    ("text", "is_at_hand"),
    [
        pytest.param("key1:AAAA", True, id="RSA needs no question"),
        pytest.param("vault/key:AAAA", False, id="a key of the service does"),
        pytest.param(None, False, id="a new one too"),
    ],
)
def test_what_has_to_be_asked_for(text: str | None, *, is_at_hand: bool) -> None:
    assert World().keys.is_at_hand(text, {}) == is_at_hand


def test_what_is_kept_needs_no_question() -> None:
    world = World()
    assert world.keys.is_at_hand(world.keys.wrap(data_key(), NO_RANDOM), {})
