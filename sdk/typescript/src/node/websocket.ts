import { isAscii, isUtf8 } from "node:buffer";
import { createHash, randomFillSync } from "node:crypto";
import type { Socket } from "node:net";
import type { Channel, ChannelEvents } from "../client.js";
import { maxMessage } from "../connection.js";
import { ConnectError, ProtocolError } from "../errors.js";
import { Held } from "../held.js";
import { printable } from "../text.js";

/*
 * A client of WebSockets (RFC 6455) over a stream: no extension, no subprotocol. A frame of the server is read where it lies.
 */

/** How large the answer of the server to the upgrade may be, and how much of a refusal is kept. */
const maxHead = 16 << 10;
const maxRefusal = 256;

/** A frame that we send has at most so many bytes of content, because servers refuse larger ones. */
const maxFrame = 8 << 20;

/** How long the server may take to close its end. */
const closeAfterMs = 1_000;

/** While so many bytes wait to be sent, only the last ping is answered, behind them. */
const maxUnsent = 64 << 10;

const opText = 1;
const opBinary = 2;
const opClose = 8;
const opPing = 9;
const opPong = 10;

/** What a WebSocket tells. Without `bytes` a binary message is an error. */
export interface SocketEvents extends ChannelEvents {
  bytes?(content: Uint8Array): void;
}

/** A channel that also sends binary messages. */
export interface SocketChannel extends Channel {
  sendBytes(content: Uint8Array): void;
}

/** Opens a WebSocket over a stream that is connected. It takes the stream over. */
export function upgrade(
  stream: Socket,
  target: { host: string; path: string; headers: Readonly<Record<string, string>> },
  events: SocketEvents,
  signal: AbortSignal,
): Promise<SocketChannel> {
  return new Promise((resolve, reject) => {
    const key = randomFillSync(Buffer.allocUnsafe(16)).toString("base64");
    let head = Buffer.alloc(0);
    const fail = (error: unknown): void => {
      stop();
      stream.destroy();
      reject(error);
    };
    const stop = (): void => {
      stream.off("data", data);
      stream.off("error", fail);
      stream.off("close", closed);
      signal.removeEventListener("abort", abort);
    };
    const abort = (): void => fail(signal.reason);
    const closed = (): void => {
      if (head.length > 0 && head.includes("\r\n\r\n")) finish(head.indexOf("\r\n\r\n"), true);
      else fail(new ConnectError("the server closed the connection instead of opening a WebSocket"));
    };
    const data = (piece: Buffer): void => {
      head = Buffer.concat([head, piece]);
      const end = head.indexOf("\r\n\r\n");
      if (end >= 0) finish(end, false);
      else if (head.length > maxHead) fail(new ConnectError("the server answered with something that is no WebSocket", true));
    };
    const finish = (end: number, last: boolean): void => {
      const lines = head.toString("latin1", 0, end).split("\r\n");
      const [, code] = /^HTTP\/1\.1 (\d{3})(?: |$)/.exec(lines[0] as string) ?? [];
      if (code === undefined) return fail(new ConnectError("the server answered with something that is no HTTP", true));
      const headers = new Map(lines.slice(1).map((line) => {
        const colon = line.indexOf(":");
        return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()];
      }));
      const rest = head.subarray(end + 4);
      if (code !== "101") {
        const whole = Math.min(Number(headers.get("content-length") ?? maxRefusal), maxRefusal);
        if (rest.length < whole && !last) return; // a part of the reason has come
        const status = Number(code);
        const why = printable(rest.toString("utf8", 0, maxRefusal).trim(), maxRefusal);
        return fail(new ConnectError(`the server refused the connection with status ${status}${why === "" ? "" : ": " + why}`, status === 401 || status === 403, undefined, status));
      }
      const accept = createHash("sha1").update(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest("base64");
      const upgraded = headers.get("upgrade")?.toLowerCase() === "websocket" && /(^|,)\s*upgrade\s*(,|$)/i.test(headers.get("connection") ?? "");
      if (!upgraded || headers.get("sec-websocket-accept") !== accept || headers.has("sec-websocket-extensions") || headers.has("sec-websocket-protocol")) {
        return fail(new ConnectError("the server answered with an upgrade that is not the one that was asked for", true));
      }
      stop();
      const socket = new WebSocketChannel(stream, events);
      resolve(socket);
      if (rest.length > 0) socket.receive(rest);
    };
    if (signal.aborted) return abort();
    signal.addEventListener("abort", abort, { once: true });
    stream.on("data", data);
    stream.on("error", fail);
    stream.on("close", closed);
    const lines = [
      `GET ${target.path} HTTP/1.1`, `Host: ${target.host}`, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
      `Sec-WebSocket-Key: ${key}`, ...Object.entries(target.headers).map(([name, value]) => `${name}: ${value}`),
    ];
    stream.write(lines.join("\r\n") + "\r\n\r\n", "latin1");
  });
}

