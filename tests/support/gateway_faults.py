"""Faults planted in the gateway's core: each takes one of its defences away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from tests.support.gateway_attacker import CORRELATION_ID
from tiersidecar.services.gateway import audit, delete_records_rewrite, fetch_rewrite, messages, rewrites
from tiersidecar.services.gateway.conversation import Conversation
from tiersidecar.services.gateway.delete_records_rewrite import DeleteRecordsRewrite
from tiersidecar.services.gateway.exchange import Login
from tiersidecar.services.gateway.fetch_in_hand import PassingFetch
from tiersidecar.services.gateway.rewrites import SaslHandshakeRewrite

Patches = Sequence[Any]


def tokens_begin_though_the_broker_refuses() -> Patches:
    original = Login.shaken

    def shaken(self: Login, mechanism: str, error_code: int, *, is_raw: bool) -> None:
        original(self, mechanism, 0 if is_raw else error_code, is_raw=is_raw)

    return [patch.object(Login, "shaken", shaken)]


def frames_are_checked_before_the_handshake_is_answered() -> Patches:
    return [patch.object(SaslHandshakeRewrite, "alone", new=False)]


def tokens_without_an_answer_are_dropped() -> Patches:
    original = Conversation._classify_token_answer

    def classify(self: Conversation, frame: memoryview, size: int) -> Any:
        if len(self._pending) > 1:
            self._pending.popleft()
            return None
        return original(self, frame, size)

    return [patch.object(Conversation, "_classify_token_answer", classify)]


def tokens_go_without_headers_though_that_is_off() -> Patches:
    return [patch.object(SaslHandshakeRewrite, "versions", lambda self: range(2))]


def requests_keep_the_client_s_ids() -> Patches:
    original = Conversation.__init__

    def made(self: Conversation, **arguments: Any) -> None:
        original(self, **{**arguments, "new_id": lambda: CORRELATION_ID})

    return [patch.object(Conversation, "__init__", made)]


class _Anything(int):
    """An id that is the same as any other."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def answers_are_taken_in_their_order_whatever_their_ids() -> Patches:
    original = Conversation._expect

    def expect(self: Conversation, pending: Any) -> None:
        pending.wire_id = _Anything(pending.wire_id)
        original(self, pending)

    return [patch.object(Conversation, "_expect", expect)]


def partitions_that_were_not_asked_for_are_filled() -> Patches:
    return [patch.object(fetch_rewrite, "check_all_asked", lambda response, asked: None)]


def partitions_that_were_not_asked_for_pass() -> Patches:
    return [patch.object(PassingFetch, "_check", lambda self, key: None)]


def deletes_that_were_not_asked_for_are_taken() -> Patches:
    return [patch.object(messages, "check_asked", lambda key, request, answered: None)]


def a_refused_login_goes_on() -> Patches:
    return [patch.object(Login, "refusal", property(lambda self: "", lambda self, why: None))]


def addresses_stay_the_broker_s() -> Patches:
    return [patch.object(rewrites, "splice", lambda response, found: None)]


def deletes_leave_no_event() -> Patches:
    return [patch.object(delete_records_rewrite, "audit_delete", lambda *facts: None)]


def deletes_of_a_client_that_is_gone_leave_no_event() -> Patches:
    return [patch.object(DeleteRecordsRewrite, "abandoned", lambda self, exchange: None)]


def refusals_leave_no_event() -> Patches:
    return [patch.object(audit, "audit_refused", lambda *facts: None)]


FAULTS: tuple[Callable[[], Patches], ...] = (
    tokens_begin_though_the_broker_refuses,
    frames_are_checked_before_the_handshake_is_answered,
    tokens_without_an_answer_are_dropped,
    tokens_go_without_headers_though_that_is_off,
    requests_keep_the_client_s_ids,
    answers_are_taken_in_their_order_whatever_their_ids,
    partitions_that_were_not_asked_for_are_filled,
    partitions_that_were_not_asked_for_pass,
    deletes_that_were_not_asked_for_are_taken,
    a_refused_login_goes_on,
    addresses_stay_the_broker_s,
    deletes_leave_no_event,
    deletes_of_a_client_that_is_gone_leave_no_event,
    refusals_leave_no_event,
)


@contextmanager
def planted(fault: Callable[[], Patches]) -> Iterator[None]:
    with ExitStack() as stack:
        for one in fault():
            stack.enter_context(one)
        yield
