"""A real server for tests, by the program `wakeful-stage`."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any, Dict, List

ROOT = Path(__file__).resolve().parents[3]
STAGE = os.environ.get("WAKEFUL_STAGE") or str(ROOT / "target" / "release" / "wakeful-stage")


class Stage:
    """One server over a directory of its own."""

    def __init__(self, config: str = "", leftovers: bool = False) -> None:
        arguments = [STAGE, "--config", config] + (["--leftovers"] if leftovers else [])
        self._process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._lock = threading.Lock()
        self.place = self._answer()

    @property
    def url(self) -> str:
        """Where it is."""
        return str(self.place["url"])

    @property
    def data_dir(self) -> Path:
        """Where its data is."""
        return Path(str(self.place["data_dir"]))

    def _answer(self) -> Dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"{STAGE} ended with {self._process.wait()}"
        answer: Dict[str, Any] = json.loads(line)
        return answer

    def tell(self, word: str) -> Dict[str, Any]:
        """`restart`, `kill`, `stop` or `start`, until that is done."""
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(word + "\n")
            self._process.stdin.flush()
            return self._answer()

    def end(self) -> List[str]:
        """Ends it, and tells what was left over."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        with self._process.stdout:
            rest = self._process.stdout.read()
        self._process.wait(60)
        left: List[str] = []
        for line in rest.splitlines():
            left += json.loads(line).get("leftovers", [])
        return left
