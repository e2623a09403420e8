"""What the configuration says of pins (U8)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.app.builders.follow import pin_settings


@pytest.mark.parametrize(
    ("keys", "makes_pins"),
    [
        pytest.param("", True, id="by default"),
        pytest.param("pins.enabled: false\n", False, id="switched off"),
        pytest.param("mode: observe\n", False, id="nothing is written"),
    ],
)
def test_new_pins_are_made_as_configured(tmp_path: Path, keys: str, makes_pins: bool) -> None:
    assert pin_settings(load(tmp_path, LEAST + keys)).makes_pins is makes_pins
