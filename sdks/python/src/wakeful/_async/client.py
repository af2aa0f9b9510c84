"""A server, and all that can be asked of it."""

from __future__ import annotations

from types import TracebackType
from typing import BinaryIO, Optional, Type

from .. import types
from .._time import CALL, TRANSFER, Duration, wire
from .admin import AsyncKeys, AsyncPools, AsyncTenants
from .connection import AsyncConnection
from .sandboxes import AsyncSandboxes
from .snapshots import AsyncSnapshots
from .templates import AsyncTemplates, upload


class AsyncClient:
    """A server: where it is, who asks, and how long a call may take.

    The address is `WAKEFUL_URL` if none is given, else http://127.0.0.1:8080; the key is `WAKEFUL_API_KEY`. `timeout` is
    for each plain call, `retries` for how often one is repeated where that is safe. Connections are made when they are
    needed; a client that was closed makes new ones.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        *,
        timeout: Duration = CALL,
        retries: int = 5,
    ) -> None:
        self.connection = AsyncConnection(url, api_key, timeout, retries)
        self.sandboxes = AsyncSandboxes(self)
        """Its sandboxes."""
        self.templates = AsyncTemplates(self.connection)
        """Its templates."""
        self.snapshots = AsyncSnapshots(self.connection)
        """Its snapshots."""
        self.pools = AsyncPools(self.connection)
        """Sandboxes made ahead; for admins."""
        self.keys = AsyncKeys(self.connection)
        """Its keys; for admins."""
        self.tenants = AsyncTenants(self.connection)
        """Its tenants; for admins."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def url(self) -> str:
        """Where the server is."""
        return self.connection.url

    async def info(self) -> types.Info:
        """What it can do: version, runtimes, sizes, limits."""
        return await self.connection.call("GET", "/v1/info", types.Info.from_wire)

    async def health(self) -> types.Health:
        """Whether it works; needs no key."""
        return await self.connection.call("GET", "/healthz", types.Health.from_wire)

    async def usage(self) -> types.Usage:
        """What lies on its disk; for admins."""
        return await self.connection.call("GET", "/v1/df", types.Usage.from_wire)

    async def prune(self, *, unused: Optional[Duration] = None) -> types.Pruned:
        """Removes what builds keep for the next: what nobody used for so long, or all of it. For admins."""
        body = {} if unused is None else {"unused": wire(unused)}
        return await self.connection.call("POST", "/v1/prune", types.Pruned.from_wire, body=body)

    async def upload(self, file: BinaryIO, *, timeout: Optional[Duration] = TRANSFER) -> types.Upload:
        """Sends what a template is to be built or rebuilt from; `templates.create` does so by itself."""
        return await upload(self.connection, file, timeout)

    async def aclose(self) -> None:
        """Closes its connections."""
        await self.connection.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.aclose()
