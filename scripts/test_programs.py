"""Fetch and build what the tests run beside the product, once, before any test's time runs: ``make test-programs``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.browser import bring_axe, bring_browser
from scripts.go_tool import GO_TOOLS, go_tool
from scripts.node_tool import NODE_PROGRAMS, node_program
from tests.support.build_cache import MissingProgramError
from tests.support.kafka_jars import KAFKA_3, KAFKA_4, kafka_jars

_WORTH_A_LINE_S = 1.0


def main() -> int:
    """0, or 1 with one line for each that could not be had: the others are there then."""
    wanted: dict[str, Callable[[], Path]] = {f"kafka-{one}": partial(kafka_jars, one) for one in (KAFKA_4, KAFKA_3)}
    wanted |= {name: partial(go_tool, name) for name in GO_TOOLS}
    wanted |= {name: partial(node_program, name) for name in NODE_PROGRAMS}
    wanted |= {"chromium": lambda: bring_browser().path, "axe-core": bring_axe}
    exit_code = 0
    for number, (name, bring) in enumerate(wanted.items(), 1):
        began_s = time.monotonic()
        try:
            bring()
        except (MissingProgramError, RuntimeError) as failed:
            print(f"error: {name}: {failed}", file=sys.stderr)
            exit_code = 1
        took_s = time.monotonic() - began_s
        if took_s >= _WORTH_A_LINE_S:
            print(f"{number} of {len(wanted)}: {name}, {took_s:.0f} s", flush=True)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
