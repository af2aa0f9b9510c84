// Answers that come a line at a time: JSON objects, and server-sent events.
import type { Deadline } from "./deadline.js";
import { ConnectionFailed, ProtocolError } from "./errors.js";

/** The server says something at least every 15 s; after three times that it is gone. */
export const SILENCE_MS = 50_000;

/** Pieces of a body. Rejects if it breaks off, or if nothing comes for too long. */
export async function* pieces(response: Response, deadline: Deadline, silenceMs: number): AsyncGenerator<Uint8Array> {
  const reader = response.body?.getReader();
  if (!reader) return;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let all = false;
  try {
    for (;;) {
      const silent = new Promise<never>((_, reject) => {
        timer = setTimeout(() => reject(new ConnectionFailed(`nothing came for ${silenceMs} ms`)), silenceMs);
      });
      const { done, value } = await Promise.race([reader.read(), silent]);
      clearTimeout(timer);
      if (done) {
        all = true;
        return;
      }
      yield value;
    }
  } catch (error) {
    deadline.check();
    if (error instanceof ConnectionFailed) throw error;
    const text = error instanceof Error ? error.message : String(error);
    throw new ConnectionFailed(`the answer broke off: ${text}`, { cause: error });
  } finally {
    clearTimeout(timer);
    if (!all) await reader.cancel().catch(() => undefined);
  }
}

export async function* textLines(response: Response, deadline: Deadline): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const piece of pieces(response, deadline, SILENCE_MS)) {
    const parts = (rest + decoder.decode(piece, { stream: true })).split("\n");
    rest = parts.pop() ?? "";
    yield* parts;
  }
  // A line without its end is one that was cut.
}

function parse<T>(text: string): T {
  try {
    return JSON.parse(text) as T;
  } catch {
    throw new ProtocolError(`a line of the stream is not JSON: ${text.slice(0, 100)}`);
  }
}

/** The objects of an NDJSON answer. */
export async function* jsonLines<T>(response: Response, deadline: Deadline): AsyncGenerator<T> {
  for await (const line of textLines(response, deadline)) if (line !== "") yield parse<T>(line);
}

/** The data of server-sent events, each of which is one line of JSON here. */
export async function* eventData<T>(response: Response, deadline: Deadline): AsyncGenerator<T> {
  for await (const line of textLines(response, deadline)) {
    if (line.startsWith("data:")) yield parse<T>(line.slice(5));
  }
}
