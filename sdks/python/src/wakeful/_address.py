"""Addresses: of the server, of what it has, and of a path in a sandbox."""

from __future__ import annotations

import ipaddress
import os
from typing import Mapping, Optional, Sequence, Tuple, Union
from urllib.parse import quote, urlencode, urlsplit

Query = Sequence[Tuple[str, str]]
RemotePath = Union[str, "os.PathLike[str]"]


def server(url: Optional[str]) -> str:
    """The server's address: as given, else by `WAKEFUL_URL`, else on this machine."""
    address = (url or os.environ.get("WAKEFUL_URL") or "http://127.0.0.1:8080").rstrip("/")
    if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).hostname:
        raise ValueError(f"{address!r} is not the address of a server; write http://host:port")
    return address


def key(api_key: Optional[str]) -> Optional[str]:
    """The key: as given, else by `WAKEFUL_API_KEY`."""
    return api_key or os.environ.get("WAKEFUL_API_KEY") or None


def is_loopback(address: str) -> bool:
    """Whether a server is on this machine: proxies have no part in that."""
    host = urlsplit(address).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def joined(*segments: str) -> str:
    """Segments as the path of an address."""
    return "/" + "/".join(quoted(segment) for segment in segments)


def quoted(name: str) -> str:
    """One name; dots alone are quoted too, or the address would be another before it is sent."""
    return "%2E" * len(name) if name in (".", "..") else quote(name, safe="")


def remote(path: RemotePath) -> str:
    """A path in a sandbox as part of an address: from the root, each name quoted."""
    text = os.fspath(path)
    if not text.startswith("/"):
        raise ValueError(f"{text!r} is not an absolute path")
    return "/".join(quoted(name) for name in text.lstrip("/").split("/"))


def with_query(address: str, query: Query) -> str:
    """An address with its query."""
    return f"{address}?{urlencode(query)}" if query else address


def given(**values: Union[str, int, bool, None]) -> Query:
    """A query of what is there."""
    return [(name, text(value)) for name, value in values.items() if value is not None]


def metadata(labels: Optional[Mapping[str, str]]) -> Query:
    """Labels as a filter of a list."""
    return [(f"metadata.{name}", value) for name, value in (labels or {}).items()]


def text(value: Union[str, int, bool]) -> str:
    """A value of a query."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
