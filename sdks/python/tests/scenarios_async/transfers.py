"""Files, both ways."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import PurePosixPath
from typing import List, Tuple

from wakeful import FileEvent, InvalidRequest, PathNotFound

from ..world import World, forget_peak, peak
from . import seam
from .support import sandbox_of

HOME = "/home/user"
LARGE = 100 << 20
BEARABLE = 40 << 20


async def scenario_files(world: World) -> None:
    async with sandbox_of(world) as sandbox:
        files = sandbox.files
        written = await files.write(f"{HOME}/deep/er/a.txt", "text ü")
        assert (written.path, written.name, written.size) == (f"{HOME}/deep/er/a.txt", "a.txt", 7)
        assert await files.read_text(f"{HOME}/deep/er/a.txt") == "text ü"
        await files.write(PurePosixPath(HOME) / "b.bin", bytearray(b"\x00\xff"), mode=0o755, user="root")
        assert await files.read(f"{HOME}/b.bin") == b"\x00\xff"
        entry = await files.stat(f"{HOME}/b.bin")
        assert (entry.mode, entry.owner, entry.type, entry.size) == ("0755", "root", "file", 2)
        assert (await files.stat(f"{HOME}/deep")).type == "directory"
        await sandbox.exec("ln -s b.bin ~/link; touch ~/.hidden; chmod 600 ~/.hidden")
        assert (await files.stat(f"{HOME}/link")).target == "b.bin"
        names = [one.name for one in await files.list(HOME)]
        assert names == sorted(names) and {"deep", "b.bin", "link", ".hidden"} <= set(names)
        assert (await files.mkdir(f"{HOME}/made/new", user="root")).owner == "root"
        await files.mkdir(f"{HOME}/made/new")
        moved = await files.move(f"{HOME}/b.bin", f"{HOME}/made/c.bin")
        assert moved.name == "c.bin" and not await files.exists(f"{HOME}/b.bin")
        await files.remove(f"{HOME}/made")
        await files.remove(f"{HOME}/made")
        assert not await files.exists(f"{HOME}/made/c.bin")
        for odd in ("a b", "100%", "q?x=1#y", "ü", "a+b&c", "'\"\\", "%2e%2e", "-rf", "new\nline"):
            await files.write(f"{HOME}/odd/{odd}", odd)
            assert await files.read_text(f"{HOME}/odd/{odd}") == odd, odd
        assert len(await files.list(f"{HOME}/odd")) == 9
        with world.raises(PathNotFound, "path_not_found"):
            await files.read(f"{HOME}/nowhere")
        with world.raises(InvalidRequest, "is_directory"):
            await files.read(HOME)
        with world.raises(InvalidRequest, "invalid_path"):
            await files.read("/home/../etc")
        try:
            await files.read("relative")
            raise AssertionError("a relative path was taken")
        except ValueError:
            pass


async def scenario_files_stream(world: World) -> None:
    async with sandbox_of(world) as sandbox:
        files = sandbox.files
        content = os.urandom(1_000_000)
        local = world.tmp / "local.bin"
        local.write_bytes(content)
        assert (await files.upload(local, f"{HOME}/path.bin", mode="0600")).size == len(content)
        assert (await files.upload(io.BytesIO(content), f"{HOME}/object.bin")).size == len(content)
        with open(local, "rb") as opened:
            opened.seek(999_000)
            assert (await files.write(f"{HOME}/tail.bin", opened)).size == 1000
        parts = [content[start : start + 70_000] for start in range(0, len(content), 70_000)]
        assert (await files.write(f"{HOME}/pieces.bin", seam.pieces(parts))).size == len(content)
        assert (await files.write(f"{HOME}/list.bin", parts)).size == len(content)
        for name in ("path", "object", "pieces", "list"):
            got = b"".join([piece async for piece in files.stream(f"{HOME}/{name}.bin")])
            assert got == content, name
        assert (await files.stat(f"{HOME}/path.bin")).mode == "0600"
        assert await files.download(f"{HOME}/path.bin", world.tmp / "back.bin") == len(content)
        assert (world.tmp / "back.bin").read_bytes() == content
        target = io.BytesIO()
        assert await files.download(f"{HOME}/tail.bin", target) == 1000
        assert target.getvalue() == content[-1000:]
        assert await files.read(f"{HOME}/path.bin", offset=10, length=20) == content[10:30]
        assert await files.read(f"{HOME}/path.bin", offset=999_990) == content[-10:]
        assert await files.read(f"{HOME}/path.bin", length=0) == b""
        part = [piece async for piece in files.stream(f"{HOME}/path.bin", offset=5, length=100_000)]
        assert b"".join(part) == content[5:100_005]
        with world.raises(PathNotFound):
            await files.download(f"{HOME}/nowhere", world.tmp / "nothing.bin")
        assert sorted(path.name for path in world.tmp.iterdir()) == ["back.bin", "local.bin"]


def digest_of(path: os.PathLike[str]) -> str:
    """The digest of a local file, read in constant memory."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()


async def scenario_files_100mb(world: World) -> None:
    async with sandbox_of(world, memory_mb=1024, cpu=1) as sandbox:
        source, back = world.tmp / "source.bin", world.tmp / "back.bin"
        with open(source, "wb") as file:
            for _ in range(LARGE >> 20):
                file.write(os.urandom(1 << 20))
        digest = digest_of(source)
        forget_peak()
        before = peak()
        assert (await sandbox.files.upload(source, f"{HOME}/large.bin")).size == LARGE
        assert await sandbox.files.download(f"{HOME}/large.bin", back) == LARGE
        grown = peak() - before
        assert grown < BEARABLE, f"{grown >> 20} MiB"
        there = await sandbox.exec("sha256sum large.bin", timeout="1m")
        assert there.stdout.split()[0] == digest == digest_of(back)
        source.unlink()
        back.unlink()


async def scenario_files_watch(world: World) -> None:
    async with sandbox_of(world, mode="persistent") as sandbox:
        await sandbox.files.mkdir(f"{HOME}/w/sub")
        async with sandbox.files.watch(f"{HOME}/w", recursive=True) as changes:
            await sandbox.exec("cd w; echo 1 > a; mv a sub/b; rm sub/b; chmod 700 sub")
            told: List[Tuple[str, str]] = []
            async for event in changes:
                told.append((event.type, event.path.replace(f"{HOME}/w/", "")))
                if event.type == "chmod":
                    break
            expected = [("create", "a"), ("write", "a"), ("rename", "a"), ("create", "sub/b"), ("remove", "sub/b")]
            assert told == [*expected, ("chmod", "sub")]
            await sandbox.suspend()
            await sandbox.wake()
            # What happened meanwhile is not known: that is said first, then all that follows.
            missed = FileEvent("overflow", "")
            async for event in changes:
                if event == missed:
                    await sandbox.exec("echo 2 > ~/w/after")
                if event == FileEvent("create", f"{HOME}/w/after"):
                    break
        with world.raises(PathNotFound):
            async with sandbox.files.watch(f"{HOME}/nowhere"):
                pass
        flat = sandbox.files.watch(f"{HOME}/w")
        async with flat:
            await flat.aclose()
            assert [event async for event in flat] == []
