"""What the report on clients' own tests says, and how it reads what their runners print."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.client_suites import librdkafka, rounds
from scripts.client_suites.__main__ import main
from scripts.client_suites.aiokafka import AiokafkaSuite
from scripts.client_suites.franz import FranzSuite
from scripts.client_suites.ledger import Ledger
from scripts.client_suites.librdkafka import LibrdkafkaSuite
from scripts.client_suites.outcomes import Outcome, Outcomes, Round, SuiteResult, table
from scripts.client_suites.rounds import OutOfTimeError, Rounds
from scripts.client_suites.stands import FILLED, Stand
from scripts.client_suites.suite import Command, Piece, excluded
from tests.support.kafka_admin import wait_until

SUMMARY = """\
TEST 20260102030405 (bare, scenario default) SUMMARY
#==================================================================#
|\x1b[32m <MAIN>                                   |     PASSED |   3.100s \x1b[0m|
|\x1b[32m 0012_produce_consume                     |     PASSED |   3.000s \x1b[0m|
|\x1b[31m 0031_get_offsets                         |     FAILED |   1.000s \x1b[0m|\x1b[31m it said | so\x1b[0m
|\x1b[35m 0045_subscribe_update                    |    RUNNING |   9.000s \x1b[0m|
|\x1b[36m 0092_mixed_msgver                        |    SKIPPED |   0.000s \x1b[0m|\x1b[36m MsgVersion 1\x1b[0m
#==================================================================#
"""
TEST_C = """
struct test tests[] = {
    {.name = "<MAIN>", .flags = TEST_F_LOCAL},
    _TEST(0000_unittests,
          TEST_F_LOCAL,
          _THRES(.ucpu = 100.0)),
    _TEST(0001_multiobj, 0),
    _TEST(0103_transactions, 0, TEST_BRKVER(0, 11, 0, 0), .scenario = "default,ak23"),
    _TEST(0107_topic_recreate,
          0,
          .scenario = "noautocreate"),
    _TEST(8000_idle, TEST_F_MANUAL),

    {NULL}};
"""
GO = """\
{"Action":"start","Package":"kgo"}
not an event
{"Action":"run","Test":"TestGroup"}
{"Action":"fail","Test":"TestGroup/inner"}
{"Action":"pass","Test":"TestGroup"}
{"Action":"skip","Test":"TestOther"}
{"Action":"fail","Package":"kgo"}
"""
PYTEST = """
collecting ... collected 5 items

tests/test_a.py::TestA::test_one PASSED                                  [ 20%]
tests/test_a.py::TestA::test_two FAILED                                  [ 40%]
tests/test_a.py::TestA::test_three <- tests/_testutil.py SKIPPED (old)   [ 60%]
tests/test_a.py::TestA::test_four PASSED                                 [ 80%]
tests/test_a.py::TestA::test_four ERROR                                  [ 80%]
tests/test_a.py::TestA::test_five XFAIL (known)                          [100%]
tests/test_a.py::TestA::test_six """


def result(*rounds: tuple[Outcomes, Outcomes], fills: float = 0, least: float = 0) -> SuiteResult:
    return SuiteResult(
        suite="client 1",
        rounds=[Round(directly=one, through=other) for one, other in rounds],
        remote={FILLED: fills},
        least_remote={FILLED: least},
    )


@pytest.mark.parametrize(
    ("found", "worse", "has_failed"),
    [
        pytest.param(result(({"a": "pass"}, {"a": "pass"})), (), False, id="passes on both sides"),
        pytest.param(result(({"a": "pass"}, {"a": "fail"})), ("a",), True, id="fails through the gateway only"),
        pytest.param(result(({"a": "pass"}, {"a": "skip"})), ("a",), True, id="leaves itself out behind the gateway"),
        pytest.param(result(({"a": "pass"}, {})), ("a",), True, id="never ends through the gateway"),
        pytest.param(result(({"a": "pass", "b": "fail"}, {"a": "pass", "b": "pass"})), (), False, id="fails directly"),
        pytest.param(result(({"a": "fail"}, {"a": "fail"})), (), True, id="none passes: the suite did not run"),
        pytest.param(result(({}, {})), (), True, id="no test at all"),
        pytest.param(
            result(({"a": "pass", "b": "pass"}, {"a": "fail", "b": "pass"}), ({"a": "pass"}, {"a": "pass"})),
            (),
            False,
            id="alike when run alone",
        ),
        pytest.param(
            result(({"a": "pass"}, {"a": "fail"}), ({"a": "fail"}, {"a": "pass"}), ({"a": "pass"}, {"a": "fail"})),
            ("a",),
            True,
            id="differs in the last round, too",
        ),
        pytest.param(result(({"a": "pass"}, {"a": "pass"}), fills=1, least=1), (), False, id="as much was remote"),
        pytest.param(result(({"a": "pass"}, {"a": "pass"}), least=1), (), True, id="nothing was remote: shows nothing"),
    ],
)
def test_what_counts_as_worse_through_the_gateway(found: SuiteResult, worse: tuple[str, ...], has_failed: bool) -> None:
    assert (found.worse, found.has_failed) == (worse, has_failed)


def test_the_report_names_each_difference_with_every_round() -> None:
    first: tuple[Outcomes, Outcomes] = (
        {"a": "pass", "b": "pass", "c": "skip", "d": "fail"},
        {"a": "fail", "b": "fail", "c": "skip", "d": "fail"},
    )
    lines = table([result(first, ({"a": "pass", "b": "pass"}, {"a": "pass"}), ({"b": "pass"}, {"b": "fail"}))])
    assert lines.splitlines() == [
        "suite     tests  skipped  passed directly  through the gateway  differences",
        "client 1  4      1        2                1                    1",
        "client 1: a: pass/fail, pass/pass (alike when run alone)",
        "client 1: b: pass/fail, pass/no outcome, pass/fail",
        "client 1: b passes directly, and not through the gateway",
        "client 1: d fails on both sides",
    ]


def test_outcomes_are_read_from_what_each_runner_prints() -> None:
    assert LibrdkafkaSuite.outcomes(SUMMARY) == {
        "0012_produce_consume": "pass",
        "0031_get_offsets": "fail",
        "0045_subscribe_update": "fail",
        "0092_mixed_msgver": "skip",
    }
    assert FranzSuite.outcomes(GO) == {"TestGroup": "pass", "TestOther": "skip"}
    assert AiokafkaSuite.outcomes(PYTEST) == {
        "tests/test_a.py::TestA::test_one": "pass",
        "tests/test_a.py::TestA::test_two": "fail",
        "tests/test_a.py::TestA::test_three": "skip",
        "tests/test_a.py::TestA::test_four": "fail",
        "tests/test_a.py::TestA::test_five": "pass",
    }


def test_librdkafka_s_tests_are_those_that_need_a_broker() -> None:
    assert librdkafka.tests_of(TEST_C) == ["0001_multiobj", "0103_transactions", "0107_topic_recreate"]


@pytest.mark.parametrize("suite", ["franz-go", "librdkafka", "aiokafka"])
def test_every_test_that_is_left_out_has_a_reason(suite: str) -> None:
    assert all(reason.endswith(".") and len(reason.split()) > 3 for reason in excluded(suite).values())


class Scripted:
    """A suite whose processes print what ``outcomes_by`` has for side and attempt, and append their test to ``ran``."""

    title = "scripted 1"
    brokers = 1
    properties: Mapping[str, str] = {}
    at_once = 2
    untrimmed: Collection[str] = ("reads as a share group",)
    least_remote: Mapping[str, float] = {}

    def __init__(self, directory: Path, outcomes_by: Mapping[tuple[str, int], Outcomes]) -> None:
        self.ran = directory / "ran"
        self.ran.touch()
        self._outcomes_by = outcomes_by

    def tests(self) -> Sequence[str]:
        return sorted(self._outcomes_by["directly", 0])

    def pieces(self, tests: Collection[str]) -> Sequence[Piece]:
        together = tuple(name for name in tests if name.startswith("of one piece"))
        single = [(name,) for name in tests if name not in together]
        return [
            Piece(name=names[0], tests=names, limit_s=0.5 if "hangs" in names[0] else 60)
            for names in (*single, together)
            if names
        ]

    def command(self, piece: Piece, stand: Stand, home: Path, attempt: int) -> Command:
        lines = list[str]()
        for name in piece.tests:
            lines.append(f'echo "{stand.name} {attempt} {name}" >> {self.ran}')
            if "hangs" in name:
                lines.append("sleep 600 & echo $! > child; wait")
            if "crashes" in name:
                lines.append("exit 1")
            lines.append(f'echo "{name}: {self._outcomes_by[stand.name, attempt][name]}"')
        return Command(arguments=["/bin/sh", "-c", "\n".join(lines)], environment={}, directory=home)

    @staticmethod
    def outcomes(printed: str) -> Outcomes:
        outcomes: dict[str, Outcome] = {}
        for line in printed.splitlines():
            match line.split(": "):
                case [name, "pass" | "fail" | "skip" as outcome]:
                    outcomes[name] = outcome
        return outcomes

    def has_run(self) -> list[str]:
        return sorted(self.ran.read_text().splitlines())


@pytest.fixture
def no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stands be addresses of nothing: a scripted suite asks none."""

    def stand_of(name: str) -> object:
        @contextmanager
        def stand(
            directory: Path, *, brokers: int, properties: Mapping[str, str], trims: bool = True
        ) -> Iterator[Stand]:
            (directory / "trims").write_text(str(trims))
            yield Stand(name=name, bootstrap_servers="", sasl_bootstrap_servers="", remote=lambda: {"fills": 2.0})

        return stand

    for side in ("directly", "through"):
        monkeypatch.setattr(rounds, side, stand_of(side))


def is_running(pid: int) -> bool:
    """A process that has ended and that nobody has waited for does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def run(suite: Scripted, directory: Path, *, seconds: float = 60, repeat: int | None = None) -> SuiteResult:
    directory.mkdir(exist_ok=True)
    ledger = Ledger(directory / "outcomes.jsonl", suite.title)
    until_s = time.monotonic() + seconds
    return Rounds(suite=suite, directory=directory, ledger=ledger, until_s=until_s, repeat=repeat).run(suite.tests())


@pytest.mark.usefixtures("no_servers")
def test_what_differs_or_fails_is_run_again_alone_and_all_else_once(tmp_path: Path) -> None:
    first: Outcomes = {"differs": "pass", "fails": "fail", "passes": "pass", "skips": "skip"}
    suite = Scripted(
        tmp_path,
        {
            ("directly", 0): first,
            ("through", 0): {**first, "differs": "fail"},
            ("directly", 1): {"differs": "pass", "fails": "pass"},
            ("through", 1): {"differs": "pass", "fails": "pass"},
        },
    )
    found = run(suite, tmp_path / "results")
    assert found.settled.directly == found.settled.through == {**first, "fails": "pass"}
    again = [f"{side} 1 {name}" for side in ("directly", "through") for name in ("differs", "fails")]
    assert [line for line in suite.has_run() if " 1 " in line] == again
    assert len(suite.has_run()) == 2 * len(first) + len(again)


@pytest.mark.usefixtures("no_servers")
def test_what_only_the_broker_s_log_can_serve_is_read_where_nothing_is_trimmed(tmp_path: Path) -> None:
    names: Outcomes = {"reads": "pass", "reads as a share group": "pass"}
    suite = Scripted(tmp_path, {("directly", 0): names, ("through", 0): names})
    found = run(suite, tmp_path / "results")
    assert found.settled.through == names
    trims = {
        home.name.removesuffix("-1"): (home.parent / "trims").read_text()
        for home in (tmp_path / "results").glob("through-*/*-1")
    }
    assert trims == {"reads": "True", "reads as a share group": "False"}


@pytest.mark.usefixtures("no_servers")
def test_a_test_that_hangs_is_ended_with_what_it_started_and_has_failed(tmp_path: Path) -> None:
    sides = [(side, attempt) for side in ("directly", "through") for attempt in (0, 1, 2)]
    found = run(Scripted(tmp_path, {one: {"hangs": "pass"} for one in sides}), tmp_path / "results")
    assert found.failing == ("hangs",)
    children = [int(path.read_text()) for path in (tmp_path / "results").glob("*/hangs-1/child")]
    assert len(children) == len(sides)
    wait_until(lambda: not any(map(is_running, children)), "all have ended", 30)


@pytest.mark.usefixtures("no_servers")
def test_those_that_come_after_a_crash_run_in_another_process(tmp_path: Path) -> None:
    names = ["of one piece 1", "of one piece 2 crashes", "of one piece 3", "of one piece 4 crashes"]
    sides = [(side, attempt) for side in ("directly", "through") for attempt in (0, 1, 2)]
    suite = Scripted(tmp_path, {one: dict.fromkeys(names, "pass") for one in sides})
    found = run(suite, tmp_path / "results")
    assert found.failing == ("of one piece 2 crashes", "of one piece 4 crashes")
    assert [line for line in suite.has_run() if "through 0" in line] == [f"through 0 {name}" for name in names]


@pytest.mark.usefixtures("no_servers")
def test_a_run_that_was_ended_goes_on_with_what_had_not_ended(tmp_path: Path) -> None:
    passes: Outcomes = {"a": "pass", "b": "pass"}
    suite = Scripted(tmp_path, {("directly", 0): passes, ("through", 0): passes})
    results = tmp_path / "results"
    results.mkdir()
    Ledger(results / "outcomes.jsonl", suite.title).add("directly", 0, {"a": "pass"}, 1.0)
    with pytest.raises(OutOfTimeError, match="directly: 1 of 2 tests remain"):
        run(suite, results, seconds=0)
    assert suite.has_run() == []
    found = run(suite, results)
    assert suite.has_run() == ["directly 0 b", "through 0 a", "through 0 b"]
    assert run(suite, results) == found, "all has ended, and nothing runs"
    assert (len(suite.has_run()), found.remote) == (3, {"fills": 4.0})


@pytest.mark.usefixtures("no_servers")
def test_repeated_tests_show_the_outcomes_of_every_round(tmp_path: Path) -> None:
    ended: list[tuple[Outcome, Outcome]] = [("pass", "pass"), ("fail", "pass"), ("pass", "fail")]
    outcomes: dict[tuple[str, int], Outcomes] = {("directly", 0): {"a": "skip"}}
    for attempt, (one, other) in enumerate(ended, start=1):
        outcomes["directly", attempt], outcomes["through", attempt] = {"a": one}, {"a": other}
    found = run(Scripted(tmp_path, outcomes), tmp_path / "results", repeat=3)
    assert found.differences() == ["a: pass/pass, fail/pass, pass/fail"]


def test_results_of_another_version_are_not_gone_on_from(tmp_path: Path) -> None:
    Ledger(tmp_path / "outcomes.jsonl", "client 1")
    with pytest.raises(RuntimeError, match="has results of client 1, and these are tests of client 2"):
        Ledger(tmp_path / "outcomes.jsonl", "client 2")


def test_without_a_checkout_the_error_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AIOKAFKA", raising=False)
    assert main(["--suite", "aiokafka", "--results", str(tmp_path / "results")]) == 2
    assert (
        "make client-suites AIOKAFKA=DIRECTORY, a git checkout of aiokafka that has 0.14.0" in capsys.readouterr().err
    )
