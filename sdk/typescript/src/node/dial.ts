import { connect as connectTCP, isIP, type Socket } from "node:net";
import { connect as connectTLS, type ConnectionOptions, type TLSSocket } from "node:tls";
import { readFile } from "node:fs/promises";
import { normalize } from "node:path";
import type { Dial } from "../client.js";
import { checkURL, headersOf, isLoopback, type ConnectOptions } from "../connect.js";
import { ConnectError, messageOf, UsageError } from "../errors.js";
import { printable } from "../text.js";
import type { TLSFiles } from "./contexts.js";
import { checkSocket, readSecret } from "./trust.js";
import { upgrade, type SocketChannel, type SocketEvents } from "./websocket.js";

/** How large a file with certificates or a key may be. */
const maxCertificates = 1 << 20;

/** How long a path of a UNIX socket may be. */
const maxSocketPath = 107;

/** How to reach a URL. */
export interface URLOptions extends ConnectOptions {
  /** Files of TLS for wss. They are read for each connection, because certificates are renewed. */
  tls?: TLSFiles | undefined;
  /** Called with what is dangerous and works, such as a key that others can read. By default it goes to console.warn. */
  warn?: ((text: string) => void) | undefined;
}

/** Dials a URL with ws or wss. exposed: a token may go to another machine without TLS, because a context says so. */
export function urlDial(url: string, options: URLOptions, exposed = false): Dial {
  return async (events, signal) => {
    const headers = await headersOf(options);
    const given = Object.keys(headers).length > 0;
    return openURL(checkURL(url, !exposed && given), headers, options, events, signal).catch((error: unknown) => {
      if (given || !(error instanceof ConnectError) || error.status !== 401) throw error;
      throw new ConnectError(`${error.message} (give a token, or set AGENT_TOKEN_FILE with AGENT_URL)`, true, error, 401);
    });
  };
}

/** Opens a WebSocket to a URL that was checked. */
export async function openURL(
  target: URL, headers: Readonly<Record<string, string>>, options: Pick<URLOptions, "tls" | "warn">, events: SocketEvents, signal: AbortSignal,
): Promise<SocketChannel> {
  const stream = await openStream(target, options, signal);
  return upgrade(stream, { host: target.host, path: target.pathname + target.search, headers }, events, signal);
}

/** Opens a stream to the host of a URL, with TLS for wss and https. */
export async function openStream(target: URL, options: Pick<URLOptions, "tls" | "warn">, signal: AbortSignal): Promise<Socket> {
  const secured = target.protocol === "wss:" || target.protocol === "https:";
  if (!secured && Object.values(options.tls ?? {}).some((file) => file !== undefined)) throw new ConnectError("files of TLS need a URL with TLS", true);
  const tls = secured ? await tlsOptions(options.tls ?? {}, target.hostname, options.warn ?? console.warn) : undefined;
  const port = Number(target.port) || (secured ? 443 : 80);
  const plain = await connectThrough(target, target.hostname.replace(/^\[|\]$/g, ""), port, signal);
  return tls === undefined ? plain : secure(plain, tls, signal);
}

/** Dials a UNIX socket of this machine, whose server must be of this user or root, or of whom they gave the folder. */
export function unixDial(path: string, options: ConnectOptions): Dial {
  if (!path.startsWith("/") || path.includes("\0") || normalize(path) !== path || path === "/") {
    throw new UsageError(`${printable(path, 256)} is not the absolute path of a socket, in its shortest form`);
  }
  if (Buffer.byteLength(path) > maxSocketPath) throw new UsageError(`the path of a socket can have at most ${maxSocketPath} bytes: choose a shorter one`);
  return async (events, signal) => {
    await checkSocket(path);
    const stream = await opened(connectTCP({ path }), "connect", signal, path);
    return upgrade(stream, { host: "localhost", path: "/", headers: await headersOf(options) }, events, signal);
  };
}

