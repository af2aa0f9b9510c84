"""WebSockets of terminals and tunnels; the side of asyncio has a file of its own with the same names."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Mapping, Optional, Union

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from ..errors import ConnectionFailed, DeadlineExceeded, ProtocolError, error_of_answer

MESSAGE = 4 << 20
"""The largest message: servers send pieces of some 64 KiB."""
GOODBYE = 2.0
"""How long the other end may take to say goodbye."""


class Socket:
    """One WebSocket."""

    def __init__(self, connection: Connection, block: ExitStack, url: str) -> None:
        self._connection = connection
        self._block = block
        self._url = url

    @classmethod
    def open(cls, url: str, headers: Mapping[str, str], timeout: Optional[float], proxy: bool) -> Socket:
        """Opens one; what the server refuses is raised as with every call."""
        block = ExitStack()
        try:
            opened = connect(
                url,
                additional_headers=headers,
                user_agent_header=None,
                open_timeout=timeout,
                close_timeout=GOODBYE,
                max_size=MESSAGE,
                compression=None,
                proxy=True if proxy else None,
            )
            connection = block.enter_context(opened)
        except InvalidStatus as error:
            raise error_of_answer(url, error.response.status_code, bytes(error.response.body or b"")) from error
        except InvalidHandshake as error:
            raise ProtocolError(f"{url} does not open a WebSocket: {error}") from error
        except TimeoutError as error:
            raise DeadlineExceeded(f"{url} did not answer within {timeout} seconds") from error
        except (OSError, ConnectionClosed, EOFError) as error:
            refused = isinstance(error, ConnectionRefusedError)
            raise ConnectionFailed(f"could not reach {url}: {error}", never_sent=refused) from error
        return cls(connection, block, url)

    def send(self, data: Union[str, bytes]) -> None:
        """Sends a message.

        Raises ConnectionFailed if the connection is over.
        """
        try:
            self._connection.send(data)
        except (ConnectionClosed, OSError) as error:
            raise ConnectionFailed(f"the connection to {self._url} broke: {error}") from error

    def receive(self, timeout: Optional[float] = None) -> Union[str, bytes, None]:
        """The next message; None after the end.

        Raises TimeoutError if there is none in time.
        """
        try:
            return self._connection.recv(timeout)
        except TimeoutError:
            raise
        except (ConnectionClosed, OSError, EOFError):
            return None

    def close(self) -> None:
        """Ends it."""
        self._block.close()
