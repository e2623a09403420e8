"""Fetch and build what the tests run beside the product, once, before any test's time runs: ``make test-programs``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.browser import bring_axe, bring_browser
from scripts.go_tool import GO_TOOLS, GoSource, go_tool
from scripts.node_tool import NODE_PROGRAMS, node_program
from tests.support.build_cache import MissingProgramError
from tests.support.hdfs_cluster import hadoop_jars
from tests.support.kafka_jars import KAFKA_3, KAFKA_4, kafka_jars, streams_jar

Programs = Mapping[str, Callable[[], Path]]
_WORTH_A_LINE_S = 1.0


def main() -> int:
    """0, or 1 with one line for each that could not be had: the others are there then."""
    built: dict[str, Callable[[], Path]] = {
        name: partial(go_tool, name) for name, tool in GO_TOOLS.items() if isinstance(tool, GoSource)
    }
    fetched: dict[str, Callable[[], Path]] = {f"kafka-{one}": partial(kafka_jars, one) for one in (KAFKA_4, KAFKA_3)}
    fetched["kafka-streams"] = streams_jar
    fetched["hadoop"] = hadoop_jars
    fetched |= {name: partial(go_tool, name) for name in GO_TOOLS if name not in built}
    fetched |= {name: partial(node_program, name) for name in NODE_PROGRAMS}
    fetched |= {"chromium": lambda: bring_browser().path, "axe-core": bring_axe}
    # What is fetched waits for the network while Go compiles; one at a time of each, as Maven and apt want it.
    with ThreadPoolExecutor() as threads:
        return max(threads.map(_bring_all, (built, fetched)))


def _bring_all(wanted: Programs) -> int:
    exit_code = 0
    for name, bring in wanted.items():
        began_s = time.monotonic()
        try:
            bring()
        except (MissingProgramError, RuntimeError) as failed:
            print(f"error: {name}: {failed}", file=sys.stderr)
            exit_code = 1
        took_s = time.monotonic() - began_s
        if took_s >= _WORTH_A_LINE_S:
            print(f"{name}: {took_s:.0f} s", flush=True)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
