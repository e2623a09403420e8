"""The frames after a SaslHandshake of version 0: SASL tokens with nothing but their size in front, until the login is over.

Nothing in the bytes says when that is.  A mechanism with a fixed number of tokens is counted.  For others (GSSAPI) the first
frame that starts as a request of Kafka's ends it: GSSAPI's tokens start with 0x60 (RFC 2743 section 3.1) or 0x04, 0x05
(RFC 4121 section 4.2), which no API key does.
"""

from __future__ import annotations

import struct

from tiersidecar.services.gateway.request_heads import LEAST_REQUEST_BYTES

MOST_TOKEN_BYTES = 524_288
"""``sasl.server.max.receive.size``."""
_CLIENT_TOKENS = {"PLAIN": 1, "SCRAM-SHA-256": 2, "SCRAM-SHA-512": 2, "OAUTHBEARER": 1}
_NO_API_KEY_FROM = 256


class SaslPhase:
    """Off until :meth:`begin`."""

    def __init__(self) -> None:
        self._tokens_left: int | None = 0

    @property
    def is_on(self) -> bool:
        """Whether the next frame may be a token."""
        return self._tokens_left is None or self._tokens_left > 0

    def begin(self, mechanism: str) -> None:
        self._tokens_left = _CLIENT_TOKENS.get(mechanism)

    def takes(self, frame: memoryview) -> bool | None:
        """Whether the frame that begins here is a token; None while too little of it is there to tell."""
        if self._tokens_left is not None:
            self._tokens_left -= 1
            return True
        (size,) = struct.unpack_from(">i", frame)
        if size < LEAST_REQUEST_BYTES:
            return True
        if len(frame) < 6:
            return None
        (first,) = struct.unpack_from(">h", frame, 4)
        if 0 <= first < _NO_API_KEY_FROM:
            self._tokens_left = 0
            return False
        return True
