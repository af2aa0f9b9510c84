"""What happens to files, as it happens."""

from __future__ import annotations

from types import TracebackType
from typing import Optional, Type

from .. import types
from .._frames import FileEvent, Lines, parse
from .._time import AWAY, SILENCE, Backoff, Deadline
from ..errors import ApiError, ConnectionFailed, SandboxSuspended, SuspendedDuringExec, WakefulError, error_of_frame
from . import seam
from .answer import AsyncAnswer
from .connection import AsyncConnection
from .output import OnSuspend, passes, until_awake


class AsyncWatch:
    """Changes below a directory. Entered as a block, it tells everything from there on.

    It goes on after a sleep and after a lost connection; what happened in between is not told, so an `overflow` comes first.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        sandbox_id: str,
        path: str,
        recursive: bool,
        deadline: Deadline,
        on_suspend: OnSuspend,
    ) -> None:
        self._connection = connection
        self._id = sandbox_id
        self._path = path
        self._query = [("watch", "true"), ("recursive", "true")] if recursive else [("watch", "true")]
        self._deadline = deadline
        self._on_suspend: OnSuspend = on_suspend
        self._backoff = Backoff(AWAY)
        self._lines: Optional[AsyncAnswer] = None
        self._began = False
        self._missed = False
        self._over = False

    async def __aenter__(self) -> AsyncWatch:
        await self._open()
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncWatch:
        return self

    async def __anext__(self) -> FileEvent:
        while not self._over:
            try:
                await self._open()
                if self._missed:
                    self._missed = False
                    return FileEvent("overflow", "")
                told = await self._next()
            except (ConnectionFailed, ApiError) as error:
                await self._drop()
                if self._over:
                    break
                await self._recover(error)
                continue
            except BaseException:
                await self._drop()
                raise
            if told is not None:
                return told
        await self._drop()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends it, also while another task iterates it."""
        self._over = True
        await self._drop()

    async def _drop(self) -> None:
        lines, self._lines = self._lines, None
        if lines is not None:
            await lines.aclose()

    async def _open(self) -> None:
        if self._lines is None and not self._over:
            response = await self._connection.open("GET", self._path, self._deadline, query=self._query, silence=SILENCE)
            self._lines = AsyncAnswer(response, self._deadline, Lines())
            self._missed = self._began
            self._began = True

    async def _next(self) -> Optional[FileEvent]:
        line = None if self._lines is None else await self._lines.next()
        if line is None:
            if self._over:
                return None
            raise ConnectionFailed("the watch ended")
        self._backoff.reset()
        try:
            event = types.file_event_from_wire(parse(line))
        except KeyError:
            return None  # of a kind that this version does not know
        if isinstance(event, types.FileEventSuspended):
            detail = f"{self._id} was put to sleep while its files were watched"
            raise SuspendedDuringExec(409, {"code": "suspended_during_exec", "detail": detail})
        if isinstance(event, types.FileEventError):
            raise error_of_frame(event.code, event.detail)
        if isinstance(event, types.FileEventOverflow):
            return FileEvent("overflow", "")
        if isinstance(event, types.FileEventKeepalive):
            return None
        return FileEvent(event.type, event.path)

    async def _recover(self, error: WakefulError) -> None:
        """Gets ready to watch again, or raises what cannot be mended."""
        if isinstance(error, (SuspendedDuringExec, SandboxSuspended)) and self._began:
            if self._on_suspend == "raise":
                raise error
            await until_awake(self._connection, self._id, self._deadline)
            return
        wait = self._backoff.next() if passes(error) else None
        if wait is None:
            raise error
        await seam.sleep(self._deadline.remaining(wait) or 0)
