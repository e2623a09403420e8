"""Unsecured bearer tokens (RFC 7515 appendix A.5), which a broker takes on its OAUTHBEARER listeners in tests."""

from __future__ import annotations

import base64
import json
import time


def unsecured_token(principal: str, *, lifetime_s: float = 3600) -> str:
    """Return a token for ``principal``, issued now; negative lifetimes give an expired one."""
    now = time.time()
    claims = {"sub": principal, "iat": now + min(lifetime_s, 0) - 1, "exp": now + lifetime_s}
    return f"{_encode({'alg': 'none'})}.{_encode(claims)}."


def _encode(part: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
