"""No class that acts takes more than eight parameters: what belongs together is one frozen record (``tasks/edges.py``)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "tiersidecar"
MOST = 8

ACTS_AS_VALUE = {
    "tiersidecar/app/process_status.py:ProcessStatus"  # a record that the process fills in, and that serves the status page
}


def parameters(definition: ast.ClassDef) -> int:
    """Of the constructor that is written, or that ``dataclass`` makes of the fields of a class with coroutines."""
    for member in definition.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            taken = member.args
            return len(taken.posonlyargs) + len(taken.args) + len(taken.kwonlyargs) - 1
    if any(isinstance(member, ast.AsyncFunctionDef) for member in definition.body):
        return sum(isinstance(member, ast.AnnAssign) and is_field(member) for member in definition.body)
    return 0


def is_field(member: ast.AnnAssign) -> bool:
    made = ast.unparse(member.value) if member.value is not None else ""
    return not ast.unparse(member.annotation).startswith("ClassVar") and "init=False" not in made


def constructors(source: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            yield node.name, parameters(node)


def test_no_constructor_of_a_class_that_acts_has_more_than_eight_parameters() -> None:
    found = {
        f"{path.relative_to(PACKAGE.parent)}:{name}": count
        for path in sorted(PACKAGE.rglob("*.py"))
        for name, count in constructors(path.read_text(encoding="utf-8"))
        if count > MOST
    }
    assert {name: count for name, count in found.items() if name not in ACTS_AS_VALUE} == {}
    assert found.keys() >= ACTS_AS_VALUE, "one that is excused has become smaller: take it off the list"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("class A:\n def __init__(self, a, b, /, c, *, d): ...", 4, id="of every kind, without self"),
        pytest.param(
            "class A:\n a: int\n b: int = 0\n async def run(self): ...", 2, id="the fields of a record that acts"
        ),
        pytest.param("class A:\n a: int\n def size(self): ...", 0, id="a value may have as many fields as it needs"),
        pytest.param("class A:\n a: int = field(init=False)\n async def run(self): ...", 0, id="what is not given"),
    ],
)
def test_parameters_are_counted(source: str, expected: int) -> None:
    assert list(constructors(source)) == [("A", expected)]
