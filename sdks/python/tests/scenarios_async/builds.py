"""Templates."""

from __future__ import annotations

import functools
import io
import subprocess
from pathlib import Path
from typing import List

from wakeful import AsyncSandbox, BuildFailed, BuildProgress, Conflict, TemplateNotFound

from ..world import World
from . import seam
from .support import client_of, sandbox_of, until

# A shell and a few programs with what they need, so that a build needs no registry.
PACK = """
set -e
mkdir -p /tmp/root/tmp /tmp/root/bin
for program in sh cat sleep ls mkdir; do
    cp -L /bin/$program /tmp/root/bin/
    for library in $(ldd /bin/$program | grep -o '/[^ ]*'); do
        mkdir -p /tmp/root$(dirname $library); cp -Ln $library /tmp/root$library || true
    done
done
tar -C /tmp/root -cf /tmp/root.tar .
"""


async def unpack_root(sandbox: AsyncSandbox, target: Path) -> bytes:
    """A small root file system as a directory here."""
    await sandbox.exec(PACK, user="root", check=True)
    packed = await sandbox.files.read("/tmp/root.tar")
    target.mkdir(parents=True)
    await seam.blocking(functools.partial(subprocess.run, ["tar", "-x", "-C", target], input=packed, check=True))
    return packed


async def scenario_templates(world: World) -> None:
    context = world.tmp / "context"
    (context / "junk").mkdir(parents=True)
    async with client_of(world) as client, sandbox_of(world) as sandbox:
        side = type(client).__name__.lower()
        packed = await unpack_root(sandbox, context / "root")
        (context / "junk" / "large").write_text("not sent")
        (context / "note.txt").write_text("from here")
        (context / ".dockerignore").write_text("# what nobody needs\njunk\n**/*.tmp\n")
        (context / "root" / "x.tmp").write_text("not sent")
        build = "FROM scratch\nARG WORD=none\nCOPY root/ /\nCOPY . /all/\nRUN echo $WORD building > /made\nENV LEVEL=1\n"
        (context / "Dockerfile").write_text(build)
        name = f"built-{side}"
        begun = await client.templates.create(
            name, dockerfile=context, build_args={"WORD": "now"}, description="For a test", tags=["1"]
        )
        assert begun.name == name and begun.source.kind == "dockerfile"
        told: List[BuildProgress] = []
        template = await client.templates.wait(name, timeout="2m", on_progress=told.append)
        assert (template.status, template.description, template.tags) == ("ready", "For a test", ["1"])
        assert template.env_keys and any("RUN" in line.step for line in told), told
        assert name in [one.name async for one in client.templates.list()]
        assert (await client.templates.get(f"{name}:1")).id == template.id
        async with await client.sandboxes.create(name) as made:
            assert (await made.exec("cat /made /all/note.txt; echo; echo $LEVEL")).stdout == "now building\nfrom here\n1\n"
            assert (await made.exec("ls /all")).stdout.split() == ["Dockerfile", "note.txt", "root"]
            assert not await made.files.exists("/x.tmp")
        again = await client.templates.rebuild(name)
        assert again.id == template.id
        await client.templates.wait(name, timeout="2m")
        kept = [line async for line in client.templates.logs(name)]
        assert kept and all(line.at.tzinfo is not None for line in kept)
        await client.templates.delete(name)
        with world.raises(TemplateNotFound, "template_not_found"):
            await client.templates.get(name)
        # Of other things that are here or there.
        tree = f"tree-{side}"
        await client.templates.create(tree, rootfs=context / "root", workdir="/", user="root")
        await client.templates.wait(tree, timeout="2m")
        sent = await client.upload(io.BytesIO(packed))
        assert sent.bytes == len(packed)
        await client.templates.rebuild(tree, upload=sent.id)
        assert (await client.templates.wait(tree, timeout="2m")).status == "ready"
        copy = f"copy-{side}"
        async with await client.sandboxes.create(tree) as small:
            await small.exec("echo copied > /note")
            await client.templates.create(copy, sandbox=small.id, egress={"mode": "deny_all"}, env={"A": "1"})
            await client.templates.wait(copy, timeout="2m")
        async with await client.sandboxes.create(copy) as made:
            assert made.info.egress.mode == "deny_all"
            assert (await made.exec("cat /note; echo $A")).stdout == "copied\n1\n"
        for made_name in (tree, copy):
            await client.templates.delete(made_name)


async def scenario_template_failure(world: World) -> None:
    context = world.tmp / "context"
    async with client_of(world) as client, sandbox_of(world) as sandbox:
        side = type(client).__name__.lower()
        await unpack_root(sandbox, context / "root")
        (context / "Dockerfile").write_text("FROM scratch\nCOPY root/ /\nRUN echo fine\nRUN echo the reason >&2 && exit 7\n")
        failing = f"failing-{side}"
        await client.templates.create(failing, dockerfile=str(context))
        with world.raises(BuildFailed) as caught:
            await client.templates.wait(failing, timeout="2m")
        error = caught.error
        assert (error.template, error.line) == (failing, 4) and "RUN" in error.step and "7" in error.detail, error
        with world.raises(Conflict, "template_not_ready"):
            await client.sandboxes.create(failing)
        (context / "Slow").write_text("FROM scratch\nCOPY root/ /\nRUN sleep 600\n")
        slow = f"slow-{side}"
        await client.templates.create(slow, dockerfile=context, file="Slow")

        async def wait() -> None:
            await client.templates.wait(slow, timeout="2m")

        task = seam.spawn(wait)

        async def sleeping() -> bool:
            return any(["sleep 600" in line.step async for line in client.templates.logs(slow)])

        await until(sleeping)
        await client.templates.cancel(slow)
        with world.raises(BuildFailed):
            await task.result()
        for name in (failing, slow):
            await client.templates.delete(name)
