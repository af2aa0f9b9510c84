// `await using` needs a symbol that older browsers do not have.
type Mutable = { dispose?: symbol; asyncDispose?: symbol };

const symbols = Symbol as unknown as Mutable;
symbols.dispose ??= Symbol.for("Symbol.dispose");
symbols.asyncDispose ??= Symbol.for("Symbol.asyncDispose");

export {};
