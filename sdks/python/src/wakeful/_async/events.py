"""What happened to a sandbox: read by pages, or followed."""

from __future__ import annotations

from typing import AsyncIterator

from .. import _address, types
from .._frames import ServerSentEvents, parse
from .._time import AWAY, SILENCE, Backoff, Deadline
from ..errors import ApiError, ConnectionFailed, ProtocolError
from . import seam
from .answer import AsyncAnswer
from .connection import AsyncConnection
from .output import passes

PAGE = 100


async def past_events(connection: AsyncConnection, path: str, after: int, deadline: Deadline) -> AsyncIterator[types.Event]:
    """All that happened until now, page by page."""
    while True:
        query = _address.given(after=after, limit=PAGE)
        answer = await connection.send("GET", path, deadline, query=query)
        page = connection.understood(types.EventList.from_wire, answer)
        for event in page.events:
            yield event
        if len(page.events) < PAGE:
            return
        after = page.next_after


async def followed_events(
    connection: AsyncConnection, path: str, after: int, deadline: Deadline
) -> AsyncIterator[types.Event]:
    """The same and all that happens, until the sandbox is gone. A broken connection goes on after the last one."""
    backoff = Backoff(AWAY)
    while True:
        try:
            headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
            response = await connection.open("GET", path, deadline, headers=headers, silence=SILENCE)
            lines = AsyncAnswer(response, deadline, ServerSentEvents())
            try:
                while True:
                    line = await lines.next()
                    if line is None:
                        raise ConnectionFailed("the events broke off")
                    backoff.reset()
                    event = event_of(line)
                    if event.seq <= after:
                        continue
                    after = event.seq
                    yield event
                    if event.type == "destroyed":
                        return
            finally:
                await lines.aclose()
        except (ConnectionFailed, ApiError) as error:
            wait = backoff.next() if passes(error) else None
            if wait is None:
                raise
        await seam.sleep(deadline.remaining(wait) or 0)


def event_of(line: str) -> types.Event:
    """One event.

    Raises ProtocolError if it is none.
    """
    raw = parse(line)
    try:
        return types.Event.from_wire(raw)
    except (KeyError, ValueError, TypeError) as error:
        raise ProtocolError(f"an event that cannot be understood: {line[:80]!r}") from error
