/**
 * Agents behind a registry, through its relay. What goes through it is encrypted from end to end, so that whoever runs the
 * registry cannot read it.
 *
 * It needs `@noble/curves` and `@noble/post-quantum`, and runs in browsers, too.
 *
 * @packageDocumentation
 */

import { Agent } from "../agent.js";
import { object, text } from "../check.js";
import { Client, type Channel, type ChannelEvents, type Dial, type SessionOptions } from "../client.js";
import { isLoopback, type WebSocketFactory, type WebSocketLike } from "../connect.js";
import { maxMessage, sleep } from "../connection.js";
import { ConnectError, messageOf, ProtocolError, UsageError } from "../errors.js";
import { Held } from "../held.js";
import { concat, decodeBase64, encodeBase64, printable, toBytes } from "../text.js";
import { decodeFrame, encodeFrame, type Body } from "./frame.js";
import { Handshake, makeKeys, prologueOf, type Keys, type PublicKeys, type Secured } from "./noise.js";

export * from "../index.js";

/** An environment of a registry. */
export interface RegistryTarget {
  /** The base URL of the registry, with https, or http to this machine. */
  readonly registry: string;
  readonly environmentId: string;
  /** A harness key, or what returns one for each connection. It can be left out where {@link RelayOptions.post} adds it. */
  readonly token?: string | (() => string | Promise<string>) | undefined;
}

/** How a request to the registry is made. */
export type Post = (url: string, headers: Readonly<Record<string, string>>, body: string, signal: AbortSignal) => Promise<{ status: number; text: string }>;

/** How to connect through a relay. */
export interface RelayOptions extends SessionOptions {
  /** What opens WebSockets: by default the global WebSocket. In Node 20 give `webSocket` of `@execagent/client/node`. */
  webSocket?: WebSocketFactory | undefined;
  /**
   * What makes requests to the registry: by default fetch. In a page give one that has your own server make them, because a
   * registry answers no page of another origin, and no key belongs into a page.
   */
  post?: Post | undefined;
  /** Ends the attempt to connect. */
  signal?: AbortSignal | undefined;
}

const suite = "Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256";
const profile = "noise_hybrid_ik_v1";

/** How much of a message one record carries, and how large what it becomes may be. */
const recordBytes = 61_440;
const maxRecord = 65_535;

/** How far ahead of the expected record another one may be. */
const mostEarly = 64;

/** How large an answer of the registry may be. */
const maxAnswer = 1 << 20;

/** Connects to the agent of an environment. */
export async function connect(target: RegistryTarget, options: RelayOptions = {}): Promise<Agent> {
  return new Agent(await Client.connect({ dial: relayDial(target, options) }, options, options.signal), options);
}

/** Dials through the relay: each connection has a new address, and the same identity. @internal */
export function relayDial(target: RegistryTarget, options: RelayOptions): Dial {
  const { registry, environmentId } = target;
  let base: URL;
  try {
    base = new URL(registry);
  } catch {
    throw new UsageError("the registry is not a URL: write https://HOST");
  }
  if (base.protocol !== "https:" && !(base.protocol === "http:" && isLoopback(base.hostname))) {
    throw new UsageError("the registry needs https://, or http:// to this machine, because its key is sent there");
  }
  if (target.token === undefined && options.post === undefined) throw new UsageError("a registry needs a token, or a post that adds one");
  if (!/^[A-Za-z0-9_-]{1,256}$/.test(environmentId)) throw new UsageError(`${printable(environmentId, 64)} is not 1 to 256 of A-Z a-z 0-9 _ -`);
  let own: Keys | undefined;
  let pinned: PublicKeys | undefined;
  return async (events, signal) => {
    own ??= makeKeys();
    const bundle = await ask(target, base, own, options.post ?? fetchPost, signal);
    // The executor of a session does not change.
    if (pinned !== undefined && !(same(pinned.x25519, bundle.executor.x25519) && same(pinned.kem, bundle.executor.kem))) {
      throw new ConnectError("the executor was replaced by another one", true);
    }
    pinned = bundle.executor;
    return new RelayChannel(events, own, bundle, environmentId).open(options.webSocket ?? globalWebSocket, signal);
  };
}

function same(a: Uint8Array, b: Uint8Array): boolean {
  return a.length === b.length && a.every((byte, i) => byte === b[i]);
}

function globalWebSocket(url: string): WebSocketLike {
  const Global = (globalThis as { WebSocket?: new (url: string) => WebSocketLike }).WebSocket;
  if (Global === undefined) throw new ConnectError("there is no global WebSocket here: give webSocket of @execagent/client/node", true);
  return new Global(url);
}

