"""What can be asked of a new sandbox."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, TypedDict

from . import types
from ._time import Duration, wire


class CreateOptions(TypedDict, total=False):
    """Options of a create; what is left out is the template's or the server's default."""

    mode: types.Mode
    """`ephemeral`, which ends with its lease, or `persistent`, which sleeps when idle."""
    timeout: Duration
    """The lease of an ephemeral one."""
    idle_timeout: Duration
    """Idleness before a persistent one sleeps."""
    hard_ttl: Duration
    """Destroyed after this, whatever else holds."""
    size: str
    """A preset,"""
    cpu: int
    """or processors"""
    memory_mb: int
    """and memory in MiB."""
    disk_mb: int
    """Disk in MiB."""
    env: Mapping[str, str]
    """Variables."""
    metadata: Mapping[str, str]
    """Labels."""
    egress: types.EgressRequest
    """What it may reach."""
    io: types.IoLimitsRequest
    """What it may ask of its disk."""
    auto_resume: bool
    """Whether calls wake it."""
    runtime: str
    """Which runtime."""
    deadline: Optional[Duration]
    """How long this call may take."""


def create_body(template: str, options: Mapping[str, Any]) -> Dict[str, Any]:
    """A create as the API takes it: without what is not there."""
    body: Dict[str, Any] = {"template": template}
    for name, value in options.items():
        if value is not None:
            body[name] = wire(value) if name in ("timeout", "idle_timeout", "hard_ttl") else value
    return body
