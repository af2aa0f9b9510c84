"""What can go wrong: one base class, below it what a program would tell apart.

WakefulError
  ApiError                      the server refused and said why: status, code, detail, hint
    InvalidRequest, Unauthenticated, PermissionDenied, NotFound, Conflict, QuotaExceeded,
    Exhausted, Unavailable, InternalError, and below some of these what one would act on
  ConnectionFailed              the server is not there, or the connection broke
  DeadlineExceeded              it took longer than was asked for
  ProtocolError                 an answer that cannot be understood
  CommandFailed                 a command ended with another code than 0, and `check` was set
  BuildFailed                   a template's build failed
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Mapping, Optional

if TYPE_CHECKING:
    from ._result import ExecResult


class WakefulError(Exception):
    """Everything that this package raises about sandboxes."""


class ConnectionFailed(WakefulError):
    """The server is not there, or the connection to it broke. What was begun there may go on."""

    def __init__(self, message: str, never_sent: bool = False) -> None:
        super().__init__(message)
        self.never_sent = never_sent
        """Nothing of the request can have reached a server."""


class DeadlineExceeded(WakefulError):
    """It took longer than was asked for. What was begun may go on."""


class ProtocolError(WakefulError):
    """What answered does not speak this protocol."""


class CommandFailed(WakefulError):
    """A command ended with another code than 0."""

    def __init__(self, result: ExecResult) -> None:
        last = result.stderr.strip().splitlines()[-1:] or [""]
        super().__init__(f"the command ended with {result.exit_code}" + (f": {last[0]}" if last[0] else ""))
        self.result = result
        """How it ended."""


class BuildFailed(WakefulError):
    """A template's build failed, or was cancelled."""

    def __init__(self, template: str, step: str, line: Optional[int], detail: str) -> None:
        where = f"{step}, line {line}" if line is not None else step
        super().__init__(f"{template}: {where}: {detail}" if where else f"{template}: {detail}")
        self.template = template
        """Which template."""
        self.step = step
        """The step of the build."""
        self.line = line
        """Its line in a Dockerfile, where there is one."""
        self.detail = detail
        """What went wrong."""


class ApiError(WakefulError):
    """The server refused, and said why."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        """The status of the answer."""
        self.code = str(problem.get("code") or "unknown")
        """Which problem; a short word that never changes."""
        self.detail = str(problem.get("detail") or problem.get("title") or "")
        """What was wrong, for people."""
        hint, field = problem.get("hint"), problem.get("field")
        self.hint: Optional[str] = None if hint is None else str(hint)
        """What to do about it."""
        self.field: Optional[str] = None if field is None else str(field)
        """The field of the request that is wrong."""
        self.request_id = str(problem.get("request_id") or "")
        """To be found in the server's log."""
        self.problem = dict(problem)
        """All that the server said."""
        self.retry_after: Optional[float] = None
        """After how many seconds the server wants to be asked again."""
        text = f"{self.code}: {self.detail}"
        super().__init__(f"{text} (hint: {self.hint})" if self.hint else text)


class InvalidRequest(ApiError):
    """The request makes no sense to the server, or asks for what it cannot do."""


class CommandNotFound(InvalidRequest):
    """There is no such program in the sandbox."""


class FileTooLarge(InvalidRequest):
    """The file is larger than the server takes."""


class Unauthenticated(ApiError):
    """No key, or one that the server does not know."""


class PermissionDenied(ApiError):
    """The key does not allow it, or it belongs to somebody else."""


class NotFound(ApiError):
    """There is no such thing."""


class SandboxNotFound(NotFound):
    """There is no such sandbox."""


class TemplateNotFound(NotFound):
    """There is no such template."""


class PathNotFound(NotFound):
    """There is no such file or directory."""


class ProcessNotFound(NotFound):
    """There is no such process, or it ended more than an hour ago."""


class Conflict(ApiError):
    """It cannot be done in this state."""


class SandboxSuspended(Conflict):
    """It sleeps, and calls are not to wake it (`auto_resume` is off)."""


