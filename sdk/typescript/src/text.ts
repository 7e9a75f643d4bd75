/** Bytes and text: base64, UTF-8, and text of a server that people will see. */

/** The part of Node's Buffer that is used where there is one, because it is fast. */
interface FastBase64 {
  from(memory: ArrayBufferLike, offset: number, length: number): {
    write(text: string, encoding: "base64"): number;
    toString(encoding: "base64"): string;
  };
}

const fast = (globalThis as { Buffer?: FastBase64 }).Buffer;

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/** Returns the bytes of a string in UTF-8, and bytes as they are. */
export function toBytes(data: string | Uint8Array): Uint8Array {
  return typeof data === "string" ? encoder.encode(data) : data;
}

/** Returns the text of bytes. Bytes that are not UTF-8 become U+FFFD. */
export function toText(bytes: Uint8Array): string {
  return decoder.decode(bytes);
}

/** Encodes bytes in base64, with padding. */
export function encodeBase64(bytes: Uint8Array): string {
  if (fast !== undefined) return fast.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("base64");
  let binary = "";
  for (let i = 0; i < bytes.length; i += 0x8000) binary += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  return btoa(binary);
}

/** Decodes base64 with padding and without white space. Returns undefined if the text is something else. */
export function decodeBase64(text: string): Uint8Array | undefined {
  if (text.length % 4 !== 0) return undefined;
  const padding = text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0;
  const bytes = new Uint8Array((text.length / 4) * 3 - padding);
  if (fast !== undefined) {
    // It skips what is not base64, and the bytes are then too few.
    const written = bytes.length === 0 ? 0 : fast.from(bytes.buffer, 0, bytes.length).write(text, "base64");
    return written === bytes.length ? bytes : undefined;
  }
  try {
    const binary = atob(text);
    if (binary.length !== bytes.length) return undefined;
    for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
    return bytes;
  } catch {
    return undefined;
  }
}

/** Joins pieces into one array. */
export function concat(pieces: readonly Uint8Array[], length?: number): Uint8Array {
  const whole = new Uint8Array(length ?? pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

/** Control characters that could move a cursor or reorder a line. A line end and a tab stay. */
const controls = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/**
 * Returns text of a server for people: at most `most` characters, and control characters as escapes. A terminal that
 * prints it obeys nothing.
 */
export function printable(text: string, most = 1024): string {
  const cut = text.length > most ? text.slice(0, most) + "…" : text;
  return cut.replace(controls, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

/** Reports whether a string is text: it has no half of a surrogate pair, which JSON in UTF-8 cannot have. */
export function isText(text: string): boolean {
  const native = (text as { isWellFormed?(): boolean }).isWellFormed;
  if (native !== undefined) return native.call(text);
  return !/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.test(text);
}

/** Returns a random id of 26 letters and digits, 130 bits. */
export function randomId(): string {
  const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
  return Array.from(crypto.getRandomValues(new Uint8Array(26)), (byte) => letters[byte % 32]).join("");
}
