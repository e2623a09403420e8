"""GETs through object_store (Rust): with a third of aioboto3's processor time, and without Python's lock."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import structlog
from obstore.exceptions import BaseError
from obstore.store import S3Store as RustS3Store

from tiersidecar.adapters.stores.obstore_reads import RangeReads, get_object
from tiersidecar.adapters.stores.s3_settings import CONNECT_TIMEOUT_S, S3Settings
from tiersidecar.domain.errors import ObjectTooLargeError, StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.clock import Blocking

if TYPE_CHECKING:
    from aioboto3 import Session
    from obstore.store import ClientConfig, S3Credential
    from types_aiobotocore_s3 import S3Client

_AMAZON = re.compile(r"(^|\.)amazonaws\.com(\.cn)?$")
_PLAIN_BUCKET = re.compile(r"^[a-z0-9.-]+$")
_CREDENTIALS_LAST = timedelta(minutes=8)
"""botocore renews its own when 15 minutes of them are left, and waits for new ones at 10."""
_MOST_FAILURES = 3

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class S3QuickReads:
    """The quick way, tried once; where it fails the caller goes the other way, which retries and reports the error.

    After three failures in a row that the other way did not share, it is not tried any more: a proxy or a server that only one
    of the two can speak to would make every read two requests.
    """

    def __init__(self, store: RustS3Store, *, description: str) -> None:
        self._store, self._description = store, description
        self._ranges = RangeReads(store)
        self._failures = 0

    async def fetch_range(self, key: str, byte_range: ByteRange) -> memoryview | None:
        """Return the bytes, or None if they did not come this way, whatever the reason."""
        data = await self._fetch(key, lambda: self._ranges.get(key, byte_range))
        return None if data is None or len(data) != len(byte_range) else data

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes | None:
        """Return a whole object, or None if it did not come this way, whatever the reason.

        Raises:
            ObjectTooLargeError: it has more than ``max_bytes``.
        """
        return await self._fetch(key, lambda: get_object(self._store, key, max_bytes))

    async def _fetch(self, key: str, fetch: Callable[[], Awaitable[T]]) -> T | None:
        if self._failures >= _MOST_FAILURES:
            return None
        try:
            data = await fetch()
        except ObjectTooLargeError:
            raise
        except (BaseError, OSError, StoreError, ValueError) as error:  # ValueError: the key cannot be written
            _log.debug("store.quick_read.failed", key=key, reason=type(error).__name__)
            return None
        self._failures = 0
        return data

    def other_way_did(self) -> None:
        """Count a failure here of a read that came the other way."""
        if self._failures < _MOST_FAILURES:
            self._failures += 1
            if self._failures == _MOST_FAILURES:
                _log.warning("store.quick_reads.off", store=self._description)


async def open_quick_reads(
    session: Session, client: S3Client, settings: S3Settings, *, blocking: Blocking
) -> S3QuickReads | None:
    """Return the reads with the address, the region and the credentials that ``client`` has found; None where they are not of
    the kinds that both libraries understand alike."""
    address = address_of(str(client.meta.endpoint_url), settings)
    if address is None:
        return None
    endpoint, is_virtual_hosted = address
    credentials = await _credentials(session, settings)
    if credentials is None:
        return None
    store = RustS3Store(
        settings.bucket,
        endpoint=endpoint,
        region=str(client.meta.region_name),
        virtual_hosted_style_request=is_virtual_hosted,
        client_options=await blocking.run(_client_options, settings),
        retry_config={"max_retries": 0},
        credential_provider=credentials,
    )
    return S3QuickReads(store, description=f"s3://{settings.bucket} at {endpoint}")


async def _credentials(
    session: Session, settings: S3Settings
) -> Callable[[], Coroutine[Any, Any, S3Credential]] | None:
    """Return the function that gives obstore credentials; None where there are none."""
    if settings.access_key_id is not None:
        key_id, secret = settings.access_key_id, settings.secret_access_key or ""

        async def configured() -> S3Credential:
            return {"access_key_id": key_id, "secret_access_key": secret, "expires_at": None}

        return configured
    found = await session.get_credentials()
    if found is None:
        return None

    async def of_the_chain() -> S3Credential:
        now = await found.get_frozen_credentials()
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": datetime.now(UTC) + _CREDENTIALS_LAST,
        }

    return of_the_chain


def address_of(endpoint_url: str, settings: S3Settings) -> tuple[str, bool] | None:
    """Return the endpoint, and whether the bucket is in its host name."""
    parts = urlsplit(endpoint_url)
    is_amazons = _AMAZON.search(parts.hostname or "") is not None
    if not _PLAIN_BUCKET.match(settings.bucket):
        return None  # an access point's name, say
    is_by_host = settings.addressing == "virtual" or (settings.addressing == "auto" and is_amazons)
    if is_by_host and not ("." in settings.bucket and parts.scheme == "https"):
        return f"{parts.scheme}://{settings.bucket}.{parts.netloc}", True
    return endpoint_url, False  # a dot in a bucket's name fits no certificate


def _client_options(settings: S3Settings) -> ClientConfig:
    options: ClientConfig = {
        "allow_http": True,
        "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
        "read_timeout": timedelta(seconds=settings.stall_timeout_s),
        "timeout": timedelta(seconds=settings.call_timeout_s or 3600),
    }
    if not settings.verify_tls:
        options["allow_invalid_certificates"] = True
    elif settings.ca_file is not None:
        options["root_certificate"] = Path(settings.ca_file).read_text()
    return options
