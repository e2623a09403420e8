"""AWS KMS: data keys are encrypted under a symmetric KMS key, which never leaves the service (Encrypt, Decrypt).

Source: AWS KMS API Reference.  botocore signs, retries and finds the credentials, in threads; nothing of it is loaded before
the first use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tiersidecar.domain.data_keys import KeyContext, WrappedKey, brief
from tiersidecar.domain.errors import DataKeyError, KeyRefusedError, KeyServiceError
from tiersidecar.ports.key_wrapping import KeyWrapping, Options

_PURPOSE = {"purpose": "tiersidecar segment data key"}
"""Part of the encryption context: what was wrapped for another purpose is not unwrapped, and audit logs show it."""
_TEXTS = ("key.id", "region", "endpoint.url", "access.key.id", "secret.access.key", "ca.location")
_NEEDED = ("key.id", "region")
_ATTEMPTS, _CONNECT_S, _ANSWER_S = 3, 2.0, 3.0
"""Ten seconds or so together, also where nothing answers at all."""

_OF_REQUEST = frozenset({"ValidationException", "ValidationError", "InvalidArnException"})
_THROTTLED = frozenset({"TooManyRequestsException", "RequestLimitExceeded", "LimitExceededException", "SlowDown"})
_OF_ONE_KEY = "KeyUnavailableException"
"""A status of 500, also where only the custom key store of that key is disconnected."""
_NO_ANSWER_STATUS, _TOO_MANY_STATUS, _FAULT_STATUS = 408, 429, 500
_NO_DATA_KEY = frozenset({"InvalidCiphertextException", "IncorrectKeyException"})
_DENIED = frozenset({"AccessDeniedException", "AccessDenied", "UnrecognizedClientException", "InvalidClientTokenId"})
_DENIED |= frozenset({"InvalidSignatureException", "ExpiredTokenException", "IncompleteSignature", "OptInRequired"})
_REMEDIES = {
    "DisabledException": "enable the key again",
    "KMSInvalidStateException": "the key is disabled, or is to be deleted: enable it, or cancel its deletion",
    "NotFoundException": "there is no such key in this account and region",
    "InvalidKeyUsageException": "the key must be a symmetric one for ENCRYPT_DECRYPT",
    "InvalidGrantTokenException": "check the grants of the key",
}

T = TypeVar("T")


class AwsKmsKind:
    """A ``KeyWrappingKind``.

    Options: ``key.id`` (id, ARN or alias of the key for new segments) and ``region``; ``endpoint.url`` and ``ca.location`` of
    another server; ``access.key.id`` and ``secret.access.key``, or else botocore's own chain.
    """

    def faults(self, options: Options) -> Iterable[tuple[str, str]]:
        """Return what is wrong with ``options``: the option, and a sentence that says what it must be."""
        for name in sorted(set(options) - set(_TEXTS)):
            yield name, f"is not known: the options are {', '.join(_TEXTS)}"
        for name in _NEEDED:
            if name not in options:
                yield name, "is required"
        for name in _TEXTS:
            if name in options and (not isinstance(options[name], str) or not options[name].strip()):
                yield name, "must be a text"
        endpoint = options.get("endpoint.url")
        if isinstance(endpoint, str) and endpoint.strip() and not _is_url(endpoint):
            yield "endpoint.url", "must be a URL that begins with https:// or http://"
        if ("access.key.id" in options) != ("secret.access.key" in options):
            yield "access.key.id", "and secret.access.key go together"

    def open_wrapping(self, options: Options) -> KeyWrapping:
        """Return the service, for the life of the process."""
        return AwsKms(options)


class AwsKms:
    """A ``KeyWrapping``."""

    def __init__(self, options: Options) -> None:
        self._options, self._client, self._lock = options, None, threading.Lock()

    def wrap(self, data_key: bytes, context: KeyContext) -> WrappedKey:
        """Wrap a new data key; the service's answer names the key by its ARN, whatever alias was asked for."""
        key_id = str(self._options["key.id"])
        answer = self._ask(
            "wrap",
            key_id,
            lambda kms: kms.encrypt(KeyId=key_id, Plaintext=data_key, EncryptionContext=_PURPOSE | dict(context)),
        )
        return WrappedKey(_field(answer, "KeyId", str, "wrap"), _field(answer, "CiphertextBlob", bytes, "wrap"))

    def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        """Return the data key, also of one that was wrapped under a former key."""
        answer = self._ask(
            "unwrap",
            wrapped.key_id,
            lambda kms: kms.decrypt(
                KeyId=wrapped.key_id, CiphertextBlob=wrapped.data, EncryptionContext=_PURPOSE | dict(context)
            ),
        )
        return _field(answer, "Plaintext", bytes, "unwrap")

    def _ask(self, verb: str, key_id: str, request: Callable[[Any], Mapping[str, Any]]) -> Mapping[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, ParamValidationError

        try:
            return request(self._kms())
        except ClientError as error:
            raise _error_of(verb, key_id, error.response) from error
        except NoCredentialsError as error:
            reason = "no AWS credentials are found: set them in the environment, or give access.key.id"
            raise KeyRefusedError(verb=verb, key_id=key_id, reason=reason) from error
        except ParamValidationError as error:
            raise _unusable(verb, key_id, str(error)) from error
        except BotoCoreError as error:
            raise KeyServiceError(service="AWS KMS", verb=verb, reason=brief(str(error))) from error

    def _kms(self) -> Any:
        """Return the client, made once: it is safe in threads, its making is not."""
        with self._lock:
            if self._client is None:
                self._client = _client_of(self._options)
            return self._client


def _field(answer: Mapping[str, Any], name: str, kind: type[T], verb: str) -> T:
    """Return a field of a successful answer.  It has none where something else answers: a proxy's login page."""
    value = answer.get(name)
    if not isinstance(value, kind) or not value:
        reason = f"what answered is not AWS KMS: its answer has no {name}"
        raise KeyServiceError(service="AWS KMS", verb=verb, reason=reason)
    return value


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _client_of(options: Options) -> Any:
    import botocore.session
    from botocore.config import Config

    return botocore.session.get_session().create_client(
        "kms",
        region_name=options["region"],
        endpoint_url=options.get("endpoint.url"),
        aws_access_key_id=options.get("access.key.id"),
        aws_secret_access_key=options.get("secret.access.key"),
        verify=options.get("ca.location", True),
        config=Config(
            connect_timeout=_CONNECT_S,
            read_timeout=_ANSWER_S,
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        ),
    )


def _error_of(verb: str, key_id: str, response: Mapping[str, Any]) -> Exception:
    """Return the error that an answer of the service means; what it does not explain may pass, and is tried again."""
    said, status = response.get("Error", {}), response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code, message = str(said.get("Code", "")), str(said.get("Message", ""))
    answer = brief(f"{code}: {message}" if message else code)
    if code in _OF_REQUEST:
        return _unusable(verb, key_id, f"AWS KMS says {answer}")
    if code in _NO_DATA_KEY:
        return DataKeyError(
            key_id=key_id, reason=f"AWS KMS says {answer}: no key of its own has wrapped it for this segment"
        )
    if code in _DENIED:
        right = "kms:Encrypt" if verb == "wrap" else "kms:Decrypt"
        reason = f"AWS KMS says {answer}: give the sidecar's identity {right} on the key, in its policy or by IAM"
        return KeyRefusedError(verb=verb, key_id=key_id, reason=reason)
    if code in _REMEDIES:
        return KeyRefusedError(verb=verb, key_id=key_id, reason=f"AWS KMS says {answer}: {_REMEDIES[code]}")
    return KeyServiceError(
        service="AWS KMS",
        verb=verb,
        reason=answer,
        is_away=status >= _FAULT_STATUS or status in (_NO_ANSWER_STATUS, _TOO_MANY_STATUS) or _is_throttled(code),
        key_id=key_id if code == _OF_ONE_KEY else "",
    )


def _is_throttled(code: str) -> bool:
    return "Throttl" in code or code in _THROTTLED


def _unusable(verb: str, key_id: str, reason: str) -> Exception:
    """Return the error for a request that can never be answered: the fault of one manifest, or of the option ``key.id``."""
    if verb == "wrap":
        return KeyRefusedError(verb=verb, key_id=key_id, reason=f"{brief(reason)}: check key.id")
    return DataKeyError(key_id=key_id, reason=f"what the manifest has cannot be asked for: {brief(reason)}")
