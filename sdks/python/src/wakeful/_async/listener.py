"""A local port that leads into a sandbox; the blocking side has a file of its own with the same names."""

from __future__ import annotations

import asyncio
import socket
import struct
from types import TracebackType
from typing import TYPE_CHECKING, Awaitable, Callable, Optional, Set, Type

from ..errors import ApiError, WakefulError

if TYPE_CHECKING:
    from .ports import AsyncTunnel

PIECE = 64 << 10


class AsyncForward:
    """A listener here; each of its connections has a tunnel of its own."""

    def __init__(self, connect: Callable[[], Awaitable[AsyncTunnel]], host: str, port: int) -> None:
        self._connect = connect
        self._asked = (host, port)
        self._server: Optional[asyncio.Server] = None
        self._tasks: Set[asyncio.Task[None]] = set()
        self.host = host
        """The address here."""
        self.port = port
        """The port here; one that was free, if 0 was asked for."""
        self.last_error: Optional[WakefulError] = None
        """Why the last connection could not be made or broke."""

    async def open(self) -> AsyncForward:
        """Begins to listen; entering it as a block does the same."""
        if self._server is None:
            self._server = await asyncio.start_server(self._taken, *self._asked)
            self.host, self.port = self._server.sockets[0].getsockname()[:2]
        return self

    async def aclose(self) -> None:
        """Ends it, and all its connections."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*tuple(self._tasks), return_exceptions=True)
            await server.wait_closed()

    async def __aenter__(self) -> AsyncForward:
        return await self.open()

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.aclose()

    def _taken(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            tunnel = await self._connect()
            try:
                up = asyncio.ensure_future(_up(reader, tunnel))
                try:
                    await _down(tunnel, writer)
                    await up
                finally:
                    up.cancel()
                    await asyncio.gather(up, return_exceptions=True)
            finally:
                await tunnel.aclose()
        except WakefulError as error:
            self.last_error = error
            _reset(writer, isinstance(error, ApiError))
        except OSError:
            pass
        finally:
            writer.close()


async def _up(reader: asyncio.StreamReader, tunnel: AsyncTunnel) -> None:
    while True:
        piece = await reader.read(PIECE)
        if not piece:
            await tunnel.send_eof()
            return
        await tunnel.send(piece)


async def _down(tunnel: AsyncTunnel, writer: asyncio.StreamWriter) -> None:
    while True:
        piece = await tunnel.receive()
        if not piece:
            if writer.can_write_eof():
                writer.write_eof()
            return
        writer.write(piece)
        await writer.drain()


def _reset(writer: asyncio.StreamWriter, refused: bool) -> None:
    """As a port where nobody listens: a reset, and not an empty answer."""
    connection = writer.get_extra_info("socket")
    if refused and connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
