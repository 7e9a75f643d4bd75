import { object, text as textOf, type Check } from "./check.js";
import { BusyError, DisconnectedError, messageOf, ProtocolError, serverError, ServerError, UsageError } from "./errors.js";
import { printable } from "./text.js";

/** A way to a server that carries one JSON message at a time. */
export interface Channel {
  /** Sends a message. It may throw if the channel is closed. */
  send(message: string): void;
  /** Stops and continues reading, so that the server has to wait. Without them what comes meanwhile is kept, up to 64 MiB. */
  pause?(): void;
  resume?(): void;
  /** Closes the channel. More may be delivered, and is ignored. It may return a promise that ends when the peer is gone, too. */
  close(): void | Promise<void>;
  /** Makes the server say something. Without it the server is asked for its status. */
  ping?(): void;
  /** How many bytes were given to {@link send} and have not left. Without it nothing bounds the answers to a server that does not read. */
  unsent?(): number;
  /** Whether the channel itself notices a server that is gone without a word. */
  readonly watched?: boolean;
}

/** What a channel tells. */
export interface ChannelEvents {
  message(text: string): void;
  /** The channel has ended: no message follows. */
  closed(cause?: unknown): void;
  /** Something has come that is no whole message. */
  heard?(): void;
}

/** Opens a channel. The signal ends the attempt. */
export type Dial = (events: ChannelEvents, signal: AbortSignal) => Promise<Channel>;

/** How large a message may be, in bytes. */
export const maxMessage = 64 << 20;

/** How many calls may wait for their answers, and how many that nobody waits for any more. */
const maxCalls = 1024;
const maxAbandoned = 64 * maxCalls;

/** How many questions of the server may be open. */
const maxQuestions = 1024;

/** How many characters of answers to questions may wait in a row, because the server does not read. */
const maxReplies = 4 << 20;

/** The pause before a server is asked again that has no room, or that cannot be reached. */
export const pauseMs = 100;

/** A server that is silent for so long is given up. It is asked to say something each third of that. */
const silenceMs = 90_000;

/** How much is read in such a third while nobody takes it, to hear whether the server is there. */
const listenBytes = 256 << 10;

/** How many questions for the status wait for their answers, which come in their turn. */
const maxStatus = 64;

/** What takes the notifications and requests of a server. */
export interface Receiver {
  /** Takes a notification. It returns a promise while there is no room. */
  notified(from: Connection, method: string, params: unknown): void | Promise<void>;
  /** Answers a request of the server. */
  asked(from: Connection, method: string, params: unknown): Promise<unknown>;
  /** The connection has ended, after all that came over it was delivered. */
  lost(connection: Connection): void;
}

type Settle = (answer: { result?: unknown; error?: unknown }) => void;

/** One connection of a session. A client has one after the other. */
export class Connection {
  /** Whether it has carried an answer to a caller, or an event. */
  useful = false;
  /** When it became the connection of the client, as of performance.now. */
  installed = 0;
  /** Starts of processes that are under way. */
  readonly starts = new Set<Promise<unknown>>();
  /** Ends with the connection. */
  readonly over = new AbortController();
  /** Resolves when the peer is gone, too, as far as the channel knows; undefined: the connection has not ended. */
  closing: Promise<void> | undefined;
  /** Whether what has come is delivered without looking for room, because the channel has ended. */
  flushing = false;
  /** Stops waiting for room in a queue, see {@link Receiver.notified}. */
  blocked: (() => void) | undefined;

  readonly #receiver: Receiver;
  #channel: Channel | undefined;
  #lost: DisconnectedError | undefined;
  #pending = new Map<number, Settle>();
  #waiting = 0;
  #lastId = 0;
  #questions = 0;
  #replies = 0; // characters of answers since nothing waited to be sent
  #inbox: string[] = [];
  #inboxSize = 0;
  #busy = false;
  #closing: { cause: unknown } | undefined;
  #watch: ReturnType<typeof setInterval> | undefined;
  #silent = 0; // how often in a row the server was asked to say something, and has not
  #paused = false;
  #allowed = 0; // how much is read although nobody takes it
  #statuses = 0;

  private constructor(receiver: Receiver) {
    this.#receiver = receiver;
  }

