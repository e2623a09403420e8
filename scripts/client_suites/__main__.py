"""Clients' own tests, directly against brokers and through gateways, on topics that are trimmed while they run.

``python -m scripts.client_suites [--suite NAME]... [TEST]...`` prints a table by suite, and exits with 1 where a test that
passes directly does not pass through the gateway, with 2 where a suite could not run, and with 3 where the time of
``--minutes`` was over before the end: with the same ``--results`` the next run goes on.  A test that differs or fails is run
alone, up to twice, on both sides before it counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

from scripts.client_suites.aiokafka import AiokafkaSuite, checkout_of  # noqa: E402
from scripts.client_suites.franz import FranzSuite  # noqa: E402
from scripts.client_suites.ledger import Ledger  # noqa: E402
from scripts.client_suites.librdkafka import LibrdkafkaSuite  # noqa: E402
from scripts.client_suites.outcomes import SuiteResult, table  # noqa: E402
from scripts.client_suites.rounds import OutOfTimeError, Rounds  # noqa: E402
from scripts.client_suites.suite import Suite, excluded  # noqa: E402
from tests.support.build_cache import MissingProgramError  # noqa: E402

SUITES: Mapping[str, Callable[[Path], Suite]] = {
    "franz-go": FranzSuite,
    "librdkafka": LibrdkafkaSuite,
    "aiokafka": lambda directory: AiokafkaSuite(checkout_of(), directory),
}


def main(arguments: list[str]) -> int:
    """0, 1, 2 or 3 as above."""
    asked = _parse(arguments)
    directory = asked.results or Path(tempfile.mkdtemp(prefix="tiersidecar-client-suites-"))
    until_s = time.monotonic() + asked.minutes * 60
    results, troubles, remaining = list[SuiteResult](), list[str](), list[str]()
    suites = _build(asked.suite or list(SUITES), directory, troubles)
    for name, suite in suites.items():
        try:
            rounds = Rounds(
                suite=suite,
                directory=directory / name,
                ledger=Ledger(directory / name / "outcomes.jsonl", suite.title),
                until_s=until_s,
                repeat=asked.repeat,
            )
            results.append(rounds.run(_chosen(name, suite, asked.test), are_all=not asked.test))
        except OutOfTimeError as error:
            remaining.append(str(error))
        except RuntimeError as error:
            troubles.append(f"{name} did not run: {error}")
    _report(results, [*troubles, *remaining], directory, as_json=asked.json)
    if any(one.has_failed for one in results):
        return 1
    if troubles:
        return 2
    return 3 if remaining else 0


def _build(names: Sequence[str], directory: Path, troubles: list[str]) -> dict[str, Suite]:
    """All of them first: what is missing is told before anything runs for an hour."""
    suites = dict[str, Suite]()
    for name in names:
        home = directory / name
        home.mkdir(parents=True, exist_ok=True)
        try:
            suites[name] = SUITES[name](Path(tempfile.mkdtemp(prefix="built-", dir=home)))
        except (MissingProgramError, RuntimeError) as error:
            troubles.append(f"{name} did not run: {error}")
            print(f"{name} does not run: {error}", file=sys.stderr, flush=True)
    return suites


def _chosen(name: str, suite: Suite, asked: Sequence[str]) -> list[str]:
    """Return the tests to run, sorted: those that are asked for, or all that are not left out.

    Raises:
        RuntimeError: it has no test of such a name, or none of one that is left out.
    """
    known = suite.tests()
    if unknown := sorted({*asked, *excluded(name)} - set(known)):
        raise RuntimeError(f"{suite.title} has no {', '.join(unknown)}")
    return sorted(asked or set(known) - excluded(name).keys())


def _report(results: Sequence[SuiteResult], others: Sequence[str], directory: Path, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"suites": [one.as_json() for one in results], "not_ended": list(others)}, indent=2))
    else:
        print(table(results))
        for result in results:
            print(f"{result.suite}, meanwhile: {_shown(result.remote)}")
    for line in others:
        print(line, file=sys.stderr)
    print(f"what they printed, and the results: {directory}", file=sys.stderr)


def _shown(remote: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.0f}" for name, value in sorted(remote.items()) if value)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="client_suites", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suite", action="append", choices=list(SUITES), help="one suite; may be given again")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--results", type=Path, metavar="DIRECTORY", help="where results are kept, and gone on from")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no test after as many minutes")
    parser.add_argument("--repeat", type=int, metavar="N", help="run each test N times on both sides, alone")
    parser.add_argument("test", nargs="*", help="names of tests of the one suite; default: all")
    parsed = parser.parse_args(arguments)
    if parsed.test and len(parsed.suite or []) != 1:
        parser.error("names of tests need exactly one --suite")
    return parsed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
