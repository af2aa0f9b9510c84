"""Sandboxes: made, found, changed, put to sleep, copied."""

from __future__ import annotations

from datetime import timedelta

from wakeful import AsyncSandbox, Conflict, NotFound, SandboxSuspended, TemplateNotFound

from ..world import World
from .support import client_of, sandbox_of, until


async def scenario_quickstart(world: World) -> None:
    world.set_env("WAKEFUL_URL", world.url)
    async with await AsyncSandbox.create("python") as sandbox:
        await sandbox.files.write("/home/user/main.py", "print(6 * 7)")
        result = await sandbox.exec("python3 main.py")
        assert (result.stdout, result.exit_code, result.ok) == ("42\n", 0, True)
        again = await AsyncSandbox.get(sandbox.id)
        assert again.id == sandbox.id and again.status == "running"
        await again.aclose()
        assert sandbox.id in [one.id async for one in AsyncSandbox.list(template="python")]
    assert (await sandbox.refresh()).status == "destroyed"
    await sandbox.aclose()


async def scenario_context(world: World) -> None:
    async with client_of(world) as client:
        async with await client.sandboxes.create("base") as ephemeral:
            assert ephemeral.info.mode == "ephemeral"
        assert (await ephemeral.refresh()).status == "destroyed"
        broken = await client.sandboxes.create("base")
        try:
            async with broken:
                raise LookupError("on purpose")
        except LookupError:
            pass
        assert (await broken.refresh()).status == "destroyed"
        async with await client.sandboxes.create("base", mode="persistent") as persistent:
            pass
        assert (await persistent.refresh()).status == "running"
        # A client that was given is not the sandbox's to close.
        async with await AsyncSandbox.create("base", client=client) as guest:
            pass
        assert (await client.health()).status == "ok"
        await guest.destroy()
        await persistent.destroy()


async def scenario_create_options(world: World) -> None:
    async with sandbox_of(
        world,
        "python",
        mode="persistent",
        cpu=1,
        memory_mb=384,
        disk_mb=3072,
        env={"GREETING": "hello"},
        metadata={"team": "red"},
        egress={"allow_domains": ["example.com"]},
        idle_timeout="15m",
        hard_ttl=timedelta(hours=2),
        auto_resume=False,
        runtime="gvisor",
    ) as sandbox:
        info = sandbox.info
        assert (info.mode, info.template, info.cpu, info.memory_mb, info.disk_mb) == ("persistent", "python", 1, 384, 3072)
        assert (info.env_keys, info.metadata, info.size) == (["GREETING"], {"team": "red"}, None)
        assert (info.egress.mode, info.egress.allow_domains) == ("deny_all", ["example.com"])
        assert (info.idle_timeout_seconds, info.auto_resume, info.runtime) == (900, False, "gvisor")
        assert info.hard_expires_at is not None
        assert abs(info.hard_expires_at - info.created_at - timedelta(hours=2)) < timedelta(seconds=5)
        assert (await sandbox.exec("echo $GREETING")).stdout == "hello\n"
    async with sandbox_of(world, size="shared-cpu-2x", timeout=90.5) as sized:
        assert (sized.info.size, sized.info.memory_mb, sized.info.io.ops_per_sec) == ("shared-cpu-2x", 512, None)
        assert sized.info.timeout_seconds in (90, 91)
        assert repr(sized) == f"<{type(sized).__name__} {sized.id} running>"
    async with client_of(world) as client:
        with world.raises(TemplateNotFound, "template_not_found"):
            await client.sandboxes.create("no-such-template")


async def scenario_lists(world: World) -> None:
    async with client_of(world) as client:
        label = {"list": type(client).__name__}
        made = [await client.sandboxes.create("base", metadata=label) for _ in range(3)]
        made.append(await client.sandboxes.create("python", mode="persistent", metadata=label))
        await made[0].suspend()
        ids = [sandbox.id for sandbox in made]
        listed = [sandbox.id async for sandbox in client.sandboxes.list(metadata=label, page_size=2)]
        assert listed == ids[::-1]
        suspended = client.sandboxes.list(status="suspended", metadata=label)
        assert [sandbox.id async for sandbox in suspended] == ids[:1]
        kept = client.sandboxes.list(mode="persistent", metadata=label)
        assert [sandbox.id async for sandbox in kept] == ids[3:]
        of_python = client.sandboxes.list(template="python", metadata=label)
        assert [sandbox.id async for sandbox in of_python] == ids[3:]
        for sandbox in made:
            await sandbox.destroy()
        assert [sandbox.id async for sandbox in client.sandboxes.list(metadata=label)] == []
        gone = client.sandboxes.list(status="destroyed", metadata=label)
        assert [sandbox.id async for sandbox in gone] == ids[::-1]


