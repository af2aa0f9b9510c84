"""Terminals."""

from __future__ import annotations

import re

from wakeful import AsyncTerminal, ProcessNotFound

from ..world import World
from . import seam
from .support import sandbox_of


async def shown(terminal: AsyncTerminal, pattern: str) -> str:
    """Reads until this was shown."""
    text = ""
    while not re.search(pattern, text):
        piece = await terminal.read(timeout=30)
        assert piece, f"it ended with {text!r}"
        text += piece.decode("utf-8", "replace")
    return text


async def scenario_pty(world: World) -> None:
    async with sandbox_of(world) as sandbox:
        async with sandbox.pty(cols=90, rows=20) as terminal:
            await terminal.write("stty size; echo $TERM\n")
            assert "xterm-256color" in await shown(terminal, r"20 90\r\n(.|\n)*xterm-256color\r\n")
            await terminal.resize(132, 50)
            await terminal.write(b"stty size\n")
            await shown(terminal, r"50 132\r\n")
            await terminal.write("exit 5\n")
            assert await terminal.wait(timeout=30) == 5
            assert terminal.exit_code == 5 and terminal.pid is not None
            assert await terminal.read() == b""
        trapped = sandbox.pty("trap 'echo caught; exit 6' USR1; echo ready; while :; do sleep 0.05; done")
        await trapped.open()
        await shown(trapped, "ready")
        await trapped.signal("USR1")
        rest = b"".join([piece async for piece in trapped])
        assert b"caught" in rest and trapped.exit_code == 6 and trapped.dropped_bytes == 0
        await trapped.detach()


async def scenario_pty_reattach(world: World) -> None:
    async with sandbox_of(world, mode="persistent") as sandbox:
        async with sandbox.pty("stty -echo; echo begun; read line; echo got $line; read line; echo then $line") as first:
            await shown(first, "begun")
            pid, seq = first.pid, first.seq
        assert pid is not None
        # What it shows while nobody looks is shown to whoever comes back.
        process = await sandbox.processes.get(pid)
        await process.write_stdin("meanwhile\n")
        async with sandbox.pty(pid=pid, from_seq=seq) as second:
            assert await shown(second, "got meanwhile") == "got meanwhile\r\n"
            await sandbox.suspend()
            await sandbox.wake()
            await seam.blocking(world.stage.tell, "kill")
            waiting = seam.spawn(second.wait)
            await process.write_stdin("awake\n")
            assert await waiting.result() == 0
        async with sandbox.pty(pid=pid) as third:
            text = b"".join([piece async for piece in third]).decode()
            assert text.split() == ["begun", "got", "meanwhile", "then", "awake"]
        with world.raises(ProcessNotFound, "process_not_found"):
            await sandbox.pty(pid=999_999).open()
