/** A server that says what a test tells it to. */

import { createHash } from "node:crypto";
import { createServer, type AddressInfo, type Socket } from "node:net";
import type { Ends } from "./rig.js";

export interface Request {
  readonly id: number;
  readonly method: string;
  readonly params: Record<string, unknown>;
}

/** Answers a request: with a result, with an error, or with nothing. */
export type Answer = (request: Request, link: Link) => unknown;

/** Stands for no answer. */
export const silence = Symbol("silence");

/** A refusal. */
export class Refusal {
  constructor(
    readonly code: number,
    readonly message: string,
    readonly data?: unknown,
  ) {}
}

export const info = {
  shell: { name: "sh", path: "/bin/sh" }, executorVersion: "1", providerId: "x", cwd: "file:///", userHomeDir: "file:///", platformOs: "linux",
  prependPathDirs: [], temporaryDirectories: [], tempDir: "file:///tmp",
  capabilities: {
    networkProxyLaunch: true, sandboxedFileStreaming: true, fileWriteStreaming: true, processResize: true, processCloseStdin: true, processList: true,
    processSignals: true, fsRename: true, fsWatch: true, fsApplyPatch: true, namedSessions: true, processBuiltins: true, socketForward: true,
    subcommandApprovals: true, fsSearch: true, ports: true,
  },
};

const answers: Record<string, Answer> = {
  initialize: () => ({ sessionId: "s", environmentInfo: info }),
  "process/start": ({ params }) => ({ processId: params["processId"], sandboxType: "none" }),
  "process/terminate": () => ({ running: true }),
  "environment/status": () => ({ status: "ready" }),
};

/** One connection to the server. */
export class Link {
  readonly requests: Request[] = [];
  /** What the client has answered. */
  readonly replies: { id: unknown; result?: unknown; error?: unknown }[] = [];
  upgraded = false;
  /** How many pings have come, and whether they are answered. */
  pings = 0;
  pongs = false;
  #rest = Buffer.alloc(0);

  constructor(
    readonly socket: Socket,
    readonly server: Scripted,
  ) {
    socket.on("error", () => {});
    socket.on("data", (bytes: Buffer) => this.#data(bytes));
  }

  #data(bytes: Buffer): void {
    this.#rest = Buffer.concat([this.#rest, bytes]);
    if (!this.upgraded) {
      const end = this.#rest.indexOf("\r\n\r\n");
      if (end < 0) return;
      const head = this.#rest.toString("latin1", 0, end);
      this.#rest = this.#rest.subarray(end + 4);
      this.upgraded = true;
      const key = /sec-websocket-key: (\S+)/i.exec(head)?.[1] ?? "";
      this.server.upgrade(this, createHash("sha1").update(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest("base64"));
    }
    for (;;) {
      const rest = this.#rest;
      if (rest.length < 2) return;
      const short = (rest[1] as number) & 0x7f;
      const begin = 2 + (short === 126 ? 2 : short === 127 ? 8 : 0);
      if (rest.length < begin + 4) return;
      const size = short === 126 ? rest.readUInt16BE(2) : short === 127 ? Number(rest.readBigUInt64BE(2)) : short;
      if (rest.length < begin + 4 + size) return;
      const content = Buffer.from(rest.subarray(begin + 4, begin + 4 + size));
      for (let i = 0; i < size; i++) content[i] = (content[i] as number) ^ (rest[begin + (i % 4)] as number);
      this.#rest = rest.subarray(begin + 4 + size);
      const kind = (rest[0] as number) & 15;
      if (kind <= 2) this.#message(content.toString());
      else if (kind === 9) {
        this.pings++;
        if (this.pongs) this.frame(0x8a, content);
      }
    }
  }

  #message(text: string): void {
    const request = JSON.parse(text) as Request;
    if (request.id === undefined) return;
    if (request.method === undefined) {
      this.replies.push(request);
      return;
    }
    this.requests.push(request);
    const answer = this.server.answers[request.method] ?? answers[request.method];
    const result = answer === undefined ? new Refusal(-32601, `no ${request.method} here`) : answer(request, this);
    if (result === silence) return;
    this.send(result instanceof Refusal ? { error: { code: result.code, message: result.message, data: result.data }, id: request.id } : { id: request.id, result });
  }

  /** Sends a message. */
  send(message: object): void {
    this.text(JSON.stringify(message));
  }

  notify(method: string, params: object): void {
    this.send({ method, params });
  }

  text(text: string): void {
    this.frame(0x81, Buffer.from(text));
  }

  frame(first: number, content: Buffer): void {
    const long = content.length > 0xffff ? 8 : content.length > 125 ? 2 : 0;
    const head = Buffer.alloc(2 + long);
    head[0] = first;
    head[1] = long === 8 ? 127 : long === 2 ? 126 : content.length;
    if (long === 2) head.writeUInt16BE(content.length, 2);
    if (long === 8) head.writeBigUInt64BE(BigInt(content.length), 2);
    this.raw(Buffer.concat([head, content]));
  }

  raw(bytes: Buffer | string): void {
    this.socket.write(bytes);
  }
}

/** The server. */
export class Scripted {
  readonly links: Link[] = [];
  answers: Record<string, Answer> = {};
  upgrade = (link: Link, accept: string): void => {
    link.raw(`HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`);
  };
  url = "";

  static async start(t: Ends, script: Record<string, Answer> = {}): Promise<Scripted> {
    const scripted = new Scripted();
    scripted.answers = script;
    const server = createServer((socket) => void scripted.links.push(new Link(socket, scripted)));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    scripted.url = `ws://127.0.0.1:${(server.address() as AddressInfo).port}`;
    t.after(() => {
      for (const { socket } of scripted.links) socket.destroy();
      server.close();
    });
    return scripted;
  }

  get link(): Link {
    return this.links.at(-1) as Link;
  }

  /** How often a method was asked for. */
  count(method: string): number {
    return this.links.reduce((sum, link) => sum + link.requests.filter((request) => request.method === method).length, 0);
  }
}
