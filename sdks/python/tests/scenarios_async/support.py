"""What several scenarios need."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Callable, List

from wakeful import AsyncClient, AsyncOutput, AsyncSandbox, Stdout

from ..world import World
from . import seam

PATIENCE = 60.0


def client_of(world: World, **options: Any) -> AsyncClient:
    """A client of the scenario's server."""
    return AsyncClient(world.url, **options)


@contextlib.asynccontextmanager
async def sandbox_of(world: World, template: str = "base", **options: Any) -> seam.Block[AsyncSandbox]:
    """A sandbox that is gone afterwards, whatever its mode, with a client of its own."""
    async with client_of(world) as client:
        sandbox = await client.sandboxes.create(template, **options)
        try:
            yield sandbox
        finally:
            await sandbox.destroy()


async def until(check: Callable[[], Any]) -> None:
    """Waits for a state."""
    end = time.monotonic() + PATIENCE
    while not await check():
        assert time.monotonic() < end, "the state did not come"
        await seam.sleep(0.05)


async def lines_of(output: AsyncOutput) -> List[str]:
    """All that a process wrote, line by line."""
    return b"".join([frame.data async for frame in output if isinstance(frame, Stdout)]).decode().splitlines()


def counting(count: int, gap: float = 0.02) -> str:
    """A command that counts slowly."""
    return f"i=0; while [ $i -lt {count} ]; do i=$((i+1)); echo line $i; sleep {gap}; done"


def counted(count: int) -> List[str]:
    """What it writes."""
    return [f"line {number}" for number in range(1, count + 1)]
