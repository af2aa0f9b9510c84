// Bytes of all kinds, as a request's body.
import { platform } from "#platform";
import type { Data } from "./types.js";

type Body = () => BodyInit | ReadableStream<Uint8Array>;

/** Whether it can be read once only, and so be sent once only. */
export function oneShot(data: Data): boolean {
  return !(typeof data === "string" || data instanceof Uint8Array || data instanceof ArrayBuffer || data instanceof Blob);
}

export function toStream(data: ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>): ReadableStream<Uint8Array> {
  if (data instanceof ReadableStream) return data;
  const pieces = data[Symbol.asyncIterator]();
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller): Promise<void> {
        const { done, value } = await pieces.next();
        if (done) controller.close();
        else controller.enqueue(value);
      },
      async cancel(): Promise<void> {
        await pieces.return?.();
      },
    },
    { highWaterMark: 0 },
  );
}

/** `size` is that of a stream, where it is known. */
export function requestBody(data: Data, size?: number): { body: Body; headers: Record<string, string> } {
  const headers: Record<string, string> = { "content-type": "application/octet-stream" };
  if (!(data instanceof ReadableStream) && !oneShot(data)) return { body: () => data as BodyInit, headers };
  const source = toStream(data as ReadableStream<Uint8Array>);
  // Known beforehand, a file that is too large is refused before it was sent.
  if (size !== undefined) headers["content-length"] = String(size);
  return { body: () => source, headers };
}

/** Browsers send no streams over HTTP/1.1: there it is gathered first. */
export async function sendable(data: Data): Promise<Data> {
  if (platform.streamingBodies || !oneShot(data)) return data;
  return new Response(toStream(data as ReadableStream<Uint8Array>)).blob();
}
