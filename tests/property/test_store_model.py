"""Stores against a plain dict, by any sequence of verbs."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.adapters.stores.filesystem import FilesystemStore
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.domain.errors import ObjectExistsError, ObjectNotFoundError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.store import Store
from tiersidecar.testing.store_contract import PiecesBody, keys_of

# Names around the slash in the order of bytes ('-' and '.' below it, '0' above); a file system cannot hold both a/b and
# a/b/c, so directories and objects take their names from different sets.
DIRECTORIES = st.sampled_from(["t", "t-1", "t.1", "t0", "T"])
NAMES = st.sampled_from(["a", "a-", "a.log", "a0", "é", "\uffee", "\U0001f600"])
KEYS = st.builds(
    lambda directories, name: "/".join([*directories, f"_{name}"]), st.lists(DIRECTORIES, max_size=3), NAMES
)
PIECES = st.lists(st.binary(max_size=20), max_size=4)


class StoreModel(RuleBasedStateMachine):
    """Subclassed per kind of store."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.model: dict[str, bytes] = {}
        self.store = self.make_store()

    def make_store(self) -> Store:
        raise NotImplementedError

    def teardown(self) -> None:
        self.loop.close()

    @rule(key=KEYS, pieces=PIECES, if_absent=st.booleans(), knows_size=st.booleans())
    def put(self, key: str, pieces: list[bytes], if_absent: bool, knows_size: bool) -> None:
        put = self.store.put_object(key, PiecesBody(pieces, knows_size), if_absent=if_absent)
        if if_absent and key in self.model:
            with pytest.raises(ObjectExistsError):
                self.loop.run_until_complete(put)
            return
        stored = self.loop.run_until_complete(put)
        self.model[key] = b"".join(pieces)
        assert stored.size_bytes == len(self.model[key])

    @rule(keys=st.lists(KEYS, max_size=4))
    def delete(self, keys: list[str]) -> None:
        self.loop.run_until_complete(self.store.delete_objects(keys))
        for key in keys:
            self.model.pop(key, None)

    @rule(key=KEYS)
    def fetch_and_head(self, key: str) -> None:
        if key not in self.model:
            for asking in (self.store.fetch_object(key, max_bytes=2**30), self.store.head_object(key)):
                with pytest.raises(ObjectNotFoundError):
                    self.loop.run_until_complete(asking)
            return
        assert self.loop.run_until_complete(self.store.fetch_object(key, max_bytes=2**30)) == self.model[key]
        assert self.loop.run_until_complete(self.store.head_object(key)).size_bytes == len(self.model[key])

    @rule(key=KEYS, data=st.data())
    def fetch_range(self, key: str, data: st.DataObject) -> None:
        held = self.model.get(key)
        if held is None:
            return
        start = data.draw(st.integers(0, len(held)))
        stop = data.draw(st.integers(start, len(held)))
        assert self.loop.run_until_complete(self.store.fetch_range(key, ByteRange(start, stop))) == held[start:stop]

    @rule(key=KEYS, cut=st.integers(0, 8), start_after=st.one_of(st.just(""), KEYS))
    def list_some(self, key: str, cut: int, start_after: str) -> None:
        prefix = key[:cut]
        listed = self.loop.run_until_complete(keys_of(self.store, prefix, start_after=start_after))
        bound = start_after.encode()
        expected = [key for key in self.model if key.startswith(prefix) and key.encode() > bound]
        assert listed == sorted(expected, key=str.encode)

    @invariant()
    def lists_what_the_model_holds(self) -> None:
        assert self.loop.run_until_complete(keys_of(self.store)) == sorted(self.model, key=str.encode)


class MemoryModel(StoreModel):
    def make_store(self) -> Store:
        return MemoryStore(clock=SystemClock(), ids=SystemIds())


class FilesystemModel(StoreModel):
    def make_store(self) -> Store:
        self.root = Path(tempfile.mkdtemp(prefix="tiersidecar-store-model-"))
        self.blocking = ThreadBlocking(max_threads=1)
        return FilesystemStore(root=str(self.root), blocking=self.blocking, ids=SystemIds())

    def teardown(self) -> None:
        self.blocking.close()
        shutil.rmtree(self.root)
        super().teardown()


TestMemoryModel = MemoryModel.TestCase
TestMemoryModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestFilesystemModel = FilesystemModel.TestCase
TestFilesystemModel.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
