"""The Dockerfile by BuildKit's own parser: no image is built here, but docker build reads it as test_dockerfile.py does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts.go_tool import go_tool
from tests.support.dockerfile import read_dockerfile

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]  # the parser is built the first time

DOCKERFILE = (Path(__file__).parents[2] / "Dockerfile").read_text()


def read_by_buildkit(text: str) -> tuple[int, list[str]]:
    done = subprocess.run([go_tool("dockerfile-instructions")], input=text, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def test_buildkit_reads_the_instructions_that_our_tests_carry_out() -> None:
    code, stages = read_by_buildkit(DOCKERFILE)
    assert (code, len(stages)) == (0, 2), stages
    ours = [[instruction.keyword for instruction in stage[1:]] for stage in read_dockerfile(DOCKERFILE)]
    assert [stage.split()[1:] for stage in stages] == ours
    assert {stage.split()[0] for stage in stages} == {"${BASE}"}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        pytest.param("EXPOSE", "EXPOSED", "unknown instruction", id="an instruction that there is not"),
        pytest.param("--interval=15s", "--every=15s", "unknown flag", id="a flag that there is not"),
        pytest.param("AS build", "as build", "FromAsCasing", id="what docker build warns of"),
    ],
)
def test_a_mistake_is_told(before: str, after: str, said: str) -> None:
    assert before in DOCKERFILE
    code, told = read_by_buildkit(DOCKERFILE.replace(before, after))
    assert code == 1
    assert said in told[0]
