// Files in a sandbox, both ways as streams.
import { platform } from "#platform";
import { oneShot, requestBody, sendable } from "./data.js";
import { InvalidRequest, PathNotFound, apiError } from "./errors.js";
import { pieces } from "./lines.js";
import { TRANSFER_MS, type Request, type Transport } from "./transport.js";
import type { CallOptions, Data, FileEntry, WrittenFile } from "./types.js";
import { Watch, type WatchOptions } from "./watch.js";

/** A body that brings nothing for so long is lost. */
const STALLED_MS = 60_000;

export interface ReadOptions extends CallOptions {
  /** The first byte. */
  start?: number | undefined;
  /** The byte after the last one. */
  end?: number | undefined;
}

export interface WriteOptions extends CallOptions {
  /** Permission bits; `0o644` if absent. */
  mode?: number | undefined;
  /** Whose it shall be, if not the template's user's. */
  user?: string | undefined;
}

/** The segments of an absolute path. */
function segments(path: string): string[] {
  const parts = path.split("/").filter((part) => part !== "" && part !== ".");
  // An address with these in it would name something else before it is sent.
  if (parts.includes("..")) {
    throw new InvalidRequest({
      status: 400,
      code: "invalid_path",
      detail: `${JSON.stringify(path)} has a segment ..`,
      hint: "name the file by its own path",
      field: "path",
    });
  }
  return parts;
}

/** Files of a sandbox. Paths are absolute. */
export class Files {
  readonly #transport: Transport;
  readonly #sandbox: string;

  /** @internal */
  constructor(transport: Transport, sandbox: string) {
    this.#transport = transport;
    this.#sandbox = sandbox;
  }

  #path(path: string): string[] {
    const parts = segments(path);
    return ["v1", "sandboxes", this.#sandbox, "files", ...(parts.length === 0 ? [""] : parts)];
  }

  #content(path: string, options: ReadOptions): Request {
    const { start = 0, end } = options;
    const ranged = start > 0 || end !== undefined;
    const headers = ranged ? { range: `bytes=${start}-${end === undefined ? "" : end - 1}` } : {};
    return { method: "GET", path: this.#path(path), headers };
  }

  /** The whole of a file, or a part of it. */
  async read(path: string, options: ReadOptions = {}): Promise<Uint8Array> {
    const read = async (response: Response): Promise<Uint8Array> => new Uint8Array(await response.arrayBuffer());
    return this.#transport.call(this.#content(path, options), options, TRANSFER_MS, read);
  }

  async readText(path: string, options: ReadOptions = {}): Promise<string> {
    return new TextDecoder().decode(await this.read(path, options));
  }

  /** The same as a stream: nothing is held but what is on its way. */
  async stream(path: string, options: ReadOptions = {}): Promise<ReadableStream<Uint8Array>> {
    const deadline = this.#transport.deadline(`reading ${path}`, options, undefined);
    try {
      const response = await this.#transport.open(this.#content(path, options), deadline);
      const body = pieces(response, deadline, STALLED_MS);
      return new ReadableStream<Uint8Array>(
        {
          async pull(controller): Promise<void> {
            try {
              const { done, value } = await body.next();
              if (!done) return controller.enqueue(value);
              controller.close();
              deadline.close();
            } catch (error) {
              deadline.close();
              throw error;
            }
          },
          async cancel(reason): Promise<void> {
            deadline.abort(reason);
            await body.return(undefined).catch(() => undefined);
          },
        },
        { highWaterMark: 0 },
      );
    } catch (error) {
      deadline.close();
      throw error;
    }
  }

  async #put(path: string, body: Pick<Request, "body" | "headers" | "again">, options: WriteOptions): Promise<WrittenFile> {
    const mode = options.mode === undefined ? undefined : options.mode.toString(8).padStart(4, "0");
    const request: Request = { method: "PUT", path: this.#path(path), query: { mode, user: options.user }, ...body };
    return this.#transport.json<WrittenFile>(request, options, TRANSFER_MS);
  }

  /** Writes a file whole: it is there when all of it is. Directories above it are made. */
  async write(path: string, data: Data, options: WriteOptions = {}): Promise<WrittenFile> {
    const sent = await sendable(data);
    return this.#put(path, { ...requestBody(sent), ...(oneShot(sent) ? { again: "never" } : {}) }, options);
  }

  /** What a directory holds, by name. */
  async list(path: string, options: CallOptions = {}): Promise<FileEntry[]> {
    const request: Request = { method: "GET", path: this.#path(path), query: { list: true } };
    return (await this.#transport.json<{ entries: FileEntry[] }>(request, options)).entries;
  }

  async stat(path: string, options: CallOptions = {}): Promise<FileEntry> {
    return this.#transport.json<FileEntry>({ method: "GET", path: this.#path(path), query: { stat: true } }, options);
  }

  async exists(path: string, options: CallOptions = {}): Promise<boolean> {
    try {
      await this.stat(path, options);
      return true;
    } catch (error) {
      if (error instanceof PathNotFound) return false;
      throw error;
    }
  }

  /** Makes a directory, and those above it. */
  async mkdir(path: string, options: CallOptions & { user?: string | undefined } = {}): Promise<FileEntry> {
    const query = { mkdir: true, user: options.user };
    return this.#transport.json<FileEntry>({ method: "POST", path: this.#path(path), query }, options);
  }

  async move(from: string, to: string, options: CallOptions = {}): Promise<FileEntry> {
    const query = { move_to: `/${segments(to).join("/")}` };
    return this.#transport.json<FileEntry>({ method: "POST", path: this.#path(from), query }, options);
  }

  /** Removes a file, or a directory with all that is in it. It may be gone already. */
  async remove(path: string, options: CallOptions = {}): Promise<void> {
    await this.#transport.done({ method: "DELETE", path: this.#path(path) }, options);
  }

  /** What happens to the files of a directory. Resolves when nothing more can be missed. */
  async watch(path: string, options: WatchOptions = {}): Promise<Watch> {
    return Watch.open(this.#transport, this.#sandbox, this.#path(path), options);
  }

  /** Sends a file of this machine, named by its path, or any other data. */
  async upload(source: string | URL | Exclude<Data, string>, path: string, options: WriteOptions = {}): Promise<WrittenFile> {
    if (typeof source !== "string" && !(source instanceof URL)) return this.write(path, source, options);
    const local = await platform.source(localPath(source));
    if (local.directory) {
      throw apiError({ status: 400, code: "is_directory", detail: `${source} is a directory`, field: "source" });
    }
    const { headers } = requestBody(new Uint8Array());
    const sized = { ...headers, "content-length": String(local.size ?? 0) };
    return this.#put(path, { headers: sized, body: () => local.open() }, options);
  }

  /** Writes a file of the sandbox to one of this machine, named by its path, or to a stream. */
  async download(path: string, target: string | URL | WritableStream<Uint8Array>, options: ReadOptions = {}): Promise<void> {
    const bounded = { ...options, timeoutMs: options.timeoutMs ?? TRANSFER_MS };
    const content = await this.stream(path, bounded);
    if (target instanceof WritableStream) return content.pipeTo(target);
    const file = await platform.sink(localPath(target)).catch(async (error: unknown) => {
      await content.cancel(error);
      throw error;
    });
    try {
      for await (const piece of content) await file.write(piece);
    } catch (error) {
      await file.abort();
      throw error;
    }
    await file.commit();
  }
}

function localPath(path: string | URL): string {
  return typeof path === "string" ? path : decodeURIComponent(path.pathname);
}
