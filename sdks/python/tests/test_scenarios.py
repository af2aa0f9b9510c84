"""The list of ../scenarios.json, walked by both clients."""

from __future__ import annotations

import asyncio
import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest

from . import record
from .stage import ROOT, Stage
from .world import World

SIDES = ("async", "sync")
LISTED: List[str] = [one["name"] for one in json.loads((ROOT / "sdks" / "scenarios.json").read_text("utf-8"))]


def _found(side: str) -> Dict[str, Callable[[World], Any]]:
    package = importlib.import_module(f"tests.scenarios_{side}")
    found: Dict[str, Callable[[World], Any]] = {}
    for module in pkgutil.iter_modules(package.__path__):
        for name, value in vars(importlib.import_module(f"{package.__name__}.{module.name}")).items():
            if name.startswith("scenario_"):
                found[name[len("scenario_") :]] = value
    return found


FOUND = {side: _found(side) for side in SIDES}


@pytest.mark.parametrize("side", SIDES)
def test_every_scenario_is_there(side: str) -> None:
    assert sorted(FOUND[side]) == sorted(LISTED)


@pytest.mark.parametrize("name", LISTED)
@pytest.mark.parametrize("side", SIDES)
def test_scenario(side: str, name: str, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(stage, tmp_path, monkeypatch.setenv, record.MET[side])
    outcome = FOUND[side][name](world)
    if asyncio.iscoroutine(outcome):
        asyncio.run(outcome)


# Those that follow look at what the scenarios did, and mean something only after all of them.


@pytest.mark.parametrize("side", SIDES)
def test_every_public_method_was_called(side: str) -> None:
    mine = {method for method in record.public() if method[0].startswith("Async") == (side == "async")}
    assert mine - record.CALLED == set()


@pytest.mark.parametrize("side", SIDES)
def test_every_exception_was_met(side: str) -> None:
    assert {kind.__name__ for kind in record.exceptions() - record.MET[side]} == set()
