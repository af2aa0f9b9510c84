"""Sandboxes that sleep when nobody uses them and wake where they left off.

    from wakeful import Sandbox

    with Sandbox.create("python") as sandbox:
        print(sandbox.exec("python3 --version").stdout)

`Sandbox` and `Client` block; `AsyncSandbox` and `AsyncClient` are the same for asyncio.
"""

from . import errors, types
from ._async.admin import AsyncKeys, AsyncPools, AsyncTenants
from ._async.client import AsyncClient
from ._async.files import AsyncFiles
from ._async.listener import AsyncForward
from ._async.output import AsyncOutput
from ._async.ports import AsyncPorts, AsyncTunnel
from ._async.process import AsyncProcess, AsyncProcesses
from ._async.sandbox import AsyncSandbox
from ._async.sandboxes import AsyncSandboxes
from ._async.snapshots import AsyncSnapshots
from ._async.templates import AsyncTemplates
from ._async.terminal import AsyncTerminal
from ._async.watch import AsyncWatch
from ._frames import BuildLayer, BuildProgress, Exit, FileEvent, Frame, Gap, Stderr, Stdout
from ._options import CreateOptions
from ._result import ExecResult
from ._sync.admin import Keys, Pools, Tenants
from ._sync.client import Client
from ._sync.files import Files
from ._sync.listener import Forward
from ._sync.output import Output
from ._sync.ports import Ports, Tunnel
from ._sync.process import Process, Processes
from ._sync.sandbox import Sandbox
from ._sync.sandboxes import Sandboxes
from ._sync.snapshots import Snapshots
from ._sync.templates import Templates
from ._sync.terminal import Terminal
from ._sync.watch import Watch
from ._time import Duration
from ._version import VERSION as __version__
from .errors import (
    ApiError,
    BuildFailed,
    CommandFailed,
    CommandNotFound,
    Conflict,
    ConnectionFailed,
    DeadlineExceeded,
    Exhausted,
    FileTooLarge,
    GuestUnresponsive,
    InternalError,
    InvalidRequest,
    NotFound,
    NotSuspendable,
    PathNotFound,
    PermissionDenied,
    PortNotOpen,
    ProcessNotFound,
    ProtocolError,
    QuotaExceeded,
    SandboxDestroyed,
    SandboxFailed,
    SandboxNotFound,
    SandboxSuspended,
    SuspendedDuringExec,
    TemplateNotFound,
    Unauthenticated,
    Unavailable,
    WakefulError,
)

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncFiles",
    "AsyncForward",
    "AsyncKeys",
    "AsyncOutput",
    "AsyncPools",
    "AsyncPorts",
    "AsyncProcess",
    "AsyncProcesses",
    "AsyncSandbox",
    "AsyncSandboxes",
    "AsyncSnapshots",
    "AsyncTemplates",
    "AsyncTenants",
    "AsyncTerminal",
    "AsyncTunnel",
    "AsyncWatch",
    "BuildFailed",
    "BuildLayer",
    "BuildProgress",
    "Client",
    "CommandFailed",
    "CommandNotFound",
    "Conflict",
    "ConnectionFailed",
    "CreateOptions",
    "DeadlineExceeded",
    "Duration",
    "ExecResult",
    "Exhausted",
    "Exit",
    "FileEvent",
    "FileTooLarge",
    "Files",
    "Forward",
    "Frame",
    "Gap",
    "GuestUnresponsive",
    "InternalError",
    "InvalidRequest",
    "Keys",
    "NotFound",
    "NotSuspendable",
    "Output",
    "PathNotFound",
    "PermissionDenied",
    "Pools",
    "PortNotOpen",
    "Ports",
    "Process",
    "ProcessNotFound",
    "Processes",
    "ProtocolError",
    "QuotaExceeded",
    "Sandbox",
    "SandboxDestroyed",
    "SandboxFailed",
    "SandboxNotFound",
    "SandboxSuspended",
    "Sandboxes",
    "Snapshots",
    "Stderr",
    "Stdout",
    "SuspendedDuringExec",
    "TemplateNotFound",
    "Templates",
    "Tenants",
    "Terminal",
    "Tunnel",
    "Unauthenticated",
    "Unavailable",
    "WakefulError",
    "Watch",
    "__version__",
    "errors",
    "types",
]
