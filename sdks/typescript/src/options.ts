// What a sandbox can be asked for, in this language's words.
import { wireDuration } from "./duration.js";
import type { CallOptions, Duration, Mode, Wire } from "./types.js";

/** What a sandbox may reach. Lists without a mode mean `deny_all`. */
export interface EgressOptions {
  mode?: "allow_all" | "deny_all" | undefined;
  allowCidrs?: readonly string[] | undefined;
  denyCidrs?: readonly string[] | undefined;
  allowPorts?: readonly number[] | undefined;
  allowDomains?: readonly string[] | undefined;
}

/** Limits on reading and writing its disk. */
export interface IoOptions {
  opsPerSec?: number | undefined;
  burstOps?: number | undefined;
  bandwidthMbps?: number | undefined;
  burstMbps?: number | undefined;
}

export interface CreateOptions extends CallOptions {
  /** Template name, `name:tag` or id, or the id of a snapshot. */
  template: string;
  /** `"ephemeral"` if absent: it ends with its lease. A persistent one sleeps when it is idle. */
  mode?: Mode | undefined;
  /** The lease of an ephemeral one; five minutes if absent. */
  timeout?: Duration | undefined;
  /** Idleness after which a persistent one sleeps; ten minutes if absent. */
  idleTimeout?: Duration | undefined;
  /** It ends after this long in any case. */
  hardTtl?: Duration | undefined;
  /** A preset, */
  size?: string | undefined;
  /** or processors */
  cpu?: number | undefined;
  /** and memory. */
  memoryMb?: number | undefined;
  diskMb?: number | undefined;
  env?: Readonly<Record<string, string>> | undefined;
  /** Labels. */
  metadata?: Readonly<Record<string, string>> | undefined;
  egress?: EgressOptions | undefined;
  io?: IoOptions | undefined;
  /** Calls wake it; `true` if absent. */
  autoResume?: boolean | undefined;
  runtime?: string | undefined;
}

export interface UpdateOptions extends CallOptions {
  /** All labels: those that are not named go. */
  metadata?: Readonly<Record<string, string>> | undefined;
  egress?: EgressOptions | undefined;
  idleTimeout?: Duration | undefined;
  hardTtl?: Duration | undefined;
  autoResume?: boolean | undefined;
  /** A larger disk from its next start on; only while it is suspended. */
  diskMb?: number | undefined;
}

export interface ForkOptions extends CallOptions {
  mode?: Mode | undefined;
  timeout?: Duration | undefined;
  idleTimeout?: Duration | undefined;
}

export interface ListOptions extends CallOptions {
  status?: string | undefined;
  mode?: Mode | undefined;
  template?: string | undefined;
  /** Only those that have all of these labels. */
  metadata?: Readonly<Record<string, string>> | undefined;
  /** How many are fetched at a time. */
  pageSize?: number | undefined;
}

/** Without what is absent. */
export function given<T extends object>(fields: T): { [K in keyof T]?: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as never;
}

export function wireEgress(egress: EgressOptions | undefined): Wire["EgressRequest"] | undefined {
  if (egress === undefined) return undefined;
  const lists = {
    allow_cidrs: egress.allowCidrs && [...egress.allowCidrs],
    deny_cidrs: egress.denyCidrs && [...egress.denyCidrs],
    allow_ports: egress.allowPorts && [...egress.allowPorts],
    allow_domains: egress.allowDomains && [...egress.allowDomains],
  };
  return given({ mode: egress.mode, ...lists });
}

export function wireIo(io: IoOptions | undefined): Wire["IoLimits"] | undefined {
  if (io === undefined) return undefined;
  return given({
    ops_per_sec: io.opsPerSec,
    burst_ops: io.burstOps,
    bandwidth_mbps: io.bandwidthMbps,
    burst_mbps: io.burstMbps,
  });
}

export function wireCreate(options: CreateOptions): Wire["CreateSandbox"] {
  return given({
    template: options.template,
    mode: options.mode,
    timeout: wireDuration(options.timeout),
    idle_timeout: wireDuration(options.idleTimeout),
    hard_ttl: wireDuration(options.hardTtl),
    size: options.size,
    cpu: options.cpu,
    memory_mb: options.memoryMb,
    disk_mb: options.diskMb,
    env: options.env && { ...options.env },
    metadata: options.metadata && { ...options.metadata },
    egress: wireEgress(options.egress),
    io: wireIo(options.io),
    auto_resume: options.autoResume,
    runtime: options.runtime,
  });
}

export function wireUpdate(options: UpdateOptions): Wire["PatchSandbox"] {
  return given({
    metadata: options.metadata && { ...options.metadata },
    egress: wireEgress(options.egress),
    idle_timeout: wireDuration(options.idleTimeout),
    hard_ttl: wireDuration(options.hardTtl),
    auto_resume: options.autoResume,
    disk_mb: options.diskMb,
  });
}