/** What the registry answers to a harness. */
interface Bundle {
  readonly url: string;
  readonly registrationId: string;
  readonly authorization: string;
  readonly executor: PublicKeys;
}

async function fetchPost(url: string, headers: Readonly<Record<string, string>>, body: string, signal: AbortSignal): Promise<{ status: number; text: string }> {
  const response = await fetch(url, { method: "POST", headers, body, signal, redirect: "manual" });
  const pieces: Uint8Array[] = [];
  let length = 0;
  for (const reader = (response.body ?? new Blob([]).stream()).getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) return { status: response.status, text: new TextDecoder().decode(concat(pieces, length)) };
    pieces.push(value);
    length += value.length;
    if (length <= maxAnswer) continue;
    await reader.cancel();
    throw new ProtocolError("the answer of the registry is too long");
  }
}

/** Asks the registry where to connect. While nobody is connected to the environment it is asked again. */
async function ask(target: RegistryTarget, base: URL, own: Keys, post: Post, signal: AbortSignal): Promise<Bundle> {
  const token = typeof target.token === "function" ? await target.token() : target.token;
  if (token !== undefined && !/^[!-~]+$/.test(token)) throw new ConnectError("the key for the registry is empty, or has characters that a key cannot have", true);
  const url = `${base.href.replace(/\/$/, "")}/cloud/environment/${target.environmentId}/connect`;
  const keys = { suite, x25519_public_key: encodeBase64(own.x25519), mlkem768_public_key: encodeBase64(own.kem) };
  const headers = { ...(token !== undefined && { authorization: `Bearer ${token}` }), "content-type": "application/json" };
  for (let attempt = 0; ; attempt++) {
    let failure: ConnectError;
    try {
      const { status, text: answer } = await post(url, headers, JSON.stringify({ harness_public_key: keys }), signal);
      if (answer.length > maxAnswer) throw new ProtocolError("the answer of the registry is too long");
      if (status >= 200 && status < 300) return bundleOf(answer, target.environmentId);
      const { code, message } = errorOf(answer);
      const why = printable(message, 512);
      failure = new ConnectError(`the registry refused the connection with status ${status}${why === "" ? "" : ": " + why}`, !passing(status, code), undefined, status);
    } catch (error) {
      if (signal.aborted) throw signal.reason;
      if (error instanceof ProtocolError) throw error;
      failure = new ConnectError(`the registry cannot be reached: ${messageOf((error as Error).cause ?? error)}`, false, error);
    }
    if (failure.final) throw failure;
    const pause = Math.min(500 * 2 ** Math.min(attempt, 4), 5000) * (0.5 + Math.random() / 2);
    try {
      await sleep(pause, signal);
    } catch {
      throw failure; // it says more than that the time is over
    }
  }
}

/** Reports whether an answer may be another one later. */
function passing(status: number, code: string): boolean {
  return status === 408 || status === 429 || status >= 500 || (status === 409 && code === "environment_offline");
}

function errorOf(answer: string): { code: string; message: string } {
  try {
    const { error } = JSON.parse(answer) as { error?: { code?: unknown; message?: unknown } };
    return { code: String(error?.code ?? ""), message: String(error?.message ?? "") };
  } catch {
    return { code: "", message: answer.slice(0, 512) };
  }
}

function bundleOf(answer: string, environmentId: string): Bundle {
  const at = "the answer of the registry";
  let parsed: unknown;
  try {
    parsed = JSON.parse(answer);
  } catch (error) {
    throw new ProtocolError(`${at} is no JSON`, error);
  }
  const bundle = object(parsed, at);
  const member = (name: string): string => {
    const value = text(bundle[name], `${at}.${name}`);
    if (value.trim() === "") throw new ProtocolError(`${at}.${name} is blank`);
    return value;
  };
  if (member("environment_id") !== environmentId) throw new ProtocolError(`${at} is about another environment`);
  checkRendezvous(member("url"));
  if (member("security_profile") !== profile) throw new ProtocolError(`${at} has a security profile that is not ${profile}`);
  const key = object(bundle["executor_public_key"], `${at}.executor_public_key`);
  const half = (name: string, length: number): Uint8Array => {
    const bytes = decodeBase64(text(key[name], `${at}.${name}`));
    if (bytes?.length !== length) throw new ProtocolError(`${at}.${name} has not ${length} bytes`);
    return bytes;
  };
  if (key["suite"] !== suite) throw new ProtocolError(`${at} has a key for another suite`);
  return {
    url: member("url"), registrationId: member("executor_registration_id"), authorization: member("harness_key_authorization"),
    executor: { x25519: half("x25519_public_key", 32), kem: half("mlkem768_public_key", 1184) },
  };
}

