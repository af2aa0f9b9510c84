"""Servers: what admins do, who may do what, lost answers, many at once."""

from __future__ import annotations

import time
from typing import Any

from wakeful import AsyncClient, AsyncSandbox, ConnectionFailed, NotFound, PermissionDenied, Unauthenticated

from ..http_doubles import lossy_way
from ..world import World, connections_to
from . import seam
from .support import client_of, sandbox_of, until

FIFTY = 50


async def scenario_admin(world: World) -> None:
    async with client_of(world) as client:
        assert repr(client) == f"<{type(client).__name__} {client.url}>"
        health, info = await client.health(), await client.info()
        assert (health.status, health.version) == ("ok", info.version)
        assert info.selected_runtime == "gvisor" and "shared-cpu-1x" in [size.name for size in info.sizes]
        assert (info.limits.upload_bytes, info.tenant) == (104857600, "default")
        usage = await client.usage()
        assert usage.total_bytes > usage.free_bytes > 0 and usage.kinds
        assert (await client.prune(unused="1h")).count >= 0
        pool = await client.pools.set("base", "shared-cpu-1x", 1)
        assert (pool.template, pool.target) == ("base", 1)

        async def ready() -> bool:
            return any([one.ready == 1 async for one in client.pools.list()])

        await until(ready)
        async with sandbox_of(world) as sandbox:
            assert (await sandbox.exec("echo pooled")).stdout == "pooled\n"
        await client.pools.set("base", "shared-cpu-1x", 0)

        async def empty() -> bool:
            return all([one.ready == 0 async for one in client.pools.list()])

        await until(empty)
        tenant = f"team-{type(client).__name__.lower()}"
        made = await client.tenants.create(tenant, limits={"sandboxes": 2})
        assert (made.name, made.limits.sandboxes, made.limits.memory_mb) == (tenant, 2, None)
        assert tenant in [one.name async for one in client.tenants.list()]
        changed = await client.tenants.update(tenant, {"sandboxes": None, "memory_mb": 512})
        assert (changed.limits.sandboxes, changed.limits.memory_mb) == (None, 512)
        assert (await client.tenants.get(tenant)).usage.sandboxes == 0
        await client.tenants.delete(tenant)
        with world.raises(NotFound, "tenant_not_found"):
            await client.tenants.get(tenant)


async def scenario_auth(world: World) -> None:
    with world.another() as stage:
        async with AsyncClient(stage.url) as opener:
            await opener.tenants.create("blue")
            admin_key = await opener.keys.create("admin", scopes=["admin", "sandbox:*", "template:*"])
            assert admin_key.key.startswith("wkf_")
            with world.raises(Unauthenticated, "unauthenticated"):
                await opener.info()
            assert (await opener.health()).status == "ok"
        async with AsyncClient(stage.url, api_key="wkf_" + "0" * 40) as wrong:
            with world.raises(Unauthenticated):
                await wrong.info()
        async with AsyncClient(stage.url, api_key=admin_key.key) as admin:
            blue_key = await admin.keys.create("blue", tenant="blue", scopes=["sandbox:*"])
            async with AsyncClient(stage.url, blue_key.key) as blue:
                sandbox = await blue.sandboxes.create("base")
                assert (await sandbox.exec("echo mine")).stdout == "mine\n"
                async with sandbox.pty("exit 4") as terminal:
                    assert await terminal.wait(timeout=30) == 4
                with world.raises(PermissionDenied, "forbidden"):
                    await blue.tenants.create("green")
                with world.raises(PermissionDenied, "wrong_tenant"):
                    await admin.sandboxes.get(sandbox.id)
                assert [one.id async for one in admin.sandboxes.list()] == []
                await sandbox.destroy()
            assert [key.name async for key in admin.keys.list(tenant="blue")] == ["blue"]
            assert {key.name async for key in admin.keys.list()} >= {"admin"}
            await admin.keys.delete(blue_key.id)
            async with AsyncClient(stage.url, blue_key.key) as late:
                with world.raises(Unauthenticated):
                    await late.info()
            world.set_env("WAKEFUL_URL", stage.url)
            world.set_env("WAKEFUL_API_KEY", admin_key.key)
            async with await AsyncSandbox.create("base") as by_environment:
                assert by_environment.status == "running"
            world.set_env("WAKEFUL_API_KEY", "")


async def scenario_retries(world: World) -> None:
    with lossy_way(world.url) as lossy:
        async with AsyncClient(lossy.url) as client:
            label = {"retries": type(client).__name__}
            lossy.lose = 1
            sandbox = await client.sandboxes.create("base", metadata=label)
            creates = [seen for seen in lossy.seen if seen[:2] == ("POST", "/v1/sandboxes")]
            assert len(creates) == 2 and creates[0][2] == creates[1][2] is not None
            assert [one.id async for one in client.sandboxes.list(metadata=label)] == [sandbox.id]
            # A look, a write and a removal are repeated.
            lossy.lose = 2
            assert (await sandbox.refresh()).status == "running"
            lossy.lose = 1
            await sandbox.files.write("/home/user/file", "once")
            # A command is not: whether it ran is not known.
            lossy.seen.clear()
            lossy.lose = 1
            with world.raises(ConnectionFailed) as caught:
                await sandbox.exec("echo x >> ~/count")
            assert not caught.error.never_sent and len(lossy.seen) == 1
            assert await sandbox.files.read_text("/home/user/count") == "x\n"
            lossy.lose = 1
            (child,) = await sandbox.fork()
            lossy.lose = 1
            snapshot = await sandbox.snapshot()
            assert len([one async for one in client.snapshots.list() if one.sandbox_id == sandbox.id]) == 1
            await client.snapshots.delete(snapshot.id)
            lossy.lose = 1
            await child.destroy()
            await sandbox.destroy()
            assert [one.id async for one in client.sandboxes.list(metadata=label)] == []
            # Not for ever.
            lossy.lose = 100
            async with AsyncClient(lossy.url, retries=1) as impatient:
                lossy.seen.clear()
                with world.raises(ConnectionFailed):
                    await impatient.info()
                assert len(lossy.seen) == 2
    # What was never sent is sent again, a command too.
    async with client_of(world) as client:
        sandbox = await client.sandboxes.create("base", mode="persistent")
        await client.aclose()
        await seam.blocking(world.stage.tell, "stop")
        task = seam.spawn(lambda: sandbox.exec("echo back"))
        await seam.blocking(world.stage.tell, "start")
        assert (await task.result()).stdout == "back\n"
        await sandbox.destroy()


def one_of_many(client: AsyncClient, number: int) -> Any:
    """Makes a sandbox and uses it."""

    async def life() -> str:
        async with await client.sandboxes.create("base", metadata={"many": type(client).__name__}) as sandbox:
            await sandbox.files.write("/home/user/number", str(number))
            return (await sandbox.exec("cat number")).stdout

    return life


async def scenario_fifty(world: World) -> None:
    began = time.monotonic()
    async with client_of(world) as client:
        numbers = await seam.all_of([one_of_many(client, number) for number in range(FIFTY)])
        assert numbers == [str(number) for number in range(FIFTY)]
        label = {"many": type(client).__name__}
        assert [one.id async for one in client.sandboxes.list(metadata=label)] == []
    assert connections_to(world.url) == 0
    assert time.monotonic() - began < 100
