/// <reference lib="esnext.disposable" preserve="true" />
import "./dispose.js";

export { Client, type ClientOptions } from "./client.js";
export { Sandbox, type ClientOption } from "./sandbox.js";
export { Sandboxes } from "./sandboxes.js";
export type { CreateOptions, EgressOptions, ForkOptions, IoOptions, ListOptions, UpdateOptions } from "./options.js";
export type { CommandOptions, ExecOptions, ExecResult } from "./exec.js";
export { Chunk, OutputStream, type Exit, type Gap, type OutputFrame, type StreamOptions } from "./output.js";
export { Process, Processes, type OutputOptions, type ProcessOptions } from "./process.js";
export { Pty, type PtyOptions } from "./pty.js";
export { Files, type ReadOptions, type WriteOptions } from "./files.js";
export { Watch, type WatchOptions } from "./watch.js";
export { Forward, Ports, type ForwardOptions } from "./ports.js";
export { Tunnel } from "./tunnel.js";
export type { EventOptions } from "./events.js";
export { Templates, type CreateTemplateOptions, type WaitOptions } from "./templates.js";
export type { Local, Source } from "./source.js";
export { Keys, Pools, Snapshots, Tenants, type TenantLimits } from "./admin.js";
export { Pages } from "./pages.js";
export type * from "./types.js";
export {
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
  type Problem,
} from "./errors.js";