  /** Opens a connection. A server that is silent for so long is given up. */
  static async open(receiver: Receiver, dial: Dial, signal: AbortSignal, limitMs = silenceMs): Promise<Connection> {
    const connection = new Connection(receiver);
    const channel = await dial(
      { message: (text) => connection.#message(text), closed: (cause) => connection.#closed(cause), heard: () => (connection.#silent = 0) },
      signal,
    );
    connection.#channel = channel;
    if (connection.gone) void channel.close();
    else if (channel.watched !== true) {
      connection.#watch = setInterval(() => connection.#listen(limitMs), limitMs / 3);
      (connection.#watch as { unref?(): void }).unref?.();
    }
    return connection;
  }

  /** Whether the connection has ended. */
  get gone(): boolean {
    return this.#lost !== undefined;
  }

  /** Whether no further call may wait for its answer. */
  get full(): boolean {
    return this.#waiting >= maxCalls || this.#pending.size >= maxAbandoned;
  }

  /** Why it has ended. */
  get lost(): DisconnectedError {
    return this.#lost ?? new DisconnectedError("the connection is lost", false);
  }

  /** Ends the connection. */
  end(reason: unknown): void {
    if (this.gone) return;
    this.#inbox = [];
    this.#finish(reason);
  }

  #finish(cause: unknown): void {
    this.#lost =
      cause instanceof DisconnectedError
        ? cause
        : new DisconnectedError(cause === undefined ? "the connection is lost" : `the connection is lost: ${messageOf(cause)}`, false, cause);
    clearInterval(this.#watch);
    this.closing = Promise.resolve(this.#channel?.close());
    this.blocked?.();
    const pending = this.#pending;
    this.#pending = new Map();
    const error = sentOver(this.#lost);
    for (const settle of pending.values()) settle({ error });
    this.over.abort(this.#lost);
    this.#receiver.lost(this);
  }

  #closed(cause: unknown): void {
    if (this.gone) return;
    if (!this.#busy) {
      this.#finish(cause);
      return;
    }
    // What has come is delivered first. It is bounded, because the channel was paused, and nobody may ever make room.
    this.#closing ??= { cause };
    this.flushing = true;
    this.blocked?.();
  }

  /**
   * Looks whether the server is there. It counts turns, and not the time, because this program may have stood still. While
   * output waits that nobody takes, a bit more is read in each turn, because the word of the server is behind it.
   */
  #listen(limitMs: number): void {
    const channel = this.#channel as Channel;
    if (this.#paused && this.#inboxSize < maxMessage) {
      this.#silent = 0; // it was this end that did not listen
      this.#allowed = listenBytes;
      this.#paused = false;
      channel.resume?.();
    }
    if (!this.#paused && ++this.#silent > 3) this.end(new Error(`the server has not said anything for ${limitMs} ms`));
    else if (channel.ping !== undefined) channel.ping();
    else if (this.#silent > 1 && this.#statuses < maxStatus) {
      this.#statuses++;
      this.request("environment/status", {}, object).catch(() => {}).finally(() => this.#statuses--);
    }
  }

  /**
   * Makes a request. An answer that refuses is a {@link ServerError}. A server that has no room for the request is asked
   * again. Without a connection the error is a {@link DisconnectedError} that says whether the request was sent.
   */
  async call<T>(method: string, params: unknown, check: Check<T>, signal?: AbortSignal): Promise<T> {
    for (;;) {
      try {
        return await this.request(method, params, check, signal);
      } catch (error) {
        if (!isBusy(error)) throw error;
      }
      await sleep(pauseMs, signal);
    }
  }

  /** Makes a request once. */
  request<T>(method: string, params: unknown, check: Check<T>, signal?: AbortSignal): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason);
      if (this.#lost !== undefined) return reject(unsentOver(this.#lost));
      if (this.full) {
        return reject(new BusyError(`${this.#waiting} calls wait for their answers, and no more may`));
      }
      const id = ++this.#lastId;
      let message: string;
      try {
        message = encode({ id, method, params });
      } catch (error) {
        return reject(error);
      }
      this.#waiting++;
      const finish = (): void => {
        this.#waiting--;
        signal?.removeEventListener("abort", abort);
      };
      const abort = (): void => {
        finish();
        this.#pending.set(id, () => {}); // for the answer
        reject(signal?.reason);
      };
      signal?.addEventListener("abort", abort, { once: true });
      this.#pending.set(id, (answer) => {
        finish();
        if (answer.error !== undefined) return reject(answer.error);
        try {
          resolve(check(answer.result, `the answer to ${method}`));
        } catch (error) {
          reject(error);
        }
      });
      this.#send(message);
    });
  }

  /** Sends a notification. */
  notify(method: string, params: unknown): void {
    if (!this.gone) this.#send(encode({ method, params }));
  }

