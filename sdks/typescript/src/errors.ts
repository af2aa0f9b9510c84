// Everything that can go wrong, as types: what the server refused, and what happened on the way to it.
import type { ExecResult } from "./exec.js";

/** The base of all errors of this package. */
export class WakefulError extends Error {
  override readonly name: string = "WakefulError";
}

/** The server could not be reached, or the connection broke. */
export class ConnectionFailed extends WakefulError {
  override readonly name: string = "ConnectionFailed";
}

/** A wait took longer than it was given. */
export class DeadlineExceeded extends WakefulError {
  override readonly name: string = "DeadlineExceeded";
  readonly timeoutMs: number;

  constructor(what: string, timeoutMs: number) {
    super(`${what} took longer than ${timeoutMs} ms`);
    this.timeoutMs = timeoutMs;
  }
}

/** The answer was not understood: it does not come from this API, or it was cut. */
export class ProtocolError extends WakefulError {
  override readonly name: string = "ProtocolError";
}

/** A command that was run with `check` did not end with 0. */
export class CommandFailed extends WakefulError {
  override readonly name: string = "CommandFailed";
  readonly result: ExecResult;

  constructor(result: ExecResult) {
    const last = result.stderr.trimEnd().split("\n").at(-1) ?? "";
    super(`the command ended with ${result.exitCode}${last && `: ${last.slice(0, 500)}`}`);
    this.result = result;
  }
}

/** The build of a template failed. */
export class BuildFailed extends WakefulError {
  override readonly name: string = "BuildFailed";
  readonly step: string;
  /** The line of the build file, where there is one. */
  readonly line: number | null;
  readonly detail: string;

  constructor(template: string, error: { step: string; line: number | null; detail: string }) {
    const place = error.line === null ? error.step : `${error.step}, line ${error.line}`;
    super(`the build of ${template} failed (${place}): ${error.detail}`);
    this.step = error.step;
    this.line = error.line;
    this.detail = error.detail;
  }
}

/** What the server says about a refusal. */
export interface Problem {
  readonly status: number;
  readonly code: string;
  readonly detail: string;
  readonly hint?: string | null;
  readonly field?: string | null;
  readonly request_id?: string;
  readonly pid?: number;
  readonly seq?: number;
}

/** The server refused. The class tells what kind of refusal it is, `code` which one. */
export class ApiError extends WakefulError {
  override readonly name: string = "ApiError";
  readonly status: number;
  readonly code: string;
  readonly detail: string;
  /** What to do about it. */
  readonly hint: string | null;
  /** The field of the request that is wrong. */
  readonly field: string | null;
  /** To be found in the server's log. */
  readonly requestId: string | null;

  constructor(problem: Problem) {
    super(`${problem.detail} (${problem.status} ${problem.code})${problem.hint ? `; ${problem.hint}` : ""}`);
    this.status = problem.status;
    this.code = problem.code;
    this.detail = problem.detail;
    this.hint = problem.hint ?? null;
    this.field = problem.field ?? null;
    this.requestId = problem.request_id ?? null;
  }
}

/** 400, 405, 413, 422, 501: the request cannot be met as it is. */
export class InvalidRequest extends ApiError {
  override readonly name: string = "InvalidRequest";
}
/** 401: no key, or a wrong one. */
export class Unauthenticated extends ApiError {
  override readonly name: string = "Unauthenticated";
}
/** 403: the key does not allow it. */
export class PermissionDenied extends ApiError {
  override readonly name: string = "PermissionDenied";
}
/** 404. */
export class NotFound extends ApiError {
  override readonly name: string = "NotFound";
}
/** 409: not in this state. */
export class Conflict extends ApiError {
  override readonly name: string = "Conflict";
}
/** 429: the tenant has as much as it may have. */
export class QuotaExceeded extends ApiError {
  override readonly name: string = "QuotaExceeded";
}
/** 507: the host or the guest has no more room. */
export class Exhausted extends ApiError {
  override readonly name: string = "Exhausted";
}
/** 502, 503, 504: not now. */
export class Unavailable extends ApiError {
  override readonly name: string = "Unavailable";
}
/** 500: a fault of the server. */
export class InternalError extends ApiError {
  override readonly name: string = "InternalError";
}

