"""Proof between sidecars that they are of one cluster: HMAC-SHA256 under ``status.cluster.secret``.

The secret itself is never sent.  A request is signed over method, path, time and nonce; its answer over that nonce, the code
and the body, which a server named by a forged lease cannot do.  Neither is encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import OrderedDict
from dataclasses import dataclass

SCHEME = "Tiersidecar-HMAC-SHA256"
PROOF_HEADER = "Tiersidecar-Proof"
MAX_AGE_MS = 300_000
"""Greatest difference of two clocks; a nonce is remembered for that long on either side."""
MOST_NONCES = 100_000
"""Nonces that are remembered.  Only holders of the secret make any; of more the oldest are forgotten, and could be replayed: a
question changes nothing."""

_CREDENTIALS = re.compile(
    rf"{SCHEME} time=(?P<time>\d{{1,15}}), nonce=(?P<nonce>[0-9a-f]{{32}}), mac=(?P<mac>[0-9a-f]{{64}})", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRequest:
    """Signed parts of a request; ``target`` is path and query as they are sent, ``nonce`` 32 hexadecimal digits."""

    method: str
    target: str
    time_ms: int
    nonce: str

    def authorization(self, secret: str) -> str:
        """Return the value of its ``Authorization`` header."""
        return f"{SCHEME} time={self.time_ms}, nonce={self.nonce}, mac={self._mac(secret)}"

    def _mac(self, secret: str) -> str:
        return _mac(secret, "request", self.method, self.target, str(self.time_ms), self.nonce)


def answer_proof(secret: str, *, nonce: str, code: int, body: bytes) -> str:
    """Return the value of an answer's ``Tiersidecar-Proof`` header."""
    return _mac(secret, "answer", nonce, str(code), hashlib.sha256(body).hexdigest())


def is_proven(secret: str, proof: str, *, nonce: str, code: int, body: bytes) -> bool:
    """Return whether the answer comes from a holder of the secret, and is the answer to this very request."""
    expected = answer_proof(secret, nonce=nonce, code=code, body=body)
    return hmac.compare_digest(expected.encode(), proof.encode())


class Verifier:
    """Recognise requests that holders of the secret have signed; each is accepted once."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._seen: OrderedDict[str, int] = OrderedDict()

    def nonce_of(self, authorization: str, *, method: str, target: str, now_ms: int) -> str:
        """Return the nonce of a request that is rightly signed, recent, and new; empty for any other."""
        match = _CREDENTIALS.fullmatch(authorization)
        if match is None:
            return ""
        time_ms, nonce = int(match["time"]), match["nonce"]
        signed = SignedRequest(method=method, target=target, time_ms=time_ms, nonce=nonce).authorization(self._secret)
        if not hmac.compare_digest(signed.encode(), authorization.encode()):
            return ""
        if abs(now_ms - time_ms) > MAX_AGE_MS or not self._is_new(nonce, now_ms):
            return ""
        return nonce

    def _is_new(self, nonce: str, now_ms: int) -> bool:
        while self._seen and (self._oldest_ms() < now_ms - 2 * MAX_AGE_MS or len(self._seen) >= MOST_NONCES):
            self._seen.popitem(last=False)
        if nonce in self._seen:
            return False
        self._seen[nonce] = now_ms
        return True

    def _oldest_ms(self) -> int:
        return next(iter(self._seen.values()))


def _mac(secret: str, *parts: str) -> str:
    # No part but the target may hold a line break, and a target with one never comes through an HTTP parser.
    return hmac.new(secret.encode(), "\n".join(parts).encode(), hashlib.sha256).hexdigest()
