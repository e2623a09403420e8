"""The verbs of HDFS that the store is made of, of one cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from hdfs_store.answers import boolean_in, document_in
from hdfs_store.file_sum import FileSum
from hdfs_store.settings import HdfsSettings
from hdfs_store.webhdfs import WebHdfs
from tiersidecar.domain.errors import ObjectNotFoundError, StoreError

_DIRECTORY_PERMISSION = "750"
_CRC32C = 2
"""Of Hadoop's ``DataChecksum.Type``."""
_NOT_EMPTY = "PathIsNotEmptyDirectoryException"


class HdfsFiles:
    """``verb`` and ``key`` are what an error names."""

    def __init__(self, hdfs: WebHdfs, settings: HdfsSettings) -> None:
        self._hdfs, self._settings = hdfs, settings

    async def status(self, verb: str, key: str, path: str) -> dict[str, Any]:
        """Return the ``FileStatus``.

        Raises:
            ObjectNotFoundError: there is nothing at ``path``, though the store's directory is there.
        """
        try:
            answer = await self._hdfs.ask(verb, key, "GET", "GETFILESTATUS", path)
        except ObjectNotFoundError:
            await self.require_directory(verb, key)
            raise
        return document_in(verb, key, answer, "FileStatus")

    async def require_directory(self, verb: str, key: str) -> None:
        """Tell an object that is absent from a store that is.

        Raises:
            StoreError: the store's directory is not there.
        """
        directory = self._settings.directory
        try:
            answer = await self._hdfs.ask(verb, key, "GET", "GETFILESTATUS", directory)
        except ObjectNotFoundError:
            found = ""
        else:
            found = str(document_in(verb, key, answer, "FileStatus").get("type"))
        if found != "DIRECTORY":
            reason = f"HDFS has no directory {directory}: create it, or correct the option directory"
            raise StoreError(verb=verb, key=key, reason=reason)

    async def read(self, verb: str, key: str, path: str, *, max_bytes: int, **span: str) -> bytes:
        """Return the content, or ``offset`` and ``length`` of it; data nodes compare it with their sums.

        Raises:
            ObjectNotFoundError: there is no file at ``path``.
            ObjectTooLargeError: there is more than ``max_bytes``.
        """
        try:
            return (await self._hdfs.ask(verb, key, "GET", "OPEN", path, max_bytes=max_bytes, **span)).body
        except ObjectNotFoundError:
            await self.require_directory(verb, key)
            raise

    async def make_directory(self, verb: str, key: str, path: str) -> None:
        """Make ``path`` and those above it; those that are there stay as they are."""
        await self._hdfs.ask(verb, key, "PUT", "MKDIRS", path, permission=_DIRECTORY_PERMISSION)

    async def rename(self, key: str, source: str, target: str, *, overwrites: bool) -> None:
        """Rename a file in one step.

        Raises:
            ObjectNotFoundError: ``source``, or the directory of ``target``, is not there.
            ObjectExistsError: not ``overwrites``, and ``target`` is there.
        """
        options = "OVERWRITE" if overwrites else "NONE"
        answer = await self._hdfs.ask("put", key, "PUT", "RENAME", source, destination=target, renameoptions=options)
        if answer.body.strip():
            reason = "the server does not know renameoptions, without which no put is atomic: HttpFS is no name node"
            raise StoreError(verb="put", key=key, reason=reason)

    async def delete(self, verb: str, key: str, path: str) -> bool:
        """Delete a file or an empty directory; False where a directory is not empty.  One that is absent is deleted."""
        try:
            await self._hdfs.ask(verb, key, "DELETE", "DELETE", path, recursive="false")
        except ObjectNotFoundError:
            return True
        except StoreError as error:
            if _NOT_EMPTY in error.reason:
                return False
            raise
        return True

    async def remove_file(self, verb: str, key: str, path: str) -> bool:
        """Delete a file; False where there is none."""
        try:
            answer = await self._hdfs.ask(verb, key, "DELETE", "DELETE", path, recursive="false")
        except ObjectNotFoundError:
            return False
        return boolean_in(verb, key, answer)

    async def children(self, verb: str, key: str, path: str) -> AsyncIterator[dict[str, Any]]:
        """Yield the ``FileStatus`` of all that a directory holds, page by page; nothing of one that is gone, or of a file."""
        after = ""
        while True:
            # In lower case: as startAfter Hadoop 3.5.0 does not know it, and gives the first page again and again.
            try:
                answer = await self._hdfs.ask(verb, key, "GET", "LISTSTATUS_BATCH", path, startafter=after)
            except ObjectNotFoundError:
                return
            listing = document_in(verb, key, answer, "DirectoryListing")
            try:
                page = listing["partialListing"]["FileStatuses"]["FileStatus"]
                names = [str(entry["pathSuffix"]) for entry in page]
                remaining = int(listing["remainingEntries"])
            except (KeyError, TypeError, ValueError) as error:
                raise StoreError(verb=verb, key=key, reason="HDFS's listing is not whole") from error
            if after and names and names[-1] == after:
                raise StoreError(verb=verb, key=key, reason="HDFS lists the same page again and again")
            for name, entry in zip(names, page, strict=True):
                if name:
                    yield entry
            if remaining <= 0 or not names:
                return
            after = names[-1]

    async def new_sum(self, key: str) -> FileSum | None:
        """Return a sum of what a new file will hold, as the name node has files summed; None where none is wanted.

        Raises:
            StoreError: files have sums of another kind.
        """
        if not self._settings.checksums:
            return None
        answer = await self._hdfs.ask("put", key, "GET", "GETSERVERDEFAULTS", "/")
        defaults = document_in("put", key, answer, "FsServerDefaults")
        try:
            bytes_per_crc, block_bytes = int(defaults["bytesPerChecksum"]), int(defaults["blockSize"])
            is_crc32c = int(defaults["checksumType"]) == _CRC32C
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(verb="put", key=key, reason="HDFS's description of its defaults is not whole") from error
        if not is_crc32c:
            reason = "HDFS keeps another sum than CRC32C: set the option checksums to false"
            raise StoreError(verb="put", key=key, reason=reason)
        return FileSum(bytes_per_crc=bytes_per_crc, block_bytes=block_bytes)

    async def compare(self, key: str, path: str, sent: FileSum) -> None:
        """Compare the sum that the data nodes keep of a file with that of what was sent.

        Raises:
            StoreError: it is another one.
        """
        answer = await self._hdfs.ask("put", key, "GET", "GETFILECHECKSUM", path)
        found, expected = document_in("put", key, answer, "FileChecksum"), sent.told()
        if found.get("algorithm") != expected["algorithm"]:
            reason = (
                f"HDFS sums up by {found.get('algorithm')}, and told that it does by {expected['algorithm']}: name and "
                "data nodes have different dfs.bytes-per-checksum or dfs.checksum.type, or set the option checksums to false"
            )
            raise StoreError(verb="put", key=key, reason=reason)
        if not str(found.get("bytes")).startswith(expected["bytes"]):
            raise StoreError(verb="put", key=key, reason="HDFS has another checksum than what was sent")
