"""One server: sending requests, reading answers, trying again where that is safe.

safe to repeat (GET, HEAD, PUT, DELETE, and what carries an idempotency key)
    a broken connection, 502, 503 or 504: again, after a wait that grows
everything else
    only if the connection was refused, so that nothing was sent
"""

from __future__ import annotations

import json
import threading
import uuid
from typing import Any, AsyncIterator, Callable, Dict, Mapping, Optional, TypeVar, Union

import httpx

from .. import _address
from .._time import CONNECT, Backoff, Deadline, Duration
from .._version import VERSION
from ..errors import ApiError, ConnectionFailed, ProtocolError, WakefulError, error_of_answer
from . import seam
from .websocket import Socket

T = TypeVar("T")
Content = Union[None, bytes, Callable[[], AsyncIterator[bytes]]]

REPEATABLE = ("GET", "HEAD", "PUT", "DELETE")
PASSES = (502, 503, 504)
CONNECTIONS = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=20)


class AsyncConnection:
    """The address and credentials of a server. Connections are made when they are needed, also after a close."""

    def __init__(self, url: Optional[str], api_key: Optional[str], timeout: Duration, retries: int) -> None:
        self.url = _address.server(url)
        self.timeout = timeout
        self._retries = retries
        self._loopback = _address.is_loopback(self.url)
        # Bytes as they are: what would be packed on its way could not be asked for from the middle.
        self._headers: Dict[str, str] = {"User-Agent": f"wakeful-python/{VERSION}", "Accept-Encoding": "identity"}
        key = _address.key(api_key)
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self._http: Optional[httpx.AsyncClient] = None
        # Never held for longer than it takes to make one, so it holds up nobody in either world.
        self._making = threading.Lock()

    def _client(self) -> httpx.AsyncClient:
        with self._making:
            if self._http is None:
                # Certificates are of no use on a plain connection, and reading them takes its time.
                secure = self.url.startswith("https:")
                self._http = httpx.AsyncClient(
                    headers=self._headers, trust_env=not self._loopback, verify=secure, limits=CONNECTIONS
                )
            return self._http

    async def aclose(self) -> None:
        """Closes all connections."""
        with self._making:
            http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    def deadline(self, timeout: Optional[Duration]) -> Deadline:
        """The end of a plain call."""
        return Deadline(self.timeout if timeout is None else timeout)

    async def open(
        self,
        method: str,
        path: str,
        deadline: Deadline,
        *,
        query: _address.Query = (),
        body: Optional[Mapping[str, Any]] = None,
        content: Content = None,
        headers: Optional[Mapping[str, str]] = None,
        silence: Optional[float] = None,
    ) -> httpx.Response:
        """Sends once, and gives the answer before its content was read.

        Raises an ApiError if the server refuses, ConnectionFailed or DeadlineExceeded.
        """
        sent = dict(headers or {})
        data: Union[bytes, AsyncIterator[bytes], None] = content() if callable(content) else content
        if body is not None:
            data = json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        left = deadline.remaining()
        timeout = httpx.Timeout(left, connect=deadline.remaining(CONNECT), read=deadline.remaining(silence))
        address = _address.with_query(self.url + path, query)
        client = self._client()
        request = client.build_request(method, address, content=data, headers=sent, timeout=timeout)
        try:
            response = await client.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ConnectionFailed(f"could not reach {self.url}: {error or 'no answer'}", never_sent=True) from error
        except httpx.TimeoutException as error:
            if deadline.expired:
                raise deadline.exceeded() from error
            raise ConnectionFailed(f"{self.url} is silent") from error
        except httpx.RemoteProtocolError as error:
            if "illegal" in str(error) or "malformed" in str(error):
                raise ProtocolError(f"{self.url} gave an answer that is not HTTP: {error}") from error
            raise ConnectionFailed(f"the connection to {self.url} broke: {error}") from error
        except httpx.TransportError as error:
            raise ConnectionFailed(f"the connection to {self.url} broke: {error}") from error
        if response.status_code < 400:
            return response
        try:
            problem = await self.whole(response, deadline)
        finally:
            await response.aclose()
        refusal = error_of_answer(self.url, response.status_code, problem)
        if isinstance(refusal, ApiError):
            after = response.headers.get("Retry-After", "")
            refusal.retry_after = float(after) if after.isdigit() else None
        raise refusal

    async def whole(self, response: httpx.Response, deadline: Deadline) -> bytes:
        """All of an answer."""
        return b"".join([piece async for piece in self.pieces(response, deadline)])

    async def pieces(self, response: httpx.Response, deadline: Deadline) -> AsyncIterator[bytes]:
        """An answer as it comes, until its end or the deadline."""
        alarm = seam.Alarm(response, deadline.remaining())
        try:
            async for piece in response.aiter_raw():
                yield piece
                deadline.remaining()
        except (httpx.TransportError, httpx.StreamError, OSError) as error:
            if deadline.expired:
                raise deadline.exceeded() from error
            raise ConnectionFailed(f"the connection to {self.url} broke: {error}") from error
        finally:
            alarm.cancel()
        if deadline.expired and "content-length" not in response.headers:
            raise deadline.exceeded()

    async def send(
        self,
        method: str,
        path: str,
        deadline: Deadline,
        *,
        query: _address.Query = (),
        body: Optional[Mapping[str, Any]] = None,
        content: Content = None,
        headers: Optional[Mapping[str, str]] = None,
        once: bool = False,
        repeatable: Optional[bool] = None,
    ) -> bytes:
        """Sends, as often as it is safe and there is time, and gives the whole answer.

        With `once` the server is told by a key that a repetition is the same call.
        """
        sent = dict(headers or {})
        if once:
            sent["Idempotency-Key"] = str(uuid.uuid4())
        safe = (method in REPEATABLE or once) if repeatable is None else repeatable
        backoff = Backoff()
        tries = 0
        while True:
            tries += 1
            try:
                response = await self.open(method, path, deadline, query=query, body=body, content=content, headers=sent)
                try:
                    return await self.whole(response, deadline)
                finally:
                    await response.aclose()
            except (ConnectionFailed, ApiError) as error:
                wait = self._wait(error, safe, backoff)
                if wait is None or tries > self._retries:
                    raise
                left = deadline.remaining()
                if left is not None and wait >= left:
                    raise
            await seam.sleep(wait)

    def _wait(self, error: WakefulError, safe: bool, backoff: Backoff) -> Optional[float]:
        """How long to wait before the next try; None if there must be none."""
        if isinstance(error, ConnectionFailed):
            return backoff.next() if safe or error.never_sent else None
        if not safe or not isinstance(error, ApiError) or error.status not in PASSES:
            return None
        wait, asked = backoff.next(), error.retry_after
        return wait if wait is None or asked is None else max(wait, asked)

    async def call(
        self,
        method: str,
        path: str,
        made: Callable[[Any], T],
        timeout: Optional[Duration] = None,
        *,
        query: _address.Query = (),
        body: Optional[Mapping[str, Any]] = None,
        once: bool = False,
    ) -> T:
        """Sends, and makes something of the answer."""
        deadline = self.deadline(timeout)
        answer = await self.send(method, path, deadline, query=query, body=body, once=once)
        return self.understood(made, answer)

    async def do(
        self,
        method: str,
        path: str,
        timeout: Optional[Duration] = None,
        *,
        query: _address.Query = (),
        body: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """Sends, and wants nothing back."""
        await self.send(method, path, self.deadline(timeout), query=query, body=body)

    def understood(self, made: Callable[[Any], T], answer: bytes) -> T:
        """What is made of an answer.

        Raises ProtocolError if that cannot be done.
        """
        try:
            return made(json.loads(answer))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProtocolError(f"{self.url} gave an answer that cannot be understood: {error!r}") from error

    async def websocket(self, path: str, query: _address.Query, deadline: Deadline) -> Socket:
        """Opens a WebSocket."""
        address = "ws" + _address.with_query(self.url + path, query)[len("http") :]
        return await Socket.open(address, self._headers, deadline.remaining(), not self._loopback)
