/** A list that is fetched a page at a time, as it is walked through. */
export class Pages<T> implements AsyncIterable<T> {
  readonly #page: (cursor: string | undefined) => Promise<{ items: T[]; next: string | undefined }>;

  constructor(page: (cursor: string | undefined) => Promise<{ items: T[]; next: string | undefined }>) {
    this.#page = page;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    let cursor: string | undefined;
    do {
      const { items, next } = await this.#page(cursor);
      yield* items;
      cursor = next;
    } while (cursor !== undefined);
  }

  /** All of it. */
  async all(): Promise<T[]> {
    const items: T[] = [];
    for await (const item of this) items.push(item);
    return items;
  }
}
