"""docs/operations/errors.md lists every error, in the section of its fate and with its present message."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tiersidecar.domain import errors
from tiersidecar.domain.errors import FatalError, PartitionHaltedError, RetriableError, TiersidecarError

PAGE = (Path(__file__).parents[3] / "docs" / "operations" / "errors.md").read_text(encoding="utf-8")
BASES = {TiersidecarError, RetriableError, PartitionHaltedError, FatalError}
ERRORS = [
    error
    for _, error in inspect.getmembers(errors, inspect.isclass)
    if issubclass(error, TiersidecarError) and error not in BASES
]
SECTIONS: dict[type[TiersidecarError], str] = {
    FatalError: "Ends the process",
    PartitionHaltedError: "Halts one partition",
    RetriableError: "Is retried",
    TiersidecarError: "Ends a command or a request",
}


class Field(str):
    """A field of any error; the page shows it as an ellipsis."""

    __slots__ = ()

    def __new__(cls) -> Field:
        return super().__new__(cls, "…")

    def __format__(self, spec: str) -> str:
        return str(self)

    def __repr__(self) -> str:
        return str(self)

    def __lt__(self, other: object) -> bool:
        return False


def message_of(error: type[TiersidecarError]) -> str:
    skipped = {"self", "args", "kwargs", "retriable"}
    names = [name for name in inspect.signature(error.__init__).parameters if name not in skipped]
    return str(error(**{name: (Field(),) if name == "faults" else Field() for name in names}))


def rows_of(section: str) -> dict[str, list[str]]:
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): cells for cells in rows}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_an_error_is_on_the_page_with_its_fate_and_message(error: type[TiersidecarError]) -> None:
    fate = next(base for base in SECTIONS if issubclass(error, base))
    rows = rows_of(SECTIONS[fate])
    assert error.__name__ in rows, f"add {error.__name__} to section {SECTIONS[fate]!r} of docs/operations/errors.md"
    message = message_of(error)
    if message:
        assert rows[error.__name__][1] == (f"`` {message} ``" if "`" in message else f"`{message}`")
        assert all(cell.strip() for cell in rows[error.__name__]), "cause and remedy"


def test_the_page_lists_no_other_error() -> None:
    listed = {name for section in SECTIONS.values() for name in rows_of(section)}
    assert listed == {error.__name__ for error in ERRORS}
