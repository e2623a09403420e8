"""Where a connection's SASL login stands, by what the broker has answered (``SaslServerAuthenticator``; KIP-43, 152, 368).

The client says what it wants; only an answer of the broker's changes the state.  While one of these requests has no answer,
nothing else of the connection goes to the broker (they are ``alone``): whenever a frame is looked at, both are in the same
state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

ANONYMOUS = "User:ANONYMOUS"
NOT_KNOWN = "User:?"
"""Logged in, by a mechanism whose tokens the gateway does not read."""
NO_API_KEY_FROM = 1024


class LoginState(Enum):
    """In ``READY`` the broker answers ordinary requests: a listener without SASL, too, is in it from the first of them on."""

    BEFORE = auto()
    EXCHANGING = auto()
    """Of one mechanism's tokens, for the first time."""
    READY = auto()
    RENEWING = auto()
    """As EXCHANGING, of a connection that was ready (KIP-368)."""


_TELL_THEIR_END: Mapping[str, Callable[[bytes], bool]] = {
    "PLAIN": lambda answer: True,
    "SCRAM-SHA-256": lambda answer: answer.startswith(b"v="),
    "SCRAM-SHA-512": lambda answer: answer.startswith(b"v="),
    "OAUTHBEARER": lambda answer: not answer,  # else it says what is wrong with the token
}
_EXCHANGES = frozenset({LoginState.EXCHANGING, LoginState.RENEWING})


@dataclass(slots=True)
class Login:
    """``principal`` is the one that the broker has let in, as far as PLAIN's and SCRAM's tokens tell its name.  ``refusal`` is
    why the connection has to end, once the broker's answer is on its way."""

    state: LoginState = LoginState.BEFORE
    mechanism: str = ""
    principal: str = ANONYMOUS
    refusal: str = ""
    is_raw: bool = False
    """Whether tokens go without headers: what follows a handshake of version 0."""
    raw_tokens: int = 0
    """Of this exchange, so far."""
    _claimed: str = ""

    @property
    def awaits_token(self) -> bool:
        """Return whether the broker takes nothing but SaslAuthenticate next, of a first login or another one: of mechanisms
        whose tokens tell their end."""
        return self.state in _EXCHANGES and not self.is_raw and self.mechanism in _TELL_THEIR_END

    @property
    def named_principal(self) -> str:
        """The principal, where its name is known."""
        return "" if self.principal in (ANONYMOUS, NOT_KNOWN) else self.principal

    # The broker has answered

    def shaken(self, mechanism: str, error_code: int, *, is_raw: bool) -> None:
        """SaslHandshake."""
        if error_code:
            self.refusal = f"SaslHandshake of {mechanism or 'no mechanism'}: error {error_code}"
            return
        is_first = self.state in (LoginState.BEFORE, LoginState.EXCHANGING)
        self.begin(mechanism, LoginState.EXCHANGING if is_first else LoginState.RENEWING, is_raw=is_raw)

    def begin(self, mechanism: str, state: LoginState, *, is_raw: bool) -> None:
        """The broker now waits for tokens of ``mechanism``."""
        self.state, self.mechanism, self.is_raw, self.raw_tokens, self._claimed = state, mechanism, is_raw, 0, ""

    def authenticated(self, token: bytes, error_code: int, answer: bytes) -> None:
        """SaslAuthenticate, with the client's ``token`` and the broker's in ``answer``."""
        if error_code:
            self.refusal = f"SaslAuthenticate by {self.mechanism or 'no mechanism'}: error {error_code}"
            return
        if self.state not in _EXCHANGES:
            self.refusal = "SaslAuthenticate without a handshake was answered"
            return
        self._claimed = self._claimed or claimed_user(self.mechanism, token)
        if is_last(self.mechanism, answer):
            self._let_in(f"User:{self._claimed}" if self._claimed else NOT_KNOWN)

    def answered(self, *, needs_login: bool) -> None:
        """A request with a header.  While tokens go without, none is; of those that ``needs_login``, none before."""
        if self.state in _EXCHANGES:
            if self.is_raw or (needs_login and self.mechanism not in _TELL_THEIR_END):
                self._let_in(NOT_KNOWN)
        elif needs_login:
            self.state = LoginState.READY

    def _let_in(self, principal: str) -> None:
        self.state, self.principal, self.is_raw = LoginState.READY, principal, False


def is_no_request(first_bytes: bytes | memoryview) -> bool:
    """Return whether a frame whose payload begins so cannot be a request, which begins with an API key.

    GSSAPI's tokens start with 0x60 (RFC 2743 section 3.1) or 0x04, 0x05 (RFC 4121 section 4.2), SCRAM's second with ``c=``.
    """
    return not 0 <= int.from_bytes(first_bytes[:2], "big", signed=True) < NO_API_KEY_FROM


def is_last(mechanism: str, answer: bytes) -> bool:
    """Return whether an ``answer`` without an error lets the client in.  Of other mechanisms the next request tells."""
    is_last_answer = _TELL_THEIR_END.get(mechanism)
    return is_last_answer is not None and is_last_answer(answer)


def claimed_user(mechanism: str, token: bytes) -> str:
    """The user's name in a client's first token; "" where there is none to read.

    PLAIN is RFC 4616, SCRAM RFC 5802; a SCRAM login by a delegation token names the token, and not its owner.
    """
    if mechanism == "PLAIN":
        parts = token.split(b"\0")
        return parts[1].decode("utf-8", "replace") if len(parts) == 3 else ""
    if not mechanism.startswith("SCRAM-"):
        return ""
    fields = token.decode("utf-8", "replace").split(",")
    if any(field.lower() == "tokenauth=true" for field in fields):  # as Java's parseBoolean
        return ""
    named = next((field for field in fields[2:] if field.startswith("n=")), "n=")
    return named[2:].replace("=2C", ",").replace("=3D", "=")
