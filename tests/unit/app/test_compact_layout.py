"""An executor whose configuration file is another one than the driver's puts nothing up (issue 23, S-276)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.app.compact_layout import layout_of, require_same_layout
from tiersidecar.app.config.config import Config
from tiersidecar.domain.errors import ConfigError

TOPIC = "orders"
AT_DRIVER = LEAST + "  key.prefix: tiered/\n"
ELSEWHERE = """\
places:
  far: {type: filesystem, root: /srv/far}
topics:
- {name: orders, place: far}
"""


def loaded(tmp_path: Path, name: str, text: str) -> Config:
    (directory := tmp_path / name).mkdir()
    return load(directory, text)


@pytest.mark.parametrize(
    ("here", "said"),
    [
        (AT_DRIVER.replace("tiered/", "other/"), "store.key.prefix is 'other/' on this executor, and 'tiered/' at"),
        (AT_DRIVER.replace("/srv/tier", "/srv/other"), "store is 'filesystem /srv/other' on this executor"),
        (AT_DRIVER + "  compression.enabled: true\n", "store.compression.enabled is 'True' on this executor"),
        (AT_DRIVER + "  chunk.size: 1MiB\n", "store.chunk.size is '1048576' on this executor"),
        (AT_DRIVER + ELSEWHERE, "the topic's place is 'far' on this executor, and '' at the driver"),
    ],
    ids=["another prefix", "another root", "compressed", "other chunks", "another place"],
)
def test_each_setting_that_decides_about_new_segments_is_compared(tmp_path: Path, here: str, said: str) -> None:
    layout = layout_of(loaded(tmp_path, "driver", AT_DRIVER), TOPIC)
    with pytest.raises(ConfigError) as caught:
        require_same_layout(layout, loaded(tmp_path, "executor", here), TOPIC)
    assert any(said in fault for fault in caught.value.faults)


def test_what_decides_nothing_about_new_segments_may_differ(tmp_path: Path) -> None:
    layout = layout_of(loaded(tmp_path, "driver", AT_DRIVER), TOPIC)
    here = AT_DRIVER.replace("127.0.0.1:9092", "10.0.0.1:9092") + "  request.timeout: 5s\n"
    require_same_layout(layout, loaded(tmp_path, "executor", here), TOPIC)
