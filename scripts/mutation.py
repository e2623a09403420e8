"""Measure how many small faults in a package the tests notice: ``scripts/mutation.py decide --sample 1000 --seed 1``.

mutmut's operators make the faults (mutants).  The runner is our own, since ours are thousands of short tests: it collects the
tests once, notes which lines each of them reaches, and forks for each mutant.  The child gives the mutated function its new
code and runs the tests that reach the line, quickest first, to the first failure.  Nothing is written but the report.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import accumulate
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
MUTMUT = "3.8.1"
NOT_HERE = "not (broker or server or spark or slow)"
SLOWEST_TEST_S = 3.0
"""Longer tests are left out: each would run for each surviving mutant that it reaches."""
MOST_S = 10.0
"""Processor time of the tests of one mutant: the quickest of those that reach it, as many as fit."""
MOST_BYTES = 4 << 30
"""Memory of the process of one mutant: one that never ends may collect ever more, and others need the machine's as well."""
STILL_S = 30.0
"""A mutant that waits without using the processor for so long does not end.  One that a busy machine holds up is ready to
run."""
TESTS = {
    "decide": ("tests/unit/decide",),
    "tasks": ("tests/unit/tasks",),
    "reading": (
        "tests/unit/reading",
        "tests/unit/services",
        "tests/unit/tasks",
        "tests/unit/app/builders",
        "tests/unit/app/commands",
        "tests/unit/app/test_repair_run.py",
        "tests/property",
    ),
}
NOT_PLANTED = 77
CAUGHT = {"killed", "timed out"}
TRANSPARENT = {"property", "staticmethod", "classmethod", "contextmanager", "asynccontextmanager"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A mutation of mutmut's that has not been carried out."""

    path: Path
    source: str
    module: Any
    mutation: Any
    number: int

    @property
    def name(self) -> str:
        return f"{self.path.relative_to(REPOSITORY)}#{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """``function`` is the qualified name; ``first`` to ``last`` are the lines of the statement that differs."""

    name: str
    path: str
    function: str
    first: int
    last: int
    line: int
    before: str
    after: str
    code: CodeType = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    name: str
    outcome: str
    path: str
    line: int
    function: str
    before: str
    after: str
    tests: int


def places_in(path: Path) -> list[Place]:
    """Where in the functions of one file mutmut's operators find something to change."""
    import libcst as cst
    from libcst.metadata import MetadataWrapper, PositionProvider
    from mutmut.mutation.file_mutation import MutationVisitor, OuterFunctionProvider
    from mutmut.mutation.mutators import mutation_operators
    from mutmut.mutation.pragma_handling import IgnoredCode

    class Visitor(MutationVisitor):  # type: ignore[misc]
        METADATA_DEPENDENCIES = (PositionProvider, OuterFunctionProvider)

        def _skip_node_and_children(self, node: Any) -> bool:
            if isinstance(node, cst.Parameters | cst.Raise) or _is_left_out(node, cst):
                return True
            if isinstance(node, cst.FunctionDef) and node.decorators:
                return not all(_name(each.decorator) in TRANSPARENT for each in node.decorators)
            return bool(super()._skip_node_and_children(node))

        def _create_mutations(self, node: Any) -> None:
            place = self.get_metadata(PositionProvider, node, None)
            known = len(self.mutations)
            super()._create_mutations(node)
            for mutation in self.mutations[known:]:
                mutation.line = place.start.line if place else 0

    source = path.read_text()
    ignored = IgnoredCode(no_mutate_lines=set(), ignore_node_lines=set(), ignore_pattern_lines=set())
    visitor = Visitor(mutation_operators, ignored)
    module = MetadataWrapper(cst.parse_module(source)).visit(visitor)
    return [
        Place(path=path, source=source, module=module, mutation=mutation, number=number)
        for number, mutation in enumerate(visitor.mutations)
        if isinstance(mutation.contained_by_top_level_function, cst.FunctionDef)
        and not _drops_the_impossible(mutation, cst)
    ]


def mutant_at(place: Place) -> Mutant | None:
    """The mutant; None where the compiler makes the same of it, or nothing."""
    from mutmut.mutation.file_mutation import deep_replace

    changed = deep_replace(place.module, place.mutation.original_node, place.mutation.mutated_node).code
    try:
        codes = dict(_functions(compile(changed, str(place.path), "exec", dont_inherit=True)))
    except SyntaxError:
        return None
    known = _known_functions(place.path, place.source)
    differing = [name for name, code in codes.items() if code != known.get(name)]
    if not differing:
        return None
    path = str(place.path.relative_to(REPOSITORY))
    first, last = _around(_statements(place.source), place.mutation.line)
    before, after = _difference(place.source, changed)
    return Mutant(
        name=place.name,
        path=path,
        function=differing[0],
        first=first,
        last=last,
        line=place.mutation.line,
        before=before,
        after=after,
        code=codes[differing[0]],
    )


def _name(node: Any) -> str:
    return str(getattr(node, "value", ""))


def _is_left_out(node: Any, cst: Any) -> bool:
    """Logs (``log.info(...)``), texts (more than one word), and what mypy proves that it is never reached."""
    if isinstance(node, cst.SimpleString | cst.FormattedString):
        return " " in _text(node, cst)
    if not isinstance(node, cst.Call):
        return False
    if isinstance(node.func, cst.Attribute):
        return _name(node.func.value) in {"log", "logger"}
    return isinstance(node.func, cst.Name) and node.func.value == "assert_never"


def _text(node: Any, cst: Any) -> str:
    return str(cst.Module(body=[]).code_for_node(node)).strip()


def _drops_the_impossible(mutation: Any, cst: Any) -> bool:
    if not isinstance(mutation.original_node, cst.Match):
        return False
    kept = {id(case) for case in mutation.mutated_node.cases}
    module = cst.Module(body=[])
    return any(
        "assert_never" in module.code_for_node(case) for case in mutation.original_node.cases if id(case) not in kept
    )


def _functions(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """Functions and methods by qualified name; what is within them is a part of them."""
    for constant in code.co_consts:
        if not isinstance(constant, CodeType) or constant.co_name.startswith("<"):
            continue
        if constant.co_flags & inspect.CO_OPTIMIZED:
            yield constant.co_qualname, constant
        else:
            yield from _functions(constant)  # the body of a class


@cache
def _known_functions(path: Path, source: str) -> dict[str, CodeType]:
    return dict(_functions(compile(source, str(path), "exec", dont_inherit=True)))


@cache
def _statements(source: str) -> list[tuple[int, int]]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None) or getattr(node, "cases", None)
            if isinstance(node, ast.Match):
                found.append((node.lineno, node.cases[0].pattern.lineno - 1))
            elif isinstance(body, list) and body:
                found.append((node.lineno, max(node.lineno, body[0].lineno - 1)))
            else:
                found.append((node.lineno, node.end_lineno or node.lineno))
    return found


def _around(statements: list[tuple[int, int]], line: int) -> tuple[int, int]:
    return max(((first, last) for first, last in statements if first <= line <= last), default=(line, line))


def _difference(source: str, changed: str) -> tuple[str, str]:
    before, after = source.splitlines(), changed.splitlines()
    same_first = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
    same_last = next((i for i, (a, b) in enumerate(zip(reversed(before), reversed(after), strict=False)) if a != b), 0)
    return (
        "\n".join(before[same_first : max(same_first + 1, len(before) - same_last)]),
        "\n".join(after[same_first : max(same_first, len(after) - same_last)]),
    )


@dataclass(slots=True)
class Running:
    """A child, and when it last did something."""

    mutant: Mutant
    tests: int
    looked_s: float
    moved_s: float
    spent: int = 0

    def is_still(self, pid: int) -> bool:
        """Whether it has waited for ``STILL_S``, as far as ``/proc`` tells."""
        now_s = time.monotonic()
        if now_s - self.looked_s >= 1:
            self.looked_s = now_s
            state, spent = _state_of(pid)
            if state != "S" or spent != self.spent:
                self.moved_s, self.spent = now_s, spent
        return now_s - self.moved_s > STILL_S


def _state_of(pid: int) -> tuple[str, int]:
    """S while it waits, and its processor time in ticks."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return words[0], int(words[11]) + int(words[12])


class Runner:
    """A pytest plugin that runs mutants where pytest would run the tests."""

    def __init__(
        self,
        mutants: Iterator[Mutant],
        jobs: int,
        report: Path,
        *,
        most_s: float = MOST_S,
        is_control: bool = False,
    ) -> None:
        self.mutants = mutants
        self._most_s = most_s
        self._is_control = is_control
        self._report = report
        self.jobs = jobs
        self.verdicts: list[Verdict] = []
        self._items: list[Any] = []
        self._durations: dict[int, float] = {}
        self._reached: dict[str, dict[int, set[int]]] = {}
        self._failing: set[int] = set()

    def pytest_runtestloop(self, session: Any) -> bool:
        self._items = list(session.items)
        self._observe()
        running: dict[int, Running] = {}
        for mutant in self.mutants:
            tests = self._tests_for(mutant)
            if not tests:
                self._note(mutant, "no test reaches it", 0)
                continue
            while len(running) >= self.jobs:
                self._reap(running)
            allowed_s = sum(self._durations[index] for index in tests)
            pid = os.fork()
            if pid == 0:
                self._in_child(mutant, tests, allowed_s)
            now_s = time.monotonic()
            running[pid] = Running(mutant, len(tests), looked_s=now_s, moved_s=now_s)
        while running:
            self._reap(running)
        return True

    def _observe(self) -> None:
        """Run all tests once, in a child that leaves this process as it is, and learn which lines each reaches."""
        report = Path(os.environ["MUTATION_SCRATCH"]) / "reached.json"
        pid = os.fork()
        if pid == 0:
            try:
                _silence()
                report.write_text(json.dumps(_observed(self._items)))
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        seen = json.loads(report.read_text())
        self._failing = set(seen["failed"])
        if self._failing:
            print(
                "left out, since they fail without any mutant:", *(self._items[index].nodeid for index in self._failing)
            )
        self._durations = {int(index): duration for index, duration in seen["durations"].items()}
        self._reached = {
            path: {int(line): set(tests) for line, tests in lines.items()} for path, lines in seen["lines"].items()
        }

    def _tests_for(self, mutant: Mutant) -> list[int]:
        lines = self._reached.get(mutant.path, {})
        found: set[int] = set()
        for line in range(mutant.first, mutant.last + 1):
            found |= lines.get(line, set()) - self._failing
        quick = sorted(
            (index for index in found if self._durations[index] <= SLOWEST_TEST_S), key=self._durations.__getitem__
        )
        spent_s = accumulate(self._durations[index] for index in quick)
        return [index for index, until_s in zip(quick, spent_s, strict=True) if until_s <= self._most_s]

    def _in_child(self, mutant: Mutant, tests: list[int], allowed_s: float) -> None:
        try:
            os.setpgid(0, 0)
            _silence()
            if not self._is_control:
                _plant(mutant)
        except (ImportError, LookupError, AttributeError, AssertionError, ValueError):
            os._exit(NOT_PLANTED)
        try:
            limit_s = int(3 + 5 * allowed_s)
            resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
            resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
            os._exit(1 if self._fails(tests) else 0)
        finally:
            os._exit(2)  # whatever it was, a test run that ends like this would be noticed

    def _fails(self, tests: list[int]) -> bool:
        from _pytest.runner import runtestprotocol

        items = [self._items[index] for index in tests]
        return any(
            report.failed
            for item, after in zip(items, [*items[1:], None], strict=True)
            for report in runtestprotocol(item, log=False, nextitem=after)
        )

    def _reap(self, running: dict[int, Running]) -> None:
        while True:
            for pid, child in list(running.items()):
                done, status = os.waitpid(pid, os.WNOHANG)
                if not done and child.is_still(pid):
                    os.killpg(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    status = signal.SIGKILL
                elif not done:
                    continue
                del running[pid]
                code = os.waitstatus_to_exitcode(status)
                self._note(
                    child.mutant,
                    {0: "survived", 1: "killed", NOT_PLANTED: "not planted"}.get(
                        code, "timed out" if code < 0 else "killed"
                    ),
                    child.tests,
                )
                return
            time.sleep(0.005)

    def _note(self, mutant: Mutant, outcome: str, tests: int) -> None:
        known = {name: value for name, value in _fields(mutant).items() if name in Verdict.__dataclass_fields__}
        self.verdicts.append(Verdict(**known, outcome=outcome, tests=tests))
        with self._report.open("a") as lines:
            print(json.dumps(asdict(self.verdicts[-1])), file=lines)


def _fields(mutant: Mutant) -> dict[str, Any]:
    return {name: getattr(mutant, name) for name in Mutant.__dataclass_fields__}


def _silence() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)


def _observed(items: list[Any]) -> dict[str, Any]:
    import coverage
    from _pytest.runner import runtestprotocol

    seen = coverage.Coverage(data_file=None, source=[str(REPOSITORY / "tiersidecar")], config_file=False)
    seen.start()
    durations, failed = {}, []
    for index, (item, after) in enumerate(zip(items, [*items[1:], None], strict=True)):
        begun = time.process_time()
        seen.switch_context(str(index))
        if any(report.failed for report in runtestprotocol(item, log=False, nextitem=after)):
            failed.append(index)
        durations[index] = time.process_time() - begun
    seen.stop()
    lines: dict[str, dict[int, list[int]]] = {}
    for name in seen.get_data().measured_files():
        by_line = seen.get_data().contexts_by_lineno(name)
        lines[str(Path(name).relative_to(REPOSITORY))] = {
            line: [int(context) for context in contexts if context] for line, contexts in by_line.items()
        }
    return {"durations": durations, "failed": failed, "lines": lines}


def _plant(mutant: Mutant) -> None:
    function = _function_of(mutant)
    function.__code__ = mutant.code


def _function_of(mutant: Mutant) -> FunctionType:
    import importlib

    found: Any = importlib.import_module(mutant.path.removesuffix(".py").replace("/", "."))
    for part in mutant.function.split("."):
        found = found.__dict__[part]
    if isinstance(found, property):
        sides = [side for side in (found.fget, found.fset) if side is not None]
        found = next(side for side in sides if side.__code__.co_argcount == mutant.code.co_argcount)
    while hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    assert isinstance(found, FunctionType)
    return found


def chosen(
    package: str, file: str, sample: int, seed: int, only: frozenset[str] | None
) -> tuple[Iterator[Mutant], int]:
    """Return the sample, in random order, and of how many places it was drawn; ``only`` are names."""
    files = sorted((REPOSITORY / "tiersidecar" / package).rglob(file))
    every = [place for path in files for place in places_in(path)]
    drawn = random.Random(seed).sample(every, min(sample or len(every), len(every)))
    if only is not None:
        drawn = [place for place in every if place.name in only]
    return (mutant for place in drawn if (mutant := mutant_at(place))), len(every)


def score(verdicts: list[Verdict]) -> float:
    caught = sum(verdict.outcome in CAUGHT for verdict in verdicts)
    return 100 * caught / max(1, len(verdicts))


def tell(verdicts: list[Verdict], places: int) -> None:
    by_file: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        by_file[verdict.path].append(verdict)
    for verdict in verdicts:
        if verdict.outcome not in CAUGHT:
            print(f"{verdict.name} line {verdict.line}: {verdict.outcome} ({verdict.tests} tests)")
            print(f"    - {verdict.before.strip()}\n    + {verdict.after.strip()}")
    for name, of_file in sorted(by_file.items()):
        print(f"{name:55} {len(of_file):5} mutants {score(of_file):6.1f} %")
    outcomes = Counter(verdict.outcome for verdict in verdicts)
    print(f"{len(verdicts)} mutants of {places} places: {dict(outcomes)}: {score(verdicts):.1f} %")


def _bring_mutmut() -> None:
    """Into the user's cache, once, and last on the path: the project's own versions of what both need are the ones in use."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiersidecar"
    target = cache / f"mutmut-{MUTMUT}-{sys.version_info.major}.{sys.version_info.minor}"
    if not target.exists():
        scratch = target.with_name(f"{target.name}.{os.getpid()}")
        uv = next(iter(sorted(cache.glob("uv-*/bin/uv"))), Path("uv"))
        subprocess.run(
            [
                str(uv),
                "pip",
                "install",
                "--quiet",
                "--python",
                sys.executable,
                "--target",
                str(scratch),
                f"mutmut=={MUTMUT}",
            ],
            check=True,
        )
        scratch.rename(target)
    sys.path.append(str(target))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", choices=sorted(TESTS))
    parser.add_argument("--file", default="*.py", help="of the package: only this one")
    parser.add_argument("--sample", type=int, default=1000, help="0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--most-s",
        type=float,
        default=MOST_S,
        help="processor time of the tests of one mutant: less is a lower score, sooner",
    )
    parser.add_argument("--tests", nargs="*", default=None, help="instead of those of the package")
    parser.add_argument(
        "--control", action="store_true", help="change nothing: whatever is caught then is the runner's fault"
    )
    parser.add_argument("--survivors-of", type=Path, help="only what survived in this report")
    parser.add_argument("--report", type=Path, default=Path("mutation.jsonl"))
    asked = parser.parse_args(arguments)
    _bring_mutmut()
    os.chdir(REPOSITORY)
    sys.path.insert(0, str(REPOSITORY))

    only = None
    if asked.survivors_of:
        rows = [json.loads(line) for line in asked.survivors_of.read_text().splitlines()]
        only = frozenset(row["name"] for row in rows if row["outcome"] not in CAUGHT)
    mutants, places = chosen(asked.package, asked.file, asked.sample, asked.seed, only)
    asked.report.write_text("")
    runner = Runner(mutants, asked.jobs, asked.report, most_s=asked.most_s, is_control=asked.control)
    _run_pytest(runner, asked.tests or TESTS[asked.package])
    tell(runner.verdicts, places)
    return 0


def _run_pytest(runner: Runner, tests: list[str] | tuple[str, ...]) -> None:
    import tempfile

    import hypothesis
    import pytest

    # A failing example is as good as the smallest one, and the same examples for each mutant make the score repeatable.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile(
        "mutation",
        phases=phases,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.load_profile("mutation")
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["MUTATION_SCRATCH"] = scratch
        pytest.main(
            ["-q", "-p", "no:cacheprovider", "-o", "timeout=0", "-n", "0", "-m", NOT_HERE, *tests], plugins=[runner]
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
