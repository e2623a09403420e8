"""The example of a store of another package, on a real HDFS: the contract, what an upload leaves, errors that say what to do.

Shown here: S-071 S-193 S-194 S-290.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import run_state_machine_as_test
from ruamel.yaml import YAML

from hdfs_store.answers import Answer
from hdfs_store.kind import kind
from hdfs_store.webhdfs import ConnectionFailedError, WebHdfs
from tests.integration.test_daemon import the_main_job
from tests.property.test_store_model import StoreModel
from tests.support.command_line import answer_of, run_command
from tests.support.daemon import daemon_settings
from tests.support.hdfs_cluster import USER, HdfsCluster, hdfs_options, install_store, running_hdfs
from tests.support.hdfs_fault_proxy import HdfsFaultProxy
from tests.support.kafka_cluster import KafkaCluster
from tests.support.loopback_ports import free_port
from tests.support.s3_fault_proxy import Fault, FaultKind, running_fault_proxy
from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.domain.errors import ObjectExistsError, StoreError
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.store import BytesBody, Options, Store, StoreTools
from tiersidecar.testing.store_contract import KEY, FailingBody, PiecesBody, StoreContract, keys_of

pytestmark = [pytest.mark.server, pytest.mark.timeout(240)]

MIB = 1024 * 1024
DAY_MS = 24 * 3600 * 1000
UPLOADS = ".tiersidecar-uploads"

_directories = count(1)


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    with running_hdfs(tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster


def new_directory(cluster: HdfsCluster) -> str:
    directory = f"/tier-{next(_directories)}"
    cluster.make_directory(directory)
    return directory


@pytest.fixture
def options(hdfs: HdfsCluster) -> dict[str, object]:
    """With a directory of its own for each test."""
    return hdfs_options(hdfs.url, new_directory(hdfs), checksums=True, **{"max.attempts": 2})


def tools(blocking: Blocking) -> StoreTools:
    return StoreTools(key_prefix="", blocking=blocking, clock=SystemClock(), ids=SystemIds())


@pytest.fixture
async def blocking() -> AsyncIterator[Blocking]:
    async with ThreadBlocking(max_threads=2) as pool:
        yield pool


@pytest.fixture
async def store(options: Options, blocking: Blocking, hdfs: HdfsCluster) -> AsyncIterator[Store]:
    assert list(kind.faults(options)) == []
    async with kind.open_store(options, tools(blocking)) as store:
        yield store
    left = hdfs.files(str(options["directory"]))
    assert [path for path in left if path.startswith(UPLOADS)] == [], "an upload was neither named nor removed"


async def _one(piece: bytes) -> AsyncIterator[bytes]:
    yield piece


class TestContract(StoreContract):
    keeps_checksums = False
    piece_bytes = MIB * 3 // 4

    @pytest.fixture
    def store(self, store: Store) -> Store:
        return store


def test_any_sequence_of_verbs_does_what_a_dict_would(hdfs: HdfsCluster) -> None:
    class HdfsModel(StoreModel):
        def make_store(self) -> Store:
            self.blocking = ThreadBlocking(max_threads=1)
            options = hdfs_options(hdfs.url, new_directory(hdfs))
            self.opened: Any = kind.open_store(options, tools(self.blocking))
            store: Store = self.loop.run_until_complete(self.opened.__aenter__())
            return store

        def teardown(self) -> None:
            self.loop.run_until_complete(self.opened.__aexit__(None, None, None))
            self.blocking.close()
            super().teardown()

    few = hypothesis_settings(max_examples=10, stateful_step_count=20, deadline=None)
    run_state_machine_as_test(HdfsModel, settings=few)


class TestFiles:
    async def test_a_listing_of_many_pages_is_whole(self, store: Store) -> None:
        """The cluster's pages have 100 names, which HDFS sorts as signed bytes: é before a."""
        keys = sorted(
            [f"t/{number:03d}" for number in range(240)] + [f"t/é{number}" for number in range(20)], key=str.encode
        )
        await asyncio.gather(*(store.put_object(key, BytesBody(b"x")) for key in keys))
        assert await keys_of(store) == keys
        assert await keys_of(store, "t/1", start_after="t/150") == keys[151:200]

    async def test_directories_go_with_their_last_object(
        self, store: Store, options: Options, hdfs: HdfsCluster
    ) -> None:
        for key in ("t/0/a", "t/0/b", "u/0/c"):
            await store.put_object(key, BytesBody(b"x"))
        await store.delete_objects(["t/0/a", "u/0/c"])
        assert hdfs.directories(str(options["directory"])) == {"t", "t/0", UPLOADS}

    async def test_objects_are_private(self, store: Store, options: Options, hdfs: HdfsCluster) -> None:
        await store.put_object("t/0/a", BytesBody(b"x"))
        found = [hdfs.status(f"{options['directory']}/{path}") for path in ("t/0/a", "t/0", "t", UPLOADS)]
        assert [(one["permission"], one["owner"]) for one in found] == [("640", USER)] + [("750", USER)] * 3

    async def test_what_a_dead_process_left_is_swept_after_a_day(
        self, options: Options, blocking: Blocking, hdfs: HdfsCluster
    ) -> None:
        directory = options["directory"]
        async with kind.open_store(options, tools(blocking)) as store:
            for name in ("old", "young"):
                await store.put_object(name, BytesBody(b"x"))
                hdfs.rename(f"{directory}/{name}", f"{directory}/{UPLOADS}/{name}")
        hdfs.set_modified_ms(f"{directory}/{UPLOADS}/old", SystemClock().now_ms() - DAY_MS - 60_000)
        async with kind.open_store(options, tools(blocking)) as store:
            await store.put_object(KEY, BytesBody(b"x"))
        assert hdfs.files(str(directory)) == {KEY, f"{UPLOADS}/young"}

    async def test_a_failed_put_over_an_object_leaves_it(self, store: Store) -> None:
        await store.put_object(KEY, BytesBody(b"before"))
        body = FailingBody([os.urandom(MIB)] * 6, failure=ValueError("the source broke"))
        with pytest.raises(ValueError, match="the source broke"):
            await store.put_object(KEY, body)
        assert await store.fetch_object(KEY, max_bytes=2**30) == b"before"

    async def test_what_a_slow_data_node_makes_after_a_put_was_given_up_is_deleted(
        self, store: Store, options: Options, hdfs: HdfsCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The name node hears of the file from the data node alone, after it was asked to delete it."""
        send, late = WebHdfs.send, list[asyncio.Task[Answer]]()

        async def cut(self: WebHdfs, key: str, place: str, content: AsyncIterator[bytes]) -> Answer:
            async def again() -> Answer:
                await asyncio.sleep(0.3)
                return await send(self, key, place, _one(b"late"))

            await anext(content)
            late.append(asyncio.create_task(again()))
            raise ConnectionFailedError("the connection is cut")

        monkeypatch.setattr(WebHdfs, "send", cut)
        with pytest.raises(StoreError, match="the connection is cut"):
            await store.put_object(KEY, PiecesBody([bytes(MIB)] * 2))
        made = {answer.status for answer in await asyncio.gather(*late)}
        assert made <= {201, 404}, "404 of one that is deleted while it is written"
        assert [path for path in hdfs.files(str(options["directory"])) if path.startswith(UPLOADS)] == []

    async def test_many_objects_go_up_at_once(self, store: Store) -> None:
        bodies = {f"t/0/{number}": [os.urandom(MIB) for _ in range(3)] for number in range(8)}
        await asyncio.gather(*(store.put_object(key, PiecesBody(pieces)) for key, pieces in bodies.items()))
        for key, pieces in bodies.items():
            assert await store.fetch_object(key, max_bytes=2**30) == b"".join(pieces)

    @pytest.mark.parametrize(
        "size_bytes", [1, 511, 512, 513, MIB - 1, MIB, MIB + 1, 2 * MIB, 2 * MIB + 1, 3 * MIB, 5 * MIB + 7]
    )
    async def test_the_sum_of_what_is_sent_is_the_one_that_hdfs_makes(self, store: Store, size_bytes: int) -> None:
        """The cluster's blocks have 1 MiB; another sum would be an error."""
        data = os.urandom(size_bytes)
        await store.put_object(KEY, PiecesBody([data[:100], data[100:]]))
        assert await store.fetch_object(KEY, max_bytes=2**30) == data

    async def test_a_large_conditional_put_leaves_what_is_there(self, store: Store) -> None:
        await store.put_object(KEY, BytesBody(b"first"))
        with pytest.raises(ObjectExistsError):
            await store.put_object(KEY, PiecesBody([os.urandom(MIB)] * 3), if_absent=True)
        assert await store.fetch_object(KEY, max_bytes=2**30) == b"first"

    @pytest.mark.parametrize("prefix", ["../", "/", "a//", "./", "t/../"])
    async def test_a_prefix_that_would_be_another_place_lists_nothing(self, store: Store, prefix: str) -> None:
        await store.put_object("t/a", BytesBody(b"x"))
        assert await keys_of(store, prefix) == []

    @pytest.mark.parametrize("key", ["a:b/c", f"{UPLOADS}/x"])
    async def test_a_key_that_hdfs_cannot_hold_is_refused(self, store: Store, key: str) -> None:
        with pytest.raises(StoreError, match="object key"):
            await store.put_object(key, BytesBody(b"x"))


async def failure_of(options: Options, blocking: Blocking) -> str:
    async with kind.open_store(options, tools(blocking)) as store:
        with pytest.raises(StoreError) as raised:
            await store.check_writable()
    return str(raised.value)


class TestErrors:
    async def test_a_directory_that_is_not_there_is_named(self, options: dict[str, object], blocking: Blocking) -> None:
        absent = {**options, "directory": "/not/there"}
        assert "HDFS has no directory /not/there: create it" in await failure_of(absent, blocking)
        async with kind.open_store(absent, tools(blocking)) as store:
            for asking in (store.fetch_object(KEY, max_bytes=2**30), store.head_object(KEY)):
                with pytest.raises(StoreError, match="no directory /not/there"):
                    await asking
            with pytest.raises(StoreError, match="no directory /not/there"):
                await keys_of(store)

    async def test_a_user_without_rights_is_told(self, options: dict[str, object], blocking: Blocking) -> None:
        said = await failure_of({**options, "user": "nobody"}, blocking)
        assert "AccessControlException" in said
        assert "has the option user" in said

    async def test_nothing_listens(self, options: dict[str, object], blocking: Blocking) -> None:
        said = await failure_of({**options, "namenodes": [f"http://127.0.0.1:{free_port()}"]}, blocking)
        assert "are all name nodes and data nodes reached" in said

    async def test_a_token_that_is_none_is_refused_and_not_shown(
        self, options: dict[str, object], blocking: Blocking
    ) -> None:
        without_user = {name: value for name, value in options.items() if name != "user"}
        said = await failure_of({**without_user, "delegation.token": "c2VjcmV0"}, blocking)
        assert "c2VjcmV0" not in said

    async def test_the_second_name_node_is_used_while_the_first_is_away(
        self, options: dict[str, object], blocking: Blocking, hdfs: HdfsCluster
    ) -> None:
        two = {**options, "namenodes": [f"http://127.0.0.1:{free_port()}", hdfs.url], "max.attempts": 1}
        async with kind.open_store(two, tools(blocking)) as store:
            await store.check_writable()

    async def test_sums_of_another_kind_are_told_apart(
        self, options: dict[str, object], blocking: Blocking, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        with running_hdfs(tmp_path_factory.mktemp("hdfs"), checksum_type="CRC32") as cluster:
            cluster.make_directory("/tier")
            other = {**options, "namenodes": [cluster.url], "directory": "/tier"}
            assert "set the option checksums to false" in await failure_of(other, blocking)
            async with kind.open_store({**other, "checksums": False}, tools(blocking)) as store:
                await store.check_writable()
            assert cluster.files("/tier") == set()


@pytest.fixture
async def way(hdfs: HdfsCluster) -> AsyncIterator[HdfsFaultProxy]:
    async with running_fault_proxy(HdfsFaultProxy(url=""), hdfs.url) as proxy:
        yield proxy


class TestFaults:
    @pytest.mark.parametrize("kind_of_fault", [FaultKind.REFUSE, FaultKind.RESET, FaultKind.LOSE_ANSWER])
    @pytest.mark.parametrize(
        ("method", "query"),
        [
            ("PUT", "op=CREATE"),
            ("PUT", "tests.data.node"),
            ("PUT", "op=MKDIRS"),
            ("PUT", "op=RENAME"),
            ("GET", "op=GETFILESTATUS"),
            ("GET", "op=GETFILECHECKSUM"),
        ],
    )
    @pytest.mark.parametrize("if_absent", [True, False], ids=["if absent", "whatever is there"])
    async def test_a_put_gets_over_one_fault_and_leaves_one_object(
        self,
        options: dict[str, object],
        blocking: Blocking,
        hdfs: HdfsCluster,
        way: HdfsFaultProxy,
        kind_of_fault: FaultKind,
        method: str,
        query: str,
        if_absent: bool,
    ) -> None:
        far = {**options, "namenodes": [way.url], "request.timeout.s": 10}
        async with kind.open_store(far, tools(blocking)) as store:
            fault = Fault(kind=kind_of_fault, method=method, query=query)
            way.faults.append(fault)
            await store.put_object(KEY, PiecesBody([os.urandom(MIB)] * 2), if_absent=if_absent)
            assert fault.times == 0, "the fault has struck"
            with pytest.raises(ObjectExistsError):
                await store.put_object(KEY, BytesBody(b"x"), if_absent=True)
        assert hdfs.files(str(options["directory"])) == {KEY}

    async def test_a_byte_that_changes_on_the_way_is_seen_before_the_object_is(
        self, options: dict[str, object], blocking: Blocking, hdfs: HdfsCluster, way: HdfsFaultProxy
    ) -> None:
        async with kind.open_store({**options, "namenodes": [way.url]}, tools(blocking)) as store:
            way.faults.append(Fault(kind=FaultKind.SPOIL, method="PUT", query="tests.data.node"))
            with pytest.raises(StoreError, match="HDFS has another checksum than what was sent"):
                await store.put_object(KEY, BytesBody(b"0123456789"))
        assert hdfs.files(str(options["directory"])) == set()

    async def test_an_answer_that_is_cut_is_asked_for_again(
        self, options: dict[str, object], blocking: Blocking, way: HdfsFaultProxy
    ) -> None:
        async with kind.open_store({**options, "namenodes": [way.url]}, tools(blocking)) as store:
            data = os.urandom(MIB)
            await store.put_object(KEY, BytesBody(data))
            way.faults.append(Fault(kind=FaultKind.CUT, method="GET", query="tests.data.node"))
            assert await store.fetch_object(KEY, max_bytes=2**30) == data


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_store(tmp_path_factory.mktemp("installed"))


class TestInstalled:
    """Named in a configuration, as an operator does."""

    def test_the_store_keeps_its_guarantees(
        self, installed: Path, hdfs: HdfsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYTHONPATH", str(installed), prepend=os.pathsep)
        directory = new_directory(hdfs)
        config = self._write(tmp_path, hdfs_options(hdfs.url, directory, checksums=True))
        found = answer_of(config, "store", "check", "--samples", "5", "--object-size", "3MiB")
        assert found
        assert hdfs.files(directory) == set()

    @pytest.mark.broker
    def test_segments_go_to_hdfs_and_come_back(
        self,
        installed: Path,
        hdfs: HdfsCluster,
        kafka: KafkaCluster,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The main job, on a real broker."""
        monkeypatch.setenv("PYTHONPATH", str(installed), prepend=os.pathsep)
        directory = new_directory(hdfs)

        def stored() -> set[str]:
            return {key for key in hdfs.files(directory) if key.endswith((".log", ".indexes", ".rsm-manifest"))}

        store = {"type": "hdfs", "options": hdfs_options(hdfs.url, directory, checksums=True)}
        the_main_job(kafka, tmp_path, "hdfs-job", store=store, stored=stored)
        assert [path for path in hdfs.files(directory) if path.startswith(UPLOADS)] == []

    def test_what_is_wrong_with_an_option_is_told_by_its_name(
        self, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYTHONPATH", str(installed), prepend=os.pathsep)
        options = {"namenodes": ["http://one:9870", "https://two:9871"], "directory": "tier", "colour": "red"}
        done = run_command(self._write(tmp_path, options), "store", "check")
        assert done.returncode == 2
        said = done.stdout + done.stderr
        assert "store.options.namenodes: expected a list of addresses" in said
        assert "store.options.directory: expected an absolute path" in said
        assert "store.options.colour: unknown option" in said

    @staticmethod
    def _write(directory: Path, options: Options) -> Path:
        store = {"type": "hdfs", "options": dict(options)}
        settings = daemon_settings(
            directory, bootstrap_servers="127.0.0.1:9", log_dirs=[Path("/d")], topics=[], store=store
        )
        path = directory / "tiersidecar.yaml"
        with path.open("w") as file:
            YAML().dump(settings, file)
        return path
