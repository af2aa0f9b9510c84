"""A local port that leads into a sandbox; the side of asyncio has a file of its own with the same names."""

from __future__ import annotations

import socket
import struct
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Callable, List, Optional, Set, Type

from ..errors import ApiError, WakefulError

if TYPE_CHECKING:
    from .ports import Tunnel

PIECE = 64 << 10


class Forward:
    """A listener here; each of its connections has a tunnel of its own."""

    def __init__(self, connect: Callable[[], Tunnel], host: str, port: int) -> None:
        self._connect = connect
        self._asked = (host, port)
        self._listener: Optional[socket.socket] = None
        self._lock = threading.Lock()
        self._open: Set[socket.socket] = set()
        self._tunnels: Set[Tunnel] = set()
        self._threads: List[threading.Thread] = []
        self.host = host
        """The address here."""
        self.port = port
        """The port here; one that was free, if 0 was asked for."""
        self.last_error: Optional[WakefulError] = None
        """Why the last connection could not be made or broke."""

    def open(self) -> Forward:
        """Begins to listen; entering it as a block does the same."""
        if self._listener is None:
            family = socket.AF_INET6 if ":" in self._asked[0] else socket.AF_INET
            listener = socket.create_server(self._asked, family=family)
            self.host, self.port = listener.getsockname()[:2]
            self._listener = listener
            self._begin(self._listen, listener)
        return self

    def close(self) -> None:
        """Ends it, and all its connections."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        _shut(listener)
        listener.close()
        with self._lock:
            for connection in self._open:
                _shut(connection)
            threads, tunnels = list(self._threads), list(self._tunnels)
        for tunnel in tunnels:
            tunnel.close()
        for thread in threads:
            thread.join()

    def __enter__(self) -> Forward:
        return self.open()

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def _begin(self, work: Callable[[socket.socket], None], connection: socket.socket) -> None:
        thread = threading.Thread(target=work, args=[connection], daemon=True)
        with self._lock:
            self._threads = [*(other for other in self._threads if other.is_alive()), thread]
            thread.start()

    def _listen(self, listener: socket.socket) -> None:
        while self._listener is not None:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(connection)
            self._begin(self._carry, connection)

    def _carry(self, connection: socket.socket) -> None:
        try:
            tunnel = self._connect()
            with self._lock:
                self._tunnels.add(tunnel)
                over = self._listener is None
            try:
                if over:
                    return
                up = threading.Thread(target=_up, args=[connection, tunnel], daemon=True)
                up.start()
                try:
                    _down(tunnel, connection)
                    up.join()
                finally:
                    tunnel.close()
                    _shut(connection)
                    up.join()
            finally:
                tunnel.close()
                with self._lock:
                    self._tunnels.discard(tunnel)
        except WakefulError as error:
            if self._listener is None:
                return
            self.last_error = error
            _reset(connection, isinstance(error, ApiError))
        except OSError:
            pass
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()


def _up(connection: socket.socket, tunnel: Tunnel) -> None:
    try:
        while True:
            piece = connection.recv(PIECE)
            if not piece:
                tunnel.send_eof()
                return
            tunnel.send(piece)
    except (WakefulError, OSError):
        # The other direction meets the same end and tells of it.
        return


def _down(tunnel: Tunnel, connection: socket.socket) -> None:
    while True:
        piece = tunnel.receive()
        if not piece:
            connection.shutdown(socket.SHUT_WR)
            return
        connection.sendall(piece)


def _shut(connection: socket.socket) -> None:
    """Wakes whoever waits for it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


def _reset(connection: socket.socket, refused: bool) -> None:
    """As a port where nobody listens: a reset, and not an empty answer."""
    if refused:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