class WebSocketChannel implements SocketChannel {
  readonly #stream: Socket;
  readonly #events: SocketEvents;
  readonly #held = new Held((size) => Buffer.allocUnsafeSlow(size)); // what came and was not read yet
  #fragments: Buffer[] = []; // of a message that has not ended
  #fragmentsLength = 0;
  #opened = 0; // the opcode of that message
  #paused = false;
  #reading = false;
  #ended: { cause: unknown } | undefined; // of the stream, behind what was not read yet
  #closed = false;
  #masks = Buffer.allocUnsafe(0);
  #masksAt = 0;
  #unanswered: Buffer | undefined; // the last ping

  constructor(stream: Socket, events: SocketEvents) {
    this.#stream = stream;
    this.#events = events;
    stream.setNoDelay(true);
    stream.on("data", (piece: Buffer) => this.receive(piece));
    stream.on("error", (error) => this.#end(error));
    stream.on("close", () => this.#end(undefined));
    stream.on("drain", () => {
      if (this.#unanswered !== undefined && !this.#closed) this.#frame(0x80 | opPong, this.#unanswered);
      this.#unanswered = undefined;
    });
  }

  send(message: string): void {
    if (this.#closed) throw new Error("the WebSocket is closed");
    this.#send(opText, Buffer.from(message, "utf8"));
  }

  sendBytes(content: Uint8Array): void {
    if (this.#closed) throw new Error("the WebSocket is closed");
    this.#send(opBinary, Buffer.from(content)); // a copy, because it is masked in place
  }

  #send(kind: number, content: Buffer): void {
    for (let at = 0; at === 0 || at < content.length; at += maxFrame) {
      const last = at + maxFrame >= content.length;
      this.#frame((at === 0 ? kind : 0) | (last ? 0x80 : 0), content.subarray(at, at + maxFrame));
    }
  }

  /** Sends a frame. Its content is masked in place. */
  #frame(first: number, content: Buffer): void {
    const long = content.length > 0xffff ? 8 : content.length > 125 ? 2 : 0;
    const head = Buffer.allocUnsafe(6 + long);
    head[0] = first;
    head[1] = 0x80 | (long === 8 ? 127 : long === 2 ? 126 : content.length);
    if (long === 2) head.writeUInt16BE(content.length, 2);
    if (long === 8) head.writeBigUInt64BE(BigInt(content.length), 2);
    if (this.#masksAt === this.#masks.length) {
      this.#masks = randomFillSync(Buffer.allocUnsafe(4096));
      this.#masksAt = 0;
    }
    this.#masks.copy(head, 2 + long, this.#masksAt, this.#masksAt + 4);
    this.#masksAt += 4;
    mask(content, head.subarray(2 + long));
    this.#stream.cork();
    this.#stream.write(head);
    if (content.length > 0) this.#stream.write(content);
    this.#stream.uncork();
  }

  unsent(): number {
    return this.#stream.writableLength;
  }

  ping(): void {
    if (!this.#closed) this.#frame(0x80 | opPing, Buffer.alloc(0));
  }

  pause(): void {
    if (this.#ended !== undefined) return;
    this.#paused = true;
    this.#stream.pause();
  }

  resume(): void {
    if (!this.#paused) return;
    this.#paused = false;
    this.#read();
    if (!this.#paused && !this.#closed) this.#stream.resume();
  }

  close(): Promise<void> {
    const stream = this.#stream;
    if (this.#closed || stream.destroyed) return Promise.resolve();
    this.#closed = true;
    this.#fragments = [];
    this.#frame(0x80 | opClose, Buffer.from([3, 232])); // 1000
    stream.end();
    stream.resume();
    return new Promise((resolve) => {
      const timer = setTimeout(() => stream.destroy(), closeAfterMs);
      stream.once("close", () => {
        clearTimeout(timer);
        resolve();
      });
    });
  }

  #fail(cause: unknown): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#stream.destroy();
    this.#events.closed(cause);
  }

  #end(cause: unknown): void {
    this.#ended ??= { cause };
    this.#paused = false; // what has come is delivered first
    if (!this.#reading) this.#read();
  }

  #finish(): void {
    if (this.#ended !== undefined) this.#fail(this.#ended.cause);
  }

  /** Takes what the server has sent. */
  receive(piece: Buffer): void {
    if (this.#closed) return;
    this.#events.heard?.();
    this.#held.push(piece);
    if (!this.#paused) this.#read();
  }

  #read(): void {
    if (this.#reading) return;
    this.#reading = true;
    try {
      while (!this.#paused && !this.#closed && this.#readFrame());
    } catch (error) {
      this.#fail(error);
    } finally {
      this.#reading = false;
    }
    if (!this.#paused && !this.#closed) this.#finish();
  }

  /** Reads a frame, and reports whether there was a whole one. */
  #readFrame(): boolean {
    const first = this.#held.bytes;
    if (first.length < 2) return false;
    const opcode = (first[0] as number) & 0x0f;
    const fin = ((first[0] as number) & 0x80) !== 0;
    if (((first[0] as number) & 0x70) !== 0) throw new ProtocolError("the server sent a frame with a reserved bit");
    if (((first[1] as number) & 0x80) !== 0) throw new ProtocolError("the server sent a masked frame");
    let size = (first[1] as number) & 0x7f;
    let begin = 2;
    if (size === 126) {
      if (first.length < 4) return false;
      size = first.readUInt16BE(2);
      begin = 4;
    } else if (size === 127) {
      if (first.length < 10) return false;
      const wide = first.readBigUInt64BE(2);
      if (wide > BigInt(maxMessage)) throw new ProtocolError(`the server sent a frame of ${wide} bytes, and at most ${maxMessage} are allowed`);
      size = Number(wide);
      begin = 10;
    }
    if (opcode >= 8 && (size > 125 || !fin)) throw new ProtocolError("the server sent a control frame that is too long, or a part of one");
    if (opcode < 8 && this.#fragmentsLength + size > maxMessage) throw new ProtocolError(`the server sent a message of more than ${maxMessage} bytes`);
    if (first.length < begin + size) return false;
    this.#held.drop(begin + size);
    this.#frameRead(opcode, fin, first.subarray(begin, begin + size));
    return true;
  }

  #frameRead(opcode: number, fin: boolean, content: Buffer): void {
    switch (opcode) {
      case opPing:
        if (this.unsent() < maxUnsent) this.#frame(0x80 | opPong, Buffer.from(content));
        else this.#unanswered = Buffer.from(content);
        return;
      case opPong:
        return;
      case opClose: {
        const why = content.length > 2 ? `: ${printable(content.toString("utf8", 2), 125)}` : "";
        const code = content.length >= 2 ? content.readUInt16BE(0) : 1005;
        this.#fail(code === 1000 || code === 1001 || code === 1005 ? undefined : new Error(`the server closed the WebSocket with code ${code}${why}`));
        return;
      }
      case opText:
      case opBinary:
        if (this.#opened !== 0) throw new ProtocolError("the server sent a message inside another one");
        if (fin) {
          this.#message(opcode, content);
          return;
        }
        this.#opened = opcode;
        break;
      case 0:
        if (this.#opened === 0) throw new ProtocolError("the server sent a part of no message");
        break;
      default:
        throw new ProtocolError(`the server sent a frame of the kind ${opcode}`);
    }
    this.#fragments.push(Buffer.from(content));
    this.#fragmentsLength += content.length;
    if (this.#fragments.length > 1 << 16) throw new ProtocolError("the server sent a message in too many parts");
    if (!fin) return;
    const whole = Buffer.concat(this.#fragments, this.#fragmentsLength);
    const kind = this.#opened;
    this.#fragments = [];
    this.#fragmentsLength = 0;
    this.#opened = 0;
    this.#message(kind, whole);
  }

  #message(kind: number, content: Buffer): void {
    if (kind === opBinary && this.#events.bytes !== undefined) {
      this.#events.bytes(Uint8Array.prototype.slice.call(content)); // a copy, because the memory is used again
      return;
    }
    if (kind !== opText) throw new ProtocolError("the server sent a message that is no text");
    if (isAscii(content)) this.#events.message(content.toString("latin1")); // which is faster
    else if (isUtf8(content)) this.#events.message(content.toString("utf8"));
    else throw new ProtocolError("the server sent a message that is not UTF-8");
  }
}

/** Masks bytes in place: four at a time where they are so placed. */
function mask(bytes: Buffer, key: Buffer): void {
  let i = 0;
  if (bytes.length >= 64) {
    while ((bytes.byteOffset + i) % 4 !== 0) {
      (bytes[i] as number) ^= key[i & 3] as number;
      i++;
    }
    const rotated = new Uint32Array(Uint8Array.of(key[i & 3] as number, key[(i + 1) & 3] as number, key[(i + 2) & 3] as number, key[(i + 3) & 3] as number).buffer)[0] as number;
    const words = new Uint32Array(bytes.buffer, bytes.byteOffset + i, (bytes.length - i) >> 2);
    for (let at = 0; at < words.length; at++) (words[at] as number) ^= rotated;
    i += words.length * 4;
  }
  for (; i < bytes.length; i++) (bytes[i] as number) ^= key[i & 3] as number;
}