  #send(message: string): void {
    try {
      this.#channel?.send(message);
    } catch (error) {
      this.end(error);
    }
  }

  #message(text: string): void {
    if (this.gone) return;
    this.#silent = 0;
    if (!this.#busy) {
      this.#take(text);
      return;
    }
    this.#inbox.push(text);
    this.#inboxSize += text.length;
    this.#allowed -= text.length;
    if (this.#channel?.pause !== undefined) this.#pause();
    else if (this.#inboxSize > maxMessage) {
      this.end(new ProtocolError(`${maxMessage >> 20} MiB of messages wait, because output of a process is not read`));
    }
  }

  #pause(): void {
    if (this.#allowed > 0 || this.#paused || this.#channel?.pause === undefined) return;
    this.#paused = true;
    this.#channel.pause();
  }

  #take(text: string): void {
    let full: void | Promise<void>;
    try {
      full = this.#dispatch(text);
    } catch (error) {
      this.end(error);
      return;
    }
    if (full === undefined) return;
    this.#busy = true;
    this.#pause();
    full.then(
      () => this.gone || this.#goOn(),
      (error: unknown) => this.end(error),
    );
  }

  /** Takes what has come while there was no room. */
  #goOn(): void {
    this.#busy = false;
    let taken = 0;
    while (taken < this.#inbox.length && !this.#busy && !this.gone) {
      const text = this.#inbox[taken++] as string;
      this.#inboxSize -= text.length;
      this.#take(text);
    }
    this.#inbox.splice(0, taken);
    if (this.gone || this.#busy) return;
    if (this.#closing !== undefined) this.#finish(this.#closing.cause);
    else if (this.#paused) {
      this.#paused = false;
      this.#channel?.resume?.();
    }
  }

  #dispatch(text: string): void | Promise<void> {
    if (text.length > maxMessage) throw new ProtocolError(`a message of the server has more than ${maxMessage} bytes`);
    let parsed: unknown;
    try {
      parsed = parseOutput(text) ?? parse(text);
    } catch (error) {
      if (error instanceof ProtocolError) throw error;
      throw new ProtocolError(`the server sent what is no JSON: ${printable(text, 100)}`, error);
    }
    const message = object(parsed, "a message of the server");
    if (Object.hasOwn(message, "method")) {
      const method = textOf(message["method"], "the method of the server");
      if (Object.hasOwn(message, "id")) this.#question(message["id"], method, message["params"]);
      else return this.#receiver.notified(this, method, message["params"]);
    } else {
      this.#answer(message);
    }
    return undefined;
  }

  #answer(message: Record<string, unknown>): void {
    const id = message["id"];
    const refused = Object.hasOwn(message, "error");
    const settle = typeof id === "number" ? this.#pending.get(id) : undefined;
    if (settle === undefined) {
      const why = refused ? `: ${printable(String((message["error"] as { message?: unknown } | null)?.message), 1024)}` : "";
      throw new ProtocolError(`the server answered ${printable(JSON.stringify(id) ?? "without an id", 64)}, which was not asked${why}`);
    }
    this.#pending.delete(id as number);
    if (!refused) {
      settle({ result: message["result"] });
      return;
    }
    const error = object(message["error"], "an error of the server");
    const code = error["code"];
    if (!Number.isSafeInteger(code)) throw new ProtocolError("an error of the server has no code");
    const words = textOf(error["message"], "an error of the server");
    if (code === -32000 && words === "JSON-RPC transport closed") {
      this.#pending.set(id as number, settle);
      throw new Error(words);
    }
    settle({ error: serverError({ code: code as number, message: words, data: error["data"] }) });
  }

  #question(id: unknown, method: string, params: unknown): void {
    if (typeof id !== "string" && !Number.isSafeInteger(id)) throw new ProtocolError("a request of the server has an id that is no number and no text");
    const reply = (answer: object): void => {
      if (this.gone) return;
      const message = encode({ id, ...answer });
      this.#replies = (this.#channel?.unsent?.() ?? 0) === 0 ? 0 : this.#replies + message.length;
      if (this.#replies > maxReplies) this.end(new ProtocolError("the server asks without end, and does not read the answers"));
      else this.#send(message);
    };
    if (this.#questions >= maxQuestions) {
      reply({ error: { code: -32600, message: `${maxQuestions} questions are open` } });
      return;
    }
    this.#questions++;
    this.#receiver
      .asked(this, method, params)
      .then(
        (result) => reply({ result }),
        (error: unknown) => {
          if (error instanceof ProtocolError) this.end(error);
          else reply({ error: { code: error instanceof UnknownMethod ? -32601 : -32603, message: messageOf(error) } });
        },
      )
      .finally(() => this.#questions--);
  }
}

/** How output of a process begins, and its data in it. */
const outputBegin = '{"method":"process/output","params":{';
const chunkBegin = '"chunk":"';

/**
 * Parses output of a process without looking at its data, which is nearly all of it. It returns undefined for everything
 * else, and where the data is not plain.
 */
