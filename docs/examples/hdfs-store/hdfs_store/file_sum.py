"""HDFS's own checksum of a file, made here of what is sent: ``MD5-of-<n>MD5-of-512CRC32C``.

Data nodes keep the CRC32C of each 512 bytes.  WebHDFS tells the MD5 of the blocks' MD5s of those, never a CRC32C of the whole
file: it can be compared with what was sent, and is no checksum of the store port.
"""

from __future__ import annotations

import hashlib

from crc32c import crc32c

_SMALLEST_BUFFER = 32


class FileSum:
    """``block_bytes`` is a multiple of ``bytes_per_crc``, as HDFS wants it."""

    def __init__(self, *, bytes_per_crc: int, block_bytes: int) -> None:
        self._bytes_per_crc, self._crcs_per_block = bytes_per_crc, block_bytes // bytes_per_crc
        self._rest = b""
        self._block, self._count = hashlib.md5(usedforsecurity=False), 0
        self._blocks = bytearray()

    def add(self, data: bytes) -> None:
        """Take the bytes that follow: a few hundred nanoseconds for each 512."""
        data = self._rest + data
        whole = len(data) - len(data) % self._bytes_per_crc
        for start in range(0, whole, self._bytes_per_crc):
            self._add_crc(data[start : start + self._bytes_per_crc])
        self._rest = data[whole:]

    def told(self) -> dict[str, str]:
        """Return algorithm and sum as WebHDFS tells them of a file that has all the bytes so far, and no others.  Ends it."""
        if self._rest:
            self._add_crc(self._rest)
        crcs_per_block = self._crcs_per_block if self._blocks and (self._count or len(self._blocks) > 16) else 0
        if self._count:
            self._end_block()
        head = self._bytes_per_crc.to_bytes(4, "big") + crcs_per_block.to_bytes(8, "big")
        md5 = hashlib.md5(_as_hadoop_buffers(self._blocks), usedforsecurity=False).digest()
        algorithm = f"MD5-of-{crcs_per_block}MD5-of-{self._bytes_per_crc}CRC32C"
        return {"algorithm": algorithm, "bytes": (head + md5).hex()}

    def _add_crc(self, chunk: bytes) -> None:
        self._block.update(crc32c(chunk).to_bytes(4, "big"))
        self._count += 1
        if self._count == self._crcs_per_block:
            self._end_block()

    def _end_block(self) -> None:
        self._blocks += self._block.digest()
        self._block, self._count = hashlib.md5(usedforsecurity=False), 0


def _as_hadoop_buffers(data: bytearray) -> bytes:
    """Hadoop sums up its whole buffer, which doubles as it fills, and not what is in it alone."""
    size = _SMALLEST_BUFFER
    while size < len(data):
        size *= 2
    return bytes(data).ljust(size, b"\0")
