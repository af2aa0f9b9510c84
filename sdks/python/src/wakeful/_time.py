"""Durations as people write them, deadlines, and waits that grow."""

from __future__ import annotations

import random
import re
import time
from datetime import timedelta
from typing import Optional, Union

from .errors import DeadlineExceeded

Duration = Union[int, float, str, timedelta]
"""Seconds, a `timedelta`, or text such as `"90s"` or `"1h30m"`."""

CALL = 120.0
"""A plain call: the server itself waits up to a minute for a sandbox that is busy."""
MARGIN = 60.0
"""What a command's answer may take over the command's own time."""
EXEC = 30.0
"""The server's own limit of a command for which none is given."""
FOLLOW = 3600.0
"""A stream that somebody follows, unless they say otherwise."""
TRANSFER = 600.0
"""A file on its way."""
BUILD = 1800.0
"""A template's build."""
AWAY = 120.0
"""How long a stream tries to get its connection back."""
SILENCE = 60.0
"""Streams say that they are alive after 15 s of silence; after so much more nobody is there."""
CONNECT = 5.0
"""A server that does not even take the connection is not there."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WRITTEN = re.compile(r"(?:[0-9]+(?:ms|s|m|h|d))+")


def seconds(duration: Duration) -> float:
    """A duration in seconds.

    Raises ValueError for what is none.
    """
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, str):
        if duration == "0":
            return 0.0
        if not _WRITTEN.fullmatch(duration):
            raise ValueError(f'{duration!r} is not a duration; write "90s" or "1h30m"')
        return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"([0-9]+)(ms|s|m|h|d)", duration))
    return float(duration)


def wire(duration: Duration) -> Union[int, str]:
    """A duration as the API takes it: text as it is, whole seconds as a number, else milliseconds."""
    if isinstance(duration, str):
        return duration
    value = seconds(duration)
    if value == int(value):
        return int(value)
    return f"{round(value * 1000)}ms"


class Deadline:
    """A moment at which a wait ends; or none."""

    def __init__(self, duration: Optional[Duration]) -> None:
        self.length = None if duration is None else seconds(duration)
        self._end = None if self.length is None else time.monotonic() + self.length

    def remaining(self, most: Optional[float] = None) -> Optional[float]:
        """Seconds that are left, and no more than `most`; None if nothing bounds it.

        Raises DeadlineExceeded if none are left.
        """
        if self._end is None:
            return most
        left = self._end - time.monotonic()
        if left <= 0:
            raise self.exceeded()
        return left if most is None else min(left, most)

    @property
    def expired(self) -> bool:
        """Whether it is over."""
        return self._end is not None and time.monotonic() >= self._end

    def exceeded(self) -> DeadlineExceeded:
        """The exception that says so."""
        return DeadlineExceeded(f"it took longer than {self.length:g} seconds")


class Backoff:
    """Waits that grow, with some chance in them so that not everybody comes back at once."""

    def __init__(self, limit: float = AWAY, first: float = 0.1, longest: float = 2.0) -> None:
        self._limit = limit
        self._first = first
        self._longest = longest
        self._next = first
        self._since: Optional[float] = None

    def reset(self) -> None:
        """It went well: the next failure is the first again."""
        self._since = None
        self._next = self._first

    def next(self) -> Optional[float]:
        """How long to wait now; None if it has gone on for too long."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if now - self._since > self._limit:
            return None
        wait = self._next * (0.5 + random.random())
        self._next = min(self._next * 2, self._longest)
        return wait
