// What a template is made of, and how files of this machine get to the server.
import { platform } from "#platform";
import { oneShot, requestBody, sendable } from "./data.js";
import { WakefulError } from "./errors.js";
import { TRANSFER_MS, type Request, type Transport } from "./transport.js";
import type { CallOptions, Data, TemplateSource, Upload } from "./types.js";

/** A path of this machine (a directory is sent as a tar), or the bytes of a tar. */
export type Local = string | URL | Exclude<Data, string>;

/** What a template is made of: what the server has, or what is sent to it first. */
export type Source =
  | TemplateSource
  | {
      kind: "dockerfile";
      /** The directory of the build, or a tar of it. */
      context: Local;
      /** The build file in it; `Dockerfile` if absent. */
      dockerfile?: string | undefined;
      /** The stage that is wanted; the last if absent. */
      target?: string | undefined;
      buildArgs?: Readonly<Record<string, string>> | undefined;
    }
  | { kind: "image"; archive: Local; reference?: string | undefined }
  | { kind: "rootfs"; archive: Local };

/** Sends bytes that a template is to be built from. */
export async function upload(transport: Transport, data: Local, options: CallOptions): Promise<Upload> {
  const request: Request = { method: "POST", path: ["v1", "uploads"] };
  const post = (body: Partial<Request>): Promise<Upload> =>
    transport.json<Upload>({ ...request, ...body }, options, TRANSFER_MS);
  if (typeof data === "string" || data instanceof URL) {
    const path = typeof data === "string" ? data : decodeURIComponent(data.pathname);
    const local = await platform.source(path);
    const headers = local.size === undefined ? {} : { "content-length": String(local.size) };
    return post({ headers, body: () => local.open() });
  }
  const sent = await sendable(data);
  return post({ ...requestBody(sent), ...(oneShot(sent) ? { again: "never" } : {}) });
}

/** The source as the server wants it, with what is here sent to it. */
export async function wireSource(transport: Transport, source: Source, options: CallOptions): Promise<TemplateSource> {
  const sent = async (data: Local): Promise<string> => (await upload(transport, data, options)).id;
  if ("context" in source) {
    return {
      kind: "dockerfile",
      upload: await sent(source.context),
      ...(source.dockerfile === undefined ? {} : { dockerfile: source.dockerfile }),
      ...(source.target === undefined ? {} : { target: source.target }),
      ...(source.buildArgs === undefined ? {} : { build_args: { ...source.buildArgs } }),
    } as TemplateSource;
  }
  if ("archive" in source) {
    const id = await sent(source.archive);
    if (source.kind === "rootfs") return { kind: "rootfs", upload: id };
    return { kind: "image", upload: id, ...(source.reference === undefined ? {} : { reference: source.reference }) };
  }
  if (!("kind" in source)) throw new WakefulError("a source has a kind");
  return source;
}
