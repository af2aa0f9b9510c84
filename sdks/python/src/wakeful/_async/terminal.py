"""A terminal in a sandbox: bytes both ways over a WebSocket.

Every binary message of the server is one number of the process's journal, so that whoever counts them knows where to come
back to: after a broken connection, a sleep, or days later with `pid` and `from_seq`.
"""

from __future__ import annotations

import json
from types import TracebackType
from typing import Optional, Type, Union

from .. import _address, types
from .._frames import process_frame
from .._time import AWAY, SILENCE, Backoff, Deadline, Duration
from ..errors import ApiError, ConnectionFailed, SuspendedDuringExec, WakefulError, error_of_frame
from . import seam
from .connection import AsyncConnection
from .output import OnSuspend, passes, until_awake
from .websocket import Socket


class AsyncTerminal:
    """A terminal. Iterate it for what it shows, `write` what is typed; leaving it leaves the process running."""

    def __init__(
        self,
        connection: AsyncConnection,
        sandbox_id: str,
        deadline: Deadline,
        *,
        command: Optional[str],
        cols: Optional[int],
        rows: Optional[int],
        pid: Optional[int],
        from_seq: int,
        on_suspend: OnSuspend,
    ) -> None:
        self.pid = pid
        """The process; None until the terminal is open."""
        self.seq = from_seq
        """Where to come back to."""
        self.exit_code: Optional[int] = None
        """How it ended, once it has."""
        self.dropped_bytes = 0
        """How much of what it showed was not kept until somebody looked."""
        self._connection = connection
        self._id = sandbox_id
        self._deadline = deadline
        self._command = command
        self._size = (cols, rows)
        self._on_suspend: OnSuspend = on_suspend
        self._backoff = Backoff(AWAY)
        self._socket: Optional[Socket] = None
        self._opening = seam.Lock()
        self._over = False

    async def open(self) -> AsyncTerminal:
        """Opens it now; the first read or write does the same."""
        await self._live(self._deadline)
        return self

    async def __aenter__(self) -> AsyncTerminal:
        return await self.open()

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.detach()

    def __aiter__(self) -> AsyncTerminal:
        return self

    async def __anext__(self) -> bytes:
        data = await self.read()
        if not data:
            raise StopAsyncIteration
        return data

    async def read(self, timeout: Optional[Duration] = None) -> bytes:
        """What it shows next; empty after its end.

        Raises DeadlineExceeded if there is nothing within the timeout; the terminal can be read on.
        """
        deadline = self._deadline if timeout is None else Deadline(timeout)
        while not self._over:
            socket = None
            try:
                socket = await self._live(deadline)
                message = await socket.receive(deadline.remaining(SILENCE))
                if isinstance(message, bytes):
                    self.seq += 1
                    self._backoff.reset()
                    return message
                if message is None:
                    raise ConnectionFailed("the connection of the terminal broke")
                self._told(message)
            except TimeoutError:
                if deadline.expired:
                    raise deadline.exceeded() from None
            except (ConnectionFailed, ApiError) as error:
                await self._drop(socket)
                if not self._over:
                    await self._recover(error, deadline)
        await self._drop(self._socket)
        return b""

    async def write(self, data: Union[str, bytes]) -> None:
        """Types something; a sandbox that sleeps wakes by it.

        Raises ConnectionFailed if the connection broke: whether it arrived is not known.
        """
        socket = await self._live(self._deadline)
        try:
            await socket.send(data.encode() if isinstance(data, str) else data)
        except ConnectionFailed:
            await self._drop(socket)
            raise

    async def resize(self, cols: int, rows: int) -> None:
        """Sets its size."""
        self._size = (cols, rows)
        await self._say({"type": "resize", "cols": cols, "rows": rows})

    async def signal(self, signal: Union[str, int]) -> None:
        """Sends a signal to its process."""
        await self._say({"type": "signal", "signal": str(signal)})

    async def wait(self, timeout: Optional[Duration] = None) -> int:
        """Reads to the end, and gives the exit code."""
        deadline = self._deadline if timeout is None else Deadline(timeout)
        while await self.read(deadline.remaining()):
            pass
        if self.exit_code is None:
            raise ConnectionFailed("the terminal was left before the end of its process")
        return self.exit_code

    async def detach(self) -> None:
        """Leaves it; the process goes on, and `sandbox.pty(pid=…, from_seq=…)` comes back to it."""
        self._over = True
        await self._drop(self._socket)

    async def _say(self, message: object) -> None:
        socket = await self._live(self._deadline)
        try:
            await socket.send(json.dumps(message))
        except ConnectionFailed:
            await self._drop(socket)
            raise

    async def _drop(self, socket: Optional[Socket]) -> None:
        if self._socket is socket:
            self._socket = None
        if socket is not None:
            await socket.close()

    async def _live(self, deadline: Deadline) -> Socket:
        """The connection, opened if there is none."""
        async with self._opening:
            if self._socket is not None:
                return self._socket
            if self._over:
                raise ConnectionFailed("the terminal is closed", never_sent=True)
            cols, rows = self._size
            query = _address.given(cols=cols, rows=rows, command=self._command)
            if self.pid is not None:
                query = [*_address.given(cols=cols, rows=rows, pid=self.pid), ("from", str(self.seq))]
            path = _address.joined("v1", "sandboxes", self._id, "pty")
            socket = await self._connection.websocket(path, query, deadline)
            try:
                first = await socket.receive(deadline.remaining(SILENCE))
            except TimeoutError:
                first = None
            if not isinstance(first, str):
                await socket.close()
                raise ConnectionFailed("the terminal did not begin")
            self._socket = socket
            self._told(first)
            return socket

    def _told(self, text: str) -> None:
        """What the server says about the terminal."""
        frame = process_frame(text)
        if isinstance(frame, types.FrameStart):
            self.pid = frame.pid
            self.seq = frame.seq + 1
        elif isinstance(frame, types.FrameGap):
            self.dropped_bytes += frame.dropped_bytes
            self.seq = frame.seq + 1
        elif isinstance(frame, types.FrameExit):
            self.exit_code = frame.exit_code
            self.seq = frame.seq + 1
            self._over = True
        elif isinstance(frame, types.FrameSuspended):
            problem = {"code": "suspended_during_exec", "pid": frame.pid, "seq": frame.seq}
            raise SuspendedDuringExec(409, {**problem, "detail": f"{self._id} was put to sleep"})
        elif isinstance(frame, types.FrameError):
            raise error_of_frame(frame.code, frame.detail)

    async def _recover(self, error: WakefulError, deadline: Deadline) -> None:
        """Gets ready to come back, or raises what cannot be mended."""
        if isinstance(error, SuspendedDuringExec):
            if self._on_suspend == "raise":
                raise error
            await until_awake(self._connection, self._id, deadline)
            return
        never_began = isinstance(error, ConnectionFailed) and error.never_sent
        if not passes(error) or (self.pid is None and not never_began):
            raise error
        wait = self._backoff.next()
        if wait is None:
            raise error
        await seam.sleep(deadline.remaining(wait) or 0)
