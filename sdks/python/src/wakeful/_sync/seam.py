"""What threads do otherwise than asyncio; the other side has a file of its own with the same names."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any, BinaryIO, Callable, Iterable, Iterator, Optional, TypeVar

import httpx

T = TypeVar("T")

Lock = threading.Lock
Pieces = Iterable[bytes]
"""Bytes that come piece by piece."""


def sleep(seconds: float) -> None:
    """Waits."""
    time.sleep(seconds)


def blocking(function: Callable[..., T], *arguments: Any) -> T:
    """Calls what may take its time."""
    return function(*arguments)


def file_pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    """A local file from where it stands to its end."""
    while True:
        piece = file.read(size)
        if not piece:
            return
        yield piece


def each_piece(pieces: Pieces) -> Iterator[bytes]:
    """The pieces."""
    yield from pieces


def interrupt(response: httpx.Response) -> None:
    """Ends the connection under an answer, also while another thread reads it."""
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
        self._timer = None if seconds is None else threading.Timer(seconds, interrupt, [response])
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()

    def cancel(self) -> None:
        """Not any more."""
        if self._timer is not None:
            self._timer.cancel()
