// The end of a wait: its time is up, its caller gave it up, or its client was closed.
import { DeadlineExceeded } from "./errors.js";
import type { CallOptions } from "./types.js";

/** The longest that a timer takes. */
const LONGEST = 2 ** 31 - 1;

/**
 * Who waits for a signal. One listener for all of them: a signal that many calls share is not a leak, but platforms warn of
 * many listeners.
 */
const waiting = new WeakMap<AbortSignal, Set<() => void>>();

function listen(signal: AbortSignal, abort: () => void): () => void {
  const known = waiting.get(signal);
  if (known) {
    known.add(abort);
    return () => known.delete(abort);
  }
  const all = new Set([abort]);
  waiting.set(signal, all);
  signal.addEventListener("abort", () => all.forEach((one) => one()), { once: true });
  return () => all.delete(abort);
}

export class Deadline {
  readonly signal: AbortSignal;
  readonly #controller = new AbortController();
  #ends: number;
  readonly #undo: (() => void)[] = [];
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** `timeoutMs` is what counts if the options have none; `undefined` is no limit. `onClose` runs when it is closed. */
  constructor(what: string, options: CallOptions, timeoutMs: number | undefined, onClose?: (deadline: Deadline) => void) {
    this.signal = this.#controller.signal;
    const limit = options.timeoutMs ?? timeoutMs;
    this.#ends = limit === undefined ? Number.POSITIVE_INFINITY : performance.now() + limit;
    if (onClose) this.#undo.push(() => onClose(this));
    if (limit !== undefined && limit < LONGEST) {
      this.#timer = setTimeout(() => this.#controller.abort(new DeadlineExceeded(what, limit)), Math.max(0, limit));
    }
    const outer = options.signal;
    if (outer?.aborted) this.#controller.abort(outer.reason);
    else if (outer) this.#undo.push(listen(outer, () => this.#controller.abort(outer.reason)));
  }

  get remainingMs(): number {
    return this.#ends - performance.now();
  }

  /** Rejects if it is over. */
  check(): void {
    this.signal.throwIfAborted();
  }

  /** Waits a while, or rejects when it is over. */
  sleep(ms: number): Promise<void> {
    return this.race(
      (settle) => {
        const timer = setTimeout(settle, ms);
        return () => clearTimeout(timer);
      },
    );
  }

  /** Waits for something that may never come. `begin` gets what settles it, and returns what gives it up. */
  race(begin: (settle: () => void) => () => void): Promise<void> {
    return new Promise((resolve, reject) => {
      if (this.signal.aborted) return reject(this.signal.reason);
      const over = (): void => {
        undo();
        reject(this.signal.reason);
      };
      const undo = begin(() => {
        this.signal.removeEventListener("abort", over);
        resolve();
      });
      this.signal.addEventListener("abort", over, { once: true });
    });
  }

  /** From here on there is no limit; whoever gave it up before still can. */
  lift(): void {
    clearTimeout(this.#timer);
    this.#ends = Number.POSITIVE_INFINITY;
  }

  /** The wait is done: its timer and its listeners go. */
  close(): void {
    clearTimeout(this.#timer);
    for (const undo of this.#undo.splice(0)) undo();
  }

  /** The wait is given up, and everything that goes on under it. */
  abort(reason: unknown): void {
    this.#controller.abort(reason);
    this.close();
  }
}

/** A pause before another try: twice as long each time, and never quite the same. */
export function pause(attempt: number): number {
  return Math.min(2000, 100 * 2 ** attempt) * (0.5 + Math.random() / 2);
}