function parseOutput(text: string): unknown {
  if (text.length < 1024 || !text.startsWith(outputBegin)) return undefined;
  // A quote inside of a string has a backslash before it, so this is a member.
  const begin = text.indexOf(chunkBegin, outputBegin.length) + chunkBegin.length;
  if (begin < chunkBegin.length) return undefined;
  const end = text.indexOf('"', begin);
  const rest = parse(text.slice(0, begin) + text.slice(end)) as { params: { chunk?: unknown } };
  if (rest.params.chunk !== "" || end === begin) return undefined; // it is a member of something else
  rest.params.chunk = text.slice(begin, end); // which base64 has to be, so that no escape gets through
  return rest;
}

/** Says that a client does not know a method. */
export class UnknownMethod extends Error {}

function encode(message: object): string {
  const text = JSON.stringify(message);
  if (text.includes("\\ud") && /(?<!\\)(?:\\\\)*\\ud[89a-f]/.test(text)) {
    throw new UsageError("a request can have only text, and has half of a surrogate pair");
  }
  if (text.length > maxMessage / 3 && new Blob([text]).size > maxMessage) {
    throw new UsageError(`a request can have at most ${maxMessage} bytes`);
  }
  return text;
}

/** Returns the error for a request that was sent. */
export function sentOver(lost: DisconnectedError): DisconnectedError {
  return lost.code === "DISCONNECTED" ? new DisconnectedError(lost.message, true, lost.cause, lost.final) : lost;
}

function unsentOver(lost: DisconnectedError): DisconnectedError {
  return lost.code === "DISCONNECTED" ? new DisconnectedError(lost.message, false, lost.cause, lost.final) : lost;
}

/** Returns the error for a call after the client has ended. */
export const endedWith = unsentOver;

/** Reports whether a call failed because its connection is gone. */
export function isLoss(error: unknown): error is DisconnectedError {
  return error instanceof DisconnectedError;
}

/** Reports whether the connection was gone before the request was sent. */
export function isUnsent(error: unknown): boolean {
  return isLoss(error) && !error.sent;
}

/** Reports whether the server did not carry out a request because too much waits there. */
export function isBusy(error: unknown): boolean {
  return error instanceof ServerError && error.reason === "busy";
}

/** Reports whether the server had no memory for an answer. */
export function isShortOfMemory(error: unknown): boolean {
  return error instanceof ServerError && error.reason === "memory";
}

/** Waits. The signal's reason is thrown if it aborts first. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, ms);
    const abort = (): void => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    signal?.addEventListener("abort", abort, { once: true });
  });
}

/** Waits for a promise, or until the signal, whose reason it then throws. The promise goes on. */
export function until<T>(promise: Promise<T>, signal?: AbortSignal): Promise<T> {
  if (signal === undefined) return promise;
  return new Promise<T>((resolve, reject) => {
    if (signal.aborted) {
      promise.catch(() => {});
      return reject(signal.reason);
    }
    const abort = (): void => reject(signal.reason);
    signal.addEventListener("abort", abort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}

/**
 * Runs something with a signal that aborts after a time, or with another signal. The limit is an error for that time.
 */
export async function within<T>(
  ms: number | undefined,
  late: () => unknown,
  signal: AbortSignal | undefined,
  run: (signal: AbortSignal | undefined) => Promise<T>,
): Promise<T> {
  if (ms === undefined) return run(signal);
  const limit = new AbortController();
  const timer = setTimeout(() => limit.abort(late()), ms);
  const abort = (): void => limit.abort(signal?.reason);
  if (signal?.aborted) abort();
  else signal?.addEventListener("abort", abort, { once: true });
  try {
    return await run(limit.signal);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", abort);
  }
}

/** How many JSON values a message may have, unless each has minValue characters. An entry of a directory has 50, and counts as 4 values. */
const maxValues = 262_144;
const minValue = 8;

function parse(text: string): unknown {
  checkValues(text);
  return JSON.parse(text);
}

/** Checks the number of values of a message, because each takes much more memory than its characters. Commas and brackets in texts do not count. */
function checkValues(text: string): void {
  const most = Math.max(maxValues, Math.floor(text.length / minValue));
  if (text.length <= most) return;
  let values = 0;
  for (let i = 0; i < text.length; i++) {
    const c = text.charCodeAt(i);
    if (c === 0x22) {
      i = endOfText(text, i);
      if (i < 0) return; // JSON.parse tells of it
    } else if ((c === 0x2c || c === 0x5b || c === 0x7b) && ++values > most) {
      throw new ProtocolError(`a message of the server has more than ${most} values`);
    }
  }
}

/** Returns where the text ends that begins at a place; -1: nowhere. */
function endOfText(text: string, begin: number): number {
  for (let end = text.indexOf('"', begin + 1); end >= 0; end = text.indexOf('"', end + 1)) {
    let escapes = 0;
    while (text.charCodeAt(end - 1 - escapes) === 0x5c) escapes++;
    if (escapes % 2 === 0) return end;
  }
  return -1;
}
