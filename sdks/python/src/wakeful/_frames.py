"""What streams carry: the output of processes, changes of files, the progress of builds."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, List, Literal, Mapping, Optional, Union

from . import types
from .errors import ProtocolError


@dataclass(frozen=True)
class Stdout:
    """It wrote to its output, or to its terminal."""

    data: bytes
    """What it wrote; not always text."""
    seq: int
    """The place of this frame; the next one is at seq + 1."""

    @property
    def text(self) -> str:
        """What it wrote, as text."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True)
class Stderr:
    """It wrote to its error output."""

    data: bytes
    """What it wrote; not always text."""
    seq: int
    """The place of this frame; the next one is at seq + 1."""

    @property
    def text(self) -> str:
        """What it wrote, as text."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True)
class Gap:
    """Output that nobody took in time and that is not kept any more."""

    dropped_bytes: int
    """How much of it."""
    seq: int
    """The place of this frame; the next one is at seq + 1."""


@dataclass(frozen=True)
class Exit:
    """It ended; the last frame."""

    exit_code: int
    """128 and the signal, if it was killed."""
    signal: Optional[int]
    """The signal that killed it."""
    timed_out: bool
    """It was killed because its time was up."""
    duration: float
    """Seconds, measured in the sandbox."""
    seq: int
    """The place of this frame."""


Frame = Union[Stdout, Stderr, Gap, Exit]
"""What the stream of a process gives."""


@dataclass(frozen=True)
class FileEvent:
    """Something happened below a directory that is watched."""

    type: Literal["create", "write", "remove", "rename", "chmod", "overflow"]
    """What; `rename` is what moved away, `overflow` that there was more than could be told."""
    path: str
    """To which file or directory; empty for an overflow."""


BuildLayer = types.BuildLayer
BuildProgress = types.BuildEventProgress


def output_bytes(frame: Union[types.FrameStdout, types.FrameStderr]) -> bytes:
    """What was written."""
    if frame.data is not None:
        return frame.data.encode("utf-8")
    return base64.b64decode(frame.data_base64 or "")


def exit_of(frame: types.FrameExit) -> Exit:
    """The end of a process."""
    return Exit(frame.exit_code, frame.signal, frame.timed_out, frame.duration_ms / 1000, frame.seq)


def parse(line: str) -> Mapping[str, Any]:
    """One line of a stream.

    Raises ProtocolError if it is no object.
    """
    try:
        value: Any = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ProtocolError(f"a stream has a line that is no object: {line[:80]!r}")
    return value  # pyright: ignore[reportUnknownVariableType]


def process_frame(line: str) -> Optional[types.Frame]:
    """A frame of a process's stream; None for a kind that this version does not know.

    Raises ProtocolError if it cannot be understood.
    """
    raw = parse(line)
    try:
        return types.frame_from_wire(raw)
    except KeyError as error:
        if error.args == (raw.get("type"),):
            return None
        raise ProtocolError(f"a frame without {error}: {line[:80]!r}") from error


@dataclass
class SeenLog:
    """How far a build's log was told: one that breaks off is read again from its first line."""

    begun: Optional[datetime] = None
    shown: int = 0
    at: int = 0

    def rewind(self) -> None:
        """Begins to read from the first line again."""
        self.at = 0

    def is_new(self, line: BuildProgress) -> bool:
        """Whether a line was not told yet. A daemon that was restarted begins the build again, and its log with it."""
        if self.at == 0 and self.begun != line.at:
            self.begun, self.shown = line.at, 0
        self.at += 1
        new = self.at > self.shown
        self.shown = max(self.shown, self.at)
        return new


@dataclass
class Lines:
    """Bytes as lines, however they were cut on their way."""

    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> List[str]:
        """The lines that are whole by now."""
        self._rest += data
        if b"\n" not in data:
            return []
        *whole, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        return [line.decode("utf-8", "replace").rstrip("\r") for line in whole]


@dataclass
class ServerSentEvents:
    """The data of server-sent events, each on one line as the API sends them."""

    _lines: Lines = field(default_factory=Lines)
    _data: List[str] = field(default_factory=lambda: [])

    def feed(self, data: bytes) -> List[str]:
        """The events that are whole by now."""
        events: List[str] = []
        for line in self._lines.feed(data):
            if line.startswith("data:"):
                self._data.append(line[5:].lstrip(" "))
            elif not line and self._data:
                events.append("\n".join(self._data))
                self._data = []
        return events
