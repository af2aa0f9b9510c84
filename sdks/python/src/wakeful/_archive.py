"""A local directory as a tar: what a template is built from."""

from __future__ import annotations

import os
import re
import tarfile
import tempfile
from typing import BinaryIO, List, Optional, Tuple, cast


class Ignored:
    """The rules of a `.dockerignore`: the last one that fits decides."""

    def __init__(self, text: str) -> None:
        self._rules: List[Tuple[bool, re.Pattern[str]]] = []
        for line in text.splitlines():
            rule = line.strip()
            if not rule or rule.startswith("#"):
                continue
            kept = rule.startswith("!")
            names = [name for name in rule.lstrip("!").strip().split("/") if name not in ("", ".")]
            if names:
                self._rules.append((kept, re.compile(_pattern(names))))

    @property
    def any(self) -> bool:
        """Whether there are rules."""
        return bool(self._rules)

    def leaves_out(self, path: str) -> bool:
        """Whether a path below the directory is not sent."""
        out = False
        for kept, pattern in self._rules:
            if pattern.fullmatch(path):
                out = not kept
        return out


def _pattern(names: List[str]) -> str:
    """A rule as a regular expression; what is below a directory that fits, fits."""
    parts: List[str] = []
    for place, name in enumerate(names):
        last = place == len(names) - 1
        if name == "**":
            parts.append(".*" if last else "(?:[^/]+/)*")
        else:
            parts.append(_name(name) + ("" if last else "/"))
    return "".join(parts) + "(?:/.*)?"


def _name(glob: str) -> str:
    """One name of a rule."""
    text, place = "", 0
    while place < len(glob):
        letter = glob[place]
        end = glob.find("]", place + 2) if letter == "[" else -1
        if letter == "*":
            text += "[^/]*"
        elif letter == "?":
            text += "[^/]"
        elif end > 0:
            inner = glob[place + 1 : end].replace("\\", "\\\\")
            text += f"[{inner}]"
            place = end
        else:
            text += re.escape(letter)
        place += 1
    return text


def packed(directory: str, keep: Optional[str] = None) -> BinaryIO:
    """A directory as a tar in a temporary file, without what its `.dockerignore` leaves out.

    `keep` is sent whatever the rules say.
    """
    try:
        with open(os.path.join(directory, ".dockerignore"), encoding="utf-8") as file:
            ignored = Ignored(file.read())
    except FileNotFoundError:
        ignored = Ignored("")
    target = cast("BinaryIO", tempfile.TemporaryFile())
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for above, directories, files in os.walk(directory):
            below = os.path.relpath(above, directory)
            for name in sorted(directories + files):
                path = name if below == "." else f"{below}/{name}"
                if (keep is not None and path == keep) or not ignored.leaves_out(path):
                    archive.add(os.path.join(above, name), path, recursive=False)
    target.seek(0)
    return target


def binary(path: str) -> BinaryIO:
    """A local file to be read."""
    return open(path, "rb")


def opened(source: str) -> BinaryIO:
    """A tar as it is, or a directory as one."""
    return packed(source) if os.path.isdir(source) else binary(source)
