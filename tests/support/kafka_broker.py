"""One real Kafka node as a child process: started, killed, paused and restarted at will."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.kafka_admin import KafkaAdmin, KafkaAdminError, wait_until
from tests.support.kafka_jars import KAFKA_SCRIPTS, class_archive, java_program, kafka_classpath
from tests.support.kafka_properties import (
    ADMIN,
    INTERNAL,
    ClusterPlan,
    NodeAddress,
    render_properties,
    server_properties,
)
from tests.support.patience import patient_s

# C1 only and the serial collector: a broker is up in half the time, on a third of the memory.
SMALL_JVM = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
LOG_STARTS = "log-start-offset-checkpoint"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0

running_brokers: set[KafkaBroker] = set()


class BrokerStartError(RuntimeError):
    """A broker ended, or did not answer in time; the message ends with its log's last lines."""


class KafkaBroker:
    """A combined broker and controller in ``directory``: ``server.properties``, ``server.log`` and its log dirs.

    All methods block; from a coroutine use ``asyncio.to_thread(broker.restart)``.
    """

    def __init__(self, plan: ClusterPlan, node: NodeAddress, directory: Path, *, log_dirs: int) -> None:
        self.node_id = node.node_id
        self.directory = directory
        self.log_dirs = tuple(directory / f"data-{index}" for index in range(log_dirs))
        self.log_path = directory / "server.log"
        self.ports = dict(node.ports)
        self.admin = KafkaAdmin(port=node.ports[INTERNAL], credentials=ADMIN if plan.authorizer else None)
        self.jvm_options: tuple[str, ...] = ()
        """More of the server's JVM, from its next start on."""
        self._plan = plan
        self._properties = server_properties(plan, node, self.log_dirs)
        self._process: subprocess.Popen[bytes] | None = None
        self._launched_ns = 0
        for path in self.log_dirs:
            path.mkdir(parents=True, exist_ok=True)
        self._write_properties()

    @property
    def bootstrap_server(self) -> str:
        """Host and port of the listener that the brokers themselves use."""
        return self.bootstrap_server_of(INTERNAL)

    def bootstrap_server_of(self, listener: str) -> str:
        """Host and port of the listener of that name."""
        return f"127.0.0.1:{self.ports[listener]}"

    @property
    def pid(self) -> int:
        """Return the process id of the JVM.

        Raises:
            RuntimeError: it is not running.
        """
        if self._process is None:
            raise RuntimeError(f"broker {self.node_id} is not running")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Return whether the process is there (paused counts)."""
        return self._process is not None and self._process.poll() is None

    def set_properties(self, properties: Mapping[str, str | None]) -> None:
        """Change ``server.properties`` for the next start; None takes a property out."""
        for key, value in properties.items():
            if value is None:
                self._properties.pop(key, None)
            else:
                self._properties[key] = value
        self._write_properties()

    def format_storage(self) -> subprocess.Popen[bytes]:
        """Begin to format the log dirs (``kafka.tools.StorageTool``), with the users' SCRAM credentials."""
        command = ["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", self._plan.cluster_id]
        command += ["-c", str(self.directory / "server.properties")]
        for name, password in self._plan.users.items():
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                command += ["--add-scram", f"{mechanism}=[name={name},password={password}]"]
        return self._java(command, level="INFO")

    def start(self) -> None:
        """Start the process and wait until it answers and its cluster has let it in.

        Raises:
            BrokerStartError: it ended, or was not ready in time.
        """
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start the process without waiting."""
        if self.is_running:
            raise RuntimeError(f"broker {self.node_id} is running already")
        server = ["kafka.Kafka", str(self.directory / "server.properties")]
        self._launched_ns = time.time_ns()
        self._process = self._java(server, level="INFO", options=self.jvm_options)
        running_brokers.add(self)

    def wait_until_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until its Metadata response lists itself: answering, registered, unfenced.

        Raises:
            BrokerStartError: it ended, or was not ready in time.
        """
        try:
            wait_until(self._is_ready, f"broker {self.node_id} is ready", timeout_s)
        except TimeoutError as late:
            raise BrokerStartError(f"{late}; {self.log_path} ends:\n{self.log_tail()}") from late

    def wait_for_first_checkpoints(self) -> None:
        """Half a second after its start (``log.initial.task.delay.ms``) a broker writes its checkpoints once, whatever their
        interval: what is done from here on is to be in none of them."""
        paths = [log_dir / LOG_STARTS for log_dir in self.log_dirs]

        def are_written() -> bool:
            # A file that is not there the broker creates at its start, empty.
            found = [path.stat() for path in paths if path.exists()]
            return len(found) == len(paths) and all(
                one.st_size > 0 and one.st_mtime_ns > self._launched_ns for one in found
            )

        wait_until(are_written, f"broker {self.node_id} has written its first checkpoints")

    def stop(self) -> None:
        """Send SIGTERM, which is a controlled shutdown, and wait for the end."""
        self.begin_to_end(signal.SIGTERM)
        self.wait_for_end()

    def kill9(self) -> None:
        """Send SIGKILL, and wait for the end; what it had not flushed stays with the page cache."""
        self.begin_to_end(signal.SIGKILL)
        self.wait_for_end()

    def begin_to_end(self, how: signal.Signals) -> None:
        """Send ``how``, and wake a paused process for it; nothing when it does not run."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.send_signal(signal.SIGCONT)

    def wait_for_end(self) -> None:
        """Wait until the process has ended; kill it when a controlled shutdown finds no controller."""
        if self._process is None:
            return
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        running_brokers.discard(self)

    def restart(self) -> None:
        """Restart: controlled shutdown, start, wait until ready."""
        self.stop()
        self.start()

    def sigstop(self) -> None:
        """Pause: the process keeps its sockets and answers nothing, from when this returns."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)  # on a busy machine a thread of it runs on for a while

    def sigcont(self) -> None:
        """End a pause."""
        os.kill(self.pid, signal.SIGCONT)

    def wait_for_exit(self, timeout_s: float = START_TIMEOUT_S) -> int:
        """Return the exit code of a broker that is expected to end by itself."""
        if self._process is None:
            raise RuntimeError(f"broker {self.node_id} was not started")
        code = self._process.wait(patient_s(timeout_s))
        running_brokers.discard(self)
        return code

    def partition_dir(self, topic: str, partition: int) -> Path:
        """Return where this broker keeps the partition; a new one's directory comes a moment after its metadata.

        Raises:
            TimeoutError: it has no replica of it.
        """
        name = f"{topic}-{partition}"
        return wait_until(lambda: self._find(name), f"broker {self.node_id} has {name}", 10)

    def log_tail(self, lines: int = 60) -> str:
        """Return the last lines that the process printed."""
        if not self.log_path.exists():
            return "(nothing)"
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _find(self, partition: str) -> Path | None:
        return next((path / partition for path in self.log_dirs if (path / partition).is_dir()), None)

    def _is_ready(self) -> bool:
        if not self.is_running:
            code = self._process.returncode if self._process else None
            running_brokers.discard(self)
            raise BrokerStartError(
                f"broker {self.node_id} ended with code {code}; {self.log_path} ends:\n{self.log_tail()}"
            )
        try:
            alive = {broker.node_id for broker in self.admin.describe_cluster().brokers}
        except (OSError, KafkaAdminError):
            return False
        return self.node_id in alive

    def _java(self, command: list[str], *, level: str, options: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                [*java_command(self._plan.version, level=level, target="out"), *options, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                start_new_session=True,
            )

    def _write_properties(self) -> None:
        (self.directory / "server.properties").write_text(render_properties(self._properties))


def java_command(version: str, *, level: str, target: str) -> list[str]:
    """Return a java command line with the classes of Kafka ``version``, up to the main class; it logs to std``target``."""
    logging = [f"-Dkafka.log.level={level}"]
    if version.startswith("3."):
        logging += [f"-Dkafka.log.target=System.{target}"]
        logging += [f"-Dlog4j.configuration=file:{KAFKA_SCRIPTS / 'log4j.properties'}"]
    else:
        logging += [f"-Dkafka.log.target=SYSTEM_{target.upper()}"]
        logging += [f"-Dlog4j2.configurationFile={KAFKA_SCRIPTS / 'log4j2.xml'}"]
    return [java_program(), *SMALL_JVM, *_archived_classes(version), *logging, "-cp", kafka_classpath(version)]


def _archived_classes(version: str) -> list[str]:
    """Return the archive's options.  Where there is one, a JVM need not parse and verify most classes.  One that it cannot take
    is no matter, and none of a tool's output."""
    archive = class_archive(version)
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds*=off"] if archive.is_file() else []


@atexit.register
def _kill_what_is_left() -> None:
    for broker in tuple(running_brokers):
        broker.kill9()


def forget_running_brokers() -> None:
    """Let the brokers live on when this process ends (``make demo KEEP=1``)."""
    running_brokers.clear()
