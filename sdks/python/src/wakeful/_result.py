"""How a command ended."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Callable, List, Optional

from . import types
from ._frames import Exit

KEPT = 8 << 20
"""Output that is kept of each stream, as the server does."""


@dataclass(frozen=True)
class ExecResult:
    """How a command ended, and what it wrote."""

    exit_code: int
    """128 and the signal, if it was killed."""
    stdout: str
    """Its output; bytes that are no UTF-8 are U+FFFD."""
    stderr: str
    """Its error output."""
    duration: float
    """Seconds, measured in the sandbox, without a wake."""
    timed_out: bool
    """It was killed because its time was up."""
    signal: Optional[int]
    """The signal that killed it."""
    stdout_truncated: bool
    """There was more output than is kept."""
    stderr_truncated: bool
    """There was more error output than is kept."""
    pid: int
    """Its process id in the sandbox."""

    @property
    def ok(self) -> bool:
        """Whether it ended with 0."""
        return self.exit_code == 0

    @classmethod
    def of(cls, answer: types.ExecuteResponse) -> ExecResult:
        """Of the server's answer."""
        return cls(
            answer.exit_code,
            answer.stdout,
            answer.stderr,
            answer.duration_ms / 1000,
            answer.timed_out,
            answer.signal,
            answer.stdout_truncated,
            answer.stderr_truncated,
            answer.pid,
        )


class Collector:
    """One output of a command as it comes: kept up to a limit, and told as text where somebody asked for that."""

    def __init__(self, told: Optional[Callable[[str], object]]) -> None:
        self._told = told
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._parts: List[str] = []
        self._kept = 0
        self.truncated = False

    def take(self, data: bytes, final: bool = False) -> None:
        """The next piece."""
        text = self._decode(data, final)
        if text and self._told is not None:
            self._told(text)
        if self._kept + len(data) > KEPT:
            self.truncated = True
            text = text[: max(0, KEPT - self._kept)]
        self._kept += len(data)
        if text:
            self._parts.append(text)

    def text(self) -> str:
        """All that was kept."""
        return "".join(self._parts)


def collected(end: Exit, out: Collector, err: Collector, pid: int) -> ExecResult:
    """The same of a stream that was followed to its end."""
    out.take(b"", final=True)
    err.take(b"", final=True)
    return ExecResult(
        end.exit_code,
        out.text(),
        err.text(),
        end.duration,
        end.timed_out,
        end.signal,
        out.truncated,
        err.truncated,
        pid,
    )
