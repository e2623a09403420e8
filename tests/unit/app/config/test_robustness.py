"""Whatever stands in the file: a configuration, or faults in sentences; never another exception, never a secret."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tiersidecar.app.config.config import Config, load_config
from tiersidecar.app.config.keys import all_key_paths
from tiersidecar.app.config.report import effective_settings, render_yaml, warnings_of
from tiersidecar.domain.errors import ConfigError

KEYS = sorted({str(path[-1]) for path in all_key_paths(Config)})
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["64MiB", "7d", "-1", "-2", "filesystem", "s3", "SASL_SSL", "PLAIN", "strict", "/x", "h:1", ".*"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)
LEAST: dict[str, Any] = {
    "log.dirs": ["/d"],
    "broker": {"bootstrap.servers": "h:1"},
    "store": {"type": "filesystem", "root": "/r"},
}


def dumped(data: Any) -> str:
    out = io.StringIO()
    YAML(typ="safe", pure=True).dump(data, out)
    return out.getvalue()


def loaded(file: Path) -> Config | ConfigError:
    try:
        return load_config(file, {})
    except ConfigError as error:
        return error


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6), st.booleans())
def test_any_yaml_is_a_configuration_or_a_list_of_faults(tmp_path: Path, data: dict[str, Any], complete: bool) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(dumped({**LEAST, **data} if complete else data), encoding="utf-8")
    outcome = loaded(file)
    if isinstance(outcome, ConfigError):
        assert outcome.faults
        assert all("\n" not in fault for fault in outcome.faults)
    else:
        warnings_of(outcome)
        file.write_text(render_yaml(effective_settings(outcome, units=True)), encoding="utf-8")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200) | st.text(alphabet=":-[]{}&*#'\"\n\t abc?!|>%@`,", max_size=60).map(str.encode))
def test_any_bytes_are_a_configuration_or_a_list_of_faults(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "t.yaml"
    file.write_bytes(data)
    with pytest.raises(ConfigError):
        load_config(file, {})


@pytest.mark.parametrize("depth", [1000, pytest.param(5000, marks=pytest.mark.slow)])
def test_nesting_without_end_is_told(tmp_path: Path, depth: int) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("a: " + "[" * depth)
    with pytest.raises(ConfigError, match="nested too deeply"):
        load_config(file, {})


@pytest.mark.parametrize(
    "value", ["!!int many", "!!bool perhaps", "!!null 1", "!!binary '%'", "1" * 5000, ".nan", ".inf"]
)
def test_a_value_that_is_not_what_its_tag_says_is_told(tmp_path: Path, value: str) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(
        dumped(LEAST) + f"remote.log.reader.threads: {value}\nremote.log.manager.task.retry.jitter: {value}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(file, {})
    assert [fault.split(": ")[1] for fault in caught.value.faults] == [
        "remote.log.reader.threads",
        "remote.log.manager.task.retry.jitter",
    ]


SECRET_PLACES = [
    ("broker", "sasl.password"),
    ("broker", "ssl.key.password"),
    ("broker", "sasl.oauthbearer.client.credentials.client.secret"),
    ("read", "ssl.key.password"),
    ("store", "aws.secret.access.key"),
    ("store", "aws.access.key.id"),
]


@pytest.mark.parametrize("value", ["hunter2", ["hunter2"], {"env": "hunter2", "x": 1}, {"hunter2": "x"}], ids=str)
@pytest.mark.parametrize(("section", "key"), SECRET_PLACES)
def test_a_secret_in_a_faulty_file_is_not_repeated(tmp_path: Path, section: str, key: str, value: Any) -> None:
    data = {**LEAST, "mode": "wrong", section: {**LEAST.get(section, {}), key: value, "type": "s3"}}
    file = tmp_path / "t.yaml"
    file.write_text(dumped(data))
    with pytest.raises(ConfigError) as caught:
        load_config(file, {})
    assert "hunter2" not in str(caught.value)
