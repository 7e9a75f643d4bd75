import { ProtocolError } from "./errors.js";
import { decodeBase64, printable } from "./text.js";

/** Checks a value of a server. It returns the value, or throws a {@link ProtocolError} that names the place. */
export type Check<T> = (value: unknown, at: string) => T;

function wrong(value: unknown, at: string, want: string): never {
  const kind = value === null ? "null" : Array.isArray(value) ? "an array" : value === undefined ? "missing" : `a ${typeof value}`;
  throw new ProtocolError(`${at} is ${kind}, and must be ${want}`);
}

export const text: Check<string> = (value, at) => (typeof value === "string" ? value : wrong(value, at, "a string"));

export const flag: Check<boolean> = (value, at) => (typeof value === "boolean" ? value : wrong(value, at, "true or false"));

/** A whole number from 0 to 2^53-1. */
export const count: Check<number> = (value, at) =>
  Number.isSafeInteger(value) && (value as number) >= 0 ? (value as number) : wrong(value, at, "a whole number from 0 to 2^53-1");

/** A whole number, also a negative one. */
export const integer: Check<number> = (value, at) =>
  Number.isSafeInteger(value) ? (value as number) : wrong(value, at, "a whole number");

export const bytes: Check<Uint8Array> = (value, at) =>
  (typeof value === "string" ? decodeBase64(value) : undefined) ?? wrong(value, at, "base64");

export const anything: Check<unknown> = (value) => value;

export function oneOf<const Word extends string>(...words: readonly Word[]): Check<Word> {
  return (value, at) => {
    if (words.includes(value as Word)) return value as Word;
    const shown = typeof value === "string" ? `"${printable(value, 64)}"` : typeof value;
    throw new ProtocolError(`${at} is ${shown}, and must be one of ${words.join(", ")}`);
  };
}

/** A member that may be absent or null. */
export function optional<T>(check: Check<T>): Check<T | undefined> {
  return (value, at) => (value === undefined || value === null ? undefined : check(value, at));
}

/** A member that has a value of its own where it is absent or null. */
export function otherwise<T>(check: Check<T>, instead: T): Check<T> {
  return (value, at) => (value === undefined || value === null ? instead : check(value, at));
}

export function list<T>(check: Check<T>): Check<T[]> {
  return (value, at) => {
    if (!Array.isArray(value)) wrong(value, at, "an array");
    return value.map((element, i) => check(element, `${at}[${i}]`));
  };
}

export function object(value: unknown, at: string): Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) wrong(value, at, "an object");
  return value as Record<string, unknown>;
}

/** An object with these members. Others are ignored. */
export function record<Members extends Record<string, Check<unknown>>>(
  members: Members,
): Check<{ [Name in keyof Members]: ReturnType<Members[Name]> }> {
  const all = Object.entries(members);
  return (value, at) => {
    const from = object(value, at);
    const found: Record<string, unknown> = {};
    for (const [name, check] of all) {
      // An inherited member, such as constructor, is not one of the message.
      found[name] = check(Object.hasOwn(from, name) ? from[name] : undefined, `${at}.${name}`);
    }
    return found as { [Name in keyof Members]: ReturnType<Members[Name]> };
  };
}
