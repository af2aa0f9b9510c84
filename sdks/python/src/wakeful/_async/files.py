"""The files of a sandbox: bytes, text, local files and streams, in constant memory."""

from __future__ import annotations

import os
import tempfile
from typing import Any, AsyncIterator, BinaryIO, Callable, Dict, List, Mapping, Optional, Union, cast

from .. import _address, _archive, types
from .._address import RemotePath
from .._time import FOLLOW, TRANSFER, Backoff, Deadline, Duration
from ..errors import ApiError, ConnectionFailed, PathNotFound, ProtocolError
from . import seam
from .connection import AsyncConnection
from .output import OnSuspend, passes
from .watch import AsyncWatch

PIECE = 256 << 10

LocalPath = Union[str, "os.PathLike[str]"]
Data = Union[str, bytes, bytearray, memoryview, BinaryIO, seam.Pieces]
"""What can be written: text, bytes, a file object, or pieces of bytes."""


class AsyncFiles:
    """The files of a sandbox. Paths are absolute."""

    def __init__(self, connection: AsyncConnection, sandbox_id: str) -> None:
        self._connection = connection
        self._id = sandbox_id
        self._base = _address.joined("v1", "sandboxes", sandbox_id, "files")

    def _path(self, path: RemotePath) -> str:
        return f"{self._base}/{_address.remote(path)}"

    async def read(
        self,
        path: RemotePath,
        *,
        offset: int = 0,
        length: Optional[int] = None,
        timeout: Optional[Duration] = TRANSFER,
    ) -> bytes:
        """All of a file, or a part of it."""
        if length == 0:
            return b""
        headers = part(offset, length)
        return await self._connection.send("GET", self._path(path), Deadline(timeout), headers=headers)

    async def read_text(self, path: RemotePath, *, encoding: str = "utf-8", timeout: Optional[Duration] = TRANSFER) -> str:
        """All of a file as text."""
        return (await self.read(path, timeout=timeout)).decode(encoding)

    async def stream(
        self,
        path: RemotePath,
        *,
        offset: int = 0,
        length: Optional[int] = None,
        timeout: Optional[Duration] = TRANSFER,
    ) -> AsyncIterator[bytes]:
        """A file piece by piece. A connection that breaks is made again where it broke, if the file is still the same."""
        deadline, backoff = Deadline(timeout), Backoff()
        dated: Dict[str, str] = {}
        while length != 0:
            try:
                headers = {**part(offset, length), **dated}
                response = await self._connection.open("GET", self._path(path), deadline, headers=headers)
                if dated and response.status_code != 206:
                    await response.aclose()
                    raise ProtocolError(f"{os.fspath(path)} has changed while it was read")
                date = response.headers.get("Last-Modified")
                try:
                    async for piece in self._connection.pieces(response, deadline):
                        backoff.reset()
                        offset += len(piece)
                        length = None if length is None else length - len(piece)
                        # What has no date cannot be known again.
                        dated = {"If-Range": date or "unknown"}
                        yield piece
                    return
                finally:
                    await response.aclose()
            except (ConnectionFailed, ApiError) as error:
                wait = backoff.next() if passes(error) else None
                if wait is None:
                    raise
            await seam.sleep(deadline.remaining(wait) or 0)

    async def write(
        self,
        path: RemotePath,
        data: Data,
        *,
        mode: Union[int, str, None] = None,
        user: Optional[str] = None,
        timeout: Optional[Duration] = TRANSFER,
    ) -> types.WrittenFile:
        """Writes a file, whole or not at all; directories above it are made.

        `mode` is octal text, or a number as `0o755`. The file belongs to the template's user, or to `user`.
        """
        text = f"{mode:04o}" if isinstance(mode, int) else mode
        query = _address.given(mode=text, user=user)
        if isinstance(data, str):
            data = data.encode()
        if isinstance(data, (bytes, bytearray, memoryview)):
            whole = bytes(data)
            return await self._put(path, query, whole, None, True, timeout)
        if hasattr(data, "read"):
            return await self._put_file(path, query, cast("BinaryIO", data), timeout)
        pieces = data
        # What comes piece by piece comes once: it cannot be sent again.
        return await self._put(path, query, lambda: seam.each_piece(pieces), None, False, timeout)

    async def upload(
        self,
        local: Union[LocalPath, BinaryIO],
        path: RemotePath,
        *,
        mode: Union[int, str, None] = None,
        user: Optional[str] = None,
        timeout: Optional[Duration] = TRANSFER,
    ) -> types.WrittenFile:
        """Writes a local file, or what a file object has from where it stands."""
        if not isinstance(local, (str, os.PathLike)):
            return await self.write(path, local, mode=mode, user=user, timeout=timeout)
        file = await seam.blocking(_archive.binary, os.fspath(local))
        try:
            return await self.write(path, file, mode=mode, user=user, timeout=timeout)
        finally:
            file.close()

    async def download(
        self, path: RemotePath, local: Union[LocalPath, BinaryIO], *, timeout: Optional[Duration] = TRANSFER
    ) -> int:
        """Reads a file into a local one or a file object, and tells how many bytes it has.

        A local file appears when it is whole.
        """
        if not isinstance(local, (str, os.PathLike)):
            return await self._read_into(path, local, timeout)
        target: str = os.path.abspath(os.fspath(local))
        handle, beside = await seam.blocking(tempfile.mkstemp, ".part", ".", os.path.dirname(target))
        try:
            with os.fdopen(handle, "wb") as file:
                size = await self._read_into(path, file, timeout)
            # As any new file; what mkstemp makes is for its owner only.
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(beside, 0o666 & ~mask)
            await seam.blocking(os.replace, beside, target)
        except BaseException:
            os.unlink(beside)
            raise
        return size

    async def list(self, path: RemotePath) -> List[types.FileEntry]:
        """What is in a directory, by name."""
        query = [("list", "true")]
        return (await self._connection.call("GET", self._path(path), types.FileList.from_wire, query=query)).entries

    async def stat(self, path: RemotePath) -> types.FileEntry:
        """One file or directory."""
        query = [("stat", "true")]
        return await self._connection.call("GET", self._path(path), types.FileEntry.from_wire, query=query)

    async def exists(self, path: RemotePath) -> bool:
        """Whether something is there."""
        try:
            await self.stat(path)
        except PathNotFound:
            return False
        return True

    async def mkdir(self, path: RemotePath, *, user: Optional[str] = None) -> types.FileEntry:
        """Makes a directory and those above it; one that is there is left as it is."""
        query = [("mkdir", "true"), *_address.given(user=user)]
        return await self._connection.call("POST", self._path(path), types.FileEntry.from_wire, query=query)

    async def move(self, path: RemotePath, to: RemotePath) -> types.FileEntry:
        """Gives a file or directory another place."""
        query = [("move_to", os.fspath(to))]
        return await self._connection.call("POST", self._path(path), types.FileEntry.from_wire, query=query)

    async def remove(self, path: RemotePath) -> None:
        """Removes a file, or a directory with all that is in it; what is not there is no error."""
        await self._connection.do("DELETE", self._path(path))

    def watch(
        self,
        path: RemotePath,
        *,
        recursive: bool = False,
        timeout: Optional[Duration] = FOLLOW,
        on_suspend: OnSuspend = "wait",
    ) -> AsyncWatch:
        """Changes below a directory as they happen: `async with files.watch(path) as changes`, then iterate."""
        return AsyncWatch(self._connection, self._id, self._path(path), recursive, Deadline(timeout), on_suspend)

    async def _put_file(
        self, path: RemotePath, query: _address.Query, file: BinaryIO, timeout: Optional[Duration]
    ) -> types.WrittenFile:
        """A file object: what can be wound back has a length, and can be sent again."""
        start, length = None, None
        if file.seekable():
            start = file.tell()
            length = file.seek(0, os.SEEK_END) - start
            file.seek(start)

        def content() -> AsyncIterator[bytes]:
            if start is not None:
                file.seek(start)
            return seam.file_pieces(file, PIECE)

        return await self._put(path, query, content, length, start is not None, timeout)

    async def _put(
        self,
        path: RemotePath,
        query: _address.Query,
        content: Union[bytes, Callable[[], AsyncIterator[bytes]]],
        length: Optional[int],
        repeatable: bool,
        timeout: Optional[Duration],
    ) -> types.WrittenFile:
        headers: Dict[str, str] = {"Content-Type": "application/octet-stream"}
        if length is not None:
            headers["Content-Length"] = str(length)
        answer = await self._connection.send(
            "PUT",
            self._path(path),
            Deadline(timeout),
            query=query,
            content=content,
            headers=headers,
            repeatable=repeatable,
        )
        return self._connection.understood(types.WrittenFile.from_wire, answer)

    async def _read_into(self, path: RemotePath, file: Any, timeout: Optional[Duration]) -> int:
        size = 0
        async for piece in self.stream(path, timeout=timeout):
            await seam.blocking(file.write, piece)
            size += len(piece)
        return size


def part(offset: int, length: Optional[int]) -> Mapping[str, str]:
    """The header that asks for a part of a file."""
    if offset < 0 or (length is not None and length < 0):
        raise ValueError("a part of a file has an offset and a length that are not negative")
    if offset == 0 and length is None:
        return {}
    return {"Range": f"bytes={offset}-{'' if length is None else offset + length - 1}"}
