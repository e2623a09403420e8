"""A key service that is not asked on and on while it is away, or while it wraps nothing.

Each segment that is copied and each that is opened asks for a key.  A service that answers nothing holds each of them for as
long as a request may take, and one that refuses is asked again by each partition.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import structlog

from tiersidecar.domain.data_keys import KeyContext, WrappedKey
from tiersidecar.domain.errors import DataKeyError, KeyRefusedError, KeyServiceError
from tiersidecar.ports.key_wrapping import KeyWrapping

log = structlog.get_logger(__name__)

_FIRST_REST_S, _MOST_REST_S = 1.0, 30.0
_MOST_KEYS = 1000
"""Under which segments lie that are read: a few.  Only forged manifests name more."""

_Failure = KeyServiceError | KeyRefusedError | DataKeyError


class RestingWrapping:
    """Pass everything on to ``wrapping``; once it has failed, requests fail at once, but for one at a time that tries after
    each rest.  Rests grow from a second to half a minute, and end with the first answer.

    Unwraps rest only while the service is away, for all or under one key: what it says of a single request, a refusal or a
    complaint, is an answer, and a manifest that is damaged must not keep the others from being opened.  Wraps rest after
    any failure: there is one key to wrap with.
    """

    def __init__(self, wrapping: KeyWrapping, now_s: Callable[[], float]) -> None:
        self._wrapping, self._now_s = wrapping, now_s
        self._wrap, self._unwrap = _Rest("wrap", now_s), _Rest("unwrap", now_s)
        self._of_keys: dict[str, _Rest] = {}
        self._lock = threading.Lock()

    @property
    def closed_reason(self) -> str:
        """Return why no key is wrapped for now; empty while the service answers."""
        return self._wrap.reason

    def wrap(self, data_key: bytes, context: KeyContext) -> WrappedKey:
        """Return a data key of 32 bytes under the key for new segments, bound to ``context``."""
        with self._wrap.tried(_wraps_nothing):
            return self._wrapping.wrap(data_key, context)

    def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        """Return the data key, also of one that was wrapped under a former key."""
        with self._of_key(wrapped.key_id).tried(_is_key_away), self._unwrap.tried(_is_service_away):
            return self._wrapping.unwrap(wrapped, context)

    def _of_key(self, key_id: str) -> _Rest:
        with self._lock:
            if len(self._of_keys) >= _MOST_KEYS:
                self._of_keys.clear()
            return self._of_keys.setdefault(key_id, _Rest("unwrap", self._now_s))


def _wraps_nothing(error: _Failure) -> bool:
    return not isinstance(error, DataKeyError)


def _is_service_away(error: _Failure) -> bool:
    return isinstance(error, KeyServiceError) and error.is_away and not error.key_id


def _is_key_away(error: _Failure) -> bool | None:
    """Return None where the service is away for all: that says nothing of one key."""
    if not isinstance(error, KeyServiceError) or not error.is_away:
        return False
    return True if error.key_id else None


class _Rest:
    """The rest of one verb; safe in threads."""

    def __init__(self, verb: str, now_s: Callable[[], float]) -> None:
        self._verb, self._now_s, self._lock = verb, now_s, threading.Lock()
        self._rest_s, self._until_s, self._is_tried = _FIRST_REST_S, 0.0, False
        self._error: KeyServiceError | KeyRefusedError | None = None

    @property
    def reason(self) -> str:
        error = self._error
        return "" if error is None else str(error)

    @contextmanager
    def tried(self, is_away: Callable[[_Failure], bool | None]) -> Iterator[None]:
        """Do the body, unless it is time to rest.  ``is_away`` says what an error means: True begins a rest, False is an
        answer, and ends one, None is neither.

        Raises:
            KeyServiceError, KeyRefusedError: the service rests.
        """
        is_trial = self._begin()
        try:
            yield
        except (KeyServiceError, KeyRefusedError, DataKeyError) as error:
            found = is_away(error)
            if found and not isinstance(error, DataKeyError):
                self._failed(error, is_trial=is_trial)
            elif found is False:
                self._worked()
            raise
        else:
            self._worked()
        finally:
            if is_trial:
                self._is_tried = False

    def _begin(self) -> bool:
        """Return whether it is the one that is tried after a rest."""
        with self._lock:
            if self._error is None:
                return False
            left_s = self._until_s - self._now_s()
            if left_s > 0 or self._is_tried:
                _raise_again(self._error, max(left_s, 0.0))
            self._is_tried = True  # the others wait for what comes of this one, however long it takes
            return True

    def _worked(self) -> None:
        with self._lock:
            if self._error is not None:
                log.info("key_service.back", verb=self._verb)
            self._error, self._rest_s = None, _FIRST_REST_S

    def _failed(self, error: KeyServiceError | KeyRefusedError, *, is_trial: bool) -> None:
        """Begin to rest; requests that were under way then are no reason to rest longer."""
        with self._lock:
            if is_trial:
                self._rest_s = min(2 * self._rest_s, _MOST_REST_S)
            elif self._error is not None:
                return
            if self._error is None:
                log.warning("key_service.away", verb=self._verb, error=str(error))
            self._error = error
            self._until_s = self._now_s() + self._rest_s


def _raise_again(error: KeyServiceError | KeyRefusedError, left_s: float) -> NoReturn:
    if isinstance(error, KeyRefusedError):
        raise KeyRefusedError(verb=error.verb, key_id=error.key_id, reason=error.reason)
    reason = f"it is away ({error.reason}), and asked again in {left_s:.1f} s"
    raise KeyServiceError(
        service=error.service, verb=error.verb, reason=reason, is_away=error.is_away, key_id=error.key_id
    )
