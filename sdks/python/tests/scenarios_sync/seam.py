"""What scenarios do otherwise with threads than under asyncio."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Generator, Generic, Iterable, Iterator, List, TypeVar

from wakeful import Output

T = TypeVar("T")
Block = Generator[T, None, None]


class Task(Generic[T]):
    """Something that goes on beside."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._future: Future[T] = Future()
        self._work = work
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._future.set_result(self._work())
        except BaseException as error:
            self._future.set_exception(error)

    def result(self) -> T:
        """Waits for its end."""
        return self._future.result(100)


def spawn(work: Callable[[], T]) -> Task[T]:
    """Begins something beside."""
    return Task(work)


def all_of(works: Iterable[Callable[[], T]]) -> List[T]:
    """Does all of them at once."""
    listed = list(works)
    with ThreadPoolExecutor(len(listed)) as pool:
        return [future.result() for future in [pool.submit(work) for work in listed]]


def sleep(seconds: float) -> None:
    """Waits."""
    time.sleep(seconds)


def blocking(function: Callable[..., T], *arguments: Any) -> T:
    """Calls what may take its time."""
    return function(*arguments)


class Event:
    """Something that happens once."""

    def __init__(self) -> None:
        self._inner = threading.Event()

    def set(self) -> None:
        """It has happened."""
        self._inner.set()

    def wait(self) -> None:
        """Until it has happened."""
        assert self._inner.wait(60)


def give_up(task: Task[T], output: Output) -> None:
    """Gives up a task that reads an output: here, by closing that."""
    output.close()
    task.result()


def pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Bytes that come piece by piece."""
    yield from parts
