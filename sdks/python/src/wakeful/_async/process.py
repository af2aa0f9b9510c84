"""Processes that nobody waits for: started, listened to, fed, signalled."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

from .. import _address, types
from .._time import FOLLOW, TRANSFER, Deadline, Duration, wire
from .connection import AsyncConnection
from .output import AsyncOutput, OnSuspend

Command = Union[str, Sequence[str]]


def command_body(
    command: Command,
    timeout: Optional[Duration],
    workdir: Optional[str],
    env: Optional[Mapping[str, str]],
    user: Optional[str],
    stdin: Optional[str],
) -> Dict[str, Any]:
    """A command as the API takes it; text is for the shell, a list is a program and its arguments."""
    body: Dict[str, Any] = {"command": command if isinstance(command, str) else list(command)}
    given = {"workdir": workdir, "user": user, "stdin": stdin, "env": None if env is None else dict(env)}
    body.update({name: value for name, value in given.items() if value is not None})
    if timeout is not None:
        body["timeout"] = wire(timeout)
    return body


class AsyncProcess:
    """A process in a sandbox that runs by itself."""

    def __init__(self, connection: AsyncConnection, sandbox_id: str, info: types.Process) -> None:
        self.info = info
        """What was last known of it."""
        self._connection = connection
        self._id = sandbox_id
        self._path = _address.joined("v1", "sandboxes", sandbox_id, "processes", str(info.pid))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.info.pid} in {self._id}>"

    @property
    def pid(self) -> int:
        """Its id in the sandbox."""
        return self.info.pid

    def output(
        self,
        from_seq: int = 0,
        follow: bool = True,
        *,
        timeout: Optional[Duration] = FOLLOW,
        on_suspend: OnSuspend = "wait",
    ) -> AsyncOutput:
        """Its output from a place on: 0 is the first byte.

        With `follow` to its end, else as far as it has come. What is no longer kept is told as a `Gap`. A stream goes on
        after a sleep and after a restart of the server; with `on_suspend="raise"` a suspend raises SuspendedDuringExec.
        """
        return AsyncOutput(
            self._connection,
            self._id,
            Deadline(timeout),
            pid=self.pid,
            from_seq=from_seq,
            follow=follow,
            on_suspend=on_suspend,
        )

    async def write_stdin(
        self, data: Union[str, bytes], *, eof: bool = False, timeout: Optional[Duration] = TRANSFER
    ) -> None:
        """Gives it input; with `eof` that was all."""
        content = data.encode() if isinstance(data, str) else data
        query = [("eof", "true")] if eof else []
        await self._connection.send("POST", f"{self._path}/stdin", Deadline(timeout), query=query, content=content)

    async def close_stdin(self) -> None:
        """Ends its input."""
        await self._connection.do("POST", f"{self._path}/stdin", query=[("eof", "true")])

    async def signal(self, signal: Union[str, int]) -> None:
        """Sends it a signal, by name or number."""
        await self._connection.do("POST", f"{self._path}/signal", body={"signal": str(signal)})

    async def kill(self) -> None:
        """Ends it at once."""
        await self.signal("KILL")

    async def resize(self, cols: int, rows: int) -> None:
        """Sets the size of its terminal."""
        await self._connection.do("POST", f"{self._path}/resize", body={"cols": cols, "rows": rows})

    async def wait(self, timeout: Optional[Duration] = FOLLOW) -> int:
        """Waits for its end, and gives its exit code."""
        async with self.output(self.info.last_seq, timeout=timeout) as output:
            code = await output.wait()
        await self.refresh()
        return code

    async def refresh(self) -> types.Process:
        """Looks at it again."""
        self.info = await self._connection.call("GET", self._path, types.Process.from_wire)
        return self.info


class AsyncProcesses:
    """The processes of a sandbox."""

    def __init__(self, connection: AsyncConnection, sandbox_id: str) -> None:
        self._connection = connection
        self._id = sandbox_id
        self._path = _address.joined("v1", "sandboxes", sandbox_id, "processes")

    async def start(
        self,
        command: Command,
        *,
        timeout: Optional[Duration] = None,
        workdir: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Optional[str] = None,
        pty: Optional[types.PtySize] = None,
        keep_awake: bool = False,
        deadline: Optional[Duration] = None,
    ) -> AsyncProcess:
        """Starts a process that runs by itself; without a timeout for as long as it likes.

        With `keep_awake` the sandbox does not sleep before it ends. `deadline` bounds this call, not the process.
        """
        body = command_body(command, timeout, workdir, env, user, stdin)
        if pty is not None:
            body["pty"] = dict(pty)
        if keep_awake:
            body["keep_awake"] = True
        info = await self._connection.call("POST", self._path, types.Process.from_wire, deadline, body=body)
        return AsyncProcess(self._connection, self._id, info)

    async def list(self) -> List[AsyncProcess]:
        """Those that run, or ended within the hour."""
        found = await self._connection.call("GET", self._path, types.ProcessList.from_wire)
        return [AsyncProcess(self._connection, self._id, info) for info in found.processes]

    async def get(self, pid: int) -> AsyncProcess:
        """One of them."""
        info = await self._connection.call("GET", f"{self._path}/{pid}", types.Process.from_wire)
        return AsyncProcess(self._connection, self._id, info)
