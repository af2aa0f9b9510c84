import type { Duration } from "./types.js";

const UNITS: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** As the wire wants it: a whole number of seconds, or text. */
export function wireDuration(duration: Duration | undefined): number | string | undefined {
  if (typeof duration !== "number" || Number.isInteger(duration)) return duration;
  return `${Math.ceil(duration * 1000)}ms`;
}

/** In milliseconds; `undefined` for what is no duration, which the server will say better. */
export function milliseconds(duration: Duration): number | undefined {
  if (typeof duration === "number") return duration * 1000;
  if (duration === "0") return 0;
  if (!/^([0-9]+(ms|s|m|h|d))+$/.test(duration)) return undefined;
  let sum = 0;
  for (const [, count, unit] of duration.matchAll(/([0-9]+)(ms|s|m|h|d)/g)) sum += Number(count) * (UNITS[unit ?? ""] ?? 0);
  return sum;
}