/** Waits for an event of a stream. If it does not come, the stream is destroyed. */
function opened<S extends Socket>(stream: S, event: "connect" | "secureConnect", signal: AbortSignal, what: string): Promise<S> {
  return new Promise((resolve, reject) => {
    const stop = (): void => {
      stream.off("error", fail);
      stream.off("close", closed);
      signal.removeEventListener("abort", abort);
    };
    const fail = (error: unknown): void => {
      stop();
      stream.on("error", () => {});
      stream.destroy();
      reject(error === signal.reason ? error : connectError(error, what));
    };
    const closed = (): void => fail(new Error("the connection was closed"));
    const abort = (): void => fail(signal.reason);
    if (signal.aborted) return abort();
    signal.addEventListener("abort", abort, { once: true });
    stream.once(event, () => {
      stop();
      resolve(stream);
    });
    stream.on("error", fail);
    stream.on("close", closed);
  });
}

/** Errors that another attempt would not change. */
const finalCodes = /^(ENOTFOUND|CERT_|DEPTH_ZERO_|SELF_SIGNED_|UNABLE_TO_|ERR_TLS_CERT_ALTNAME_INVALID|ERR_SSL_(TLSV1_ALERT|TLSV13_ALERT|SSLV3_ALERT))/;

function connectError(error: unknown, what: string): ConnectError {
  if (error instanceof ConnectError) return error;
  const code = (error as NodeJS.ErrnoException).code;
  const reasons = error instanceof AggregateError ? error.errors.map(messageOf).join("; ") : messageOf(error);
  return new ConnectError(`${what}: ${printable(reasons, 512)}`, typeof code === "string" && finalCodes.test(code), error);
}

async function secure(plain: Socket, tls: ConnectionOptions, signal: AbortSignal): Promise<TLSSocket> {
  return opened(connectTLS({ ...tls, socket: plain }), "secureConnect", signal, "TLS");
}

async function tlsOptions(files: TLSFiles, host: string, warn: (text: string) => void): Promise<ConnectionOptions> {
  const name = files.serverName ?? host.replace(/^\[|\]$/g, "");
  const options: ConnectionOptions = { ALPNProtocols: ["http/1.1"], minVersion: "TLSv1.2" };
  if (isIP(name) === 0) options.servername = name;
  else options.host = name;
  if ((files.cert === undefined) !== (files.key === undefined)) throw new ConnectError("a certificate and its key must be given together", true);
  try {
    if (files.ca !== undefined) {
      const bundle = await readFile(files.ca);
      if (bundle.length > maxCertificates || !bundle.includes("-----BEGIN CERTIFICATE-----")) throw new ConnectError(`${files.ca} holds no certificate`, true);
      options.ca = bundle;
    }
    if (files.cert !== undefined && files.key !== undefined) {
      options.cert = await readFile(files.cert);
      options.key = await readSecret(files.key, maxCertificates, warn);
    }
  } catch (error) {
    throw error instanceof ConnectError ? error : new ConnectError(messageOf(error), true, error);
  }
  return options;
}

/** Opens TCP, through the proxy that the environment names for the URL. */
async function connectThrough(target: URL, host: string, port: number, signal: AbortSignal): Promise<Socket> {
  const via = proxyFor(target, host, port, process.env);
  if (via === undefined) return opened(connectTCP({ host, port }), "connect", signal, target.host);
  const viaPort = Number(via.port) || (via.protocol === "http:" ? 80 : 1080);
  const stream = await opened(connectTCP({ host: via.hostname.replace(/^\[|\]$/g, ""), port: viaPort }), "connect", signal, `the proxy ${via.host}`);
  const abort = (): void => void stream.destroy();
  signal.addEventListener("abort", abort, { once: true });
  try {
    const bytes = new Bytes(stream);
    if (via.protocol === "http:") await askHTTP(bytes, via, host, port);
    else await askSOCKS(bytes, via, host, port);
    bytes.release();
    return stream;
  } catch (error) {
    stream.destroy();
    signal.throwIfAborted();
    throw connectError(error, `the proxy ${via.host}`);
  } finally {
    signal.removeEventListener("abort", abort);
  }
}

