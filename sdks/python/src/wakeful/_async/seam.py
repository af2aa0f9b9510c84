"""What asyncio does otherwise than threads; the blocking side has a file of its own with the same names."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, AsyncIterable, AsyncIterator, BinaryIO, Callable, Iterable, Optional, TypeVar, Union

import httpx

T = TypeVar("T")

Lock = asyncio.Lock
Pieces = Union[Iterable[bytes], AsyncIterable[bytes]]
"""Bytes that come piece by piece."""


async def sleep(seconds: float) -> None:
    """Waits."""
    await asyncio.sleep(seconds)


async def blocking(function: Callable[..., T], *arguments: Any) -> T:
    """Calls what would hold up everybody else, such as the reading of a local file."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


async def file_pieces(file: BinaryIO, size: int) -> AsyncIterator[bytes]:
    """A local file from where it stands to its end."""
    while True:
        piece = await blocking(file.read, size)
        if not piece:
            return
        yield piece


async def each_piece(pieces: Pieces) -> AsyncIterator[bytes]:
    """The pieces, whichever way they come."""
    if isinstance(pieces, AsyncIterable):
        async for piece in pieces:
            yield piece
    else:
        for piece in pieces:
            yield piece


def interrupt(response: httpx.Response) -> None:
    """Ends the connection under an answer, also while somebody reads it."""
    stream = response.extensions.get("network_stream")
    connection = None if stream is None else stream.get_extra_info("socket")
    if connection is not None:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


class Alarm:
    """Interrupts an answer at its time, unless it is cancelled."""

    def __init__(self, response: httpx.Response, seconds: Optional[float]) -> None:
        self._timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, interrupt, response)

    def cancel(self) -> None:
        """Not any more."""
        if self._timer is not None:
            self._timer.cancel()
