"""An answer that comes line by line, and can be given up while somebody reads it."""

from __future__ import annotations

from collections import deque
from typing import Deque, Optional, Union

import httpx

from .._frames import Lines, ServerSentEvents
from .._time import Deadline
from ..errors import ConnectionFailed
from . import seam


class AsyncAnswer:
    """The lines of one answer."""

    def __init__(self, response: httpx.Response, deadline: Deadline, form: Union[Lines, ServerSentEvents]) -> None:
        self._response = response
        self._deadline = deadline
        self._form = form
        self._ready: Deque[str] = deque()
        self._pieces = response.aiter_raw()
        self._alarm = seam.Alarm(response, deadline.remaining())
        self._reading = False
        self._closed = False

    async def next(self) -> Optional[str]:
        """The next line; None at the end, and after a close.

        Raises ConnectionFailed if the connection breaks, DeadlineExceeded if it is time.
        """
        while not self._ready:
            if self._closed:
                return None
            self._reading = True
            try:
                piece = await self._pieces.__anext__()
            except StopAsyncIteration:
                if self._deadline.expired:
                    raise self._deadline.exceeded() from None
                return None
            except (httpx.TransportError, httpx.StreamError, OSError) as error:
                if self._closed:
                    return None
                if self._deadline.expired:
                    raise self._deadline.exceeded() from error
                raise ConnectionFailed(f"the connection broke: {error}") from error
            except BaseException:
                # Given up by cancellation: the connection is closed already.
                self._alarm.cancel()
                raise
            finally:
                self._reading = False
                if self._closed:
                    await self._end()
            self._ready.extend(self._form.feed(piece))
        self._deadline.remaining()
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Gives it up: whoever reads it is told its end."""
        if self._closed:
            return
        self._closed = True
        if self._reading:
            # Whoever reads closes it: two at a time must not touch it.
            seam.interrupt(self._response)
        else:
            await self._end()

    async def _end(self) -> None:
        self._alarm.cancel()
        await self._response.aclose()
