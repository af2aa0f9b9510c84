// Node's streams as those of the web, without losing the end of a direction or the room that is left.
import type { Readable, Writable } from "node:stream";

export function fromNode(source: Readable): ReadableStream<Uint8Array> {
  const pieces = source.iterator({ destroyOnReturn: false });
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller): Promise<void> {
        const { done, value } = (await pieces.next()) as IteratorResult<Uint8Array, undefined>;
        if (done) controller.close();
        else controller.enqueue(value);
      },
      cancel(): void {
        source.destroy();
      },
    },
    { highWaterMark: 0 },
  );
}

export function toNode(sink: Writable): WritableStream<Uint8Array> {
  return new WritableStream<Uint8Array>(
    {
      write: (piece) =>
        new Promise<void>((resolve, reject) => {
          sink.write(piece, (error) => (error ? reject(error) : resolve()));
        }),
      close: () =>
        new Promise<void>((resolve) => {
          sink.end(() => resolve());
        }),
      abort(): void {
        sink.destroy();
      },
    },
    { highWaterMark: 1 },
  );
}