/**
 * Returns the proxy for a URL: HTTPS_PROXY for wss, HTTP_PROXY for ws, otherwise ALL_PROXY, unless NO_PROXY has the host or
 * the host is a loopback address.
 */
export function proxyFor(target: URL, host: string, port: number, env: NodeJS.ProcessEnv): URL | undefined {
  if (isLoopback(host)) return undefined;
  const get = (name: string): string | undefined => env[name] || env[name.toLowerCase()] || undefined;
  const named = get(target.protocol === "wss:" || target.protocol === "https:" ? "HTTPS_PROXY" : "HTTP_PROXY") ?? get("ALL_PROXY");
  if (named === undefined || excluded(host.toLowerCase(), port, get("NO_PROXY") ?? "")) return undefined;
  let via: URL;
  try {
    via = new URL(named.includes("://") ? named : `http://${named}`);
  } catch {
    // The text may hold a password.
    throw new ConnectError("the proxy in HTTPS_PROXY, HTTP_PROXY or ALL_PROXY is not a URL: write http://HOST:PORT or socks5h://HOST:PORT", true);
  }
  if (!["http:", "socks5:", "socks5h:"].includes(via.protocol)) {
    throw new ConnectError(`a proxy of the kind ${printable(via.protocol, 32)}// is not supported: use http:// or socks5h://`, true);
  }
  return via;
}

/** Reports whether NO_PROXY has a host: names with their subdomains, addresses, ranges, each with a port or without. */
function excluded(host: string, port: number, list: string): boolean {
  return list.toLowerCase().split(",").map((word) => word.trim()).some((word) => {
    if (word === "*") return true;
    if (word === "") return false;
    const range = /^([^/]+)\/(\d+)$/.exec(word);
    if (range !== null) return inRange(host, range[1] as string, Number(range[2]));
    const [, bracketed, plain, at] = /^(?:\[([^\]]+)\]|([^:]+|[^:]*:[^:]*:.*?))(?::(\d+))?$/.exec(word) ?? [];
    const name = bracketed ?? plain ?? word;
    if (at !== undefined && Number(at) !== port) return false;
    if (isIP(name) !== 0) return name === host;
    const domain = name.replace(/^\*?\./, "");
    return host.endsWith("." + domain) || (host === domain && !name.startsWith("."));
  });
}

function inRange(host: string, base: string, bits: number): boolean {
  const [a, b] = [numberOf(host), numberOf(base)];
  if (a === undefined || b === undefined || a.bits !== b.bits || bits > a.bits) return false;
  const shift = BigInt(a.bits - bits);
  return a.value >> shift === b.value >> shift;
}

function numberOf(address: string): { value: bigint; bits: number } | undefined {
  if (isIP(address) === 4) {
    return { value: address.split(".").reduce((sum, part) => (sum << 8n) | BigInt(part), 0n), bits: 32 };
  }
  if (isIP(address) !== 6 || address.includes(".") || address.includes("%")) return undefined;
  const [head = "", tail] = address.split("::");
  const left = head === "" ? [] : head.split(":");
  const right = tail === undefined || tail === "" ? [] : tail.split(":");
  const zeros = Array<string>(8 - left.length - right.length).fill("0");
  return { value: [...left, ...zeros, ...right].reduce((sum, part) => (sum << 16n) | BigInt(`0x${part}`), 0n), bits: 128 };
}

