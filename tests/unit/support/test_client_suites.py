"""What the report on clients' own tests says, and how it reads what their runners print."""

from __future__ import annotations

import pytest

from scripts.client_suites import aiokafka, franz, librdkafka
from scripts.client_suites.outcomes import Outcomes, Round, SuiteResult, table
from scripts.client_suites.suite import excluded

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
JUNIT = """<testsuites><testsuite>
<testcase classname="tests.test_a.TestA" name="test_one" file="tests/test_a.py"/>
<testcase classname="tests.test_a.TestA" name="test_two" file="tests/test_a.py"><failure message="x"/></testcase>
<testcase classname="tests.test_a.TestA" name="test_three" file="tests/test_a.py"><skipped/></testcase>
<testcase classname="tests.test_a.TestA" name="test_four" file="tests/test_a.py"><error message="x"/></testcase>
<testcase classname="tests.test_a.TestA" name="test_four" file="tests/test_a.py"/>
</testsuite></testsuites>"""


def result(*rounds: tuple[Outcomes, Outcomes]) -> SuiteResult:
    return SuiteResult(
        suite="client 1", rounds=[Round(directly=one, through=other) for one, other in rounds], remote={}
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
    ],
)
def test_what_counts_as_worse_through_the_gateway(found: SuiteResult, worse: tuple[str, ...], has_failed: bool) -> None:
    assert (found.worse, found.has_failed) == (worse, has_failed)


def test_the_report_names_each_difference_with_every_round() -> None:
    first: tuple[Outcomes, Outcomes] = (
        {"a": "pass", "b": "pass", "c": "skip"},
        {"a": "fail", "b": "fail", "c": "skip"},
    )
    lines = table([result(first, ({"a": "pass", "b": "pass"}, {"a": "pass"}), ({"b": "pass"}, {"b": "fail"}))])
    assert lines.splitlines() == [
        "suite     tests  skipped  passed directly  through the gateway  differences",
        "client 1  3      1        2                1                    1",
        "client 1: a: pass/fail, pass/pass (alike when run alone)",
        "client 1: b: pass/fail, pass/no outcome, pass/fail",
        "client 1: b passes directly, and not through the gateway",
    ]


def test_outcomes_are_read_from_what_each_runner_prints() -> None:
    assert librdkafka.outcomes_of(SUMMARY) == {
        "0012_produce_consume": "pass",
        "0031_get_offsets": "fail",
        "0045_subscribe_update": "fail",
        "0092_mixed_msgver": "skip",
    }
    assert franz.outcomes_of(GO) == {"TestGroup": "pass", "TestOther": "skip"}
    assert aiokafka.outcomes_of(JUNIT) == {
        "tests/test_a.py::TestA::test_one": "pass",
        "tests/test_a.py::TestA::test_two": "fail",
        "tests/test_a.py::TestA::test_three": "skip",
        "tests/test_a.py::TestA::test_four": "fail",
    }


def test_librdkafka_s_tests_are_those_that_need_a_broker() -> None:
    assert librdkafka.tests_of(TEST_C) == ["0001_multiobj", "0103_transactions", "0107_topic_recreate"]


@pytest.mark.parametrize("suite", ["franz-go", "librdkafka", "aiokafka"])
def test_every_test_that_is_left_out_has_a_reason(suite: str) -> None:
    assert all(reason.endswith(".") and len(reason.split()) > 3 for reason in excluded(suite).values())
