import { Agent } from "./agent.js";
import { Client, type ChannelEvents, type Channel, type Dial, type SessionOptions } from "./client.js";
import { maxMessage } from "./connection.js";
import { ConnectError, ProtocolError } from "./errors.js";
import { printable, toText } from "./text.js";

/** What this package needs of a WebSocket. The global one has it, and that of the package ws. */
export interface WebSocketLike {
  binaryType: string;
  send(message: string | Uint8Array): void;
  close(): void;
  addEventListener(type: "open" | "close" | "error" | "message", listener: (event: never) => void): void;
  /** Those of the package ws, with which the server waits while output is not read. */
  pause?(): void;
  resume?(): void;
  /** How many bytes wait to be sent. Without it nothing bounds the answers to a server that does not read. */
  readonly bufferedAmount?: number;
}

/** Opens a WebSocket with headers. */
export type WebSocketFactory = (url: string, headers: Readonly<Record<string, string>>) => WebSocketLike;

/** How to connect to a URL. */
export interface ConnectOptions extends SessionOptions {
  /** A bearer token, or what returns one for each connection. */
  token?: string | (() => string | Promise<string>) | undefined;
  /** Further headers of the request that opens a connection. */
  headers?: Readonly<Record<string, string>> | undefined;
  /** What opens WebSockets: by default the global WebSocket of Node 22, Bun and Deno. */
  webSocket?: WebSocketFactory | undefined;
  /** Ends the attempt to connect. */
  signal?: AbortSignal | undefined;
}

/**
 * Connects to an agent that listens at a URL with ws or wss.
 *
 * In Node `@execagent/client/node` has a `connect` that needs no global WebSocket, and also takes contexts, UNIX sockets and
 * commands.
 */
export async function connect(url: string | URL, options: ConnectOptions = {}): Promise<Agent> {
  const client = await Client.connect({ dial: webSocketDial(String(url), options) }, options, options.signal);
  return new Agent(client, options);
}

/** Checks a URL, and returns it. Headers may hold secrets, so they go only over wss or to this machine. */
export function checkURL(url: string, secret: boolean): URL {
  let parsed: URL;
  try {
    parsed = new URL(url);
  } catch {
    throw new ConnectError("the URL cannot be understood: write ws://HOST:PORT or wss://HOST:PORT", true); // it may hold a secret
  }
  if (parsed.protocol !== "ws:" && parsed.protocol !== "wss:") {
    throw new ConnectError(`a URL of the kind ${printable(parsed.protocol, 32)} cannot be used: write ws://HOST:PORT or wss://HOST:PORT`, true);
  }
  if (parsed.username !== "" || parsed.password !== "") throw new ConnectError("the URL holds credentials: use the option token", true);
  if (secret && parsed.protocol === "ws:" && !isLoopback(parsed.hostname)) {
    throw new ConnectError("a token and headers are sent only over wss:// or to this machine", true);
  }
  return parsed;
}

export function isLoopback(host: string): boolean {
  return host.toLowerCase() === "localhost" || host === "[::1]" || host === "::1" || /^127\.\d+\.\d+\.\d+$/.test(host);
}

/** Returns the headers of a connection. */
export async function headersOf(options: ConnectOptions): Promise<Record<string, string>> {
  const headers: Record<string, string> = { ...options.headers };
  const token = typeof options.token === "function" ? await options.token() : options.token;
  if (token !== undefined && token !== "") headers["Authorization"] = `Bearer ${token}`;
  for (const [name, value] of Object.entries(headers)) {
    if (!/^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/.test(name)) throw new ConnectError(`${printable(name, 64)} cannot be the name of a header`, true);
    // No error has the value, because it may be a secret.
    if (!/^[\t -~\u0080-\u00ff]*$/.test(value)) throw new ConnectError(`the header ${name} has characters that no header can have`, true);
  }
  return headers;
}

function webSocketDial(url: string, options: ConnectOptions): Dial {
  return async (events, signal) => {
    const headers = await headersOf(options);
    const checked = checkURL(url, Object.keys(headers).length > 0);
    return openWebSocket(() => (options.webSocket ?? globalWebSocket)(checked.href, headers), events, signal);
  };
}

function globalWebSocket(url: string, headers: Readonly<Record<string, string>>): WebSocketLike {
  const Global = (globalThis as { WebSocket?: new (url: string, options: object) => WebSocketLike }).WebSocket;
  if (Global === undefined) {
    throw new ConnectError("there is no global WebSocket here: use connect of @execagent/client/node, or the option webSocket", true);
  }
  return new Global(url, { headers });
}

function openWebSocket(make: () => WebSocketLike, events: ChannelEvents, signal: AbortSignal): Promise<Channel> {
  return new Promise((resolve, reject) => {
    const socket = make();
    socket.binaryType = "arraybuffer";
    let last: unknown;
    const on = <E>(type: "open" | "close" | "error" | "message", listener: (event: E) => void): void =>
      socket.addEventListener(type, listener as (event: never) => void);
    const abort = (): void => {
      reject(signal.reason);
      socket.close();
    };
    if (signal.aborted) return abort();
    signal.addEventListener("abort", abort, { once: true });
    on("open", () => {
      signal.removeEventListener("abort", abort);
      const channel: Channel = { send: (message) => socket.send(message), unsent: () => socket.bufferedAmount ?? 0, close: () => socket.close() };
      if (typeof socket.pause === "function" && typeof socket.resume === "function") {
        channel.pause = () => socket.pause?.();
        channel.resume = () => socket.resume?.();
      }
      resolve(channel);
    });
    on<{ data: unknown }>("message", ({ data }) => {
      if (typeof data === "string") events.message(data);
      else if (data instanceof ArrayBuffer && data.byteLength <= maxMessage) events.message(toText(new Uint8Array(data)));
      else events.closed(new ProtocolError("the server sent a message that is no text"));
    });
    on<{ message?: unknown; error?: unknown }>("error", (event) => {
      last = event.error instanceof Error ? event.error : typeof event.message === "string" && event.message !== "" ? new Error(event.message) : last;
    });
    on<{ code?: number; reason?: string }>("close", ({ code, reason }) => {
      signal.removeEventListener("abort", abort);
      const said = typeof reason === "string" && reason !== "" ? `: ${printable(reason, 256)}` : "";
      const cause = last ?? (code === 1000 ? undefined : new Error(`the WebSocket was closed with code ${String(code)}${said}`));
      reject(new ConnectError(`no WebSocket could be opened${cause instanceof Error ? ": " + cause.message : ""}`, false, cause));
      events.closed(cause);
    });
  });
}
