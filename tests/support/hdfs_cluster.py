"""Real HDFS on loopback: Hadoop's own mini cluster of one name node and one data node, with its files below a directory."""

from __future__ import annotations

import hashlib
import json
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

from tests.support.build_cache import build_once, cache_dir
from tests.support.kafka_jars import java_program
from tests.support.maven_jars import copy_jars

HADOOP = "3.5.0"
USER = "kafka"

_REPOSITORY = Path(__file__).resolve().parents[2]
_SCRIPTS = _REPOSITORY / "scripts" / "hadoop"
_PACKAGE = _REPOSITORY / "docs" / "examples" / "hdfs-store"
_SOURCE = Path(__file__).with_name("MiniHdfs.java")
_UP_WITHIN_S = 90.0
_SUPERUSER = "root"

ChecksumType = Literal["CRC32C", "CRC32"]


def hadoop_jars() -> Path:
    """Return the directory of Hadoop's jars: a few seconds and 105 MB the first time.

    Raises:
        MissingProgramError: Maven is needed and not there.
        RuntimeError: Maven could not fetch them, or fetched others than scripts/hadoop names.
    """
    sums = _SCRIPTS / f"hadoop-{HADOOP}.sha256"
    identity = hashlib.sha256(sums.read_bytes()).hexdigest()[:12]
    options = (f"-Dhadoop.version={HADOOP}",)

    def fetch(directory: Path) -> None:
        copy_jars(f"Hadoop {HADOOP}", directory, pom=_SCRIPTS / "pom.xml", sums=sums, options=options)

    return build_once(f"hadoop-{HADOOP}-{identity}", fetch)


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsCluster:
    """``url`` is what the option ``namenodes`` takes."""

    url: str
    process_id: int

    def make_directory(self, path: str) -> None:
        """Make one that the user :data:`USER` owns."""
        self._ask("PUT", path, op="MKDIRS")
        self._ask("PUT", path, op="SETOWNER", owner=USER)

    def files(self, path: str) -> set[str]:
        """Return paths of all files below ``path``, relative to it."""
        return {entry for entry, is_file in self._walk(path, "") if is_file}

    def directories(self, path: str) -> set[str]:
        return {entry for entry, is_file in self._walk(path, "") if not is_file}

    def status(self, path: str) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self._ask("GET", path, op="GETFILESTATUS"))["FileStatus"]
        return status

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self._ask("PUT", path, op="SETTIMES", modificationtime=str(modified_ms))

    def rename(self, source: str, target: str) -> None:
        self._ask("PUT", source, op="RENAME", destination=target, renameoptions="NONE")

    def _walk(self, root: str, below: str) -> Iterator[tuple[str, bool]]:
        """Yield all that a client sees in one page or several."""
        after = ""
        while True:
            said = json.loads(self._ask("GET", f"{root}/{below}", op="LISTSTATUS_BATCH", startafter=after))
            page = said["DirectoryListing"]["partialListing"]["FileStatuses"]["FileStatus"]
            for entry in page:
                path = f"{below}{entry['pathSuffix']}"
                yield path, entry["type"] == "FILE"
                if entry["type"] != "FILE":
                    yield from self._walk(root, f"{path}/")
            if not said["DirectoryListing"]["remainingEntries"]:
                return
            after = page[-1]["pathSuffix"]

    def _ask(self, method: str, path: str, **asked: str) -> str:
        query = urlencode({**asked, "user.name": _SUPERUSER})
        request = Request(f"{self.url}/webhdfs/v1{quote(path)}?{query}", method=method)
        with urlopen(request, timeout=30) as answer:
            text: str = answer.read().decode()
            return text


def hdfs_options(url: str, directory: str, **others: object) -> dict[str, object]:
    """Return the section ``options`` for a directory of the cluster at ``url``."""
    return {"namenodes": [url], "directory": directory, "user": USER, **others}


def install_store(directory: Path) -> Path:
    """Put the package of the store into ``directory``, as an installer leaves it, beside nothing else; returns it."""
    uv = max(cache_dir().glob("uv-*/bin/uv"))
    into: list[str | Path] = ["--python", sys.executable, "--target", directory]
    command = [uv, "pip", "install", "--quiet", "--no-deps", *into, _PACKAGE]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return directory


@contextmanager
def running_hdfs(directory: Path, *, checksum_type: ChecksumType = "CRC32C") -> Iterator[HdfsCluster]:
    """HDFS with its files below ``directory``; killed at the end.  ``checksum_type``: what its data nodes keep.

    Raises:
        RuntimeError: it did not come up; the message has what it said.
    """
    directory.mkdir(exist_ok=True)
    said = directory / "hdfs.log"
    command = [java_program(), "-Xmx512m", "-XX:TieredStopAtLevel=1", f"-Duser.name={_SUPERUSER}"]
    command += [f"-Djava.io.tmpdir={directory}", "-cp", f"{hadoop_jars()}/*", str(_SOURCE), str(directory / "dfs")]
    with said.open("wb") as log:
        # Its standard input ends with this process.
        process = subprocess.Popen(
            [*command, checksum_type], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=directory
        )
    try:
        yield HdfsCluster(url=_url_of(process, said), process_id=process.pid)
    finally:
        process.kill()
        process.communicate()


def _url_of(process: subprocess.Popen[bytes], said: Path) -> str:
    """Line that it prints when it is up."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], _UP_WITHIN_S)
    line = process.stdout.readline().decode().strip() if readable else ""
    if not line.startswith("http://"):
        raise RuntimeError(f"HDFS did not come up within {_UP_WITHIN_S} s: {line}\n{said.read_text()[-3000:]}")
    return line
