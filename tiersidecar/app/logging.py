"""Configure structured logs on standard error: one event per fact, library logs in the same stream, no secrets.

Repeated messages of libraries are held back: aiokafka alone reports an unavailable broker 30 times a second.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from enum import Enum
from typing import Any, TextIO

import structlog
from structlog.typing import Processor

from tiersidecar.app.config.services import LoggingSection
from tiersidecar.domain.readable import printable

_INTERVAL_S = 30.0
_REMEMBERED = 256


class RepeatFilter(logging.Filter):
    """Lets each message of the libraries in ``names`` pass once in ``interval_s``; the next one that passes says in
    ``repeated`` how many were held back.  Everything else passes."""

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        interval_s: float = _INTERVAL_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._names, self._interval_s, self._monotonic_s = names, interval_s, monotonic_s
        self._passed: OrderedDict[tuple[str, str], list[float]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] not in self._names:
            return True
        key, now_s = (record.name, record.getMessage()), self._monotonic_s()
        known = self._passed.get(key)
        if known is not None and now_s - known[0] < self._interval_s:
            known[1] += 1
            return False
        if known is not None and known[1]:
            record.repeated = int(known[1])
        self._passed[key] = [now_s, 0]
        self._passed.move_to_end(key)
        if len(self._passed) > _REMEMBERED:
            self._passed.popitem(last=False)
        return True


class UnclosedConnectionFilter(logging.Filter):
    """Drops asyncio's error about a connection that aiokafka left open, and closes by itself when it is collected.

    aiokafka 0.14 keeps the connection of ``bootstrap`` to itself: when its client is cancelled while that waits for
    metadata, no caller can close it.  A consumer or producer that is not closed is a mistake of ours, and is still reported.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        return record.name != "asyncio" or not record.getMessage().startswith("Unclosed AIOKafkaConnection\n")


_SECRET_WORDS = ("password", "secret", "token", "credentials", "authorization")
_CHATTY = ("aiokafka", "aiobotocore", "aiohttp", "asyncio", "boto3", "botocore", "urllib3")
_LOGS_REQUESTS = ("aiobotocore", "boto3", "botocore", "urllib3")
"""Their DEBUG has whole requests and answers: of a KMS these are data keys in the clear.  They never log below INFO."""


def configure_logging(section: LoggingSection, stream: TextIO | None = None) -> None:
    """Set up structlog and the standard library's logging for the whole process; calling it again replaces both.

    Libraries that log every request do so from WARNING on and say nothing twice in 30 s, unless ``level`` is debug; those that
    would then log data keys do so from INFO on.
    """
    out = sys.stderr if stream is None else stream
    level = logging.getLevelNamesMapping()[section.level.upper()]
    console = section.format == "console" or (section.format == "auto" and out.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder(), _mask_secrets],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(console, out)],
        )
    )
    handler.addFilter(_is_no_request)
    if level != logging.DEBUG:
        handler.addFilter(UnclosedConnectionFilter())
        handler.addFilter(RepeatFilter(_CHATTY))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _CHATTY:
        least = logging.WARNING if level != logging.DEBUG else logging.INFO if name in _LOGS_REQUESTS else logging.DEBUG
        logging.getLogger(name).setLevel(max(level, least))
    logging.captureWarnings(capture=True)
    structlog.configure(
        processors=[*shared, _mask_secrets, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )


def _is_no_request(record: logging.LogRecord) -> bool:
    """Return whether the record holds no whole request, whatever levels are set later."""
    return record.levelno >= logging.INFO or record.name.partition(".")[0] not in _LOGS_REQUESTS


def _renderers(console: bool, out: TextIO) -> list[Processor]:
    if console:
        # Not the default, rich's traceback: it prints local variables, and so may print secrets.
        plain = structlog.dev.plain_traceback
        return [_plain_enums, _printable, structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=plain)]
    return [structlog.processors.format_exc_info, _in_order, structlog.processors.JSONRenderer()]


def _plain_enums(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace enumerations by their values: not ``<Lane.COPY: 'copy'>``; JSON has them so anyway."""
    for key, value in event.items():
        if isinstance(value, Enum):
            event[key] = value.value
    return event


def _printable(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape names that clients chose, so that they move no cursor, colour nothing and begin no line; JSON escapes them
    anyway."""
    for key, value in event.items():
        if key not in _OWN_LINES:
            event[key] = _escaped(value)
    return event


_OWN_LINES = frozenset({"exc_info", "exception", "stack"})


def _escaped(value: Any) -> Any:
    match value:
        case str():
            return printable(value)
        case dict():
            return {_escaped(key): _escaped(one) for key, one in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_escaped(one) for one in value]
    return value


def _in_order(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Put first when, how grave and what: a line of JSON is read by people, too."""
    first = {key: event.pop(key) for key in ("timestamp", "level", "event") if key in event}
    return {**first, **event}


def _mask_secrets(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Mask secrets that were revealed under a name like theirs.  They are SecretStr, which hides itself: this is a second
    belt."""
    for key in event:
        if key.lower().endswith(_SECRET_WORDS):
            event[key] = "********"
    return event
