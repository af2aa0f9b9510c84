"""What needs no server: durations, rules of what is sent, lines however they are cut."""

from __future__ import annotations

import tarfile
from datetime import timedelta
from pathlib import Path
from typing import List, Union

import pytest

from wakeful import Client, Duration, ExecResult, types
from wakeful._address import joined, remote
from wakeful._archive import Ignored, packed
from wakeful._frames import Lines, ServerSentEvents
from wakeful._result import KEPT, Collector
from wakeful._time import Backoff, Deadline, seconds, wire


@pytest.mark.parametrize(
    ("duration", "length", "sent"),
    [
        (90, 90.0, 90),
        (1.5, 1.5, "1500ms"),
        (2.0, 2.0, 2),
        ("1h30m", 5400.0, "1h30m"),
        ("250ms", 0.25, "250ms"),
        ("0", 0.0, "0"),
        (timedelta(minutes=2), 120.0, 120),
    ],
)
def test_durations(duration: Duration, length: float, sent: Union[int, str]) -> None:
    assert (seconds(duration), wire(duration)) == (length, sent)


@pytest.mark.parametrize("bad", ["", "10", "1.5s", "s", "-1s", "1h 30m"])
def test_what_is_no_duration(bad: str) -> None:
    with pytest.raises(ValueError):
        seconds(bad)


def test_deadlines() -> None:
    assert Deadline(None).remaining() is None and Deadline(None).remaining(5) == 5
    left = Deadline("1m").remaining()
    assert left is not None and 59 < left <= 60 and Deadline("1m").remaining(3) == 3
    assert Deadline(0).expired and not Deadline(60).expired
    backoff = Backoff(limit=float("inf"), first=0.1, longest=1.0)
    waits = [backoff.next() or 0 for _ in range(8)]
    assert 0.05 <= waits[0] <= 0.15 and 0.5 <= waits[-1] <= 1.5
    backoff.reset()
    assert (backoff.next() or 0) <= 0.15


def test_addresses() -> None:
    assert remote("/a b/ü?#%/..") == "a%20b/%C3%BC%3F%23%25/%2E%2E"
    assert joined("v1", "templates", "a/b", ".") == "/v1/templates/a%2Fb/%2E"
    for bad in ("127.0.0.1:8080", "ftp://x", "http://"):
        with pytest.raises(ValueError):
            Client(bad)


@pytest.mark.parametrize(
    ("rules", "out", "kept"),
    [
        ("junk", ["junk", "junk/a/b"], ["a/junk", "junky"]),
        ("*.tmp", ["x.tmp"], ["a/x.tmp"]),
        ("**/*.tmp", ["x.tmp", "a/b/x.tmp"], ["x.tmp2"]),
        ("/a/\n!a/b", ["a", "a/c"], ["a/b", "a/b/c"]),
        ("# junk\n\nfile?[0-9]", ["fileX7"], ["junk", "file7", "fileXY"]),
        ("a/**", ["a/b", "a/b/c"], ["b"]),
    ],
)
def test_what_is_not_sent(rules: str, out: List[str], kept: List[str]) -> None:
    ignored = Ignored(rules)
    assert [path for path in out + kept if ignored.leaves_out(path)] == out


def test_a_directory_is_packed(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_text("a")
    (tmp_path / "Dockerfile").write_text("FROM scratch")
    (tmp_path / ".dockerignore").write_text("*\n!sub/a\n")
    (tmp_path / "secret").write_text("secret")
    with packed(str(tmp_path), "Dockerfile") as file, tarfile.open(fileobj=file) as archive:
        assert sorted(archive.getnames()) == ["Dockerfile", "sub/a"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_however_they_are_cut(size: int) -> None:
    text = "erste\nzweite ü\n\nlast\n".encode()
    lines = Lines()
    got = [line for start in range(0, len(text), size) for line in lines.feed(text[start : start + size])]
    assert got == ["erste", "zweite ü", "", "last"]
    sent = b": keepalive\n\nid: 1\nevent: x\ndata: {1}\n\nid: 2\ndata: {2}\n\ndata: {3"
    events = ServerSentEvents()
    told = [one for start in range(0, len(sent), size) for one in events.feed(sent[start : start + size])]
    assert told == ["{1}", "{2}"]


def test_output_is_kept_up_to_a_limit() -> None:
    told: List[str] = []
    collector = Collector(told.append)
    for piece in (b"\xc3", b"\xbc", b"\xff"):
        collector.take(piece)
    assert (collector.text(), told, collector.truncated) == ("ü\ufffd", ["ü", "\ufffd"], False)
    collector = Collector(None)
    collector.take(b"x" * (KEPT - 1))
    collector.take(b"yz")
    assert (len(collector.text()), collector.truncated) == (KEPT, True)


def test_fields_of_tomorrow_are_no_error() -> None:
    names = ("exit_code", "duration_ms", "pid")
    raw = {**dict.fromkeys(names, 1), "stdout": "", "stderr": "", "timed_out": False, "signal": None}
    raw.update({"stdout_truncated": False, "stderr_truncated": False, "of_tomorrow": 1})
    assert ExecResult.of(types.ExecuteResponse.from_wire(raw)).duration == 0.001
