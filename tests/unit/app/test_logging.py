"""Logs as a collector reads them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any, TextIO

import pytest
import structlog
from pydantic import SecretStr

from tiersidecar.app.config.services import LoggingSection
from tiersidecar.app.logging import configure_logging
from tiersidecar.tasks.lanes import Lane


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def configured(out: TextIO, **section: Any) -> structlog.stdlib.BoundLogger:
    configure_logging(LoggingSection(**section), out)
    logger: structlog.stdlib.BoundLogger = structlog.get_logger("tiersidecar.test")
    return logger


def test_one_event_is_one_line_of_json_with_its_facts() -> None:
    out = io.StringIO()
    configured(out).info("segment.copy.finished", topic="orders", partition=3, bytes=1024)
    (line,) = lines(out)
    assert list(line)[:3] == ["timestamp", "level", "event"]
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "level": "info",
        "event": "segment.copy.finished",
        "logger": "tiersidecar.test",
        "topic": "orders",
        "partition": 3,
        "bytes": 1024,
    }


def test_off_a_terminal_auto_is_json_and_on_one_it_is_for_people() -> None:
    file, terminal = io.StringIO(), Terminal()
    configured(file).info("a.b")
    configured(terminal).info("a.b", topic="orders")
    assert lines(file)[0]["event"] == "a.b"
    assert terminal.getvalue().startswith("\x1b")
    assert "orders" in terminal.getvalue()


def test_values_of_enumerations_are_told_plainly_in_both_forms() -> None:
    console, file = io.StringIO(), io.StringIO()
    configured(console, format="console").info("lane.retry", lane=Lane.COPY)
    configured(file, format="json").info("lane.retry", lane=Lane.COPY)
    assert "lane=copy" in console.getvalue()
    assert lines(file)[0]["lane"] == "copy"


@pytest.mark.parametrize("name", ["\x1b[2J\x1b]0;x\x07", "a\nfact=forged", "\ud800"])
def test_names_that_clients_chose_reach_no_terminal_as_they_are(name: str) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    configured(out, format="console").info("gateway.audit.delete", client_id=name, deletes=[{"topic": (name,)}])
    out.seek(0)
    (line,) = out.read().splitlines()
    assert "gateway.audit.delete" in line
    assert line.isprintable()


def test_console_without_a_terminal_has_no_colours() -> None:
    out = io.StringIO()
    configured(out, format="console").info("a.b")
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize(
    ("level", "seen"),
    [("debug", ["d", "i", "w", "e"]), ("info", ["i", "w", "e"]), ("warning", ["w", "e"]), ("error", ["e"])],
)
def test_only_the_level_and_above_is_written(level: str, seen: list[str]) -> None:
    out = io.StringIO()
    logger = configured(out, level=level)
    for method in ("debug", "info", "warning", "error"):
        getattr(logger, method)(method[0])
    assert [line["event"] for line in lines(out)] == seen


def test_logs_of_libraries_come_in_the_same_form() -> None:
    out = io.StringIO()
    configured(out)
    logging.getLogger("some.library").warning("retrying %s", "soon")
    (line,) = lines(out)
    assert (line["event"], line["level"], line["logger"]) == ("retrying soon", "warning", "some.library")


def test_chatty_libraries_are_quiet_unless_debugging() -> None:
    out = io.StringIO()
    configured(out)
    logging.getLogger("aiokafka.conn").info("connected")
    assert out.getvalue() == ""
    configured(out, level="debug")
    logging.getLogger("aiokafka.conn").debug("connected")
    assert [line["event"] for line in lines(out)] == ["connected"]


@pytest.mark.parametrize("name", ["botocore.endpoint", "aiobotocore", "urllib3.connectionpool", "boto3.resources"])
def test_libraries_that_would_tell_data_keys_never_debug(name: str) -> None:
    """botocore tells the body of each request to a KMS, and of each answer: the data key in the clear."""
    out = io.StringIO()
    configured(out, level="debug")
    logger = logging.getLogger(name)
    logger.debug("Plaintext: S1NlY3JldA==")
    before = logger.level
    logger.setLevel(logging.DEBUG)  # as a library may do later
    logger.debug("Plaintext: S1NlY3JldA==")
    logger.info("found credentials")
    logger.setLevel(before)
    assert [line["event"] for line in lines(out)] == ["found credentials"]


@pytest.mark.parametrize("out_format", ["json", "console"])
def test_no_secret_is_written(out_format: str) -> None:
    out = io.StringIO()
    logger = configured(out, format=out_format)
    logger.info("a", sasl_password="hunter2", oauth_token="hunter2", key=SecretStr("hunter2"))
    logging.getLogger("library").warning("b", extra={"client_secret": "hunter2"})
    assert "hunter2" not in out.getvalue()


@pytest.mark.parametrize("out_format", ["json", "console"])
def test_a_traceback_shows_no_local_variables(out_format: str) -> None:
    out = io.StringIO()
    logger = configured(out, format=out_format)
    try:
        _fail_with_a_secret_at_hand()
    except RuntimeError:
        logger.exception("partition.halted")
    assert "RuntimeError: 7 characters" in out.getvalue()
    assert "hunter2" not in out.getvalue()


def _fail_with_a_secret_at_hand() -> None:
    revealed = "".join(("hunter", "2"))
    raise RuntimeError(f"{len(revealed)} characters")


def test_configuring_twice_writes_each_event_once() -> None:
    out = io.StringIO()
    configured(out)
    configured(out).info("a")
    assert len(lines(out)) == 1
