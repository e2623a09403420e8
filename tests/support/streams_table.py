"""A Kafka Streams application as a process of its own: its one table is kept in memory and in a changelog topic
(``StreamsTable.java``)."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tests.support.kafka_admin import wait_until
from tests.support.kafka_broker import java_command
from tests.support.kafka_jars import KAFKA_4, streams_jar
from tests.support.patience import patient_s

SOURCE = Path(__file__).with_name("StreamsTable.java")
DELETED = "-"
FILLER = "filler"
"""Values of keys that begin so are not counted: the same record again leaves the table as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """What the application read of its changelog before it ran: offsets from ``start`` to ``end``, exclusive."""

    start: int
    end: int
    records: int


class StreamsTable:
    """``settings`` are those of Kafka Streams, and ``changelog.…`` those of the changelog topic; its state is in ``directory``
    alone, which is empty when a life without local state begins."""

    def __init__(self, directory: Path, *, application: str, topic: str, servers: str, **settings: str) -> None:
        self.directory, self.changelog = directory, f"{application}-table-changelog"
        self._settings = {
            "application.id": application,
            "bootstrap.servers": servers,
            "input": topic,
            "state.dir": str(directory / "state"),
            "auto.offset.reset": "earliest",
            "commit.interval.ms": "100",
            "replication.factor": "1",
            **settings,
        }
        self._process: subprocess.Popen[str] | None = None
        self._told: list[dict[str, Any]] = []
        self._reading: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True)
        configuration = self.directory / "application.properties"
        configuration.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
        *command, classpath = java_command(KAFKA_4, level="WARN", target="err")
        command += [f"{classpath}:{streams_jar()}", str(SOURCE), str(configuration)]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=self.directory
            )
        assert self._process.stdout is not None
        self._reading = threading.Thread(target=self._read, args=(self._process.stdout,), name="streams", daemon=True)
        self._reading.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        assert self._reading is not None
        self._process.kill()
        self._process.wait()
        self._reading.join(patient_s(20))

    @property
    def log_path(self) -> Path:
        return self.directory / "application.log"

    @property
    def state(self) -> str:
        """Return what Kafka Streams calls its state."""
        return next((one["state"] for one in reversed(self._told) if one.get("event") == "state"), "CREATED")

    @property
    def restoration(self) -> Restoration | None:
        """Return the last restoration, None before it has ended."""
        begun = [one for one in self._told if one.get("event") == "restore"]
        ended = [one for one in self._told if one.get("event") == "restored"]
        if not ended or len(ended) < len(begun):
            return None
        return Restoration(start=begun[-1]["start"], end=begun[-1]["end"], records=ended[-1]["records"])

    def wait_until_running(self, timeout_s: float = 60) -> None:
        """Wait until its table is restored, and it processes its input."""

        def is_running() -> bool:
            self._require_alive()
            return self.state == "RUNNING"

        wait_until(is_running, "the application runs", timeout_s)

    def table(self) -> dict[str, str] | None:
        """Return the table, key to value, as it is now; None while it cannot be asked."""
        assert self._process is not None
        assert self._process.stdin is not None
        known = len(self._told)
        self._process.stdin.write("table\n")
        self._process.stdin.flush()

        def answer() -> list[dict[str, Any]] | None:
            self._require_alive()
            told = self._told[known:]
            return told if any(one.get("event") == "end" for one in told) else None

        told = wait_until(answer, "the application prints its table")
        end = next(one for one in told if one.get("event") == "end")
        if "unavailable" in end:
            return None
        rows = {one["key"]: one["value"] for one in told if "key" in one}
        assert len(rows) == end["rows"]
        return rows

    def wait_for_table(self, expected: Mapping[str, str], timeout_s: float = 60) -> None:
        """Wait until the table is ``expected``; what differs is in the failure."""
        found: dict[str, str] | None = None

        def is_there() -> bool:
            nonlocal found
            found = self.table()
            return found == expected

        try:
            wait_until(is_there, "the table is as expected", timeout_s)
        except TimeoutError:
            assert found == expected, self.log_tail()
            raise

    def close(self) -> None:
        """End it as its operator would: what it has processed is committed."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(patient_s(40)) == 0, self.log_tail()

    def log_tail(self) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-30:])

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            self._told.append(json.loads(line))

    def _require_alive(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, f"the application has ended:\n{self.log_tail()}"


def rows_after(rows: Mapping[str, str], records: list[tuple[str, str]]) -> dict[str, str]:
    """Return the table once these records, keys and values, are processed as well."""
    after = dict(rows)
    for key, value in records:
        if value == DELETED:
            after.pop(key, None)
        else:
            count = 0 if key.startswith(FILLER) else int(after.get(key, "0").split(" ", 1)[0]) + 1
            after[key] = f"{count} {value}"
    return after
