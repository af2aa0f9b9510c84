"""The sandboxes of a server: made, found, listed."""

from __future__ import annotations

from typing import TYPE_CHECKING, AsyncIterator, Mapping, Optional

from .. import _address, types
from .._options import create_body
from .._time import Duration
from .sandbox import AsyncSandbox

if TYPE_CHECKING:
    from .client import AsyncClient


class AsyncSandboxes:
    """The sandboxes of a server."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._connection = client.connection

    async def create(
        self,
        template: str,
        *,
        mode: Optional[types.Mode] = None,
        timeout: Optional[Duration] = None,
        idle_timeout: Optional[Duration] = None,
        hard_ttl: Optional[Duration] = None,
        size: Optional[str] = None,
        cpu: Optional[int] = None,
        memory_mb: Optional[int] = None,
        disk_mb: Optional[int] = None,
        env: Optional[Mapping[str, str]] = None,
        metadata: Optional[Mapping[str, str]] = None,
        egress: Optional[types.EgressRequest] = None,
        io: Optional[types.IoLimitsRequest] = None,
        auto_resume: Optional[bool] = None,
        runtime: Optional[str] = None,
        deadline: Optional[Duration] = None,
    ) -> AsyncSandbox:
        """Makes a sandbox of a template (or of a snapshot, by its id); it runs when this returns.

        An `ephemeral` one ends when its lease does (`timeout`, five minutes); a `persistent` one sleeps after
        `idle_timeout` and wakes when it is used. `deadline` bounds this call.
        """
        options = {
            "mode": mode,
            "timeout": timeout,
            "idle_timeout": idle_timeout,
            "hard_ttl": hard_ttl,
            "size": size,
            "cpu": cpu,
            "memory_mb": memory_mb,
            "disk_mb": disk_mb,
            "env": None if env is None else dict(env),
            "metadata": None if metadata is None else dict(metadata),
            "egress": egress,
            "io": io,
            "auto_resume": auto_resume,
            "runtime": runtime,
        }
        body = create_body(template, options)
        made = types.Sandbox.from_wire
        info = await self._connection.call("POST", "/v1/sandboxes", made, deadline, body=body, once=True)
        return AsyncSandbox(self._client, info)

    async def get(self, sandbox_id: str) -> AsyncSandbox:
        """One of them; a destroyed one is found for a day."""
        path = _address.joined("v1", "sandboxes", sandbox_id)
        return AsyncSandbox(self._client, await self._connection.call("GET", path, types.Sandbox.from_wire))

    async def list(
        self,
        *,
        status: Optional[types.Status] = None,
        mode: Optional[types.Mode] = None,
        template: Optional[str] = None,
        metadata: Optional[Mapping[str, str]] = None,
        page_size: int = 100,
    ) -> AsyncIterator[AsyncSandbox]:
        """All that fit, newest first, page by page as they are needed; destroyed ones only if `status` asks for them."""
        cursor: Optional[str] = None
        while True:
            query = [
                *_address.given(status=status, mode=mode, template=template, limit=page_size, cursor=cursor),
                *_address.metadata(metadata),
            ]
            made = types.SandboxList.from_wire
            page = await self._connection.call("GET", "/v1/sandboxes", made, query=query)
            for info in page.sandboxes:
                yield AsyncSandbox(self._client, info)
            cursor = page.next_cursor
            if cursor is None:
                return
