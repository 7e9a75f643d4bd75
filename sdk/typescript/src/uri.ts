import { UsageError, ProtocolError } from "./errors.js";
import { printable } from "./text.js";

/*
 * Paths are strings here, and file: URIs on the wire. A name that is not UTF-8 has each of its bytes that are none as a
 * half of a surrogate pair, U+DC80 to U+DCFF, as Python has it. So such a path can be used again.
 */

/** Returns the URI of an absolute path of the server. */
export function toURI(path: string): string {
  if (typeof path !== "string" || !path.startsWith("/")) {
    throw new UsageError(`${printable(String(path), 256)}: a path at the agent must be absolute, as in /srv/w`);
  }
  if (path.includes("\0")) throw new UsageError(`${printable(path, 256)}: a path cannot have a NUL`);
  const [, drive, rest] = /^\/([A-Za-z])(:(?:\/.*)?)$/s.exec(path) ?? [];
  if (drive !== undefined) {
    // Plain, it would be read as a drive.
    return `file:///%${drive.charCodeAt(0).toString(16).toUpperCase()}${encode(rest ?? "", path)}`;
  }
  return "file://" + encode(path, path);
}

const plain = /^[!$&'()*+,\-./0-9:;=@A-Z[\]^_a-z|~]*$/;
const special = /[^!$&'()*+,\-./0-9:;=@A-Z[\]^_a-z|~]/gu;

function encode(text: string, path: string): string {
  if (plain.test(text)) return text;
  return text.replace(special, (c) => {
    const code = c.codePointAt(0) as number;
    if (code >= 0xdc80 && code <= 0xdcff) return "%" + (code - 0xdc00).toString(16).toUpperCase();
    if (code >= 0xd800 && code <= 0xdfff) throw new UsageError(`${printable(path, 256)}: a path cannot have half of a surrogate pair`);
    return code < 0x80 ? "%" + code.toString(16).toUpperCase().padStart(2, "0") : encodeURIComponent(c);
  });
}

/** Returns the path of a URI of the server. */
export function toPath(uri: unknown, at: string): string {
  if (typeof uri !== "string" || !uri.startsWith("file:///")) {
    throw new ProtocolError(`${at} is not a file: URI: ${printable(String(uri), 256)}`);
  }
  const text = uri.slice("file://".length);
  const path = text.includes("%") ? decode(text) : text;
  if (path.includes("\0")) throw new ProtocolError(`${at} has a NUL: ${printable(uri, 256)}`);
  return path;
}

const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function decode(text: string): string {
  return text.replace(/(?:%[0-9A-Fa-f]{2})+/g, (escapes) => {
    const bytes = Uint8Array.from(escapes.slice(1).split("%"), (hex) => parseInt(hex, 16));
    try {
      return strict.decode(bytes);
    } catch {
      return lossless(bytes);
    }
  });
}

/** Decodes bytes that are not all UTF-8. */
function lossless(bytes: Uint8Array): string {
  let text = "";
  for (let i = 0; i < bytes.length; ) {
    const first = bytes[i] as number;
    const length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    try {
      text += strict.decode(bytes.subarray(i, i + length));
      i += length;
    } catch {
      text += String.fromCharCode(0xdc00 + first);
      i++;
    }
  }
  return text;
}
