"""Settings of the Google Cloud Storage store: bucket, login, timeouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

MIB = 1024 * 1024
GOOGLE = "https://storage.googleapis.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class GcsSettings:
    """``login`` is the source of credentials: ``default`` is Google's own chain (GOOGLE_APPLICATION_CREDENTIALS, the file
    of ``gcloud auth application-default login``, the metadata server), ``path`` and ``json`` are a credentials file and
    its content, and ``anonymous`` sends none.

    An upload holds two chunks of ``chunk_size_bytes``, and ``uploads_in_chunks`` run at once.  ``attempt_timeout_s`` bounds
    one request without an upload's body, and how long an upload may make no progress; a request has ``max_attempts``.
    """

    bucket: str
    endpoint_url: str = GOOGLE
    login: Literal["default", "path", "json", "anonymous"] = "default"
    credentials_path: str | None = None
    credentials_json: str | None = field(default=None, repr=False)
    chunk_size_bytes: int = 25 * MIB
    uploads_in_chunks: int = 4
    attempt_timeout_s: float = 60.0
    max_attempts: int = 5
    storage_class: str | None = None
    ca_pem: str | None = None
    verify_tls: bool = True
    key_prefix: str = ""
