// Waiting for a sandbox that sleeps, without waking it.
import { pause, type Deadline } from "./deadline.js";
import { SandboxDestroyed, SandboxFailed } from "./errors.js";
import type { Transport } from "./transport.js";
import type { SandboxInfo } from "./types.js";

/** How long a stream waits for its sandbox to be woken if its call has no deadline of its own. */
const ASLEEP_MS = 600_000;

/** Looks until the sandbox runs: looking wakes nobody. */
export async function untilAwake(transport: Transport, id: string, outer: Deadline): Promise<void> {
  const limit = Number.isFinite(outer.remainingMs) ? undefined : ASLEEP_MS;
  const deadline = transport.deadline(`waiting for ${id} to wake`, { signal: outer.signal }, limit);
  try {
    await look(transport, id, deadline);
  } finally {
    deadline.close();
  }
}

async function look(transport: Transport, id: string, deadline: Deadline): Promise<void> {
  const path = ["v1", "sandboxes", id];
  for (let attempt = 0; ; attempt++) {
    const info = await transport.send({ method: "GET", path }, deadline, (r) => r.json() as Promise<SandboxInfo>);
    if (info.status === "running" && info.transition === null) return;
    if (info.status === "destroyed") {
      throw new SandboxDestroyed({ status: 409, code: "sandbox_destroyed", detail: `${id} was destroyed` });
    }
    if (info.status === "failed") {
      const detail = info.failure?.detail ?? `${id} has failed`;
      throw new SandboxFailed({ status: 409, code: "sandbox_failed", detail });
    }
    await deadline.sleep(Math.min(1000, pause(attempt)));
  }
}
