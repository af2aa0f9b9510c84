// The wire's shapes by their names, and the few that the API's description does not have.
import type { components } from "./wire.js";

type Schemas = components["schemas"];

export type SandboxInfo = Schemas["Sandbox"];
export type SandboxStatus = Schemas["Status"];
export type Mode = Schemas["Mode"];
export type Command = string | readonly string[];
export type Egress = Schemas["Egress"];
export type EgressReport = Schemas["EgressReport"];
export type FileEntry = Schemas["FileEntry"];
export type WrittenFile = Schemas["WrittenFile"];
export type ProcessInfo = Schemas["Process"];
export type ForkError = Schemas["ForkError"];
export type Snapshot = Schemas["Snapshot"];
export type Event = Schemas["Event"];
export type Port = Schemas["Port"];
export type PortSession = Schemas["PortSession"];
export type Template = Schemas["Template"];
export type TemplateSource = Schemas["TemplateSource"];
export type BuildError = Schemas["BuildError"];
export type Upload = Schemas["Upload"];
export type Pool = Schemas["Pool"];
export type Key = Schemas["Key"];
export type CreatedKey = Schemas["CreatedKey"];
export type Scope = Schemas["Scope"];
export type Tenant = Schemas["Tenant"];
export type Info = Schemas["Info"];
export type Health = Schemas["Health"];
export type Usage = Schemas["Usage"];
export type Pruned = Schemas["Pruned"];
export type ProblemCode = Schemas["Problem"]["code"];

/** Requests as they go out. */
export type Wire = Schemas;

/** One line of a process's stream. Its bytes are in one of two fields. */
export type WireFrame = Schemas["Frame"];
export type WireOutput = Extract<WireFrame, { type: "stdout" | "stderr" }>;

/** One line of a template's log. */
export type BuildProgress = Readonly<Extract<Schemas["BuildEvent"], { type: "progress" }>>;

/** The last line of a template's log: how the build stands. */
export type BuildEnd = Readonly<Extract<Schemas["BuildEvent"], { type: "end" }>>;

/** What happened to a file. After `overflow` more happened than is told: look again. */
export type FileChange = Readonly<Exclude<Schemas["FileEvent"], { type: "keepalive" | "suspended" | "error" }>>;

/** What every call takes. */
export interface CallOptions {
  /** Gives the call up. It then rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
  /** How long the call may take in all, in milliseconds; then it rejects with `DeadlineExceeded`. */
  timeoutMs?: number | undefined;
}

/** A whole number of seconds, a fraction of them, or text such as `"10m"`, `"1h30m"`, `"1500ms"`. */
export type Duration = number | string;

/** Bytes to be sent. What can be read once only is not sent again if the connection breaks. */
export type Data = string | Uint8Array | ArrayBuffer | Blob | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>;

/** What a stream does when its sandbox is put to sleep: wait until it is awake again, or reject. */
export type OnSuspend = "wait" | "raise";
