"""Every exception, met for real."""

from __future__ import annotations

import functools
import json
import os
import signal

from wakeful import (
    AsyncClient,
    CommandNotFound,
    Conflict,
    ConnectionFailed,
    Exhausted,
    FileTooLarge,
    GuestUnresponsive,
    InternalError,
    InvalidRequest,
    NotFound,
    NotSuspendable,
    ProtocolError,
    QuotaExceeded,
    SandboxDestroyed,
    SandboxFailed,
    SandboxNotFound,
    Unavailable,
)

from ..http_doubles import answering
from ..world import World, engine_of
from . import seam
from .builds import unpack_root
from .support import client_of, sandbox_of, until


async def scenario_exceptions(world: World) -> None:
    works = (of_sandboxes, of_engines, of_limits, of_servers)
    await seam.all_of([functools.partial(work, world) for work in works])


async def of_sandboxes(world: World) -> None:
    """What is asked for wrongly, or too late."""
    async with client_of(world, retries=0) as client, sandbox_of(world, mode="persistent") as sandbox:
        with world.raises(InvalidRequest, "invalid_egress") as caught:
            await client.sandboxes.create("base", egress={"mode": "allow_all", "allow_cidrs": ["192.0.2.0/24"]})
        assert caught.error.status == 400 and (caught.error.field or "").startswith("egress") and caught.error.request_id
        with world.raises(CommandNotFound, "command_not_found"):
            await sandbox.exec(["no-such-program"])
        with world.raises(SandboxNotFound, "sandbox_not_found"):
            await client.sandboxes.get("sbx_" + "a" * 20)
        with world.raises(NotFound, "key_not_found"):
            await client.keys.delete("key_" + "a" * 20)
        held = await sandbox.processes.start("exec 3>~/held; rm ~/held; echo begun; sleep 1000")
        async for _ in held.output():
            break
        with world.raises(NotSuspendable, "not_suspendable") as held_up:
            await sandbox.suspend()
        assert "held" in held_up.error.detail
        await held.kill()
        await held.wait()
        name = f"never-ready-{type(client).__name__.lower()}"
        await unpack_root(sandbox, world.tmp / "root")
        start, ready = ["sleep", "1000"], ["sh", "-c", "exit 1"]
        await client.templates.create(name, rootfs=world.tmp / "root", start=start, ready=ready, ready_timeout="1s")
        await client.templates.wait(name, timeout="2m")
        with world.raises(Unavailable, "not_ready") as caught_late:
            await client.sandboxes.create(name)
        assert caught_late.error.status == 504
        await client.templates.delete(name)
        with world.raises(Conflict, "no_build"):
            await client.templates.cancel("base")
        short = await client.sandboxes.create("base")
        await short.destroy()
        with world.raises(SandboxDestroyed, "sandbox_destroyed"):
            await short.exec("true")


async def of_engines(world: World) -> None:
    """Engines that hang or die."""
    async with sandbox_of(world, mode="persistent") as sandbox:
        engine = engine_of(sandbox.id)
        os.kill(engine, signal.SIGSTOP)
        try:
            with world.raises(GuestUnresponsive, "guest_unresponsive"):
                await sandbox.exec("true")
        finally:
            os.kill(engine, signal.SIGCONT)
        assert (await sandbox.exec("echo back")).stdout == "back\n"
        os.kill(engine, signal.SIGKILL)

        async def failed() -> bool:
            return (await sandbox.refresh()).status == "failed"

        await until(failed)
        with world.raises(SandboxFailed, "sandbox_failed"):
            await sandbox.exec("true")
        assert sandbox.info.failure is not None and sandbox.info.failure.bootable
        assert (await sandbox.wake()).restored_memory is False
        # A stream whose sandbox is destroyed while it waits for a wake says so.
        process = await sandbox.processes.start("sleep 1000")
        output = process.output()
        task = seam.spawn(output.wait)

        async def listened() -> bool:
            return output.pid is not None

        await until(listened)
        await sandbox.destroy()
        with world.raises(SandboxDestroyed):
            await task.result()


async def of_limits(world: World) -> None:
    """What does not fit."""
    with world.another("[limits]\nmemory_mb = 300\nupload_bytes = 100000\n") as stage:
        async with AsyncClient(stage.url, retries=0) as client:
            sandbox = await client.sandboxes.create("base")
            with world.raises(Exhausted, "insufficient_capacity") as full:
                await client.sandboxes.create("base")
            assert full.error.status == 507 and "fits" in full.error.problem
            with world.raises(FileTooLarge, "file_too_large"):
                await sandbox.files.write("/home/user/large", b"x" * 100_001)
            await sandbox.destroy()
            await client.tenants.update("default", {"sandboxes": 0})
            with world.raises(QuotaExceeded, "quota_exceeded") as caught:
                await client.sandboxes.create("base")
            assert caught.error.status == 429 and caught.error.detail


async def of_servers(world: World) -> None:
    """Servers that are not there, or none of ours."""
    problem = {
        "type": "about:blank",
        "title": "x",
        "status": 500,
        "code": "internal",
        "detail": "broken",
        "hint": "see the log",
    }
    with answering(500, json.dumps(problem).encode()) as url:
        async with AsyncClient(url) as client:
            with world.raises(InternalError, "internal") as caught:
                await client.info()
            assert (caught.error.hint, caught.error.detail) == ("see the log", "broken")
    unknown = {**problem, "status": 409, "code": "of_tomorrow"}
    with answering(409, json.dumps(unknown).encode()) as url:
        async with AsyncClient(url) as client:
            with world.raises(Conflict, "of_tomorrow"):
                await client.info()
    for status, body in ((200, b"<html>"), (200, b"{}"), (200, b"[]"), (404, b"not a problem")):
        with answering(status, body, "text/html") as url:
            async with AsyncClient(url) as client:
                with world.raises(ProtocolError):
                    await client.info()
    with world.another() as stage:
        async with AsyncClient(stage.url, retries=1) as client:
            await seam.blocking(stage.tell, "stop")
            with world.raises(ConnectionFailed) as refused:
                await client.health()
            assert refused.error.never_sent
            with world.raises(ConnectionFailed):
                await client.sandboxes.create("base")
            await seam.blocking(stage.tell, "start")
            assert (await client.health()).status == "ok"
