"""One server for all scenarios, and a record of what they called."""

from __future__ import annotations

from typing import Iterator

import pytest

from . import record
from .stage import Stage

record.wrap()


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """The server; whatever a scenario left there is a failure."""
    stage = Stage(leftovers=True)
    yield stage
    left = stage.end()
    assert left == [], f"not destroyed: {left}"
