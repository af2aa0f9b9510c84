"""What scenarios do otherwise under asyncio than with threads."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, AsyncGenerator, AsyncIterator, Awaitable, Callable, Generic, Iterable, List, TypeVar

from wakeful import AsyncOutput

T = TypeVar("T")
Block = AsyncGenerator[T, None]


class Task(Generic[T]):
    """Something that goes on beside."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self.inner = asyncio.ensure_future(work())

    async def result(self) -> T:
        """Waits for its end."""
        return await self.inner


def spawn(work: Callable[[], Awaitable[T]]) -> Task[T]:
    """Begins something beside."""
    return Task(work)


async def all_of(works: Iterable[Callable[[], Awaitable[T]]]) -> List[T]:
    """Does all of them at once."""
    return list(await asyncio.gather(*(work() for work in works)))


async def sleep(seconds: float) -> None:
    """Waits."""
    await asyncio.sleep(seconds)


async def blocking(function: Callable[..., T], *arguments: Any) -> T:
    """Calls what would hold up everybody else."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


class Event:
    """Something that happens once."""

    def __init__(self) -> None:
        self._inner = asyncio.Event()

    def set(self) -> None:
        """It has happened."""
        self._inner.set()

    async def wait(self) -> None:
        """Until it has happened."""
        await asyncio.wait_for(self._inner.wait(), 60)


async def give_up(task: Task[T], output: AsyncOutput) -> None:
    """Gives up a task that reads an output: here, by cancelling it."""
    task.inner.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task.inner


async def pieces(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Bytes that come piece by piece."""
    for part in parts:
        await asyncio.sleep(0)
        yield part
