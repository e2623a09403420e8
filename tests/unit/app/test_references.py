"""The generated references and the shipped configurations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tiersidecar.app.config.broker import BrokerSection
from tiersidecar.app.config.config import Config, load_config
from tiersidecar.app.config.gateway import GatewayListenerSection, GatewaySection
from tiersidecar.app.config.keys import all_key_paths, keys_in
from tiersidecar.app.config.report import warnings_of
from tiersidecar.app.config.section import Section
from tiersidecar.app.config.services import LoggingSection, ReadSection, StatusSection
from tiersidecar.app.config.store import FilesystemStore, store_sections
from tiersidecar.app.config.store_base import KeyPair
from tiersidecar.app.config.topics import TopicRule
from tiersidecar.app.references import annotated_configuration, generated_files
from tiersidecar.domain.errors import ConfigError
from tiersidecar.ports.metrics.catalogue import BUCKET_CATALOGUE, CATALOGUE

ROOT = Path(__file__).parents[3]
SECTIONS = (
    Config,
    BrokerSection,
    *store_sections().values(),
    KeyPair,
    TopicRule,
    ReadSection,
    GatewaySection,
    GatewayListenerSection,
    StatusSection,
    LoggingSection,
)
EXAMPLES = sorted((ROOT / "config").rglob("*.yaml"))
SECRETS = {
    "TIERSIDECAR_SASL_PASSWORD": "x",
    "TIERSIDECAR_KEY_PASSWORD": "x",
    "TIERSIDECAR_READ_KEY_PASSWORD": "x",
    "TIERSIDECAR_GATEWAY_KEY_PASSWORD": "x",
    "AWS_ACCESS_KEY_ID": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "AZURE_STORAGE_ACCOUNT_KEY": "x",
}


@pytest.mark.parametrize("name", generated_files())
def test_a_generated_file_is_current(name: str) -> None:
    """If this fails: ``python -m tiersidecar.app.references``."""
    assert (ROOT / name).read_text(encoding="utf-8") == generated_files()[name]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_key_is_documented(section: type[Section]) -> None:
    undocumented = [key for key, field in keys_in(section) if not field.description]
    assert undocumented == []
    table = generated_files()["docs/configuration.md"]
    assert [key for key, _ in keys_in(section) if f"| `{key}` |" not in table] == []


def test_every_metric_is_documented() -> None:
    table = generated_files()["docs/metrics.md"]
    assert [metric.name for metric in (*CATALOGUE, *BUCKET_CATALOGUE) if f"| `{metric.name}` |" not in table] == []


def test_the_annotated_configuration_is_the_default_one(tmp_path: Path) -> None:
    least = Config(
        log_dirs=("/var/lib/kafka/data",),
        broker=BrokerSection(bootstrap_servers="127.0.0.1:9092"),
        store=FilesystemStore(type="filesystem", root="/srv/tier"),
    )
    annotated = ROOT / "config" / "tiersidecar.yaml"
    assert load_config(annotated, {}) == least.read_from(annotated)


def commented_keys() -> list[str]:
    known = {str(path[-1]) for path in all_key_paths(Config)}
    matches = (re.fullmatch(r" *# ([a-z][a-z0-9.]*): .*", line) for line in annotated_configuration().splitlines())
    return [match.group() for match in matches if match and match.group(1) in known]


@pytest.mark.parametrize("line", [line for line in commented_keys() if not line.startswith("#     ")], ids=str.strip)
def test_a_commented_example_is_a_value_that_its_key_takes(tmp_path: Path, line: str) -> None:
    text = annotated_configuration().replace(f"{line}\n", f"{line.replace('# ', '', 1)}\n")
    file = tmp_path / "t.yaml"
    file.write_text(text)
    alone = re.compile(r"has no effect with|is required|is not in encryption.key.pairs|cannot be read: no such file")
    assert [fault for fault in faults_of(file) if not alone.search(fault)] == []


def faults_of(file: Path) -> tuple[str, ...]:
    try:
        load_config(file, SECRETS)
    except ConfigError as error:
        return error.faults
    return ()


def test_the_example_of_a_topic_rule_loads(tmp_path: Path) -> None:
    text = annotated_configuration()
    rule = text[text.index("# topics:") : text.index("\n# Total retention by time, for topics")]
    uncommented = "\n".join(line.removeprefix("# ").removeprefix("#") for line in rule.splitlines())
    assert "name: orders" in uncommented
    file = tmp_path / "t.yaml"
    file.write_text(text.replace("topics: []\n", "").replace(rule, uncommented + "\n"))
    config = load_config(file, {})
    assert config.policy_for("orders") is not None


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_a_shipped_configuration_is_valid_and_warns_only_of_this_machine(path: Path) -> None:
    config = load_config(path, SECRETS)
    about_files = re.compile(r"is not a (directory|file) on this machine|topics: no rule")
    assert [warning for warning in warnings_of(config) if not about_files.search(warning)] == []
