"""Streams that outlive sleep and restarts, and those that are given up."""

from __future__ import annotations

import os
import time
from typing import List

from wakeful import AsyncOutput, AsyncSandbox, ConnectionFailed, DeadlineExceeded, Stdout, SuspendedDuringExec

from ..world import World, connections_to
from . import seam
from .support import client_of, counted, counting, sandbox_of, until

COUNT = 30


class Reader:
    """Reads an output beside, and tells when it has begun."""

    def __init__(self, output: AsyncOutput) -> None:
        self.output = output
        self.begun = seam.Event()
        self.data = bytearray()
        self.task = seam.spawn(self._read)

    async def _read(self) -> None:
        async for frame in self.output:
            if isinstance(frame, Stdout):
                self.data += frame.data
            if self.data.count(b"\n") >= 5:
                self.begun.set()

    async def lines(self) -> List[str]:
        """All of it, at the end."""
        await self.task.result()
        return self.data.decode().splitlines()


async def sleep_and_wake(sandbox: AsyncSandbox) -> None:
    """Puts it to sleep and wakes it."""
    assert (await sandbox.suspend()).status == "suspended"
    assert (await sandbox.wake()).status == "running"


async def scenario_stream_sleep(world: World) -> None:
    async with sandbox_of(world, mode="persistent") as sandbox:
        reader = Reader(sandbox.stream(counting(COUNT, 0.05)))
        await reader.begun.wait()
        await sleep_and_wake(sandbox)
        assert await reader.lines() == counted(COUNT)
        assert reader.output.exit_code == 0
        # A command that somebody waits for goes on as well, told or not.
        begun = seam.Event()

        async def told() -> str:
            return (await sandbox.exec(counting(COUNT, 0.05), on_stdout=lambda _: begun.set())).stdout

        async def untold() -> str:
            return (await sandbox.exec("touch ~/begun; " + counting(COUNT, 0.05))).stdout

        tasks = [seam.spawn(told), seam.spawn(untold)]
        await begun.wait()

        async def both() -> bool:
            return await sandbox.files.exists("/home/user/begun")

        await until(both)
        await sleep_and_wake(sandbox)
        for task in tasks:
            assert (await task.result()).splitlines() == counted(COUNT)


async def scenario_stream_sleep_raises(world: World) -> None:
    async with sandbox_of(world, mode="persistent") as sandbox:
        reader = Reader(sandbox.stream(counting(COUNT, 0.05), on_suspend="raise"))
        await reader.begun.wait()
        await sandbox.suspend()
        with world.raises(SuspendedDuringExec, "suspended_during_exec") as caught:
            await reader.task.result()
        error = caught.error
        assert error.pid == reader.output.pid and error.seq == reader.output.seq and error.status == 409
        assert (await sandbox.refresh()).status == "suspended"
        # By hand, which wakes it.
        process = await sandbox.processes.get(error.pid)
        rest = b"".join([frame.data async for frame in process.output(error.seq) if isinstance(frame, Stdout)])
        assert (bytes(reader.data) + rest).decode().splitlines() == counted(COUNT)
        begun = seam.Event()

        async def untold() -> None:
            begun.set()
            await sandbox.exec("touch ~/begun; sleep 1000", timeout="5m", on_suspend="raise")

        task = seam.spawn(untold)
        await begun.wait()

        async def there() -> bool:
            return await sandbox.files.exists("/home/user/begun")

        await until(there)
        await sandbox.suspend()
        with world.raises(SuspendedDuringExec, "suspended_during_exec") as caught:
            await task.result()
        assert caught.error.pid > 0


async def restarted(world: World, word: str) -> None:
    """Streams of all kinds while the server is away."""
    async with sandbox_of(world, mode="persistent") as sandbox:
        process = await sandbox.processes.start(counting(COUNT, 0.05))
        readers = [Reader(sandbox.stream(counting(COUNT, 0.05))), Reader(process.output())]
        told: List[str] = []

        async def run() -> str:
            return (await sandbox.exec(counting(COUNT, 0.05), on_stdout=told.append)).stdout

        task = seam.spawn(run)
        content = os.urandom(16 << 20)
        await sandbox.files.write("/home/user/large", content)
        for reader in readers:
            await reader.begun.wait()

        async def heard() -> bool:
            return bool(told)

        await until(heard)
        got = bytearray()
        async for piece in sandbox.files.stream("/home/user/large"):
            if not got:
                await seam.blocking(world.stage.tell, word)
            got += piece
        assert bytes(got) == content
        for reader in readers:
            assert await reader.lines() == counted(COUNT)
        assert (await task.result()).splitlines() == "".join(told).splitlines() == counted(COUNT)


