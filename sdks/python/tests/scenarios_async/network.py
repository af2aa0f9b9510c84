"""Ports: previews and connections from here."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from wakeful import AsyncSandbox, DeadlineExceeded, PortNotOpen, SandboxSuspended

from ..world import World
from . import seam
from .support import sandbox_of, until

SERVE = "mkdir -p www; echo hello > www/index.html; python3 -m http.server 8000 --bind 127.0.0.1 --directory www"
# Answers with what it got and its length once it was told the end, so that half-closed connections are seen to work.
ECHO = """
import socket, threading
def serve(connection):
    data = b""
    while piece := connection.recv(65536):
        data += piece
    connection.sendall(data + b"|%d" % len(data))
    connection.close()
listener = socket.create_server(("127.0.0.1", 9000))
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]]).start()
"""


async def listening(sandbox: AsyncSandbox, port: int) -> None:
    """Until something listens there."""

    async def there() -> bool:
        try:
            async with sandbox.ports.connect(port):
                return True
        except PortNotOpen:
            return False

    await until(there)


def fetch(url: str) -> bytes:
    """A page by its name; names below localhost are this machine whether the resolver knows it or not."""
    parts = urlsplit(url)
    address = f"http://127.0.0.1:{parts.port}{parts.path or '/'}?{parts.query}"
    request = urllib.request.Request(address, headers={"Host": parts.netloc})
    with urllib.request.build_opener(NoRedirect).open(request, timeout=30) as answer:
        content: bytes = answer.read()
    return content


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Redirects are answers here."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> None:
        return None


async def scenario_ports(world: World) -> None:
    async with sandbox_of(world, "python", mode="persistent") as sandbox:
        with world.raises(PortNotOpen, "port_not_open"):
            await sandbox.ports.connect(8000).open()
        await sandbox.processes.start(SERVE)
        await listening(sandbox, 8000)
        url = await sandbox.url(8000)
        assert f"8000-{sandbox.id.split('_')[1]}." in url
        assert await seam.blocking(fetch, url) == b"hello\n"
        assert await sandbox.ports.list() == []
        opened = await sandbox.ports.open(8000)
        assert (opened.port, opened.public, opened.url) == (8000, True, url)
        assert [port.port for port in await sandbox.ports.list()] == [8000]
        assert not (await sandbox.ports.open(8000, public=False)).public
        await sandbox.ports.close(8000)
        assert not (await sandbox.ports.get(8000)).public
        session = await sandbox.ports.session(8000)
        try:
            await seam.blocking(fetch, session.url)
            raise AssertionError("a session begins with a redirect")
        except urllib.error.HTTPError as answer:
            assert answer.code in (302, 303, 307) and "wakeful_preview" in (answer.headers.get("Set-Cookie") or "")
        # A request wakes it.
        await sandbox.suspend()
        assert await seam.blocking(fetch, url) == b"hello\n"


def exchange(port: int, data: bytes) -> bytes:
    """Sends, ends this direction, and reads to the end of the other."""
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        got = b""
        while True:
            piece = connection.recv(65536)
            if not piece:
                return got
            got += piece


async def scenario_forward(world: World) -> None:
    async with sandbox_of(world, "python", mode="persistent") as sandbox:
        await sandbox.files.write("/home/user/echo.py", ECHO)
        await sandbox.processes.start("python3 echo.py")
        await listening(sandbox, 9000)
        async with sandbox.ports.forward(9000) as local:
            port = local.port
            assert port != 0 and local.host == "127.0.0.1"
            sent = [bytes([number]) * (number * 100_000) for number in range(1, 6)]

            async def one(data: bytes) -> bytes:
                return await seam.blocking(exchange, port, data)

            async def first() -> bytes:
                return await one(sent[0])

            async def second() -> bytes:
                return await one(sent[1])

            async def third() -> bytes:
                return await one(sent[2])

            got = await seam.all_of([first, second, third])
            assert got == [data + b"|%d" % len(data) for data in sent[:3]]
            # One that is left open ends with the block.
            held = await seam.blocking(socket.create_connection, ("127.0.0.1", port), 30)
            assert await one(b"beside") == b"beside|6"
        held.settimeout(30)
        try:
            assert await seam.blocking(held.recv, 1) == b""
        except ConnectionResetError:
            pass
        held.close()
        try:
            await seam.blocking(exchange, port, b"")
            raise AssertionError("it still listens")
        except ConnectionRefusedError:
            pass
        nobody = await sandbox.ports.forward(9001).open()
        try:
            assert await seam.blocking(exchange, nobody.port, b"") == b""
        except ConnectionResetError:
            pass

        async def known() -> bool:
            return isinstance(nobody.last_error, PortNotOpen)

        await until(known)
        await nobody.aclose()
        # Without a listener.
        async with sandbox.ports.connect(9000) as tunnel:
            await tunnel.send(b"abc")
            with world.raises(DeadlineExceeded):
                await tunnel.receive(timeout=0.2)
            await tunnel.send_eof()
            data = b""
            while True:
                piece = await tunnel.receive(timeout=30)
                if not piece:
                    break
                data += piece
            assert data == b"abc|3"
        cut = await sandbox.ports.connect(9000).open()
        await sandbox.suspend()
        with world.raises(SandboxSuspended):
            await cut.receive(timeout=30)
        await cut.aclose()
