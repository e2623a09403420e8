"""A key does something, or the product says that it does not."""

from __future__ import annotations

import re
from pathlib import Path

import tiersidecar
from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.app.config.broker import BrokerSection
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.document import KeyPath
from tiersidecar.app.config.gateway import GatewayListenerSection, GatewaySection
from tiersidecar.app.config.keys import keys_in
from tiersidecar.app.config.report import WITHOUT_EFFECT, warnings_of
from tiersidecar.app.config.section import Section, undotted
from tiersidecar.app.config.services import LoggingSection, ReadSection, StatusSection
from tiersidecar.app.config.store import store_sections
from tiersidecar.app.config.store_base import KeyPair
from tiersidecar.app.references import generated_files

PACKAGE = Path(tiersidecar.__file__).parent
SECTIONS: dict[KeyPath, tuple[type[Section], ...]] = {
    (): (Config,),
    ("broker",): (BrokerSection,),
    ("store",): tuple(store_sections().values()),
    ("store", "encryption.key.pairs"): (KeyPair,),
    ("read",): (ReadSection,),
    ("gateway",): (GatewaySection,),
    ("gateway", "listeners"): (GatewayListenerSection,),
    ("status",): (StatusSection,),
    ("logging",): (LoggingSection,),
}
READ_BY_THE_CONFIGURATION_ITSELF = re.compile(
    r"trim\..*|log\.(local\.)?retention\..*|log\.remote\.copy\.lag\..*|type|options"
)


def code_that_reads() -> str:
    """All of the package but the declarations, the checks and the references of keys."""
    apart = PACKAGE / "app" / "config"
    files = [path for path in PACKAGE.rglob("*.py") if apart not in path.parents and "references" not in path.name]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def test_exactly_the_listed_keys_are_read_by_nothing() -> None:
    code = code_that_reads()
    unread = {
        (*below, key)
        for below, sections in SECTIONS.items()
        for section in sections
        for key, _ in keys_in(section)
        if not READ_BY_THE_CONFIGURATION_ITSELF.fullmatch(key) and not re.search(rf"\.{undotted(key)}\b", code)
    }
    assert unread == set(WITHOUT_EFFECT)


def test_a_key_without_effect_is_warned_of_where_it_is_set(tmp_path: Path) -> None:
    text = "remote.log.metadata.topic.retention.ms: 7d\n" + LEAST
    told = [warning for warning in warnings_of(load(tmp_path, text)) if "has no effect in this release" in warning]
    assert [warning.split(":")[0] for warning in told] == ["remote.log.metadata.topic.retention.ms"]
    assert not [warning for warning in warnings_of(load(tmp_path, LEAST)) if "has no effect" in warning]


def test_the_reference_marks_keys_without_effect() -> None:
    rows = generated_files()["docs/configuration.md"].splitlines()
    marked = {row.split("`")[1] for row in rows if "Without effect in this release" in row}
    assert marked == {str(path[-1]) for path in WITHOUT_EFFECT}