async def scenario_stream_restart(world: World) -> None:
    await restarted(world, "restart")


async def scenario_stream_kill(world: World) -> None:
    await restarted(world, "kill")


async def scenario_cancel(world: World) -> None:
    async with client_of(world) as client, sandbox_of(world) as sandbox:
        mine = await client.sandboxes.get(sandbox.id)
        output = mine.stream(counting(5) + "; sleep 1000", timeout=0)
        reader = Reader(output)
        await reader.begun.wait()
        began = time.monotonic()
        await seam.give_up(reader.task, output)
        assert time.monotonic() - began < 5
        assert output.pid is not None
        left = await sandbox.processes.get(output.pid)
        assert left.info.running
        await left.kill()
        with world.raises(ConnectionFailed):
            unfinished = mine.stream("echo; sleep 1000", timeout=0)
            async for _ in unfinished:
                await unfinished.aclose()
            await unfinished.wait()
        await client.aclose()
        await sandbox.aclose()
        await mine.aclose()
    assert connections_to(world.url) == 0


async def scenario_deadline(world: World) -> None:
    async with sandbox_of(world, mode="persistent") as sandbox:
        began = time.monotonic()
        with world.raises(DeadlineExceeded):
            await sandbox.exec("sleep 30", deadline=0.5)
        with world.raises(DeadlineExceeded):
            await sandbox.stream("sleep 30", deadline="500ms").wait()
        process = await sandbox.processes.start("while sleep 0.1; do echo tick; done")
        with world.raises(DeadlineExceeded):
            await process.wait(timeout=0.5)
        with world.raises(DeadlineExceeded):
            async for _ in sandbox.events(follow=True, timeout=0.5):
                pass
        async with sandbox.files.watch("/home/user", timeout=0.5) as changes:
            with world.raises(DeadlineExceeded):
                async for _ in changes:
                    pass
        async with sandbox.pty("cat") as terminal:
            with world.raises(DeadlineExceeded):
                while True:
                    await terminal.read(timeout=0.5)
            await terminal.signal("KILL")
        # Waiting for somebody to wake it has an end too.
        await process.refresh()
        await sandbox.suspend()
        assert time.monotonic() - began < 20

        async def asleep() -> None:
            await sandbox.stream("sleep 1000", timeout="5m", deadline="2s").wait()

        await sandbox.wake()
        task = seam.spawn(asleep)

        async def runs() -> bool:
            return any(one.info.command == "sleep 1000" for one in await sandbox.processes.list())

        await until(runs)
        await sandbox.suspend()
        with world.raises(DeadlineExceeded):
            await task.result()
        assert (await sandbox.refresh()).status == "suspended"


async def scenario_events(world: World) -> None:
    async with client_of(world) as client:
        sandbox = await client.sandboxes.create("base", mode="persistent")
        await sandbox.suspend()
        past = [event async for event in sandbox.events()]
        assert [event.type for event in past] == ["created", "suspend_started", "suspended"]
        assert [event.seq for event in past] == [1, 2, 3]
        assert [event.type async for event in sandbox.events(after=2)] == ["suspended"]
        seen: List[str] = []
        woken = seam.Event()

        async def follow() -> None:
            async for event in sandbox.events(after=1, follow=True):
                seen.append(event.type)
                if event.type == "woken":
                    woken.set()

        task = seam.spawn(follow)
        await sandbox.wake()
        await woken.wait()
        await seam.blocking(world.stage.tell, "kill")
        await sandbox.destroy()
        await task.result()
        assert seen[:4] == ["suspend_started", "suspended", "wake_started", "woken"] and seen[-1] == "destroyed"
        assert len(seen) == len([event async for event in sandbox.events(after=1)])
