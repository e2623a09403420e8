"""What a library says 30 times a second is told once, and how often."""

from __future__ import annotations

import logging

import pytest

from tiersidecar.app.logging import RepeatFilter


def said(name: str, message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, __file__, 1, message, args, None)


class Listener:
    """At a time of its own; ``heard`` are messages with the count of those held back before, or None."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.heard: list[tuple[str, int | None]] = []
        self._filter = RepeatFilter(("aiokafka",), interval_s=30, monotonic_s=lambda: self.now_s)

    def hear(self, record: logging.LogRecord) -> None:
        if self._filter.filter(record):
            self.heard.append((record.getMessage(), getattr(record, "repeated", None)))


@pytest.fixture
def listener() -> Listener:
    return Listener()


def test_the_same_message_is_told_once_and_then_with_how_often_it_was_said(listener: Listener) -> None:
    for second in range(31):
        listener.now_s = second
        listener.hear(said("aiokafka.client", "Unable connect to node with id %s", 2))
    assert listener.heard == [("Unable connect to node with id 2", None), ("Unable connect to node with id 2", 29)]


def test_another_node_is_another_message(listener: Listener) -> None:
    for node in (1, 2, 1, 2):
        listener.hear(said("aiokafka", "Unable connect to node with id %s", node))
    assert [message[-1] for message, _ in listener.heard] == ["1", "2"]


def test_our_own_events_always_pass(listener: Listener) -> None:
    for _ in range(3):
        listener.hear(said("tiersidecar.tasks.lanes", "lane.retry"))
    assert len(listener.heard) == 3


def test_messages_without_end_take_no_memory_without_end(listener: Listener) -> None:
    for number in range(1000):
        listener.hear(said("aiokafka", f"correlation id {number}"))
    listener.hear(said("aiokafka", "correlation id 0"))
    assert len(listener.heard) == 1001
