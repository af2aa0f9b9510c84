"""WebSockets of terminals and tunnels; the blocking side has a file of its own with the same names."""

from __future__ import annotations

import asyncio
from typing import Mapping, Optional, Union

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from ..errors import ConnectionFailed, DeadlineExceeded, ProtocolError, error_of_answer

MESSAGE = 4 << 20
"""The largest message: servers send pieces of some 64 KiB."""
GOODBYE = 2.0
"""How long the other end may take to say goodbye."""


class Socket:
    """One WebSocket."""

    def __init__(self, connection: ClientConnection, url: str) -> None:
        self._connection = connection
        self._url = url

    @classmethod
    async def open(cls, url: str, headers: Mapping[str, str], timeout: Optional[float], proxy: bool) -> Socket:
        """Opens one; what the server refuses is raised as with every call."""
        try:
            connection = await connect(
                url,
                additional_headers=headers,
                user_agent_header=None,
                open_timeout=timeout,
                close_timeout=GOODBYE,
                max_size=MESSAGE,
                compression=None,
                proxy=True if proxy else None,
            )
        except InvalidStatus as error:
            raise error_of_answer(url, error.response.status_code, bytes(error.response.body or b"")) from error
        except InvalidHandshake as error:
            raise ProtocolError(f"{url} does not open a WebSocket: {error}") from error
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise DeadlineExceeded(f"{url} did not answer within {timeout} seconds") from error
        except (OSError, ConnectionClosed, EOFError) as error:
            refused = isinstance(error, ConnectionRefusedError)
            raise ConnectionFailed(f"could not reach {url}: {error}", never_sent=refused) from error
        return cls(connection, url)

    async def send(self, data: Union[str, bytes]) -> None:
        """Sends a message.

        Raises ConnectionFailed if the connection is over.
        """
        try:
            await self._connection.send(data)
        except (ConnectionClosed, OSError) as error:
            raise ConnectionFailed(f"the connection to {self._url} broke: {error}") from error

    async def receive(self, timeout: Optional[float] = None) -> Union[str, bytes, None]:
        """The next message; None after the end.

        Raises TimeoutError if there is none in time.
        """
        try:
            return await asyncio.wait_for(self._connection.recv(), timeout)
        except asyncio.TimeoutError:
            raise TimeoutError from None
        except (ConnectionClosed, OSError, EOFError):
            return None

    async def close(self) -> None:
        """Ends it."""
        await self._connection.close()
