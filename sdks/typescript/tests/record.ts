// Which public methods were called and which errors were met: at the end, all of them must have been.
import * as wakeful from "wakeful";

const called = new Set<string>();
const met = new Set<string>();

type Class = new (...args: never[]) => object;

/** All classes that the package exports, errors apart. */
function classes(): [string, Class][] {
  return Object.entries(wakeful).filter(
    ([, value]) => typeof value === "function" && !(value.prototype instanceof Error),
  ) as [string, Class][];
}

/** The methods of a class, static ones too. */
function* methods(name: string, type: Class): Generator<[string, object, string | symbol]> {
  for (const [holder, label] of [[type.prototype as object, `${name}.prototype`], [type, name]] as const) {
    for (const key of Reflect.ownKeys(holder)) {
      const { value } = Object.getOwnPropertyDescriptor(holder, key) ?? {};
      if (key === "constructor" || typeof value !== "function" || value.prototype instanceof Object && key === "prototype") continue;
      yield [`${label}.${String(key)}`, holder, key];
    }
  }
}

/** Notes every call from here on. */
export function record(): void {
  for (const [name, type] of classes()) {
    for (const [label, holder, key] of methods(name, type)) {
      const original = Reflect.get(holder, key) as (...args: unknown[]) => unknown;
      const wrapped = function (this: unknown, ...args: unknown[]): unknown {
        called.add(label);
        return original.apply(this, args);
      };
      Object.defineProperty(holder, key, { value: wrapped, writable: true, configurable: true });
    }
  }
}

/** Methods that nobody has called. Those for this package's own use are not part of what it offers. */
export function uncalled(): string[] {
  const internal = new Set(["Pty.open", "Watch.open"]);
  const all = classes().flatMap(([name, type]) => [...methods(name, type)].map(([label]) => label));
  return all.filter((label) => !called.has(label) && !internal.has(label));
}

/** Notes an error that was met. */
export function meet(error: unknown): void {
  if (error instanceof Error) met.add(error.name);
}

/** Errors that nobody has met. The two that others are made of are met by those. */
export function unmet(): string[] {
  const errors = Object.entries(wakeful).filter(
    ([, value]) => typeof value === "function" && value.prototype instanceof Error,
  );
  return errors.map(([name]) => name).filter((name) => !met.has(name) && name !== "ApiError");
}
