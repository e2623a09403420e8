"""Clients' own tests, directly against brokers and through gateways, on topics that are trimmed while they run.

``python -m scripts.client_suites [--suite NAME]... [--json] [TEST]...`` prints a table by suite, and exits with 1 where a test
that passes directly does not pass through the gateway, and with 2 where a suite could not run.  A test that ends differently is
run alone, up to twice, on both sides before it counts as a difference.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

from scripts.client_suites.aiokafka import AiokafkaSuite, checkout_of  # noqa: E402
from scripts.client_suites.franz import FranzSuite  # noqa: E402
from scripts.client_suites.librdkafka import LibrdkafkaSuite  # noqa: E402
from scripts.client_suites.outcomes import Outcomes, Round, SuiteResult, table  # noqa: E402
from scripts.client_suites.stands import directly, through  # noqa: E402
from scripts.client_suites.suite import Suite  # noqa: E402
from tests.support.build_cache import MissingProgramError  # noqa: E402

SUITES: Mapping[str, Callable[[Path], Suite]] = {
    "franz-go": FranzSuite,
    "librdkafka": LibrdkafkaSuite,
    "aiokafka": lambda directory: AiokafkaSuite(checkout_of(), directory),
}
RERUNS = 2


def main(arguments: list[str]) -> int:
    """0, 1 or 2 as above."""
    asked = _parse(arguments)
    directory = Path(tempfile.mkdtemp(prefix="tiersidecar-client-suites-"))
    results, missing = list[SuiteResult](), list[str]()
    for name in asked.suite or list(SUITES):
        home = directory / name
        home.mkdir()
        try:
            suite = SUITES[name](home)
        except (MissingProgramError, RuntimeError) as failed:
            missing.append(f"{name} did not run: {failed}")
            continue
        results.append(run(suite, home, frozenset(asked.test)))
    if asked.json:
        print(json.dumps({"suites": [one.as_json() for one in results], "missing": missing}, indent=2))
    else:
        print(table(results))
        for result in results:
            print(f"{result.suite}, meanwhile: {_shown(result.remote)}")
    for line in missing:
        print(line, file=sys.stderr)
    print(f"what they printed: {directory}", file=sys.stderr)
    if any(one.has_failed for one in results):
        return 1
    return 2 if missing else 0


def run(suite: Suite, directory: Path, names: Collection[str]) -> SuiteResult:
    """Run all on one side, then on the other; then what differs, alone."""
    first, remote = _round(suite, directory, names, attempt=0)
    rounds = [first]
    while (differing := rounds[-1].differing()) and len(rounds) <= RERUNS:
        _say(f"{suite.title}: again, alone: {', '.join(differing)}")
        rounds.append(_round(suite, directory, differing, attempt=len(rounds))[0])
    return SuiteResult(suite=suite.title, rounds=rounds, remote=remote)


def _round(suite: Suite, directory: Path, names: Collection[str], *, attempt: int) -> tuple[Round, Mapping[str, float]]:
    sides, remote = list[Outcomes](), dict[str, float]()
    for side in (directly, through):
        home = directory / f"{side.__name__}-{attempt}"
        home.mkdir()
        with side(home, brokers=suite.brokers, properties=suite.properties) as stand:
            began_s = time.monotonic()
            sides.append(suite.run(stand, home, names, attempt=attempt))
            _say(f"{suite.title}, {stand.name}: {len(sides[-1])} tests, {time.monotonic() - began_s:.0f} s")
            remote |= stand.remote()
    return Round(directly=sides[0], through=sides[1]), remote


def _shown(remote: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.0f}" for name, value in sorted(remote.items()) if value)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="client_suites", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suite", action="append", choices=list(SUITES), help="one suite; may be given again")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("test", nargs="*", help="names of tests of the one suite; default: all")
    parsed = parser.parse_args(arguments)
    if parsed.test and len(parsed.suite or []) != 1:
        parser.error("names of tests need exactly one --suite")
    return parsed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
