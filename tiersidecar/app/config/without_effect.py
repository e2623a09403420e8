"""Keys that are accepted, because a broker's or a plugin's configuration has them, and change nothing in this release.

``check-config`` warns where one is set, the reference marks it, and a test holds this list against what the code reads.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiersidecar.app.config.document import KeyPath, format_path
from tiersidecar.app.config.section import Section, undotted

WITHOUT_EFFECT: dict[KeyPath, str] = {
    (
        "remote.log.metadata.topic.retention.ms",
    ): "the topic is made with -1, and any other setting on it stops all trims",
    ("store", "verify.read.back"): "every byte is read back, as with full",
}


def settings_without_effect(section: Section, below: KeyPath = ()) -> Iterator[str]:
    """One sentence for each such key that is set to another value than its default."""
    for path, why in WITHOUT_EFFECT.items():
        name = undotted(str(path[-1]))
        if path[:-1] == below and getattr(section, name) != type(section).model_fields[name].default:
            yield f"{format_path(path)}: has no effect in this release: {why}"
