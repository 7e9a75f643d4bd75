import { ProtocolError } from "../errors.js";
import { concat } from "../text.js";

/* Frames of the relay: protobuf (proto3), RelayMessageFrame of codex.exec_server.relay.v1. */

/** What a frame carries. Others, such as acknowledgements, are left out. */
export type Body =
  | { readonly type: "data"; readonly seq: number; readonly payload: Uint8Array }
  | { readonly type: "resume"; readonly nextSeq: number }
  | { readonly type: "reset"; readonly reason: string }
  | { readonly type: "handshake"; readonly payload: Uint8Array }
  | { readonly type: "other" };

export interface Frame {
  readonly streamId: string;
  readonly body: Body;
}

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true });

function varint(value: number): Uint8Array {
  const bytes: number[] = [];
  for (; value > 0x7f; value = Math.floor(value / 128)) bytes.push((value % 128) | 0x80);
  return Uint8Array.from([...bytes, value]);
}

function numbered(field: number, value: number): Uint8Array {
  return value === 0 ? new Uint8Array() : concat([varint(field * 8), varint(value)]);
}

function sized(field: number, value: Uint8Array): Uint8Array {
  return concat([varint(field * 8 + 2), varint(value.length), value]);
}

/** Encodes a frame. */
export function encodeFrame({ streamId, body }: Frame): Uint8Array {
  const begin = [numbered(1, 1), sized(2, encoder.encode(streamId))];
  switch (body.type) {
    case "data":
      return concat([...begin, sized(5, concat([numbered(1, body.seq), numbered(3, 1), sized(4, body.payload)]))]);
    case "resume":
      return concat([...begin, sized(7, numbered(1, body.nextSeq))]);
    case "reset":
      return concat([...begin, sized(8, sized(1, encoder.encode(body.reason)))]);
    case "handshake":
      return concat([...begin, sized(10, sized(1, body.payload))]);
    case "other":
      return concat([...begin, sized(9, new Uint8Array())]);
  }
}

/** Reads the fields of a message. */
function* fields(bytes: Uint8Array): Generator<[field: number, value: number | Uint8Array]> {
  let at = 0;
  const read = (): number => {
    let value = 0;
    for (let i = 0; i < 10; i++) {
      const byte = bytes[at++];
      if (byte === undefined) break;
      value += (byte & 0x7f) * 2 ** (7 * i);
      if (byte < 0x80) return value;
    }
    throw wrong("it is cut, or has a number that is too long");
  };
  while (at < bytes.length) {
    const key = read();
    const [field, kind] = [Math.floor(key / 8), key % 8];
    if (kind === 0) {
      yield [field, read()];
      continue;
    }
    const length = kind === 2 ? read() : kind === 5 ? 4 : kind === 1 ? 8 : -1;
    if (length < 0 || at + length > bytes.length || field === 0) throw wrong("it is cut, or has a field of no kind");
    if (kind === 2) yield [field, bytes.subarray(at, at + length)];
    at += length;
  }
}

function wrong(why: string): ProtocolError {
  return new ProtocolError(`the relay sent a frame that is malformed: ${why}`);
}

function number(value: number | Uint8Array | undefined): number {
  if (value === undefined) return 0;
  if (typeof value !== "number" || value > 0xffffffff) throw wrong("a field is no number");
  return value;
}

function bytesOf(value: number | Uint8Array | undefined): Uint8Array {
  if (!(value instanceof Uint8Array) || value.length === 0) throw wrong("a field has no bytes");
  return value;
}

/** Decodes a frame. */
export function decodeFrame(bytes: Uint8Array): Frame {
  const frame = new Map(fields(bytes));
  if (number(frame.get(1)) !== 1) throw wrong("it is not of version 1");
  let streamId: string;
  try {
    streamId = decoder.decode(bytesOf(frame.get(2)));
  } catch (error) {
    throw error instanceof ProtocolError ? error : wrong("its stream is no text");
  }
  const inner = (field: number): Map<number, number | Uint8Array> | undefined => {
    const value = frame.get(field);
    if (value === undefined) return undefined;
    if (!(value instanceof Uint8Array)) throw wrong("a field is no message");
    return new Map(fields(value));
  };
  const data = inner(5);
  if (data !== undefined) {
    if (number(data.get(2)) !== 0 || number(data.get(3)) !== 1) throw wrong("its data is in segments");
    return { streamId, body: { type: "data", seq: number(data.get(1)), payload: bytesOf(data.get(4)) } };
  }
  const resume = inner(7);
  if (resume !== undefined) return { streamId, body: { type: "resume", nextSeq: number(resume.get(1)) } };
  const reset = inner(8);
  if (reset !== undefined) return { streamId, body: { type: "reset", reason: new TextDecoder().decode(bytesOf(reset.get(1))) } };
  const handshake = inner(10);
  if (handshake !== undefined) return { streamId, body: { type: "handshake", payload: bytesOf(handshake.get(1)) } };
  return { streamId, body: { type: "other" } };
}
