import { ProtocolError } from "../errors.js";

/* Tar archives (POSIX pax), as far as copies need them. Names are bytes. */

export const block = 512;

/** The kinds of entries. `global` has records for all that follows. */
export type Kind = "file" | "hardlink" | "symlink" | "directory" | "global" | "other";

const kinds: Readonly<Record<string, Kind>> = { "0": "file", "\0": "file", "1": "hardlink", "2": "symlink", "5": "directory", "7": "file", g: "global" };
const flags: Readonly<Record<Exclude<Kind, "other">, string>> = { file: "0", hardlink: "1", symlink: "2", directory: "5", global: "g" };

/** An entry without its content. */
export interface Header {
  readonly kind: Kind;
  readonly name: Buffer;
  readonly link: Buffer;
  readonly mode: number;
  readonly size: number;
  /** Seconds since 1970, as text with a fraction. */
  readonly mtime: string;
  readonly records: ReadonlyMap<string, Buffer>;
}

/** How large the records of a header may be. */
const maxRecords = 1 << 20;

/** Reads bytes of a stream. It returns fewer at the end of the stream. */
export type ReadBytes = (size: number) => Promise<Buffer>;

/** Reads the next header; undefined: the archive ends. */
export async function readHeader(read: ReadBytes): Promise<Header | undefined> {
  let records = new Map<string, Buffer>();
  for (;;) {
    const raw = await read(block);
    if (raw.length < block || raw.every((byte) => byte === 0)) return undefined;
    let sum = 0;
    for (let i = 0; i < block; i++) sum += i >= 148 && i < 156 ? 32 : (raw[i] as number);
    if (sum !== octal(raw, 148, 8)) throw new ProtocolError("the archive of the agent is broken: a header has a wrong sum");
    const flag = String.fromCharCode(raw[156] as number);
    const length = octal(raw, 124, 12);
    if (flag === "x" || flag === "g") {
      if (length > maxRecords) throw new ProtocolError("the archive of the agent has a header that is too long");
      const found = parseRecords((await read(padded(length))).subarray(0, length));
      if (flag === "x") {
        records = found;
        continue;
      }
      return { kind: "global", name: Buffer.alloc(0), link: Buffer.alloc(0), mode: 0, size: 0, mtime: "0", records: found };
    }
    const prefix = raw.toString("latin1", 257, 263) === "ustar\0" ? text(raw, 345, 155) : Buffer.alloc(0);
    const name = text(raw, 0, 100);
    const size = number(records.get("size")) ?? length;
    return {
      kind: kinds[flag] ?? "other",
      name: records.get("path") ?? (prefix.length > 0 ? Buffer.concat([prefix, Buffer.from("/"), name]) : name),
      link: records.get("linkpath") ?? text(raw, 157, 100),
      mode: octal(raw, 100, 8),
      size,
      mtime: records.get("mtime")?.toString("latin1") ?? String(octal(raw, 136, 12)),
      records,
    };
  }
}

function number(value: Buffer | undefined): number | undefined {
  if (value === undefined) return undefined;
  const found = Number(value.toString("latin1"));
  if (!/^\d+$/.test(value.toString("latin1")) || !Number.isSafeInteger(found)) throw new ProtocolError("the archive of the agent has a size that is no number");
  return found;
}

/** Returns the number of bytes that content takes. */
export function padded(size: number): number {
  return Math.ceil(size / block) * block;
}

function text(raw: Buffer, from: number, length: number): Buffer {
  const field = raw.subarray(from, from + length);
  const end = field.indexOf(0);
  return Buffer.from(end < 0 ? field : field.subarray(0, end));
}

function octal(raw: Buffer, from: number, length: number): number {
  const digits = text(raw, from, length).toString("latin1").trim();
  if (!/^[0-7]*$/.test(digits)) throw new ProtocolError("the archive of the agent is broken: a header has a wrong number");
  return digits === "" ? 0 : parseInt(digits, 8);
}

function parseRecords(raw: Buffer): Map<string, Buffer> {
  const records = new Map<string, Buffer>();
  for (let at = 0; at < raw.length; ) {
    const blank = raw.indexOf(32, at);
    const length = blank < 0 ? NaN : Number(raw.toString("latin1", at, blank));
    const equals = raw.indexOf(61, blank);
    if (!Number.isSafeInteger(length) || length < 5 || at + length > raw.length || equals < 0 || equals >= at + length || raw[at + length - 1] !== 10) {
      throw new ProtocolError("the archive of the agent is broken: a header has a wrong record");
    }
    records.set(raw.toString("utf8", blank + 1, equals), Buffer.from(raw.subarray(equals + 1, at + length - 1)));
    at += length;
  }
  return records;
}

function encodeRecords(records: ReadonlyMap<string, Buffer>): Buffer {
  return Buffer.concat([...records].map(([key, value]) => {
    const rest = Buffer.concat([Buffer.from(` ${key}=`), value, Buffer.from("\n")]);
    let length = rest.length;
    while (String(length).length + rest.length !== length) length = String(length).length + rest.length;
    return Buffer.concat([Buffer.from(String(length)), rest]);
  }));
}

/** Encodes a header. */
export function writeHeader(header: {
  kind: Exclude<Kind, "other">; name?: Buffer; link?: Buffer; mode?: number; size?: number; mtime?: string; records?: ReadonlyMap<string, Buffer>;
}): Buffer {
  const { kind, name = Buffer.alloc(0), link = Buffer.alloc(0), mode = 0, size = 0, mtime = "0" } = header;
  if (kind === "global") {
    const content = encodeRecords(header.records ?? new Map());
    return Buffer.concat([raw("g", Buffer.from("pax_global_header"), Buffer.alloc(0), 0, content.length, 0), pad(content)]);
  }
  const records = new Map(header.records);
  if (name.length > 100 || !name.every((byte) => byte < 0x80)) records.set("path", name);
  if (link.length > 100 || !link.every((byte) => byte < 0x80)) records.set("linkpath", link);
  const seconds = Math.floor(Number(mtime));
  if (!/^\d{1,10}$/.test(mtime)) records.set("mtime", Buffer.from(mtime));
  if (size >= 8 ** 11) records.set("size", Buffer.from(String(size)));
  const main = raw(flags[kind], name, link, mode, size >= 8 ** 11 ? 0 : size, Math.min(Math.max(seconds, 0), 8 ** 11 - 1));
  if (records.size === 0) return main;
  const content = encodeRecords(records);
  return Buffer.concat([raw("x", Buffer.from("pax_header"), Buffer.alloc(0), 0, content.length, 0), pad(content), main]);
}

function pad(content: Buffer): Buffer {
  return Buffer.concat([content, Buffer.alloc(padded(content.length) - content.length)]);
}

function raw(flag: string, name: Buffer, link: Buffer, mode: number, size: number, mtime: number): Buffer {
  const header = Buffer.alloc(block);
  name.copy(header, 0, 0, 100);
  const put = (value: number, at: number, length: number): void => void header.write(value.toString(8).padStart(length - 1, "0"), at, "latin1");
  put(mode, 100, 8);
  put(0, 108, 8);
  put(0, 116, 8);
  put(size, 124, 12);
  put(mtime, 136, 12);
  header.write("        ", 148, "latin1");
  header.write(flag, 156, "latin1");
  link.copy(header, 157, 0, 100);
  header.write("ustar\u000000", 257, "latin1");
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(sum.toString(8).padStart(6, "0") + "\0 ", 148, "latin1");
  return header;
}
