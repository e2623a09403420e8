"""Names of topics, which become names of directories and files: what comes from a bucket or a file is looked at first."""

from __future__ import annotations

import re

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_MOST_CHARACTERS = 249


def topic_name_fault(name: str) -> str:
    """Return why no topic can have this name, for people; empty if one can (``org.apache.kafka.common.internals.Topic``)."""
    if not name:
        return "the name of a topic is empty"
    if name in {".", ".."}:
        return f"no topic can be named {name!r}"
    if len(name) > _MOST_CHARACTERS:
        return f"{name[:_MOST_CHARACTERS]!r}… is no name of a topic: it has {len(name):,} characters, of at most 249"
    if not _NAME.fullmatch(name):
        return f"{name!r} is no name of a topic: it may have letters of ASCII, digits, '.', '_' and '-'"
    return ""
