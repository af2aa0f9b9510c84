// What happened to a sandbox: page by page, or as it happens. The numbers have no gaps, so a stream is taken up again
// where it was.
import { pause, type Deadline } from "./deadline.js";
import { ConnectionFailed, Unavailable } from "./errors.js";
import { eventData } from "./lines.js";
import { RECONNECT_MS } from "./output.js";
import type { Request, Transport } from "./transport.js";
import type { CallOptions, Event, SandboxInfo } from "./types.js";

export interface EventOptions extends CallOptions {
  /** The number of the event to begin after; 0 if absent. */
  after?: number | undefined;
  /** Go on as they happen, until the sandbox is gone. */
  follow?: boolean | undefined;
  /** How many are fetched at a time. */
  pageSize?: number | undefined;
}

export async function* events(
  transport: Transport,
  id: string,
  options: EventOptions,
): AsyncGenerator<Event, void, undefined> {
  yield* options.follow ? follow(transport, id, options) : pages(transport, id, options);
}

async function* pages(transport: Transport, id: string, options: EventOptions): AsyncGenerator<Event, void, undefined> {
  const path = ["v1", "sandboxes", id, "events"];
  for (let after = options.after ?? 0; ; ) {
    const query = { after, limit: options.pageSize };
    const page = await transport.json<{ events: Event[]; next_after: number }>({ method: "GET", path, query }, options);
    yield* page.events;
    if (page.events.length === 0) return;
    after = page.next_after;
  }
}

async function* follow(transport: Transport, id: string, options: EventOptions): AsyncGenerator<Event, void, undefined> {
  const deadline = transport.deadline(`the events of ${id}`, options, undefined);
  const headers = { accept: "text/event-stream" };
  let after = options.after ?? 0;
  let lostAt: number | undefined;
  try {
    for (let attempt = 0; ; attempt++) {
      try {
        const path = ["v1", "sandboxes", id, "events"];
        const request: Request = { method: "GET", path, query: { after }, headers, again: "never" };
        const response = await transport.open(request, deadline);
        let any = false;
        for await (const event of eventData<Event>(response, deadline)) {
          lostAt = undefined;
          attempt = 0;
          any = true;
          if (event.seq <= after) continue;
          after = event.seq;
          yield event;
          if (event.type === "destroyed") return;
        }
        // Of one that is gone there is nothing more to come.
        if (!any && (await isGone(transport, id, deadline))) return;
      } catch (error) {
        deadline.check();
        if (!(error instanceof ConnectionFailed || error instanceof Unavailable)) throw error;
        lostAt ??= performance.now();
        if (performance.now() - lostAt > RECONNECT_MS) throw error;
      }
      await deadline.sleep(pause(attempt));
    }
  } finally {
    deadline.abort(undefined);
  }
}

async function isGone(transport: Transport, id: string, deadline: Deadline): Promise<boolean> {
  const request: Request = { method: "GET", path: ["v1", "sandboxes", id] };
  const info = await transport.send(request, deadline, (answer) => answer.json() as Promise<SandboxInfo>);
  return info.status === "destroyed";
}
