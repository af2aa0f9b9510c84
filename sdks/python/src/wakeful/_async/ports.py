"""The ports of a sandbox: previews, sessions for browsers, and connections from here."""

from __future__ import annotations

import json
from types import TracebackType
from typing import List, Optional, Type

from .. import _address, types
from .._frames import parse
from .._time import Deadline, Duration
from ..errors import ConnectionFailed, SandboxSuspended, error_of_frame
from .connection import AsyncConnection
from .listener import AsyncForward
from .websocket import Socket


class AsyncTunnel:
    """A connection to a port in a sandbox; either side can end its own direction first."""

    def __init__(self, connection: AsyncConnection, sandbox_id: str, port: int, deadline: Deadline) -> None:
        self._connection = connection
        self._id = sandbox_id
        self._port = port
        self._deadline = deadline
        self._socket: Optional[Socket] = None
        self._ended = False
        self._closed = False

    async def open(self) -> AsyncTunnel:
        """Connects now; entering it as a block does the same.

        Raises PortNotOpen if nothing listens there.
        """
        if self._socket is None:
            path = _address.joined("v1", "sandboxes", self._id, "ports", str(self._port), "tcp")
            self._socket = await self._connection.websocket(path, (), self._deadline)
        return self

    async def __aenter__(self) -> AsyncTunnel:
        return await self.open()

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.aclose()

    async def send(self, data: bytes) -> None:
        """Sends bytes."""
        await (await self._live()).send(data)

    async def send_eof(self) -> None:
        """Says that no more bytes will come from here; those from there still do."""
        await (await self._live()).send(json.dumps({"type": "eof"}))

    async def receive(self, timeout: Optional[Duration] = None) -> bytes:
        """The next bytes; empty after the end.

        Raises DeadlineExceeded if there are none within the timeout, SandboxSuspended if the sandbox was put to sleep.
        """
        deadline = Deadline(timeout)
        while not self._ended:
            try:
                message = await (await self._live()).receive(deadline.remaining())
            except TimeoutError:
                raise deadline.exceeded() from None
            if isinstance(message, bytes):
                return message
            if message is None:
                raise ConnectionFailed("the tunnel broke")
            said = parse(message)
            if said.get("type") == "eof":
                self._ended = True
            elif said.get("type") == "suspended":
                detail = f"{self._id} was put to sleep, and the connection with it"
                raise SandboxSuspended(409, {"code": "sandbox_suspended", "detail": detail})
            elif said.get("type") == "error":
                raise error_of_frame(str(said.get("code")), str(said.get("detail")))
        return b""

    async def aclose(self) -> None:
        """Ends it in both directions."""
        self._closed = True
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def _live(self) -> Socket:
        if self._socket is None and not self._closed:
            await self.open()
        if self._socket is None:
            raise ConnectionFailed("the tunnel is closed")
        return self._socket


class AsyncPorts:
    """The ports of a sandbox."""

    def __init__(self, connection: AsyncConnection, sandbox_id: str) -> None:
        self._connection = connection
        self._id = sandbox_id
        self._path = _address.joined("v1", "sandboxes", sandbox_id, "ports")

    async def list(self) -> List[types.Port]:
        """Those that something was said about; all others are private."""
        return (await self._connection.call("GET", self._path, types.PortList.from_wire)).ports

    async def get(self, port: int) -> types.Port:
        """One of them: whether it is public, and the address of its preview."""
        return await self._connection.call("GET", f"{self._path}/{port}", types.Port.from_wire)

    async def open(self, port: int, *, public: bool = True) -> types.Port:
        """Lets everybody see its preview; with `public=False` only those who may use the sandbox."""
        body = {"public": public}
        return await self._connection.call("PUT", f"{self._path}/{port}", types.Port.from_wire, body=body)

    async def close(self, port: int) -> None:
        """Takes back what was said about it: it is private again."""
        await self._connection.do("DELETE", f"{self._path}/{port}")

    async def session(self, port: int) -> types.PortSession:
        """An address that lets a browser in to a private preview, once."""
        return await self._connection.call("POST", f"{self._path}/{port}/session", types.PortSession.from_wire)

    def connect(self, port: int, *, timeout: Optional[Duration] = None) -> AsyncTunnel:
        """A connection to a port inside: `async with ports.connect(5432) as tunnel`. `timeout` is for its opening."""
        deadline = Deadline(self._connection.timeout if timeout is None else timeout)
        return AsyncTunnel(self._connection, self._id, port, deadline)

    def forward(self, port: int, local_port: int = 0, *, host: str = "127.0.0.1") -> AsyncForward:
        """A local port that leads to one inside: `async with ports.forward(8000) as local`, then `local.port`.

        It goes on while the sandbox sleeps: connections end then, and the next one wakes it.
        """
        return AsyncForward(lambda: self.connect(port).open(), host, local_port)
