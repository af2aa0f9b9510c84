"""What a scenario has around it: a server, a directory, and a list of what it met."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Generator, Generic, Optional, Set, Type, TypeVar

from wakeful import WakefulError

from .stage import Stage

E = TypeVar("E", bound=WakefulError)


class Caught(Generic[E]):
    """What was raised."""

    def __init__(self) -> None:
        self._error: Optional[E] = None

    @property
    def error(self) -> E:
        """The exception."""
        assert self._error is not None
        return self._error

    def take(self, error: E) -> None:
        """It was raised."""
        self._error = error


@dataclass
class World:
    """The surroundings of one scenario."""

    stage: Stage
    tmp: Path
    set_env: Callable[[str, str], None]
    met: Set[Type[BaseException]] = field(default_factory=lambda: set())

    @property
    def url(self) -> str:
        """Where the server is."""
        return self.stage.url

    @contextlib.contextmanager
    def raises(self, kind: Type[E], code: Optional[str] = None) -> Generator[Caught[E], None, None]:
        """What is inside must raise this very type, and with this code."""
        caught: Caught[E] = Caught()
        try:
            yield caught
        except kind as error:
            assert type(error) is kind, f"{type(error).__name__} instead of {kind.__name__}: {error}"
            assert code is None or getattr(error, "code", None) == code, f"{error!r} has another code than {code}"
            self.met.add(type(error))
            caught.take(error)
        else:
            raise AssertionError(f"{kind.__name__} was not raised")

    @contextlib.contextmanager
    def another(self, config: str = "") -> Generator[Stage, None, None]:
        """Another server, for what would disturb others."""
        stage = Stage(config)
        try:
            yield stage
        finally:
            stage.end()


def engine_of(sandbox_id: str) -> int:
    """The process on this machine that runs a sandbox."""
    bare = sandbox_id.split("_")[-1]
    (found,) = glob.glob(f"/run/wakeful/*/{bare}/pid")
    return int(Path(found).read_text("utf-8"))


def connections_to(url: str) -> int:
    """How many connections to a server this process holds open."""
    port = int(url.rsplit(":", 1)[1])
    own: Set[str] = set()
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/self/fd/{entry}"))
            if match:
                own.add(match.group(1))
    count = 0
    for line in Path("/proc/self/net/tcp").read_text("utf-8").splitlines()[1:]:
        fields = line.split()
        if int(fields[2].split(":")[1], 16) == port and fields[9] in own:
            count += 1
    return count


def forget_peak() -> None:
    """Lets the peak of this process's memory begin anew."""
    Path("/proc/self/clear_refs").write_text("5", "utf-8")


def peak() -> int:
    """The most memory that this process had since then, in bytes."""
    text = Path("/proc/self/status").read_text("utf-8")
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    assert found is not None
    return int(found.group(1)) * 1024