async def scenario_update(world: World) -> None:
    async with sandbox_of(world, mode="persistent", metadata={"a": "1", "b": "2"}) as sandbox:
        info = await sandbox.update(metadata={"a": "3"}, idle_timeout=120, hard_ttl="3h")
        assert (info.metadata, info.idle_timeout_seconds) == ({"a": "3"}, 120)
        assert info.hard_expires_at is not None
        info = await sandbox.update(egress={"mode": "deny_all"}, hard_ttl="never", auto_resume=False)
        assert (info.egress.mode, info.hard_expires_at, info.auto_resume) == ("deny_all", None, False)
        assert sandbox.info == info
        await sandbox.exec("timeout 2 sh -c 'echo > /dev/udp/198.51.100.7/9' || exec 2>/dev/null; true")
        report = await sandbox.egress()
        assert report.egress.mode == "deny_all" and report.bytes_in >= 0
        await sandbox.suspend()
        assert (await sandbox.update(disk_mb=4096)).disk_mb == 4096


async def scenario_sleep(world: World) -> None:
    async with sandbox_of(world, mode="persistent") as sandbox:
        process = await sandbox.processes.start("sleep 1000")
        await sandbox.exec("echo in memory > /dev/shm/note || echo in memory > note")
        assert (await sandbox.suspend()).status == "suspended"
        assert (await sandbox.suspend()).status == "suspended"
        assert (await sandbox.wake()).status == "running"
        assert sandbox.info.restored_memory is True
        assert (await process.refresh()).running
        # A call wakes.
        await sandbox.suspend(wait=False)

        async def asleep() -> bool:
            return (await sandbox.refresh()).status == "suspended"

        await until(asleep)
        assert (await sandbox.exec("echo awake")).stdout == "awake\n"
        # Without memory it boots.
        await sandbox.exec("echo on disk > ~/kept; sync")
        await sandbox.suspend(memory=False, timeout="60s")
        assert (await sandbox.wake(timeout=60)).restored_memory is False
        assert (await sandbox.exec("cat ~/kept")).stdout == "on disk\n"
        assert process.pid not in [one.pid for one in await sandbox.processes.list() if one.info.command == "sleep 1000"]


async def scenario_auto_resume_off(world: World) -> None:
    async with sandbox_of(world, mode="persistent", auto_resume=False) as sandbox:
        await sandbox.suspend()
        with world.raises(SandboxSuspended, "sandbox_suspended") as caught:
            await sandbox.exec("true")
        assert caught.error.status == 409 and "wake" in (caught.error.hint or "")
        with world.raises(SandboxSuspended):
            await sandbox.files.read("/etc/hostname")
        assert (await sandbox.refresh()).status == "suspended"
        await sandbox.wake()
        assert (await sandbox.exec("true")).ok


async def scenario_keepalive(world: World) -> None:
    async with sandbox_of(world, timeout="5m") as sandbox:
        first = sandbox.info.expires_at
        longer = (await sandbox.keepalive("30m")).expires_at
        shorter = (await sandbox.keepalive(timedelta(minutes=1))).expires_at
        again = (await sandbox.keepalive()).expires_at
        assert first and longer and shorter and again
        assert shorter < first < longer and shorter < again < longer
    async with sandbox_of(world, mode="persistent") as persistent:
        with world.raises(Conflict, "not_ephemeral"):
            await persistent.keepalive()


async def scenario_fork(world: World) -> None:
    async with sandbox_of(world, mode="persistent") as sandbox:
        process = await sandbox.processes.start("sleep 1000")
        await sandbox.exec("echo shared > ~/note")
        children = await sandbox.fork(2, mode="ephemeral", timeout="2m")
        assert len({child.id for child in children}) == 2
        for number, child in enumerate(children):
            assert (child.info.parent_id, child.info.mode) == (sandbox.id, "ephemeral")
            assert (await child.processes.get(process.pid)).info.running
            await child.exec(f"echo {number} >> ~/note")
            assert (await child.files.read_text("/home/user/note")) == f"shared\n{number}\n"
        assert (await sandbox.files.read_text("/home/user/note")) == "shared\n"
        for child in children:
            await child.destroy()


async def scenario_snapshots(world: World) -> None:
    async with client_of(world) as client, sandbox_of(world) as sandbox:
        name = f"before-{type(client).__name__.lower()}"
        await sandbox.exec("echo then > ~/note")
        snapshot = await sandbox.snapshot(name)
        assert (snapshot.name, snapshot.sandbox_id, snapshot.memory) == (name, sandbox.id, True)
        await sandbox.exec("echo now > ~/note")
        with world.raises(Conflict, "name_taken"):
            await sandbox.snapshot(name)
        assert snapshot.id in [one.id async for one in client.snapshots.list()]
        assert (await client.snapshots.get(snapshot.id)).name == name
        async with await client.sandboxes.create(snapshot.id) as restored:
            assert (await restored.files.read_text("/home/user/note")) == "then\n"
        await client.snapshots.delete(snapshot.id)
        with world.raises(NotFound, "snapshot_not_found"):
            await client.snapshots.get(snapshot.id)
