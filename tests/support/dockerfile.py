"""The part of a Dockerfile's language that ours uses, run without Docker: each stage's steps in a scratch directory.

Absolute paths of the image become paths below the scratch root; the base image's Python is a fresh virtual environment.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Directories that our image writes to; others (/usr, /tmp) stay those of the machine.
IMAGE_ROOTS = ("/opt", "/src")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction, its continued lines joined: ``RUN``, and what follows."""

    keyword: str
    arguments: str

    @property
    def words(self) -> list[str]:
        """Return the exec form's list, or the shell's words."""
        if self.arguments.startswith("["):
            words: list[str] = json.loads(self.arguments)
            return words
        return shlex.split(self.arguments)


def read_dockerfile(text: str) -> list[list[Instruction]]:
    """Return the instructions of each stage, the ``FROM`` first; what comes before the first stage is dropped."""
    stages: list[list[Instruction]] = []
    for instruction in _instructions(text):
        if instruction.keyword == "FROM":
            stages.append([])
        if stages:
            stages[-1].append(instruction)
    return stages


def _instructions(text: str) -> Iterator[Instruction]:
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    for line in joined.splitlines():
        if line.strip():
            keyword, _, arguments = line.strip().partition(" ")
            yield Instruction(keyword=keyword.upper(), arguments=arguments.strip())


@dataclass(slots=True, kw_only=True)
class ScratchImage:
    """Files that the steps of one stage leave behind in ``root``."""

    root: Path
    context: Path
    environment: dict[str, str] = field(default_factory=dict)
    workdir: Path = field(init=False)

    def __post_init__(self) -> None:
        self.workdir = self.root

    @classmethod
    def with_python(cls, root: Path, context: Path) -> ScratchImage:
        """Return an image whose ``python`` is a fresh environment of this Python, with pip and nothing else."""
        venv.create(root / "python", with_pip=True)
        keep = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "VIRTUAL_ENV", "PYTHON"))}
        keep["PATH"] = f"{root / 'python' / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        return cls(root=root, context=context, environment=keep)

    def apply(self, instruction: Instruction) -> None:
        """Do what the instruction says, as far as it concerns files and the environment."""
        match instruction.keyword:
            case "ENV":
                for name, value in _assignments(instruction):
                    self.environment[name] = self._expand(value)
            case "ARG":
                for name, value in _assignments(instruction):
                    self.environment.setdefault(name, value)
            case "WORKDIR":
                self.workdir = self._inside(instruction.arguments)
                self.workdir.mkdir(parents=True, exist_ok=True)
            case "COPY":
                self._copy(instruction.words)
            case "RUN":
                self.run(["/bin/sh", "-euc", self._relocate(instruction.arguments)])
            case _:
                pass

    def run(self, command: list[str], more: Mapping[str, str] | None = None) -> str:
        """Return what ``command`` prints, run in the image's environment and working directory.

        Raises:
            AssertionError: it failed; the message has what it printed.
        """
        program = shutil.which(command[0], path=self.environment["PATH"]) or command[0]
        done = subprocess.run(
            [program, *command[1:]],
            cwd=self.workdir,
            env={**self.environment, **(more or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def _copy(self, words: list[str]) -> None:
        if words[0].startswith("--from="):
            return  # from an earlier stage: it is in our one root already
        *sources, target = words
        for source in sources:
            destination = self.workdir / target
            if (self.context / source).is_dir():
                shutil.copytree(self.context / source, destination, dirs_exist_ok=True)
            else:
                shutil.copy(self.context / source, destination)

    def _expand(self, value: str) -> str:
        known = re.sub(r"\$\{?(\w+)\}?", lambda found: self.environment.get(found[1], ""), value)
        return self._relocate(known)

    def _relocate(self, text: str) -> str:
        roots = "|".join(IMAGE_ROOTS)
        return re.sub(rf"(?<![\w.])({roots})(?=/|\b)", lambda found: str(self._inside(found[1])), text)

    def _inside(self, path: str) -> Path:
        return self.root / path.lstrip("/")


def _assignments(instruction: Instruction) -> Iterator[tuple[str, str]]:
    for word in instruction.words:
        name, assigned, value = word.partition("=")
        if assigned:
            yield name, value
