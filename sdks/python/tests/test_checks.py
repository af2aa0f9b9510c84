"""What can be said of the code without running it, and of the files that are generated."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Optional

HERE = Path(__file__).resolve().parent.parent
GENERATED = HERE / "src" / "wakeful" / "types.py"
SOURCES = sorted(path for folder in ("src", "tests") for path in (HERE / folder).rglob("*.py"))


def passes(command: List[str], env: Optional[Dict[str, str]] = None) -> None:
    """A command that must end with 0."""
    ended = subprocess.run(
        command, cwd=HERE, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=110, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_blocking_clients_are_those_of_asyncio() -> None:
    passes([sys.executable, "scripts/generate-sync", "--check"])


def test_the_types_are_those_of_the_api() -> None:
    command = [sys.executable, "scripts/generate-types", "--print"]
    written = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=60, check=True).stdout
    assert written == GENERATED.read_text("utf-8"), "scripts/generate-types writes another file"


def test_mypy() -> None:
    passes([sys.executable, "-m", "mypy"])


def test_pyright() -> None:
    # The package brings pyright itself from npm's registry once, and keeps it.
    passes([sys.executable, "-m", "pyright", "--pythonpath", sys.executable], {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"})


def test_ruff() -> None:
    passes([sys.executable, "-m", "ruff", "check"])
    passes([sys.executable, "-m", "ruff", "format", "--check"])


def test_it_is_python_3_9() -> None:
    for path in SOURCES:
        ast.parse(path.read_text("utf-8"), str(path), feature_version=(3, 9))


def test_the_package_says_that_it_has_types() -> None:
    assert (HERE / "src" / "wakeful" / "py.typed").exists()
