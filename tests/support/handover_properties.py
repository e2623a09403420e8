"""The server.properties that an operator hands to ``tiersidecar handover files``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tiersidecar.decide.native_settings import BLIND_SETTINGS, RLMM_PREFIX


def write_handover_properties(path: Path, plan_file: Path, log_dirs: Sequence[Path]) -> Path:
    """Write the file of a broker with the plan's plugin that sees nothing.  The brokers of the tests have Kafka's
    LocalTieredStorage in the plugin's place, so their own files say otherwise."""
    lines = {
        **json.loads(plan_file.read_text())["plugin"],
        **{RLMM_PREFIX + name: value for name, value in BLIND_SETTINGS.items()},
        "log.dirs": ",".join(map(str, log_dirs)),
    }
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return path
