"""A key service that is not asked on and on while it is away, or while it wraps nothing.

Each segment that is copied and each that is opened asks for a key.  A service that answers nothing holds each of them for as
long as a request may take, and one that refuses is asked again by each partition.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from tiersidecar.domain.data_keys import KeyContext, WrappedKey
from tiersidecar.domain.errors import DataKeyError, KeyRefusedError, KeyServiceError
from tiersidecar.ports.key_wrapping import KeyWrapping

_FIRST_REST_S, _MOST_REST_S = 1.0, 30.0


class RestingWrapping:
    """Pass everything on to ``wrapping``; once it has failed, requests fail at once, but for one that tries after each rest.
    Rests grow from a second to half a minute, and end with the first success.

    A refusal to unwrap is an answer, of one key of many, and no reason to rest.  One to wrap is: there is one key to wrap with.
    """

    def __init__(self, wrapping: KeyWrapping, now_s: Callable[[], float]) -> None:
        self._wrapping = wrapping
        self._wrap, self._unwrap = _Rest(now_s), _Rest(now_s)

    @property
    def closed_reason(self) -> str:
        """Return why no key is wrapped for now; empty while the service answers."""
        return self._wrap.reason

    def wrap(self, data_key: bytes, context: KeyContext) -> WrappedKey:
        """Return a data key of 32 bytes under the key for new segments, bound to ``context``."""
        with self._wrap.tried((KeyServiceError, KeyRefusedError)):
            return self._wrapping.wrap(data_key, context)

    def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        """Return the data key, also of one that was wrapped under a former key."""
        with self._unwrap.tried((KeyServiceError,)):
            return self._wrapping.unwrap(wrapped, context)


class _Rest:
    """The rest of one verb; safe in threads."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s, self._lock = now_s, threading.Lock()
        self._rest_s, self._until_s = _FIRST_REST_S, 0.0
        self._error: KeyServiceError | KeyRefusedError | None = None

    @property
    def reason(self) -> str:
        error = self._error
        return "" if error is None else str(error)

    @contextmanager
    def tried(self, away: tuple[type[KeyServiceError | KeyRefusedError], ...]) -> Iterator[None]:
        is_trial = self._begin()
        try:
            yield
        except (KeyServiceError, KeyRefusedError, DataKeyError) as error:
            if isinstance(error, away):
                self._failed(error, is_trial=is_trial)
            else:
                self._worked()
            raise
        self._worked()

    def _begin(self) -> bool:
        """Return whether it is the one that is tried after a rest.

        Raises:
            KeyServiceError, KeyRefusedError: the service rests.
        """
        with self._lock:
            if self._error is None:
                return False
            now_s = self._now_s()
            if now_s < self._until_s:
                _raise_again(self._error, self._until_s - now_s)
            self._until_s = now_s + self._rest_s  # the others wait for what comes of this one
            return True

    def _worked(self) -> None:
        with self._lock:
            self._error, self._rest_s = None, _FIRST_REST_S

    def _failed(self, error: KeyServiceError | KeyRefusedError, *, is_trial: bool) -> None:
        """Begin to rest; requests that were under way then are no reason to rest longer."""
        with self._lock:
            if is_trial:
                self._rest_s = min(2 * self._rest_s, _MOST_REST_S)
            elif self._error is not None:
                return
            self._error = error
            self._until_s = self._now_s() + self._rest_s


def _raise_again(error: KeyServiceError | KeyRefusedError, left_s: float) -> NoReturn:
    if isinstance(error, KeyRefusedError):
        raise KeyRefusedError(verb=error.verb, key_id=error.key_id, reason=error.reason)
    reason = f"it is away ({error.reason}), and asked again in {left_s:.1f} s"
    raise KeyServiceError(service=error.service, verb=error.verb, reason=reason)
