"""Data keys that a key service has wrapped, as a manifest's ``dataKey`` has them.

``<kind>/<key id, percent-encoded>:<base64>``: the same shape as a key under RSA, whose key id has no colon either.  The plugin
takes it for an RSA key that it does not have, and refuses the segment.
"""

from __future__ import annotations

import base64
import binascii
from urllib.parse import quote, unquote

from tiersidecar.domain.data_keys import WrappedKey, brief
from tiersidecar.domain.errors import DataKeyError

_MOST_BYTES, _MOST_KEY_ID = 6_144, 2_048
"""Longest wrapped data key and key id, as AWS KMS takes them: a service asked for more only complains of the request."""


def write_wrapped_key(kind: str, wrapped: WrappedKey) -> str:
    """Return ``wrapped`` as a manifest has it."""
    return f"{kind}/{quote(wrapped.key_id, safe='/')}:{base64.b64encode(wrapped.data).decode('ascii')}"


def is_wrapped_by(kind: str, text: str) -> bool:
    """Return whether ``text`` is a data key of that kind of service."""
    return text.partition(":")[0].startswith(f"{kind}/")


def read_wrapped_key(kind: str, text: str) -> WrappedKey:
    """Return the inverse of :func:`write_wrapped_key`.

    Raises:
        DataKeyError: it is not what :func:`write_wrapped_key` writes, is empty, or is longer than any service takes it.
    """
    name, _, encoded = text.partition(":")
    key_id = unquote(name.removeprefix(f"{kind}/"))
    if len(key_id) > _MOST_KEY_ID:
        raise DataKeyError(key_id=brief(key_id), reason=f"the key id in the manifest has {len(key_id)} characters")
    try:
        data = base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise DataKeyError(key_id=key_id, reason=f"the data key in the manifest is not base64: {error}") from error
    if not 0 < len(data) <= _MOST_BYTES:
        raise DataKeyError(key_id=key_id, reason=f"the wrapped data key in the manifest has {len(data)} bytes")
    return WrappedKey(key_id, data)
