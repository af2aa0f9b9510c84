"""The examples of the README, run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

from .stage import Stage

README = Path(__file__).resolve().parent.parent / "README.md"
EXAMPLES: List[str] = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
SAID = [
    r"42\n 0",
    r"hello",
    r"1\n.*2\n.*b'one\\n'\n3",
    r"0\nb'hello\\ndone\\n'",
    r"text b'\\x00\\x00\\x00\\x00\\x00'\n\['\.bash.*'docs'\] 0600\nFileEvent\(type='create', path='/home/user/new'\)",
    r"suspended\n\['created', 'suspend_started', 'suspended', 'wake_started', 'woken', .*'snapshot'",
    r"5\nhttp://8000-[a-z2-7]{20}\.localhost:\d+/\n200",
    r"ok gvisor\n(.*\n)*base ready\npython ready",
    r"path_not_found .*nowhere",
]


def test_the_quickstart_is_short() -> None:
    assert len(EXAMPLES[0].splitlines()) <= 10
    assert len(EXAMPLES) == len(SAID)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example(number: int, stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# A file to be sent\n", "utf-8")
    env = {**os.environ, "WAKEFUL_URL": stage.url}
    command = [sys.executable, "-W", "error", "-c", EXAMPLES[number]]
    ended = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    assert re.search(SAID[number], ended.stdout, re.DOTALL), ended.stdout
    assert ended.stderr == ""