/** Checks where to meet the executor. The URL is a credential, so it goes out in clear text only to this machine, and no error has it. */
function checkRendezvous(url: string): void {
  let parsed: URL | undefined;
  try {
    parsed = new URL(url);
  } catch {
    // It is refused below.
  }
  if (parsed?.protocol !== "ws:" && parsed?.protocol !== "wss:") throw new ProtocolError("websocket URL is not of the form ws://HOST or wss://HOST");
  if (parsed.username !== "" || parsed.password !== "") throw new ProtocolError("websocket URL holds credentials");
  if (parsed.protocol === "ws:" && !isLoopback(parsed.hostname)) {
    throw new ProtocolError("rendezvous is neither wss nor on a loopback address: its URL would travel in clear text");
  }
}

/** One stream through the relay, which has a WebSocket of its own. */
class RelayChannel implements Channel {
  readonly #events: ChannelEvents;
  readonly #own: Keys;
  readonly #bundle: Bundle;
  readonly #environmentId: string;
  readonly #streamId = crypto.randomUUID();
  #socket: WebSocketLike | undefined;
  #secured: Secured | undefined;
  #answer: ((payload: Uint8Array) => void) | undefined;
  #sent = 0;
  #sending: Promise<void> = Promise.resolve();
  #unsent = 0; // bytes that were not encrypted yet
  #expected = 0;
  #early = new Map<number, Uint8Array>();
  #tooEarly: Uint8Array[] = [];
  #receiving: Promise<void> = Promise.resolve();
  readonly #held = new Held((size) => new Uint8Array(size)); // what came of messages
  #over = false;
  #failed: ((error: unknown) => void) | undefined;
  pause?: () => void;
  resume?: () => void;

  constructor(events: ChannelEvents, own: Keys, bundle: Bundle, environmentId: string) {
    this.#events = events;
    this.#own = own;
    this.#bundle = bundle;
    this.#environmentId = environmentId;
  }

