"""Configuration files for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiersidecar.app.config.config import Config, load_config
from tiersidecar.domain.errors import ConfigError

LEAST = """\
log.dirs: [/var/lib/kafka/data]
broker:
  bootstrap.servers: 127.0.0.1:9092
store:
  type: filesystem
  root: /srv/tier
"""


def load(tmp_path: Path, text: str | bytes, environ: dict[str, str] | None = None) -> Config:
    file = tmp_path / "t.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_config(file, environ or {})


def faults_of(tmp_path: Path, text: str | bytes) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert caught.value.source == str(tmp_path / "t.yaml")
    return list(caught.value.faults)
