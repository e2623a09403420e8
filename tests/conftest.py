"""Brokers for the tests, and an end to everything that a test run started."""

from __future__ import annotations

import gc
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType

import hypothesis
import pytest
import structlog
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support import last_resort, reruns, work_units
from tests.support.kafka_archive import prepare_class_archive
from tests.support.kafka_broker import running_brokers
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_jars import KAFKA_3, KAFKA_4
from tests.support.reaper import start_reaper

# A package of its own, with tests of its own: tests/integration/test_third_party_store.py runs them where it is installed.
collect_ignore = ["support/third_party_store"]

# No wall clock decides about an example: on a busy machine the same one takes a hundred times as long.  Where CI is set,
# hypothesis' own profile "ci" says the same, and draws the same examples in every run.
if hypothesis.settings.get_current_profile_name() == "default":
    hypothesis.settings.register_profile(
        "desk", deadline=None, suppress_health_check=(hypothesis.HealthCheck.too_slow,)
    )
    hypothesis.settings.load_profile("desk")


TESTS = Path(__file__).parent
WITH_SERVERS = ("broker", "server", "spark", "slow")
"""As in the Makefile."""
reaper = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(signal.SIGTERM, _end_by_signal)
    for plugin in (last_resort, reruns, work_units):
        config.pluginmanager.register(plugin, plugin.__name__)
    config.stash[reaper] = start_reaper()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What these directories hold is of the second half of ``make test``, which goes by marks; the fast half ignores them.

    Of other directories the second half takes only the files in which such a mark is written (SECOND_HALF in the Makefile): to
    import all the others took each worker longer than many a file of tests.

    Raises:
        pytest.UsageError: a test has such a mark from elsewhere, so that neither half would run it.
    """
    for item in items:
        is_of_the_second_half = any(item.path.is_relative_to(TESTS / name) for name in ("integration", "spark"))
        marks = [mark for mark in WITH_SERVERS if item.get_closest_marker(mark)]
        if is_of_the_second_half and not marks:
            item.add_marker("slow")
        if marks and not is_of_the_second_half and not _writes_a_mark(item.path):
            raise pytest.UsageError(f"{item.nodeid} is {marks[0]}: write pytest.mark.{marks[0]} into its own file")


@cache
def _writes_a_mark(path: Path) -> bool:
    """As the Makefile's grep."""
    return re.search(rf"mark\.({'|'.join(WITH_SERVERS)})\b", path.read_text()) is not None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Before the first test, for all of them."""
    gc.collect()
    gc.freeze()  # modules and tests live to the end: to walk them in every full collection was a tenth of the fast tests
    if any(item.get_closest_marker("broker") for item in session.items) and not session.config.option.collectonly:
        with suppress(RuntimeError):  # no Java, no Maven: the first test tells it
            prepare_class_archive()


def _end_by_signal(number: int, frame: FrameType | None) -> None:
    """End as by Ctrl-C, so that fixtures take their brokers down with them (pytest goes on after a SystemExit)."""
    raise KeyboardInterrupt(f"signal {number}")


@pytest.fixture(autouse=True)
def _structlog_as_before() -> Iterator[None]:
    """A command that a test runs in this process sets a log level, which would silence the warnings of the tests after it."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the brokers said beside what the test said."""
    report = yield
    if report.failed:
        for broker in sorted(running_brokers, key=lambda each: each.node_id):
            report.sections.append((f"end of {broker.log_path}", broker.log_tail(30)))
    return report


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """One broker, shared by all tests that leave it as it is and name their own topics."""
    yield from _shared_cluster(KAFKA_4)


@pytest.fixture(scope="session")
def kafka_39() -> Iterator[KafkaCluster]:
    """One broker of the oldest Kafka that we say we run beside, shared likewise."""
    yield from _shared_cluster(KAFKA_3)


@pytest.fixture
def kafka_cluster(tmp_path: Path) -> Iterator[Callable[..., KafkaCluster]]:
    """Starts clusters that a test may hurt: takes the arguments of :class:`KafkaCluster`, except the directory."""
    made: list[KafkaCluster] = []

    def start(**settings: object) -> KafkaCluster:
        cluster = KafkaCluster(tmp_path / f"kafka-{len(made)}", **settings)  # type: ignore[arg-type]
        made.append(cluster)
        return cluster.start()

    try:
        yield start
    finally:
        for cluster in made:
            cluster.close()


def _shared_cluster(version: str) -> Iterator[KafkaCluster]:
    scratch = Path(tempfile.mkdtemp(prefix="tiersidecar-kafka-"))
    try:
        with KafkaCluster(scratch, version=version) as cluster:
            yield cluster
    finally:
        shutil.rmtree(scratch)


@pytest.fixture(scope="session")
def rsa_key_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A key pair for envelope encryption, as the configuration names it."""
    directory = tmp_path_factory.mktemp("keys")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (directory / "private.pem").write_bytes(private)
    (directory / "public.pem").write_bytes(public)
    return {"public.key.file": str(directory / "public.pem"), "private.key.file": str(directory / "private.pem")}
