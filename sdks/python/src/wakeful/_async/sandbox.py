"""A sandbox: commands, files, terminals, ports, sleep, copies."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Dict, List, Mapping, Optional, Tuple, Type

from .. import _address, types
from .._frames import Gap, Stderr, Stdout
from .._options import CreateOptions
from .._result import Collector, ExecResult, collected
from .._time import EXEC, FOLLOW, MARGIN, Deadline, Duration, seconds, wire
from ..errors import CommandFailed, ConnectionFailed, SuspendedDuringExec, error_of_frame
from .connection import AsyncConnection
from .events import followed_events, past_events
from .files import AsyncFiles
from .output import AsyncOutput, OnSuspend, until_awake
from .ports import AsyncPorts
from .process import AsyncProcesses, Command, command_body
from .terminal import AsyncTerminal

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .client import AsyncClient


class AsyncSandbox:
    """An isolated Linux machine that sleeps when idle and wakes where it left off.

    As a block (`async with`) it is destroyed at its end if it is ephemeral; a persistent one is left alone.
    """

    def __init__(self, client: AsyncClient, info: types.Sandbox, *, owns_client: bool = False) -> None:
        self.info = info
        """What was last known of it; `refresh` looks again."""
        self._client = client
        self._owns_client = owns_client
        self._connection: AsyncConnection = client.connection
        self._path = _address.joined("v1", "sandboxes", info.id)
        self.files = AsyncFiles(self._connection, info.id)
        """Its files."""
        self.processes = AsyncProcesses(self._connection, info.id)
        """Its processes."""
        self.ports = AsyncPorts(self._connection, info.id)
        """Its ports."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.info.id} {self.info.status}>"

    # Shortcuts, on a client of their own unless one is given

    @staticmethod
    async def create(
        template: str, *, client: Optional[AsyncClient] = None, **options: Unpack[CreateOptions]
    ) -> AsyncSandbox:
        """Makes a sandbox, by `WAKEFUL_URL` and `WAKEFUL_API_KEY` unless a client is given."""
        used, owned = _client_or_own(client)
        try:
            sandbox = await used.sandboxes.create(template, **options)
        except BaseException:
            if owned:
                await used.aclose()
            raise
        sandbox._owns_client = owned
        return sandbox

    @staticmethod
    async def get(sandbox_id: str, *, client: Optional[AsyncClient] = None) -> AsyncSandbox:
        """One that exists."""
        used, owned = _client_or_own(client)
        try:
            sandbox = await used.sandboxes.get(sandbox_id)
        except BaseException:
            if owned:
                await used.aclose()
            raise
        sandbox._owns_client = owned
        return sandbox

    @staticmethod
    async def list(
        *,
        status: Optional[types.Status] = None,
        mode: Optional[types.Mode] = None,
        template: Optional[str] = None,
        metadata: Optional[Mapping[str, str]] = None,
        client: Optional[AsyncClient] = None,
    ) -> AsyncIterator[AsyncSandbox]:
        """All that fit, newest first; destroyed ones only if `status` asks for them."""
        used, owned = _client_or_own(client)
        try:
            async for sandbox in used.sandboxes.list(status=status, mode=mode, template=template, metadata=metadata):
                yield sandbox
        finally:
            if owned:
                await used.aclose()

    # What it is

    @property
    def id(self) -> str:
        """Its id."""
        return self.info.id

    @property
    def status(self) -> types.Status:
        """What it was when it was last looked at."""
        return self.info.status

    async def refresh(self) -> types.Sandbox:
        """Looks at it again; that neither wakes it nor keeps it awake."""
        self.info = await self._connection.call("GET", self._path, types.Sandbox.from_wire)
        return self.info

    async def url(self, port: int) -> str:
        """The address of a port's preview."""
        return (await self.ports.get(port)).url

    async def update(
        self,
        *,
        metadata: Optional[Mapping[str, str]] = None,
        egress: Optional[types.EgressRequest] = None,
        idle_timeout: Optional[Duration] = None,
        hard_ttl: Optional[Duration] = None,
        auto_resume: Optional[bool] = None,
        disk_mb: Optional[int] = None,
    ) -> types.Sandbox:
        """Changes it; what is left out stays.

        `metadata` and `egress` are replaced whole. `hard_ttl` counts from now; `"never"` lifts it. The disk can only grow,
        while the sandbox sleeps.
        """
        body: Dict[str, Any] = {}
        given = {"egress": egress, "auto_resume": auto_resume, "disk_mb": disk_mb}
        body.update({name: value for name, value in given.items() if value is not None})
        if metadata is not None:
            body["metadata"] = dict(metadata)
        if idle_timeout is not None:
            body["idle_timeout"] = wire(idle_timeout)
        if hard_ttl is not None:
            body["hard_ttl"] = None if hard_ttl == "never" else wire(hard_ttl)
        self.info = await self._connection.call("PATCH", self._path, types.Sandbox.from_wire, body=body)
        return self.info

    async def egress(self) -> types.EgressReport:
        """What left it, what was blocked, and which rule would allow that."""
        return await self._connection.call("GET", f"{self._path}/egress", types.EgressReport.from_wire)

    # Commands

    async def exec(
        self,
        command: Command,
        *,
        timeout: Optional[Duration] = None,
        workdir: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Optional[str] = None,
        check: bool = False,
        on_stdout: Optional[Callable[[str], object]] = None,
        on_stderr: Optional[Callable[[str], object]] = None,
        on_suspend: OnSuspend = "wait",
        deadline: Optional[Duration] = None,
    ) -> ExecResult:
        """Runs a command to its end: text by the shell, a list as a program and its arguments.

        After `timeout` (30 s, at most 5 minutes) the command is killed. `deadline` bounds this call, a sleep in its middle
        included; it is a minute over the timeout if it is not given. With `on_stdout` or `on_stderr` the output is told as
        it comes, and the call outlives a restart of the server. With `check` another exit code than 0 raises CommandFailed.
        """
        body = command_body(command, timeout, workdir, env, user, stdin)
        bound = self._deadline(timeout, deadline)
        if on_stdout is None and on_stderr is None:
            try:
                answer = await self._connection.send("POST", f"{self._path}/execute", bound, body=body)
                result = ExecResult.of(self._connection.understood(types.ExecuteResponse.from_wire, answer))
            except SuspendedDuringExec as error:
                if on_suspend == "raise":
                    raise
                # What it wrote until then was not told: all of it is asked for once it is awake.
                await until_awake(self._connection, self.id, bound)
                output = AsyncOutput(self._connection, self.id, bound, pid=error.pid)
                result = await self._collect(output, None, None)
        else:
            output = AsyncOutput(self._connection, self.id, bound, command=body, on_suspend=on_suspend)
            result = await self._collect(output, on_stdout, on_stderr)
        if check and result.exit_code != 0:
            raise CommandFailed(result)
        return result

    def stream(
        self,
        command: Command,
        *,
        timeout: Optional[Duration] = None,
        workdir: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Optional[str] = None,
        on_suspend: OnSuspend = "wait",
        deadline: Optional[Duration] = None,
    ) -> AsyncOutput:
        """Runs a command and tells what it writes as it writes it: iterate over the frames, the last is `Exit`.

        It starts with the first step of the iteration. A timeout of 0 is none. The stream goes on after a sleep and after a
        restart of the server; with `on_suspend="raise"` a suspend raises SuspendedDuringExec.
        """
        body = command_body(command, timeout, workdir, env, user, stdin)
        bound = self._deadline(timeout, deadline)
        return AsyncOutput(self._connection, self.id, bound, command=body, on_suspend=on_suspend)

    def pty(
        self,
        command: Optional[str] = None,
        *,
        cols: Optional[int] = None,
        rows: Optional[int] = None,
        pid: Optional[int] = None,
        from_seq: int = 0,
        timeout: Optional[Duration] = FOLLOW,
        on_suspend: OnSuspend = "wait",
    ) -> AsyncTerminal:
        """A terminal: with the user's shell, with a command, or (by `pid` and `from_seq`) one that was left.

        `async with sandbox.pty() as terminal`; leaving it leaves its process running.
        """
        return AsyncTerminal(
            self._connection,
            self.id,
            Deadline(timeout),
            command=command,
            cols=cols,
            rows=rows,
            pid=pid,
            from_seq=from_seq,
            on_suspend=on_suspend,
        )

    # Sleep

    async def suspend(self, *, memory: bool = True, wait: bool = True, timeout: Optional[Duration] = None) -> types.Sandbox:
        """Puts it to sleep: with its memory, or only with its disk. Without `wait` it may still be on its way."""
        query = [] if wait else [("wait", "false")]
        made = types.Sandbox.from_wire
        path = f"{self._path}/suspend"
        self.info = await self._connection.call("POST", path, made, timeout, query=query, body={"memory": memory})
        return self.info

    async def wake(self, *, timeout: Optional[Duration] = None) -> types.Sandbox:
        """Wakes it, and waits until it runs; one that failed boots, if it can."""
        made = types.Sandbox.from_wire
        query = [("wait", "true")]
        self.info = await self._connection.call("POST", f"{self._path}/wake", made, timeout, query=query)
        return self.info

    async def keepalive(self, timeout: Optional[Duration] = None) -> types.Sandbox:
        """Sets the lease of an ephemeral one: from now, as it was made with unless another time is given."""
        body = {} if timeout is None else {"timeout": wire(timeout)}
        self.info = await self._connection.call("POST", f"{self._path}/keepalive", types.Sandbox.from_wire, body=body)
        return self.info

    # Copies

    async def fork(
        self,
        count: int = 1,
        *,
        mode: Optional[types.Mode] = None,
        timeout: Optional[Duration] = None,
        idle_timeout: Optional[Duration] = None,
        deadline: Optional[Duration] = None,
    ) -> List[AsyncSandbox]:
        """Children that go on from this instant, each on its own; what is left out is as this one has it.

        If one of them cannot be made, the others are destroyed and the reason is raised.
        """
        body: Dict[str, Any] = {"count": count}
        if mode is not None:
            body["mode"] = mode
        if timeout is not None:
            body["timeout"] = wire(timeout)
        if idle_timeout is not None:
            body["idle_timeout"] = wire(idle_timeout)
        made = types.Forked.from_wire
        forked = await self._connection.call("POST", f"{self._path}/fork", made, deadline, body=body, once=True)
        children = [AsyncSandbox(self._client, info) for info in forked.sandboxes]
        if forked.errors:
            for child in children:
                await child.destroy()
            raise error_of_frame(forked.errors[0].code, forked.errors[0].detail)
        return children

    async def snapshot(self, name: Optional[str] = None, *, deadline: Optional[Duration] = None) -> types.Snapshot:
        """A copy that is kept; what is created with its id as the template goes on from it."""
        body = {} if name is None else {"name": name}
        made = types.Snapshot.from_wire
        return await self._connection.call("POST", f"{self._path}/snapshots", made, deadline, body=body, once=True)

    # The rest

    def events(
        self, after: int = 0, follow: bool = False, *, timeout: Optional[Duration] = FOLLOW
    ) -> AsyncIterator[types.Event]:
        """What happened to it after an event's number; with `follow` also what happens, until it is destroyed."""
        read = followed_events if follow else past_events
        return read(self._connection, f"{self._path}/events", after, Deadline(timeout))

    async def destroy(self) -> None:
        """Ends it; nothing of it is left."""
        await self._connection.do("DELETE", self._path)
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections of a client of its own. The sandbox stays as it is."""
        if self._owns_client:
            await self._client.aclose()

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            if self.info.mode == "ephemeral":
                await self.destroy()
        finally:
            await self.aclose()

    def _deadline(self, timeout: Optional[Duration], deadline: Optional[Duration]) -> Deadline:
        """The end of a call that runs a command."""
        if deadline is not None:
            return Deadline(deadline)
        limit = EXEC if timeout is None else seconds(timeout)
        return Deadline(None if limit == 0 else limit + MARGIN)

    async def _collect(
        self,
        output: AsyncOutput,
        on_stdout: Optional[Callable[[str], object]],
        on_stderr: Optional[Callable[[str], object]],
    ) -> ExecResult:
        """A stream to its end."""
        out, err = Collector(on_stdout), Collector(on_stderr)
        async with output:
            async for frame in output:
                if isinstance(frame, Stdout):
                    out.take(frame.data)
                elif isinstance(frame, Stderr):
                    err.take(frame.data)
                elif isinstance(frame, Gap):
                    out.truncated = err.truncated = True
        if output.exit is None or output.pid is None:
            raise ConnectionFailed("the output ended before the command")
        return collected(output.exit, out, err, output.pid)


def _client_or_own(client: Optional[AsyncClient]) -> Tuple[AsyncClient, bool]:
    """The client that was given, or one of the environment that is the sandbox's own."""
    from .client import AsyncClient

    return (AsyncClient(), True) if client is None else (client, False)