class SandboxDestroyed(Conflict):
    """It is gone."""


class SandboxFailed(Conflict):
    """It failed; its `info.failure` says why."""


class NotSuspendable(Conflict):
    """Something that runs in it stands in the way of a suspend; it runs on."""


class SuspendedDuringExec(Conflict):
    """It was put to sleep while somebody listened; `processes.get(pid)` and `output(from_seq=seq)` go on from there."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(status, problem)
        self.pid = int(problem.get("pid") or 0)
        """The process that goes on when the sandbox wakes."""
        self.seq = int(problem.get("seq") or 0)
        """The first frame of its output that has not been told."""


class QuotaExceeded(ApiError):
    """The tenant has as much as it may have."""


class Exhausted(ApiError):
    """There is no room: on the host, or on the sandbox's disk."""


class Unavailable(ApiError):
    """Not now; the same call may succeed later."""


class GuestUnresponsive(Unavailable):
    """The sandbox does not answer."""


class PortNotOpen(Unavailable):
    """Nothing listens on that port in the sandbox."""


class InternalError(ApiError):
    """A fault of the server; its log has the reason under the request id."""


_BY_CODE: Mapping[str, type[ApiError]] = {
    "command_not_found": CommandNotFound,
    "file_too_large": FileTooLarge,
    "sandbox_not_found": SandboxNotFound,
    "template_not_found": TemplateNotFound,
    "path_not_found": PathNotFound,
    "process_not_found": ProcessNotFound,
    "sandbox_suspended": SandboxSuspended,
    "sandbox_destroyed": SandboxDestroyed,
    "sandbox_failed": SandboxFailed,
    "not_suspendable": NotSuspendable,
    "suspended_during_exec": SuspendedDuringExec,
    "guest_unresponsive": GuestUnresponsive,
    "port_not_open": PortNotOpen,
}

_BY_STATUS: Mapping[int, type[ApiError]] = {
    401: Unauthenticated,
    403: PermissionDenied,
    404: NotFound,
    409: Conflict,
    429: QuotaExceeded,
    500: InternalError,
    501: InvalidRequest,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
    507: Exhausted,
}

# Errors in the middle of a stream come without a status.
_STATUS_OF: Mapping[str, int] = {
    "command_not_found": 422,
    "file_too_large": 413,
    "sandbox_not_found": 404,
    "template_not_found": 404,
    "path_not_found": 404,
    "process_not_found": 404,
    "sandbox_suspended": 409,
    "sandbox_destroyed": 409,
    "sandbox_failed": 409,
    "not_suspendable": 409,
    "suspended_during_exec": 409,
    "not_running": 409,
    "not_wakeable": 409,
    "name_taken": 409,
    "quota_exceeded": 429,
    "insufficient_capacity": 507,
    "disk_full": 507,
    "guest_disk_full": 507,
    "unsupported_by_runtime": 501,
    "runtime_unavailable": 503,
    "not_ready": 504,
    "guest_unresponsive": 502,
    "port_not_open": 502,
    "shutting_down": 503,
    "busy": 503,
    "wake_timeout": 504,
    "internal": 500,
}


def error_of_problem(status: int, problem: Mapping[str, Any]) -> ApiError:
    """The exception for a problem: by its code, else by its status."""
    by_status = _BY_STATUS.get(status, InternalError if status >= 500 else InvalidRequest)
    return _BY_CODE.get(str(problem.get("code")), by_status)(status, problem)


def error_of_frame(code: str, detail: str) -> ApiError:
    """The exception for an error that ended a stream."""
    return error_of_problem(_STATUS_OF.get(code, 500), {"code": code, "detail": detail})


def error_of_answer(url: str, status: int, body: bytes) -> WakefulError:
    """The exception for an answer of refusal."""
    try:
        problem: Any = json.loads(body)
    except ValueError:
        problem = None
    if not isinstance(problem, dict) or "code" not in problem:
        return ProtocolError(f"{url} answered with status {status} and no problem that can be understood")
    return error_of_problem(status, problem)  # pyright: ignore[reportUnknownArgumentType]
