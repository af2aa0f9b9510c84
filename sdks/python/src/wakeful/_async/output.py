"""The output of a process, whatever happens to the connection or the sandbox meanwhile.

frames ──► whoever iterates         every frame has a number; after a loss the next one is asked for,
   │                                and what was had is dropped: no byte is lost or doubled
   ├─ lost        again from there, at once, then after waits that grow
   ├─ suspended   waits until the sandbox is awake again, which it looks up without waking it; or raises
   └─ exit        the end
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, Mapping, Optional, Type

from .. import _address, types
from .._frames import Exit, Frame, Gap, Lines, Stderr, Stdout, exit_of, output_bytes, process_frame
from .._time import AWAY, SILENCE, Backoff, Deadline
from ..errors import ApiError, ConnectionFailed, SandboxSuspended, SuspendedDuringExec, WakefulError, error_of_frame
from . import seam
from .answer import AsyncAnswer
from .connection import AsyncConnection

OnSuspend = Literal["wait", "raise"]
PASSING = ("shutting_down", "busy")


def passes(error: WakefulError) -> bool:
    """Whether the same call may well succeed a little later."""
    if isinstance(error, ApiError):
        return error.code in PASSING or error.status in (502, 503, 504)
    return isinstance(error, ConnectionFailed)


async def until_awake(connection: AsyncConnection, sandbox_id: str, deadline: Deadline) -> None:
    """Until somebody has woken a sandbox; looking does not wake it.

    Raises SandboxDestroyed or SandboxFailed if that will not happen.
    """
    pause = Backoff(first=0.05, longest=1.0, limit=float("inf"))
    patience = Backoff()
    while True:
        try:
            path = _address.joined("v1", "sandboxes", sandbox_id)
            answer = await connection.send("GET", path, deadline)
            info = connection.understood(types.Sandbox.from_wire, answer)
            if info.status == "running" and info.transition is None:
                return
            if info.status in ("destroyed", "failed"):
                raise error_of_frame(f"sandbox_{info.status}", f"{info.id} is {info.status}")
            patience.reset()
        except ConnectionFailed:
            if patience.next() is None:
                raise
        wait = deadline.remaining(pause.next())
        await seam.sleep(wait or 0)


class AsyncOutput:
    """The frames of a process: `Stdout`, `Stderr`, `Gap`, and `Exit` as the last.

    Iterate it; `exit_code` is there at the end. Leaving it does not end the process.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        sandbox_id: str,
        deadline: Deadline,
        *,
        command: Optional[Mapping[str, Any]] = None,
        pid: Optional[int] = None,
        from_seq: int = 0,
        follow: bool = True,
        on_suspend: OnSuspend = "wait",
    ) -> None:
        self.pid = pid
        """The process; None until it has started."""
        self.seq = from_seq
        """The first frame that was not told yet: where to go on."""
        self.exit: Optional[Exit] = None
        """How it ended, once it has."""
        self._connection = connection
        self._id = sandbox_id
        self._deadline = deadline
        self._command = command
        self._follow = follow
        self._on_suspend = on_suspend
        self._backoff = Backoff(AWAY)
        self._lines: Optional[AsyncAnswer] = None
        self._over = False

    @property
    def exit_code(self) -> Optional[int]:
        """The exit code, once it has ended."""
        return None if self.exit is None else self.exit.exit_code

    def __aiter__(self) -> AsyncOutput:
        return self

    async def __anext__(self) -> Frame:
        while not self._over:
            try:
                told = await self._next()
            except (ConnectionFailed, ApiError) as error:
                await self._drop()
                await self._recover(error)
                continue
            except BaseException:
                await self._drop()
                raise
            if told is not None:
                return told
        await self._drop()
        raise StopAsyncIteration

    async def wait(self) -> int:
        """Reads to the end and gives the exit code."""
        async for _ in self:
            pass
        if self.exit is None:
            raise ConnectionFailed("the output was given up before the end of the process")
        return self.exit.exit_code

    async def aclose(self) -> None:
        """Gives it up, also while another task iterates it. The process goes on."""
        self._over = True
        await self._drop()

    async def __aenter__(self) -> AsyncOutput:
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.aclose()

    async def _drop(self) -> None:
        lines, self._lines = self._lines, None
        if lines is not None:
            await lines.aclose()

    async def _open(self) -> AsyncAnswer:
        base = _address.joined("v1", "sandboxes", self._id)
        if self.pid is None:
            response = await self._connection.open(
                "POST",
                f"{base}/execute",
                self._deadline,
                query=[("stream", "true")],
                body=self._command,
                silence=None,
            )
        else:
            response = await self._connection.open(
                "GET",
                f"{base}/processes/{self.pid}/output",
                self._deadline,
                query=_address.given(**{"from": self.seq, "follow": self._follow}),
                silence=SILENCE,
            )
        return AsyncAnswer(response, self._deadline, Lines())

    async def _next(self) -> Optional[Frame]:
        """The next frame for the caller; None if there is none yet, or none any more."""
        if self._lines is None:
            self._lines = await self._open()
        line = await self._lines.next()
        if line is None:
            if self._over or not self._follow:
                self._over = True
                return None
            raise ConnectionFailed("the stream ended before the process")
        frame = process_frame(line) if line else None
        self._backoff.reset()
        return None if frame is None else self._told(frame)

    def _told(self, frame: types.Frame) -> Optional[Frame]:
        """What a frame is to the caller; a replay may begin with what was had."""
        if isinstance(frame, types.FrameStart):
            self.pid = frame.pid
        elif isinstance(frame, types.FrameSuspended):
            problem = {"code": "suspended_during_exec", "pid": frame.pid, "seq": frame.seq}
            detail = f"{self._id} was put to sleep while process {frame.pid} runs"
            raise SuspendedDuringExec(409, {**problem, "detail": detail, "hint": "it goes on after a wake"})
        elif isinstance(frame, types.FrameError):
            raise error_of_frame(frame.code, frame.detail)
        elif isinstance(frame, types.FrameExit):
            self.seq = max(self.seq, frame.seq + 1)
            self.exit = exit_of(frame)
            self._over = True
            return self.exit
        elif not isinstance(frame, types.FrameKeepalive) and frame.seq >= self.seq:
            self.seq = frame.seq + 1
            if isinstance(frame, types.FrameStdout):
                return Stdout(output_bytes(frame), frame.seq)
            if isinstance(frame, types.FrameStderr):
                return Stderr(output_bytes(frame), frame.seq)
            return Gap(frame.dropped_bytes, frame.seq)
        return None

    async def _recover(self, error: WakefulError) -> None:
        """Gets ready to attach again, or raises what cannot be mended."""
        if isinstance(error, SuspendedDuringExec):
            self.pid = error.pid or self.pid
            if self._on_suspend == "raise" or self.pid is None:
                raise error
            await until_awake(self._connection, self._id, self._deadline)
            return
        if isinstance(error, SandboxSuspended) and self.pid is not None and self._on_suspend == "wait":
            await until_awake(self._connection, self._id, self._deadline)
            return
        never_began = isinstance(error, ConnectionFailed) and error.never_sent
        if not passes(error) or (self.pid is None and not never_began):
            raise error
        wait = self._backoff.next()
        if wait is None:
            raise error
        await seam.sleep(self._deadline.remaining(wait) or 0)