  async open(make: WebSocketFactory, signal: AbortSignal): Promise<Channel> {
    const abort = (): void => this.#end(signal.reason);
    signal.throwIfAborted();
    signal.addEventListener("abort", abort, { once: true });
    try {
      const answered = new Promise<Uint8Array>((resolve, reject) => {
        this.#answer = resolve;
        this.#failed = reject;
      });
      answered.catch(() => {}); // it may fail before somebody waits for it
      await this.#connect(make);
      const prologue = prologueOf(this.#environmentId, this.#bundle.registrationId, this.#streamId);
      const [handshake, first] = await Handshake.begin(this.#own, this.#bundle.executor, prologue, toBytes(this.#bundle.authorization));
      this.#frame({ type: "resume", nextSeq: 0 });
      this.#frame({ type: "handshake", payload: first });
      this.#secured = await handshake.finish(await answered);
      this.#tooEarly.splice(0).forEach((record) => this.#decrypt(record));
      return this;
    } catch (error) {
      this.#end(error);
      throw error instanceof ProtocolError ? new ConnectError(error.message, false, error) : error;
    } finally {
      signal.removeEventListener("abort", abort);
      this.#failed = undefined;
    }
  }

  #connect(make: WebSocketFactory): Promise<void> {
    return new Promise((resolve, reject) => {
      const socket = (this.#socket = make(this.#bundle.url, {}));
      socket.binaryType = "arraybuffer";
      const on = <E>(type: "open" | "close" | "error" | "message", listener: (event: E) => void): void =>
        socket.addEventListener(type, listener as (event: never) => void);
      if (typeof socket.pause === "function" && typeof socket.resume === "function") {
        this.pause = () => socket.pause?.();
        this.resume = () => socket.resume?.();
      }
      let last: unknown;
      on("open", () => resolve());
      on<{ error?: unknown; message?: unknown }>("error", ({ error, message }) => (last = error instanceof Error ? error : new Error(String(message ?? "the WebSocket failed"))));
      on<{ code?: number }>("close", ({ code }) => {
        const cause = last ?? new Error(`the relay closed the connection with code ${String(code)}`);
        reject(new ConnectError(`the relay cannot be reached: ${messageOf(cause)}`, false, cause));
        this.#end(cause);
      });
      on<{ data: unknown }>("message", ({ data }) => {
        if (this.#over) return;
        try {
          if (data instanceof Uint8Array) this.#take(data);
          else if (data instanceof ArrayBuffer) this.#take(new Uint8Array(data));
          else throw new ProtocolError("the relay sent a message that is text");
        } catch (error) {
          this.#end(error);
        }
      });
    });
  }

  #frame(body: Body): void {
    this.#socket?.send(encodeFrame({ streamId: this.#streamId, body }));
  }

  #take(bytes: Uint8Array): void {
    const { streamId, body } = decodeFrame(bytes);
    if (streamId !== this.#streamId) return;
    switch (body.type) {
      case "handshake":
        if (this.#answer === undefined) throw new ProtocolError("the executor answered the handshake twice");
        this.#answer(body.payload);
        this.#answer = undefined;
        return;
      case "reset":
        throw new ProtocolError(`the relay ended the stream: ${printable(body.reason, 256)}`);
      case "data":
        this.#data(body.seq, body.payload);
    }
  }

  #data(seq: number, payload: Uint8Array): void {
    if (this.#answer !== undefined) throw new ProtocolError("data came before the handshake");
    if (payload.length > maxRecord) throw new ProtocolError(`a record of the executor has ${payload.length} bytes`);
    if (seq < this.#expected) return; // the first one counts
    if (seq > this.#expected + mostEarly) throw new ProtocolError(`record ${seq} came, and ${this.#expected} was expected`);
    this.#early.set(seq, payload);
    for (let next = this.#early.get(this.#expected); next !== undefined; next = this.#early.get(this.#expected)) {
      this.#early.delete(this.#expected++);
      this.#decrypt(next);
    }
  }

  /** Decrypts a record, and delivers what is in it after those before it. */
  #decrypt(record: Uint8Array): void {
    if (this.#secured === undefined) {
      this.#tooEarly.push(record); // the answer to the handshake is still looked at
      if (this.#tooEarly.length > mostEarly) throw new ProtocolError("too many records came with the answer to the handshake");
      return;
    }
    const decrypted = this.#secured.receiving.decrypt(record);
    if (decrypted instanceof Uint8Array) {
      this.#deliver(decrypted);
      return;
    }
    decrypted.catch(() => {}); // whoever delivers it notices
    this.#receiving = this.#receiving.then(async () => {
      if (this.#over) return;
      try {
        this.#deliver(await decrypted);
      } catch (error) {
        this.#end(error);
      }
    });
  }

  /** Puts messages together: each has its length before it. */
  #deliver(plain: Uint8Array): void {
    if (plain.length > recordBytes) throw new ProtocolError(`a record of the executor has ${plain.length} bytes`);
    this.#held.push(plain);
    while (this.#held.length >= 4) {
      const { bytes } = this.#held;
      const size = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0);
      if (size === 0 || size > maxMessage) throw new ProtocolError(`the executor sent a message of ${size} bytes`);
      if (bytes.length < 4 + size) return;
      const message = strict.decode(bytes.subarray(4, 4 + size));
      this.#held.drop(4 + size);
      this.#events.message(message);
      if (this.#over) return;
    }
  }

  send(message: string): void {
    if (this.#over) throw new Error("the stream through the relay has ended");
    const content = toBytes(message);
    const length = new Uint8Array(4);
    new DataView(length.buffer).setUint32(0, content.length);
    const bytes = concat([length, content]);
    this.#unsent += bytes.length;
    this.#sending = this.#sending.then(async () => {
      try {
        for (let at = 0; at < bytes.length && !this.#over; at += recordBytes) {
          const payload = await (this.#secured as Secured).sending.encrypt(bytes.subarray(at, at + recordBytes));
          this.#frame({ type: "data", seq: this.#sent++, payload });
        }
      } catch (error) {
        this.#end(error);
      } finally {
        this.#unsent -= bytes.length;
      }
    });
  }

  unsent(): number {
    return this.#unsent + (this.#socket?.bufferedAmount ?? 0);
  }

  #end(cause: unknown): void {
    if (this.#over) return;
    this.#over = true;
    this.#failed?.(cause);
    this.#socket?.close();
    this.#events.closed(cause);
  }

  /** What was sent before is still sent. */
  close(): void {
    if (this.#over) return;
    void this.#sending.then(() => {
      this.#over = true;
      this.#socket?.close();
    });
  }
}

const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
