"""The promises of every store: one suite that each kind, real and fake, passes (obspec's and kio's manner).

A kind of store subclasses :class:`StoreContract` in a test module of its own and gives the fixture ``store``; the class's
attributes say which of the optional promises hold.  It runs under pytest with pytest-asyncio in its mode ``auto`` (the extra
``testing`` has both), and is for stores of other packages too: docs/stores.md.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import pytest
from crc32c import crc32c

from tiersidecar.domain.errors import ObjectExistsError, ObjectNotFoundError, ObjectTooLargeError, StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.store import Buffer, BytesBody, ObjectBody, SourceFile, Store

KEY = "tiered/topic-OrpMwEoTQh6VZ_dz9HFK5g/0/00000000000000000000-_MoQRv1RSmK3DSMrwnu6ew.log"


@dataclass(slots=True)
class PiecesBody:
    """A body of pieces that come one by one, in a buffer that is used again for the next one."""

    pieces: Sequence[bytes]
    knows_size: bool = True
    _buffer: bytearray = field(default_factory=bytearray)

    @property
    def size_bytes(self) -> int | None:
        return sum(map(len, self.pieces)) if self.knows_size else None

    @property
    def piece_count(self) -> int:
        return len(self.pieces)

    @property
    def source_file(self) -> SourceFile | None:
        return None

    async def piece(self, index: int) -> Buffer:
        await asyncio.sleep(0)
        self._buffer = bytearray(self.pieces[index])
        return memoryview(self._buffer)

    async def grant(self, wanted_bytes: int) -> int:
        return wanted_bytes


@dataclass(slots=True)
class FailingBody(PiecesBody):
    """Ends with ``failure`` instead of its last piece; None: it stalls there, for a cancellation."""

    failure: Exception | None = None
    stalled: asyncio.Event = field(default_factory=asyncio.Event)

    async def piece(self, index: int) -> Buffer:
        if index < self.piece_count - 1:
            return await PiecesBody.piece(self, index)
        if self.failure is not None:
            raise self.failure
        self.stalled.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


@dataclass(slots=True)
class SparingBody(PiecesBody):
    """Grants at most ``at_once`` bytes, and counts them."""

    at_once: int = 10_000
    granted_bytes: int = 0

    async def grant(self, wanted_bytes: int) -> int:
        await asyncio.sleep(0)
        count = min(wanted_bytes, self.at_once)
        self.granted_bytes += count
        return count


@dataclass(frozen=True, slots=True)
class FileBody:
    """A range of an open file, as an untransformed .log is."""

    source: SourceFile

    @property
    def size_bytes(self) -> int:
        return len(self.source.byte_range)

    @property
    def piece_count(self) -> int:
        return 1

    @property
    def source_file(self) -> SourceFile | None:
        return self.source

    async def piece(self, index: int) -> Buffer:
        buffer = bytearray(len(self.source.byte_range))
        self.source.read_into(self.source.byte_range.start, memoryview(buffer))
        return buffer

    async def grant(self, wanted_bytes: int) -> int:
        return wanted_bytes


async def fed(store: Store, byte_range: ByteRange) -> bytes:
    """Return what ``feed_range`` hands over of ``KEY``."""
    pieces = list[memoryview]()

    def take(piece: memoryview) -> int:
        pieces.append(piece)
        return len(piece)

    await store.feed_range(KEY, byte_range, take)
    return b"".join(pieces)


async def fed_with_rests(store: Store, byte_range: ByteRange) -> bytes:
    """Return the same, where the pieces are not to be kept."""
    pieces = list[bytes]()

    def take(piece: memoryview) -> int:
        pieces.append(bytes(piece))
        return len(piece)

    await store.feed_with_rests(KEY, byte_range, take)
    return b"".join(pieces)


async def keys_of(store: Store, prefix: str = "", *, start_after: str = "") -> list[str]:
    return [stored.key async for stored in store.list_objects(prefix, start_after=start_after)]


class StoreContract:
    """Subclass it, and give the fixture ``store``."""

    keeps_checksums = True
    hides_its_races = True
    """False where a put beside the delete of its directory's last object may fail, to be repeated."""
    piece_bytes = 64 * 1024
    """Pieces of the large bodies: a store with a part size sets it so that they make several parts."""

    @final
    async def test_an_object_comes_back_as_it_was_put(self, store: Store) -> None:
        stored = await store.put_object(KEY, BytesBody(b"0123456789"))
        assert (stored.key, stored.size_bytes) == (KEY, 10)
        assert await store.fetch_object(KEY, max_bytes=2**30) == b"0123456789"
        assert await store.fetch_object(KEY, max_bytes=10) == b"0123456789"
        with pytest.raises(ObjectTooLargeError):
            await store.fetch_object(KEY, max_bytes=9)

    @final
    async def test_an_empty_object_is_an_object(self, store: Store) -> None:
        await store.put_object(KEY, BytesBody(b""))
        assert await store.fetch_object(KEY, max_bytes=2**30) == b""
        assert (await store.head_object(KEY)).size_bytes == 0
        assert await store.fetch_range(KEY, ByteRange(0, 0)) == b""

    @final
    async def test_a_body_without_pieces_is_an_empty_object(self, store: Store) -> None:
        await store.put_object(KEY, PiecesBody([]))
        assert await store.fetch_object(KEY, max_bytes=2**30) == b""

    @final
    @pytest.mark.parametrize("knows_size", [True, False], ids=["of known size", "of a size that no one knows before"])
    @pytest.mark.parametrize("last", [1, 777], ids=["last piece of one byte", "last piece shorter than the others"])
    async def test_many_pieces_become_one_object(self, store: Store, knows_size: bool, last: int) -> None:
        pieces = [os.urandom(self.piece_bytes) for _ in range(5)] + [os.urandom(last)]
        stored = await store.put_object(KEY, PiecesBody(pieces, knows_size))
        assert stored.size_bytes == 5 * self.piece_bytes + last
        assert await store.fetch_object(KEY, max_bytes=2**30) == b"".join(pieces)

    @final
    async def test_pieces_of_unequal_size_become_one_object(self, store: Store) -> None:
        """Put pieces of the sizes of compressed chunks."""
        sizes = [1, self.piece_bytes * 2 + 3, 0, 17, self.piece_bytes - 1, self.piece_bytes * 3, 5]
        pieces = [os.urandom(size) for size in sizes]
        await store.put_object(KEY, PiecesBody(pieces, knows_size=False))
        assert await store.fetch_object(KEY, max_bytes=2**30) == b"".join(pieces)

    @final
    async def test_bytes_are_handed_on_as_they_are_granted(self, store: Store) -> None:
        """U14: pacing and progress hang on it."""
        pieces = [os.urandom(self.piece_bytes) for _ in range(3)]
        body = SparingBody(pieces, at_once=self.piece_bytes // 3)
        await store.put_object(KEY, body)
        assert await store.fetch_object(KEY, max_bytes=2**30) == b"".join(pieces)
        assert body.granted_bytes == 3 * self.piece_bytes

    @final
    @pytest.mark.parametrize(
        ("start", "stop"), [(0, 300_000), (0, 0), (1000, 299_999)], ids=["whole", "none", "inside"]
    )
    async def test_a_range_of_a_file_becomes_an_object(
        self, store: Store, tmp_path: Path, start: int, stop: int
    ) -> None:
        data = os.urandom(300_000)
        path = tmp_path / "source.log"
        path.write_bytes(data)
        with path.open("rb") as file:
            seen = bytearray(stop - start)

            def look(position: int, part: memoryview) -> None:
                seen[position - start : position - start + len(part)] = part

            source = SourceFile(fileno=file.fileno(), path=str(path), byte_range=ByteRange(start, stop), look=look)
            stored = await store.put_object(KEY, FileBody(source))
        assert stored.size_bytes == stop - start
        assert await store.fetch_object(KEY, max_bytes=2**30) == data[start:stop]
        assert seen == data[start:stop], "the check saw every byte"

    @final
    async def test_a_put_overwrites(self, store: Store) -> None:
        """S-194: a repeated copy overwrites."""
        await store.put_object(KEY, BytesBody(b"a longer first object"))
        await store.put_object(KEY, BytesBody(b"second"))
        assert await store.fetch_object(KEY, max_bytes=2**30) == b"second"

    @final
    async def test_a_put_if_absent_leaves_what_is_there(self, store: Store) -> None:
        await store.put_object(KEY, BytesBody(b"first"), if_absent=True)
        with pytest.raises(ObjectExistsError) as raised:
            await store.put_object(KEY, BytesBody(b"second"), if_absent=True)
        assert KEY in str(raised.value)
        assert await store.fetch_object(KEY, max_bytes=2**30) == b"first"

    @final
    async def test_of_many_puts_if_absent_one_wins(self, store: Store) -> None:
        bodies = [f"writer {number}".encode() for number in range(8)]
        puts = (store.put_object(KEY, BytesBody(body), if_absent=True) for body in bodies)
        outcomes = await asyncio.gather(*puts, return_exceptions=True)
        winners = [body for body, outcome in zip(bodies, outcomes, strict=True) if not isinstance(outcome, Exception)]
        assert [await store.fetch_object(KEY, max_bytes=2**30)] == winners
        assert all(isinstance(outcome, ObjectExistsError) for outcome in outcomes if isinstance(outcome, Exception))

    @final
    async def test_what_is_being_put_is_not_seen(self, store: Store) -> None:
        """Visible whole or not at all."""
        body = FailingBody([bytes(self.piece_bytes)] * 4)
        put = asyncio.create_task(store.put_object(KEY, body))
        await body.stalled.wait()
        assert await keys_of(store) == []
        with pytest.raises(ObjectNotFoundError):
            await store.head_object(KEY)
        put.cancel()
        await asyncio.wait([put])

    @final
    async def test_a_cancelled_put_leaves_nothing(self, store: Store) -> None:
        body = FailingBody([bytes(self.piece_bytes)] * 4)
        put = asyncio.create_task(store.put_object(KEY, body))
        await body.stalled.wait()
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put
        assert await keys_of(store) == []

    @final
    async def test_a_failed_put_leaves_what_was_there_and_passes_the_bodys_error(self, store: Store) -> None:
        await store.put_object(KEY, BytesBody(b"before"))
        with pytest.raises(ValueError, match="the source broke"):
            await store.put_object(
                KEY, FailingBody([bytes(self.piece_bytes)] * 4, failure=ValueError("the source broke"))
            )
        assert await store.fetch_object(KEY, max_bytes=2**30) == b"before"

    @final
    async def test_a_body_that_lies_about_its_size_is_refused(self, store: Store) -> None:
        @dataclass(slots=True)
        class Lying(PiecesBody):
            @property
            def size_bytes(self) -> int | None:
                return 11

        with pytest.raises(StoreError):
            await store.put_object(KEY, Lying([b"0123456789"]))
        assert await keys_of(store) == []

    @final
    @pytest.mark.parametrize(
        ("start", "stop"), [(0, 10), (0, 1), (9, 10), (3, 7), (4, 4), (10, 10)], ids=lambda value: str(value)
    )
    async def test_a_range_is_half_open(self, store: Store, start: int, stop: int) -> None:
        await store.put_object(KEY, BytesBody(b"0123456789"))
        assert await store.fetch_range(KEY, ByteRange(start, stop)) == b"0123456789"[start:stop]

    @final
    @pytest.mark.parametrize(("start", "stop"), [(0, 11), (9, 12), (10, 11), (50, 60)], ids=lambda value: str(value))
    async def test_a_range_past_the_end_is_an_error(self, store: Store, start: int, stop: int) -> None:
        await store.put_object(KEY, BytesBody(b"0123456789"))
        with pytest.raises(StoreError) as raised:
            await store.fetch_range(KEY, ByteRange(start, stop))
        assert not isinstance(raised.value, ObjectNotFoundError)

    @final
    @pytest.mark.parametrize(
        ("start", "stop"), [(0, 10), (9, 10), (3, 7), (4, 4), (10, 10)], ids=lambda value: str(value)
    )
    async def test_a_range_is_handed_over_in_order(self, store: Store, start: int, stop: int) -> None:
        await store.put_object(KEY, BytesBody(b"0123456789"))
        assert await fed(store, ByteRange(start, stop)) == b"0123456789"[start:stop]
        assert await fed_with_rests(store, ByteRange(start, stop)) == b"0123456789"[start:stop]

    @final
    async def test_a_range_of_many_turns_is_handed_over_in_order(self, store: Store) -> None:
        """U14: with rests, for callers in no hurry."""
        data = os.urandom(1024 * 1024)
        await store.put_object(KEY, BytesBody(data))
        assert await fed_with_rests(store, ByteRange(1, len(data) - 1)) == data[1:-1]
        taken = list[bytes]()

        def take_one(piece: memoryview) -> bool:
            taken.append(bytes(piece))
            return False

        await store.feed_with_rests(KEY, ByteRange(1, len(data)), take_one)
        assert len(taken) == 1
        assert data[1:].startswith(taken[0])

    @final
    async def test_no_more_is_handed_over_than_is_taken(self, store: Store) -> None:
        data = os.urandom(9 * 1024 * 1024)
        await store.put_object(KEY, BytesBody(data))
        assert await fed(store, ByteRange(1, len(data))) == data[1:]
        pieces = list[memoryview]()

        def take_one(piece: memoryview) -> int:
            pieces.append(piece)
            return 0

        await store.feed_range(KEY, ByteRange(1, len(data)), take_one)
        assert len(pieces) == 1
        assert data[1:].startswith(bytes(pieces[0]))

    @final
    async def test_the_next_piece_begins_behind_what_was_taken_of_the_last_one(self, store: Store) -> None:
        """A store whose objects are not files here may hand over all bytes as one piece."""
        data = os.urandom(9 * 1024 * 1024)
        await store.put_object(KEY, BytesBody(data))
        found, left_again = bytearray(), 100_000

        def take_most(piece: memoryview) -> int:
            is_last = len(found) + len(piece) == len(data) - 1
            taken_bytes = len(piece) if is_last else len(piece) - left_again
            found.extend(piece[:taken_bytes])
            return taken_bytes

        await store.feed_range(KEY, ByteRange(1, len(data)), take_most)
        assert found == data[1:]

    @final
    @pytest.mark.parametrize(("start", "stop"), [(0, 11), (9, 12), (10, 11)], ids=lambda value: str(value))
    async def test_a_range_past_the_end_that_is_handed_over_is_an_error(
        self, store: Store, start: int, stop: int
    ) -> None:
        await store.put_object(KEY, BytesBody(b"0123456789"))
        with pytest.raises(StoreError) as raised:
            await fed(store, ByteRange(start, stop))
        assert not isinstance(raised.value, ObjectNotFoundError)
        with pytest.raises(StoreError) as raised:
            await fed_with_rests(store, ByteRange(start, stop))
        assert not isinstance(raised.value, ObjectNotFoundError)

    @final
    async def test_what_is_absent_is_said_to_be(self, store: Store) -> None:
        with pytest.raises(ObjectNotFoundError):
            await fed(store, ByteRange(0, 1))
        with pytest.raises(ObjectNotFoundError):
            await store.fetch_object(KEY, max_bytes=2**30)
        with pytest.raises(ObjectNotFoundError):
            await store.fetch_range(KEY, ByteRange(0, 1))
        with pytest.raises(ObjectNotFoundError):
            await store.fetch_range(KEY, ByteRange(0, 0))
        with pytest.raises(ObjectNotFoundError):
            await store.head_object(KEY)

    @final
    async def test_a_directory_is_no_object(self, store: Store) -> None:
        await store.put_object("tiered/topic/0/a.log", BytesBody(b"x"))
        with pytest.raises(ObjectNotFoundError):
            await store.head_object("tiered/topic")
        with pytest.raises(ObjectNotFoundError):
            await store.fetch_object("tiered/topic", max_bytes=2**30)
        await store.delete_objects(["tiered/topic"])
        assert await keys_of(store) == ["tiered/topic/0/a.log"]

    @final
    async def test_head_has_size_and_checksum(self, store: Store) -> None:
        data = os.urandom(12345)
        stored = await store.put_object(KEY, BytesBody(data))
        head = await store.head_object(KEY)
        assert (head.key, head.size_bytes) == (KEY, 12345)
        checksum = crc32c(data) if self.keeps_checksums else None
        assert (stored.crc32c, head.crc32c) == (checksum, checksum)

    @final
    async def test_the_checksum_of_many_pieces_is_that_of_the_whole(self, store: Store) -> None:
        pieces = [os.urandom(self.piece_bytes) for _ in range(5)]
        stored = await store.put_object(KEY, PiecesBody(pieces))
        checksum = crc32c(b"".join(pieces)) if self.keeps_checksums else None
        assert (stored.crc32c, (await store.head_object(KEY)).crc32c) == (checksum, checksum)

    @final
    async def test_times_are_of_now(self, store: Store) -> None:
        first = await store.put_object("a/first", BytesBody(b"1"))
        second = await store.put_object("a/second", BytesBody(b"2"))
        # Compared with each other only: a store has a clock of its own, and S3's counts seconds.
        assert abs(second.modified_ms - first.modified_ms) < 60_000
        head = await store.head_object("a/first")
        assert abs(head.modified_ms - first.modified_ms) < 5_000

    @final
    async def test_a_delete_may_be_repeated(self, store: Store) -> None:
        """S-071, S-194: a delete tolerates absence."""
        await store.put_object(KEY, BytesBody(b"x"))
        await store.delete_objects([KEY])
        await store.delete_objects([KEY, "never/was/here"])
        assert await keys_of(store) == []
        with pytest.raises(ObjectNotFoundError):
            await store.fetch_object(KEY, max_bytes=2**30)

    @final
    async def test_a_delete_takes_what_it_is_given_and_no_more(self, store: Store) -> None:
        for key in ("t/0/a.log", "t/0/a.indexes", "t/0/a.rsm-manifest", "t/0/b.log", "t/1/a.log"):
            await store.put_object(key, BytesBody(b"x"))
        await store.delete_objects(["t/0/a.log", "t/0/a.indexes", "t/0/a.rsm-manifest"])
        assert await keys_of(store) == ["t/0/b.log", "t/1/a.log"]

    @final
    async def test_a_delete_of_nothing_is_nothing(self, store: Store) -> None:
        await store.delete_objects([])

    @final
    async def test_a_delete_tries_all_before_it_raises(self, store: Store) -> None:
        await store.put_object("t/0/a.log", BytesBody(b"x"))
        with pytest.raises(StoreError):
            await store.delete_objects(["../outside", "t/0/a.log"])
        assert await keys_of(store) == []

    @final
    async def test_objects_are_listed_in_the_order_of_their_keys(self, store: Store) -> None:
        """List by bytes of the whole key: ``a-b`` is before ``a/b``, which is before ``a0``."""
        keys = [
            "a-b/c",
            "a0",
            "a/b.log",
            "a/b-c/d",
            "a/b/e",
            "ab",
            "a.b/c",
            "Z",
            "é/x",
            "a/\U0001f600",
            "a/\uffee",
            "a/~",
        ]
        for key in reversed(keys):
            await store.put_object(key, BytesBody(key.encode()))
        listed = [stored async for stored in store.list_objects()]
        assert [stored.key for stored in listed] == sorted(keys, key=str.encode)
        assert [stored.size_bytes for stored in listed] == [len(stored.key.encode()) for stored in listed]

    @final
    @pytest.mark.parametrize(
        ("prefix", "start_after", "expected"),
        [
            ("", "", ["t-1/0/a", "t/0/a", "t/0/b", "t/1/a", "t/10/a", "u/0/a"]),
            ("t/", "", ["t/0/a", "t/0/b", "t/1/a", "t/10/a"]),
            ("t", "", ["t-1/0/a", "t/0/a", "t/0/b", "t/1/a", "t/10/a"]),
            ("t/1", "", ["t/1/a", "t/10/a"]),
            ("t/0/b", "", ["t/0/b"]),
            ("t/0/bb", "", []),
            ("nothing/here", "", []),
            ("", "t/0/a", ["t/0/b", "t/1/a", "t/10/a", "u/0/a"]),
            ("", "t/0", ["t/0/a", "t/0/b", "t/1/a", "t/10/a", "u/0/a"]),
            ("", "t/0/aa", ["t/0/b", "t/1/a", "t/10/a", "u/0/a"]),
            ("t/", "t/1/a", ["t/10/a"]),
            ("t/", "a", ["t/0/a", "t/0/b", "t/1/a", "t/10/a"]),
            ("t/", "z", []),
            ("", "u/0/a", []),
        ],
        ids=[
            "everything",
            "a prefix that ends in a slash",
            "a prefix that ends inside a name",
            "a prefix that ends inside the last directory",
            "a prefix that is a key",
            "a prefix longer than any key",
            "a prefix of nothing",
            "after a key",
            "after a directory's name",
            "after a key that is not there",
            "after a key, with a prefix",
            "after something before the prefix",
            "after something behind the prefix",
            "after the last key",
        ],
    )
    async def test_a_listing_is_narrowed(
        self, store: Store, prefix: str, start_after: str, expected: list[str]
    ) -> None:
        for key in ("t/10/a", "u/0/a", "t/0/b", "t/0/a", "t-1/0/a", "t/1/a"):
            await store.put_object(key, BytesBody(b"x"))
        assert await keys_of(store, prefix, start_after=start_after) == expected

    @final
    async def test_a_listing_bears_objects_that_come_and_go(self, store: Store) -> None:
        keys = [f"t/{directory}/{name}" for directory in range(3) for name in "abc"]
        for key in keys:
            await store.put_object(key, BytesBody(b"x"))
        seen = []
        async for stored in store.list_objects():
            seen.append(stored.key)
            await store.delete_objects([key for key in keys if key != keys[-1]])
        assert seen[0] == keys[0]
        assert seen[-1] == keys[-1]

    @final
    @pytest.mark.parametrize(
        "key",
        ["", "/absolute", "a//b", "a/", "a/../b", "..", "a/./b", "a\0b", "a\nb", "x" * 1025],
        ids=[
            "empty",
            "absolute",
            "empty segment",
            "a slash last",
            "up",
            "only up",
            "dot",
            "NUL",
            "newline",
            "too long",
        ],
    )
    async def test_a_key_that_could_mean_another_place_is_refused(self, store: Store, key: str) -> None:
        with pytest.raises(StoreError, match="object key"):
            await store.put_object(key, BytesBody(b"x"))
        with pytest.raises(StoreError, match="object key"):
            await store.fetch_object(key, max_bytes=2**30)
        with pytest.raises(StoreError, match="object key"):
            await store.fetch_range(key, ByteRange(0, 1))
        with pytest.raises(StoreError, match="object key"):
            await store.head_object(key)
        with pytest.raises(StoreError, match="object key"):
            await store.delete_objects([key])

    @final
    async def test_a_good_store_is_writable_and_keeps_nothing_of_the_probe(self, store: Store) -> None:
        await store.check_writable()
        assert await keys_of(store) == []

    @final
    async def test_puts_and_deletes_side_by_side_do_not_hurt_each_other(self, store: Store) -> None:
        """The last object of a directory goes while another one comes."""

        async def put(name: str) -> None:
            try:
                await store.put_object(f"t/0/{name}", BytesBody(name.encode()))
            except StoreError:
                if self.hides_its_races:
                    raise
                await put(name)

        async def put_and_delete(name: str) -> None:
            for _ in range(10):
                await put(name)
                assert await store.fetch_object(f"t/0/{name}", max_bytes=2**30) == name.encode()
                await store.delete_objects([f"t/0/{name}"])

        await asyncio.gather(*(put_and_delete(f"object-{number}") for number in range(4)))
        assert await keys_of(store) == []

    @final
    async def test_it_says_where_it_is(self, store: Store) -> None:
        assert store.description


def check_is_object_body(body: ObjectBody) -> None:
    """For mypy: the bodies above are what the port asks for."""


check_is_object_body(PiecesBody([]))
check_is_object_body(FileBody(SourceFile(fileno=0, path="", byte_range=ByteRange(0, 0))))