/** Reads so many bytes, or up to a text, of a stream. */
class Bytes {
  readonly stream: Socket;
  #pieces = Buffer.alloc(0);
  #wake: (() => void) | undefined;
  #error: unknown;
  readonly #data = (piece: Buffer): void => {
    this.#pieces = Buffer.concat([this.#pieces, piece]);
    this.#wake?.();
  };
  readonly #end = (error?: unknown): void => {
    this.#error ??= error instanceof Error ? error : new Error("it closed the connection");
    this.#wake?.();
  };

  constructor(stream: Socket) {
    this.stream = stream;
    stream.on("data", this.#data);
    stream.on("error", this.#end);
    stream.on("close", this.#end);
  }

  async #until(there: () => number): Promise<Buffer> {
    for (;;) {
      const size = there();
      if (size >= 0) {
        const taken = this.#pieces.subarray(0, size);
        this.#pieces = this.#pieces.subarray(size);
        return taken;
      }
      if (this.#error !== undefined) throw this.#error;
      if (this.#pieces.length > 64 << 10) throw new Error("its answer is too long");
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  take(size: number): Promise<Buffer> {
    return this.#until(() => (this.#pieces.length >= size ? size : -1));
  }

  through(text: string): Promise<Buffer> {
    return this.#until(() => {
      const at = this.#pieces.indexOf(text);
      return at < 0 ? -1 : at + text.length;
    });
  }

  release(): void {
    if (this.#pieces.length > 0) throw new Error("it sent more than an answer");
    this.stream.off("data", this.#data);
    this.stream.off("error", this.#end);
    this.stream.off("close", this.#end);
  }
}

function credentials(via: URL): { user: string; password: string } {
  return { user: decodeURIComponent(via.username), password: decodeURIComponent(via.password) };
}

async function askHTTP(bytes: Bytes, via: URL, host: string, port: number): Promise<void> {
  const place = `${host.includes(":") ? `[${host}]` : host}:${port}`;
  const { user, password } = credentials(via);
  const auth = user === "" ? "" : `Proxy-Authorization: Basic ${Buffer.from(`${user}:${password}`).toString("base64")}\r\n`;
  bytes.stream.write(`CONNECT ${place} HTTP/1.1\r\nHost: ${place}\r\n${auth}\r\n`);
  const head = (await bytes.through("\r\n\r\n")).toString("latin1");
  const [, code, text] = /^HTTP\/1\.[01] (\d{3}) ?([^\r\n]*)/.exec(head) ?? [];
  if (code === undefined) throw new Error("its answer is malformed");
  if (code !== "200") throw new ConnectError(`the proxy answered with status ${code} ${printable(text ?? "", 100)}`, code.startsWith("4"), undefined, Number(code));
}

/** Asks a SOCKS5 proxy (RFC 1928, 1929), which looks the name up. */
async function askSOCKS(bytes: Bytes, via: URL, host: string, port: number): Promise<void> {
  const { user, password } = credentials(via);
  bytes.stream.write(user === "" ? Buffer.of(5, 1, 0) : Buffer.of(5, 2, 0, 2));
  const [version, method] = await bytes.take(2);
  if (version !== 5) throw new Error("its answer is malformed");
  if (method === 2) {
    const [name, secret] = [Buffer.from(user), Buffer.from(password)];
    bytes.stream.write(Buffer.concat([Buffer.of(1, name.length), name, Buffer.of(secret.length), secret]));
    if ((await bytes.take(2))[1] !== 0) throw new ConnectError("the proxy refused the user and the password", true);
  } else if (method !== 0) throw new ConnectError("the proxy wants an authentication that this client does not have", true);
  const name = Buffer.from(host);
  if (name.length > 255) throw new Error("the name of the host is too long");
  bytes.stream.write(Buffer.concat([Buffer.of(5, 1, 0, 3, name.length), name, Buffer.of(port >> 8, port & 255)]));
  const [, reply, , kind] = await bytes.take(4);
  if (reply !== 0) throw new Error(["", "general failure", "not allowed", "network unreachable", "host unreachable", "connection refused"][reply as number] ?? `it answered ${reply}`);
  const size = kind === 1 ? 4 : kind === 4 ? 16 : kind === 3 ? ((await bytes.take(1))[0] as number) : -1;
  if (size < 0) throw new Error("its answer is malformed");
  await bytes.take(size + 2);
}
