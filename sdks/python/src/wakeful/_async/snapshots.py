"""Snapshots: copies of sandboxes that are kept."""

from __future__ import annotations

from typing import AsyncIterator

from .. import _address, types
from .connection import AsyncConnection


class AsyncSnapshots:
    """The snapshots of a server; `sandbox.snapshot()` takes one, and its id serves as a template."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(self) -> AsyncIterator[types.Snapshot]:
        """All of them, newest first."""
        found = await self._connection.call("GET", "/v1/snapshots", types.SnapshotList.from_wire)
        for snapshot in found.snapshots:
            yield snapshot

    async def get(self, snapshot_id: str) -> types.Snapshot:
        """One of them."""
        path = _address.joined("v1", "snapshots", snapshot_id)
        return await self._connection.call("GET", path, types.Snapshot.from_wire)

    async def delete(self, snapshot_id: str) -> None:
        """Removes one; sandboxes that were made of it stay."""
        await self._connection.do("DELETE", _address.joined("v1", "snapshots", snapshot_id))
