/** JSON with whole numbers of any size: a browser would round those beyond 2^53, such as long ids. */

type Raw = { rawJSON?(text: string): unknown };

/** A whole number as its digits, which JSON has as a number. */
class Digits extends String {
  toJSON(): unknown {
    return (JSON as Raw).rawJSON?.(this.toString()) ?? Number(this);
  }
}

/** Return the value of a JSON text; a browser that does not know the digits of its numbers rounds long ones. */
export function parse(text: string): unknown {
  return JSON.parse(text, exact as (key: string, value: unknown) => unknown);
}

function exact(_key: string, value: unknown, context?: { source?: string }): unknown {
  if (typeof value !== "number" || !Number.isInteger(value) || Number.isSafeInteger(value)) return value;
  return context?.source && /^-?\d+$/.test(context.source) ? new Digits(context.source) : value;
}