export class SandboxNotFound extends NotFound {
  override readonly name: string = "SandboxNotFound";
}
export class TemplateNotFound extends NotFound {
  override readonly name: string = "TemplateNotFound";
}
export class PathNotFound extends NotFound {
  override readonly name: string = "PathNotFound";
}
export class ProcessNotFound extends NotFound {
  override readonly name: string = "ProcessNotFound";
}
/** It sleeps, and calls must not wake it (`autoResume: false`). */
export class SandboxSuspended extends Conflict {
  override readonly name: string = "SandboxSuspended";
}
export class SandboxDestroyed extends Conflict {
  override readonly name: string = "SandboxDestroyed";
}
export class SandboxFailed extends Conflict {
  override readonly name: string = "SandboxFailed";
}
/** The sandbox was put to sleep while a command ran. The command sleeps too: it goes on with its sandbox. */
export class SuspendedDuringExec extends Conflict {
  override readonly name: string = "SuspendedDuringExec";
  /** The process. */
  readonly pid: number;
  /** Where its output goes on: `(await sandbox.processes.get(pid)).output({ from: seq })`. */
  readonly seq: number;

  constructor(problem: Problem) {
    super(problem);
    this.pid = problem.pid ?? 0;
    this.seq = problem.seq ?? 0;
  }
}
/** Something that a process holds is in the way of a suspend with memory. */
export class NotSuspendable extends Conflict {
  override readonly name: string = "NotSuspendable";
}
export class CommandNotFound extends InvalidRequest {
  override readonly name: string = "CommandNotFound";
}
export class FileTooLarge extends InvalidRequest {
  override readonly name: string = "FileTooLarge";
}
export class GuestUnresponsive extends Unavailable {
  override readonly name: string = "GuestUnresponsive";
}
/** Nothing inside listens on the port. */
export class PortNotOpen extends Unavailable {
  override readonly name: string = "PortNotOpen";
}

type Kind = new (problem: Problem) => ApiError;

const BY_CODE: Readonly<Record<string, readonly [Kind, number]>> = {
  sandbox_not_found: [SandboxNotFound, 404],
  template_not_found: [TemplateNotFound, 404],
  path_not_found: [PathNotFound, 404],
  process_not_found: [ProcessNotFound, 404],
  sandbox_suspended: [SandboxSuspended, 409],
  sandbox_destroyed: [SandboxDestroyed, 409],
  sandbox_failed: [SandboxFailed, 409],
  suspended_during_exec: [SuspendedDuringExec, 409],
  not_suspendable: [NotSuspendable, 409],
  command_not_found: [CommandNotFound, 422],
  file_too_large: [FileTooLarge, 413],
  guest_unresponsive: [GuestUnresponsive, 502],
  port_not_open: [PortNotOpen, 502],
  shutting_down: [Unavailable, 503],
  busy: [Unavailable, 503],
  wake_timeout: [Unavailable, 504],
  invalid_json: [InvalidRequest, 400],
};

const BY_STATUS: Readonly<Record<number, Kind>> = {
  401: Unauthenticated,
  403: PermissionDenied,
  404: NotFound,
  409: Conflict,
  429: QuotaExceeded,
  502: Unavailable,
  503: Unavailable,
  504: Unavailable,
  507: Exhausted,
  501: InvalidRequest,
};

/** The error for a problem. A code that is not known falls back to its status. */
export function apiError(problem: Problem): ApiError {
  const fallback = problem.status >= 500 ? InternalError : InvalidRequest;
  const kind = BY_CODE[problem.code]?.[0] ?? BY_STATUS[problem.status] ?? fallback;
  return new kind(problem);
}

/** The error for what a stream tells at its end, where there is no status. */
export function streamError(frame: { code: string; detail: string }): ApiError {
  return apiError({ status: BY_CODE[frame.code]?.[1] ?? 500, code: frame.code, detail: frame.detail });
}
