"""What admins do: pools of sandboxes made ahead, keys, tenants."""

from __future__ import annotations

from typing import Any, AsyncIterator, Dict, Optional, Sequence

from .. import _address, types
from .connection import AsyncConnection


class AsyncPools:
    """Sandboxes that are made before they are asked for."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(self) -> AsyncIterator[types.Pool]:
        """All of them, by template and size."""
        for pool in (await self._connection.call("GET", "/v1/pool", types.PoolList.from_wire)).pools:
            yield pool

    async def set(self, template: str, size: str, target: int) -> types.Pool:
        """How many there are to be; 0 for none."""
        path = _address.joined("v1", "pool", template, size)
        return await self._connection.call("PUT", path, types.Pool.from_wire, body={"target": target})


class AsyncKeys:
    """Keys of the API. From the first one on every call needs one."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def create(
        self, name: str, *, tenant: Optional[str] = None, scopes: Optional[Sequence[types.Scope]] = None
    ) -> types.CreatedKey:
        """Makes one; its `key` is shown this once."""
        body: Dict[str, Any] = {"name": name}
        if tenant is not None:
            body["tenant"] = tenant
        if scopes is not None:
            body["scopes"] = list(scopes)
        return await self._connection.call("POST", "/v1/keys", types.CreatedKey.from_wire, body=body)

    async def list(self, *, tenant: Optional[str] = None) -> AsyncIterator[types.Key]:
        """All of them, without their secrets, oldest first."""
        query = _address.given(tenant=tenant)
        for key in (await self._connection.call("GET", "/v1/keys", types.KeyList.from_wire, query=query)).keys:
            yield key

    async def delete(self, key_id: str) -> None:
        """Makes one worthless."""
        await self._connection.do("DELETE", _address.joined("v1", "keys", key_id))


class AsyncTenants:
    """Those who share a server."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def create(self, name: str, *, limits: Optional[types.LimitsRequest] = None) -> types.Tenant:
        """Makes one."""
        body: Dict[str, Any] = {"name": name}
        if limits is not None:
            body["limits"] = limits
        return await self._connection.call("POST", "/v1/tenants", types.Tenant.from_wire, body=body)

    async def get(self, name: str) -> types.Tenant:
        """One of them: what it may have, and what it has."""
        return await self._connection.call("GET", _address.joined("v1", "tenants", name), types.Tenant.from_wire)

    async def list(self) -> AsyncIterator[types.Tenant]:
        """All of them, by name."""
        for tenant in (await self._connection.call("GET", "/v1/tenants", types.TenantList.from_wire)).tenants:
            yield tenant

    async def update(self, name: str, limits: types.LimitsRequest) -> types.Tenant:
        """Sets limits; what is left out stays as it is, None lifts a limit."""
        path = _address.joined("v1", "tenants", name)
        return await self._connection.call("PATCH", path, types.Tenant.from_wire, body={"limits": limits})

    async def delete(self, name: str) -> None:
        """Removes one that has nothing any more."""
        await self._connection.do("DELETE", _address.joined("v1", "tenants", name))
