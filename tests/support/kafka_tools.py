"""Kafka's command line tools in one JVM that stays: the first costs two seconds, each one after it tenths of one."""

from __future__ import annotations

import base64
import select
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.kafka_broker import java_command
from tests.support.kafka_jars import KAFKA_4, KAFKA_SCRIPTS
from tests.support.patience import patient_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRun:
    """How a tool ended, and what it printed; what it logged is in the host's log."""

    code: int
    out: str
    err: str


class KafkaTools:
    """Runs tools one at a time, for callers in any thread; ``log_path`` has what they log."""

    def __init__(self, directory: Path, version: str = KAFKA_4) -> None:
        self.log_path = directory / "tools.log"
        self._command = [*java_command(version, level="WARN", target="err"), str(KAFKA_SCRIPTS / "ToolHost.java")]
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=self.log_path.parent
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def run(self, main_class: str, *arguments: str, check: bool = True, timeout_s: float = 90) -> ToolRun:
        """Return what the tool said.

        Raises:
            AssertionError: it failed, and ``check`` was asked for; or it did not end in time.
        """
        with self._turn:
            done = self._ask([main_class, *arguments], patient_s(timeout_s))
        assert not check or done.code == 0, f"{main_class} ended with code {done.code}:\n{done.out}\n{done.err}"
        return done

    def _ask(self, words: list[str], timeout_s: float) -> ToolRun:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b" ".join(base64.b64encode(word.encode()) for word in words) + b"\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], timeout_s)
        assert ready, f"{words[0]} does not end; the log ends:\n{self._log_tail()}"
        answer = process.stdout.readline().split()
        assert len(answer) == 3, f"the JVM has ended:\n{self._log_tail()}"
        out, err = (base64.b64decode(word.removeprefix(b"=")).decode() for word in answer[1:])
        return ToolRun(code=int(answer[0]), out=out, err=err)

    def _log_tail(self) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-30:])
