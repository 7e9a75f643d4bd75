import { anything, count, flag, integer, list, object, oneOf, optional, otherwise, record, text, bytes, type Check } from "./check.js";
import {
  Connection, endedWith, isLoss, isUnsent, pauseMs, sleep, UnknownMethod, within, type Channel, type ChannelEvents, type Dial, type Receiver,
} from "./connection.js";
import {
  AgentError, attachedCode, ClosedError, ConnectError, DisconnectedError, HandshakeTimeoutError, messageOf, ProtocolError, RecoveringError, ServerError,
  TakenError, TimeoutError, UnsupportedError, UsageError,
} from "./errors.js";
import { Questions, type Approvals } from "./questions.js";
import { wakened } from "./queue.js";
import { printable } from "./text.js";
import { toPath } from "./uri.js";
import type { ClientRequests, InitializeParams } from "./wire.js";

/** A request of the contract. */
export type Method = keyof ClientRequests;

/** What it has to say. */
export type ParamsOf<M extends Method> = ClientRequests[M]["params"];

/** How a client reaches its server, and what it asks for. */
export interface SessionOptions extends Approvals {
  /** How the client names itself to the server. */
  clientName?: string;
  /** The id of a session to return to, see {@link Agent.sessionId}. */
  sessionId?: string;
  /**
   * The name of a session to open, or to make. It outlives its clients: any program of the same principal finds it by this
   * name.
   */
  sessionName?: string;
  /** Open only a session that exists. */
  existing?: boolean;
  /** Take the session from the client that has it. That client fails with a {@link TakenError}. */
  take?: boolean;
  /** How long the server keeps the session while nothing holds it, in milliseconds. The server may keep it for less. */
  retainMs?: number;
  /** Ask for what sandboxes have refused, see {@link ExitedEvent.refusals}. */
  refusals?: boolean;
  /** How long opening the connection may take; 10 s by default. */
  connectTimeoutMs?: number;
  /** How long the handshake after that may take; 10 s by default. */
  handshakeTimeoutMs?: number;
  /** How long the client tries to return to its session after a lost connection; 45 s by default. Servers keep it for 80 s. */
  recoveryTimeoutMs?: number;
  /** How long the server may be silent before its connection counts as lost; 90 s by default. It is asked in time to say something. */
  silenceTimeoutMs?: number;
}

/** Options of most calls. */
export interface CallOptions {
  /** Ends the waiting. What was sent is not undone. */
  signal?: AbortSignal | undefined;
  /** Fail with a {@link RecoveringError} instead of waiting while the connection is recovered. */
  failFast?: boolean | undefined;
}

/** The session that the server opened. */
export interface OpenedSession {
  /** undefined: it has no name. */
  readonly name: string | undefined;
  /** Whether this client made it. */
  readonly created: boolean;
  readonly retainMs: number;
}

/** The machine that the server runs on. */
export interface Info {
  readonly os: string;
  readonly version: string;
  /** The working directory of the server. */
  readonly cwd: string | undefined;
  readonly home: string | undefined;
  readonly tempDir: string | undefined;
  readonly shell: { readonly name: string; readonly path: string };
  /** What the server can do. A flag that is missing is false. */
  readonly capabilities: Readonly<Record<string, boolean>>;
}

const path: Check<string> = (value, at) => toPath(value, at);

const info: Check<Info> = (value, at) => {
  const { shell, executorVersion, cwd, userHomeDir, platformOs, tempDir, capabilities } = record({
    shell: record({ name: text, path: text }), executorVersion: text, cwd: optional(path), userHomeDir: optional(path), platformOs: text,
    tempDir: optional(path), capabilities: object,
  })(value, at);
  const flags: Record<string, boolean> = Object.create(null);
  for (const [name, has] of Object.entries(capabilities)) if (typeof has === "boolean") flags[name] = has;
  return { os: platformOs, version: executorVersion, cwd, home: userHomeDir, tempDir, shell, capabilities: flags };
};

const initialized = record({
  sessionId: text,
  environmentInfo: optional(info),
  session: optional(record({ name: otherwise(text, ""), created: flag, retainMs: count })),
});

const stream = oneOf("stdout", "stderr", "pty");

const refusal = record({
  layer: text, operation: text, subject: text, reason: text, needs: otherwise(text, ""), at: otherwise(text, ""), times: count, text,
});

const refusals = optional(record({
  list: (value, at) => list(refusal)(value, at).slice(0, 1024), more: otherwise(count, 0), note: otherwise(text, ""),
}));

/** Members of an exit that a server may leave out. */
export const ending = { sandboxDenied: otherwise(flag, false), refusals, timedOut: otherwise(flag, false), outOfMemory: otherwise(flag, false) };

const outputNotice = record({ processId: text, seq: count, stream, chunk: bytes, omitted: otherwise(count, 0) });
const exitedNotice = record({ processId: text, seq: count, exitCode: integer, ...ending });
const closedNotice = record({ processId: text, seq: count });
const bodyNotice = record({ requestId: text, seq: count, deltaBase64: bytes, done: flag, error: optional(text) });
const changedNotice = record({
  watchId: text, changes: list(record({ path, kind: oneOf("created", "modified", "removed", "renamed"), from: optional(path) })),
  overflow: otherwise(flag, false),
});
const portNumber: Check<number> = (value, at) => {
  const port = count(value, at);
  if (port > 65535) throw new ProtocolError(`${at} is ${port}, which is no port`);
  return port;
};
export const ports = list(record({ port: portNumber, address: text, uid: optional(count), pid: optional(count), program: optional(text) }));
const portNotice = record({ watchId: text, opened: ports, closed: ports });
const socketNotice = record({ socketId: text, offset: count, chunk: bytes, eof: otherwise(flag, false), error: optional(text) });
const takenNotice = record({ clientName: text });

type Notice<C extends Check<unknown>> = ReturnType<C>;
export type BodyNotice = Notice<typeof bodyNotice>;
export type ChangedNotice = Notice<typeof changedNotice>;
export type PortNotice = Notice<typeof portNotice>;
export type SocketNotice = Notice<typeof socketNotice>;

/** What a process handle takes of its client. */
export interface ProcessSink {
  readonly id: string;
  accept(event: import("./order.js").ProcessEvent, from: Connection): void | Promise<void>;
  fallBehind(): void;
  catchUp(over: Connection): Promise<void>;
  /** The process could not be followed. It is terminated. */
  loseTrack(error: unknown): void;
  fail(error: unknown): void;
}

/** What a body of an HTTP answer takes of its client. */
export interface WaitingBody {
  /** How many bytes wait to be read. */
  readonly waiting: number;
  accept(notice: BodyNotice, from: Connection): void;
  /** Fails, because too much waits. */
  overflow(amount: string): void;
  lost(from: Connection): void;
}

/** What outlives a connection and goes on over the next one: a watch, a socket. */
export interface Lasting {
  resume(over: Connection): Promise<void>;
  fail(error: unknown): void;
}

/** A connection that lived so long counts as useful, although nothing happened on it. */
const settledMs = 1000;

/** The first pause after the server said that the session still has a connection. It then doubles, up to pauseMs. */
const firstAttachedMs = 2;

/** How many processes are caught up at once. */
const catchers = 32;

/** Bounds a request that ends, at the server, something that the caller has given up. */
export const cleanupMs = 10_000;

const infoTimeoutMs = 30_000;
const statusTimeoutMs = 10_000;

/** How a client dials. */
export interface Route {
  dial: Dial;
  /** Whether the server can be reached only once, because this client has started it. */
  single?: boolean;
  /** Called once, after the last connection. */
  release?: () => void;
}

/** The state of a client. `failed` is final. */
export type State = "connected" | "recovering" | "failed";

/** One session at a server, over one connection after the other. */
export class Client implements Receiver {
  state: State = "recovering";
  /** How many connections the session has had. */
  generation = 0;
  sessionId = "";
  session: OpenedSession | undefined;
  /** Why the client has ended. */
  failure: DisconnectedError | undefined;
  /** Ends with the client. */
  readonly over = new AbortController();
  readonly processes = new Map<string, ProcessSink>();
  readonly bodies = new Map<string, WaitingBody>();
  readonly watches = new Map<string, { changed(notice: ChangedNotice): void }>();
  readonly portWatches = new Map<string, { changed(notice: PortNotice): void }>();
  readonly sockets = new Map<string, { received(notice: SocketNotice): void }>();
  readonly lasting = new Set<Lasting>();

  readonly #route: Route;
  readonly #options: SessionOptions;
  readonly #questions: Questions;
  readonly #recoveryMs: number;
  readonly #silentMs: number | undefined;
  #current: Connection | undefined;
  #info: Info | undefined;
  #deadline = 0;
  #lastId = 0;
  readonly #changed: (() => void)[] = [];
  #attempt: AbortController | undefined;

  private constructor(route: Route, options: SessionOptions) {
    this.#route = route;
    this.#options = options;
    this.#questions = new Questions(options);
    this.#recoveryMs = duration(options.recoveryTimeoutMs, "recoveryTimeoutMs") ?? 45_000;
    this.#silentMs = duration(options.silenceTimeoutMs, "silenceTimeoutMs");
    if (this.#silentMs !== undefined && this.#silentMs < 100) throw new UsageError(`silenceTimeoutMs is ${this.#silentMs}, and must be at least 100`);
  }

  /** Opens a connection, and a session on it. */
  static async connect(route: Route, options: SessionOptions, signal?: AbortSignal): Promise<Client> {
    const client = new Client(route, options);
    try {
      const first = await client.#open(signal);
      try {
        await client.#join(first, options.sessionId ?? null, signal);
      } catch (error) {
        first.end(error);
        throw error;
      }
      if (client.failure !== undefined) throw client.failure;
      client.#deadline = performance.now() + client.#recoveryMs;
      client.#install(first);
      if (first.gone) client.lost(first);
      return client;
    } catch (error) {
      route.release?.();
      throw error;
    }
  }

  async #open(signal: AbortSignal | undefined): Promise<Connection> {
    const limitMs = duration(this.#options.connectTimeoutMs, "connectTimeoutMs") ?? 10_000;
    const late = new ConnectError(`the server cannot be reached within ${limitMs} ms`);
    try {
      return await within(limitMs, () => late, signal, (limited) => dialWithin(this, this.#route.dial, limited as AbortSignal, this.#silentMs));
    } catch (error) {
      if (error instanceof AgentError || (signal?.aborted && error === signal.reason)) throw error;
      throw new ConnectError(messageOf(error), false, error);
    }
  }

  /** Does the handshake for a session; null: a new one. Only the first handshake of a client sets anything. */
  async #initialize(over: Connection, resume: string | null, signal: AbortSignal | undefined): Promise<void> {
    const options = this.#options;
    const limitMs = duration(options.handshakeTimeoutMs, "handshakeTimeoutMs") ?? 10_000;
    const first = this.sessionId === "";
    const params: InitializeParams = { clientName: options.clientName ?? "execagent-client", resumeSessionId: resume, errorData: true };
    if (this.#questions.approves) params.subcommandApprovals = true;
    if (options.refusals === true) params.refusals = true;
    if (first) {
      if (options.sessionName !== undefined) params.sessionName = options.sessionName;
      if (options.existing === true) params.existing = true;
      if (options.take === true) params.take = true;
      if (options.retainMs !== undefined) params.retainMs = options.retainMs;
    }
    const late = new HandshakeTimeoutError(limitMs);
    const answer = await within(limitMs, () => late, signal, async (limited) => {
      try {
        return await over.call("initialize", params, initialized, limited);
      } catch (error) {
        if (isLoss(error) && error.code === "DISCONNECTED") throw new ConnectError(error.message, false, error);
        throw error;
      }
    });
    over.notify("initialized", {});
    if (answer.sessionId === "") throw new ProtocolError("the server answered initialize without a session");
    if (resume !== null && answer.sessionId !== resume) {
      throw new ProtocolError(`the server opened another session: ${printable(answer.sessionId, 128)}`);
    }
    if (!first) return;
    const session = answer.session;
    if (session === undefined && (options.sessionName !== undefined || options.retainMs !== undefined)) {
      throw new UnsupportedError("named sessions", "namedSessions");
    }
    if (session !== undefined && options.sessionName !== undefined && session.name !== options.sessionName) {
      throw new ProtocolError(`the server opened the session ${printable(session.name, 128)} instead of ${options.sessionName}`);
    }
    this.sessionId = answer.sessionId;
    this.session = session && { ...session, name: session.name === "" ? undefined : session.name };
    this.#info = answer.environmentInfo;
  }

  #install(connection: Connection): void {
    connection.installed = performance.now();
    this.#current = connection;
    this.generation++;
    this.#turn("connected");
    for (const one of this.lasting) one.resume(connection).catch((error: unknown) => one.fail(error));
  }

  #turn(state: State): void {
    this.state = state;
    for (const call of this.#changed.splice(0)) call();
  }

  /** How long a process that nobody wants any more is killed, also over a lost connection. */
  get killMs(): number {
    return this.#recoveryMs + cleanupMs;
  }

  /** Waits until the state changes, which it may also have done when this returns. */
  change(signal?: AbortSignal): Promise<void> {
    return wakened(this.#changed, signal);
  }

  lost(connection: Connection): void {
    for (const body of [...this.bodies.values()]) body.lost(connection);
    if (this.#current !== connection || this.state !== "connected") return;
    if (this.#route.single === true) {
      this.fail(connection.lost);
      return;
    }
    this.#turn("recovering");
    void this.#recover(connection); // it handles its errors
  }

  /** Moves the session to a new connection, or ends the client. */
  async #recover(old: Connection): Promise<void> {
    await Promise.allSettled(old.starts);
    // A server that accepts each connection and drops it before anything happened does not get more time each time.
    let pause = pauseMs;
    if (old.useful || performance.now() - old.installed >= settledMs) {
      this.#deadline = performance.now() + this.#recoveryMs;
      pause = 0;
    }
    let last: unknown;
    for (;;) {
      const leftMs = this.#deadline - performance.now();
      if (this.state === "failed") return;
      if (leftMs <= pause) break;
      if (pause > 0) await sleep(pause);
      if (this.state !== "recovering") return;
      pause = pauseMs;
      const attempt = (this.#attempt = new AbortController());
      const timer = setTimeout(() => attempt.abort(new Error("recovery took too long")), this.#deadline - performance.now());
      try {
        const connection = await this.#return(attempt.signal);
        if (this.state !== "recovering") {
          connection.end(this.failure);
          return;
        }
        if (!connection.gone) {
          this.#install(connection);
          return;
        }
      } catch (error) {
        if (attempt.signal.aborted) {
          last ??= attempt.signal.reason;
          break;
        }
        last = error;
        if (!isLoss(error) && !(error instanceof AgentError && error.retryable)) {
          this.#giveUp(old, messageOf(error), error);
          return;
        }
      } finally {
        clearTimeout(timer);
        this.#attempt = undefined;
      }
    }
    this.#giveUp(old, `it took longer than ${this.#recoveryMs} ms` + (last === undefined ? "" : `: ${messageOf(last)}`), last);
  }

  #giveUp(old: Connection, why: string, cause: unknown): void {
    this.fail(new DisconnectedError(`${old.lost.message}; the session was not resumed: ${why}`, false, cause, true));
  }

  /** Opens a connection, resumes the session on it, and catches up with every process. */
  async #return(signal: AbortSignal): Promise<Connection> {
    // A process that caught up over the connection of an earlier attempt has also missed events since then.
    for (const process of this.processes.values()) process.fallBehind();
    const connection = await this.#open(signal);
    const abort = (): void => connection.end(signal.reason);
    signal.addEventListener("abort", abort, { once: true });
    try {
      signal.throwIfAborted();
      await this.#join(connection, this.sessionId, signal);
      await this.#catchUp(connection);
      return connection;
    } catch (error) {
      connection.end(error);
      throw error;
    } finally {
      signal.removeEventListener("abort", abort);
    }
  }

  /** Opens or resumes the session. The server may not have noticed a loss yet, so it is asked again for a while. */
  async #join(over: Connection, resume: string | null, signal: AbortSignal | undefined): Promise<void> {
    for (let pause = firstAttachedMs; ; pause *= 2) {
      try {
        await this.#initialize(over, resume, signal);
        return;
      } catch (error) {
        if (!(error instanceof ServerError) || error.number !== attachedCode || pause > pauseMs) throw error;
      }
      await sleep(pause, signal);
    }
  }

  async #catchUp(over: Connection): Promise<void> {
    const left = [...this.processes.values()];
    let loss: unknown;
    const worker = async (): Promise<void> => {
      for (let process = left.pop(); process !== undefined && loss === undefined; process = left.pop()) {
        try {
          await process.catchUp(over);
        } catch (error) {
          if (isLoss(error)) loss = error;
          else process.loseTrack(error);
        }
      }
    };
    await Promise.all(Array.from({ length: Math.min(catchers, left.length) }, worker));
    if (loss !== undefined) throw loss;
  }

  /** Ends the client for good, once. */
  fail(why: DisconnectedError): void {
    if (this.failure !== undefined) return;
    const failure = why.final ? why : new DisconnectedError(why.message, false, why.cause, true);
    this.failure = failure;
    this.#turn("failed");
    this.over.abort(failure);
    this.#attempt?.abort(failure);
    this.#current?.end(failure);
    for (const process of [...this.processes.values()]) process.fail(failure);
    for (const one of [...this.lasting]) one.fail(failure);
    this.#route.release?.();
  }

  /** Ends the client, and waits until its connection has ended at the server, too. */
  async close(): Promise<void> {
    this.fail(new ClosedError("the client"));
    await this.#current?.closing;
  }

  /** Returns the connection, and waits for it while the client recovers. */
  async connected(options: CallOptions = {}): Promise<Connection> {
    for (;;) {
      options.signal?.throwIfAborted();
      if (this.failure !== undefined) throw endedWith(this.failure);
      if (this.state === "connected") return this.#current as Connection;
      if (options.failFast === true) throw new RecoveringError();
      await this.change(options.signal);
    }
  }

  /** Reports whether a connection is still the one of the client. */
  isCurrent(connection: Connection): boolean {
    return this.state === "connected" && this.#current === connection;
  }

  /** Makes a request on one connection, for a caller. */
  async calledOver<T, M extends Method>(over: Connection, method: M, params: ParamsOf<M>, check: Check<T>, signal?: AbortSignal): Promise<T> {
    try {
      const answer = await over.call(method, params, check, signal);
      over.useful = true;
      return answer;
    } catch (error) {
      if (error instanceof ServerError) over.useful = true;
      throw error;
    }
  }

  /** Makes a request once: if the connection is lost while it is under way, the error says that it was sent. */
  async call<T, M extends Method>(method: M, params: ParamsOf<M>, check: Check<T>, options: CallOptions = {}): Promise<T> {
    for (;;) {
      const over = await this.connected(options);
      try {
        return await this.calledOver(over, method, params, check, options.signal);
      } catch (error) {
        if (!isUnsent(error)) throw error;
      }
    }
  }

  /** Makes a request that may be sent twice, because it changes nothing or the server recognizes it. */
  async replay<T, M extends Method>(method: M, params: ParamsOf<M>, check: Check<T>, options: CallOptions = {}): Promise<T> {
    for (;;) {
      const over = await this.connected(options);
      try {
        return await this.calledOver(over, method, params, check, options.signal);
      } catch (error) {
        if (!isLoss(error)) throw error;
      }
    }
  }

  async info(options: CallOptions = {}): Promise<Info> {
    if (this.failure !== undefined) throw endedWith(this.failure);
    if (this.#info !== undefined) return this.#info;
    const late = new TimeoutError("the server did not answer environment/info", infoTimeoutMs);
    const found = await within(infoTimeoutMs, () => late, options.signal, (signal) =>
      this.replay("environment/info", {}, info, { ...options, signal }),
    ).catch((error: unknown) => {
      if (error === late) this.#current?.end(late);
      throw error;
    });
    return (this.#info ??= found);
  }

  /** Asks whether the server is ready. It never waits for a lost connection. */
  async status(options: CallOptions = {}): Promise<string> {
    const late = new TimeoutError("the server did not answer environment/status", statusTimeoutMs);
    const { status } = await within(statusTimeoutMs, () => late, options.signal, (signal) =>
      this.call("environment/status", {}, record({ status: text }), { signal, failFast: true }),
    );
    return status;
  }

  /** Throws an {@link UnsupportedError} if the server does not have a feature. */
  async require(capability: string, feature: string, options: CallOptions = {}): Promise<void> {
    const { capabilities } = await this.info(options);
    if (capabilities[capability] !== true) throw new UnsupportedError(feature, capability);
  }

  /** Returns an id that this client has not used before. */
  nextId(): number {
    return ++this.#lastId;
  }

  notified(from: Connection, method: string, params: unknown): void | Promise<void> {
    switch (method) {
      case "process/output": {
        const { processId, seq, stream, chunk, omitted } = outputNotice(params, method);
        return this.processes.get(processId)?.accept({ type: "output", seq, stream, data: chunk, omitted }, from);
      }
      case "process/exited": {
        const { processId, ...exit } = exitedNotice(params, method);
        return this.processes.get(processId)?.accept({ type: "exited", ...exit }, from);
      }
      case "process/closed": {
        const { processId, seq } = closedNotice(params, method);
        return this.processes.get(processId)?.accept({ type: "closed", seq }, from);
      }
      case "http/request/bodyDelta": {
        const notice = bodyNotice(params, method);
        this.bodies.get(notice.requestId)?.accept(notice, from);
        return undefined;
      }
      case "fs/changed": {
        const notice = changedNotice(params, method);
        from.useful = true;
        this.watches.get(notice.watchId)?.changed(notice);
        return undefined;
      }
      case "port/changed": {
        const notice = portNotice(params, method);
        from.useful = true;
        this.portWatches.get(notice.watchId)?.changed(notice);
        return undefined;
      }
      case "socket/data": {
        const notice = socketNotice(params, method);
        from.useful = true;
        this.sockets.get(notice.socketId)?.received(notice);
        return undefined;
      }
      case "session/taken":
        this.fail(new TakenError(takenNotice(params, method).clientName));
        return undefined;
    }
    this.#questions.notified(method, params);
    return undefined; // an unknown one is ignored
  }

  asked(from: Connection, method: string, params: unknown): Promise<unknown> {
    return this.#questions.asked(from.over.signal, method, params) ?? Promise.reject(new UnknownMethod(`unknown method ${printable(method, 64)}`));
  }
}

/** Opens a connection. It does not wait for a dialler that ignores its signal. */
function dialWithin(receiver: Receiver, dial: Dial, signal: AbortSignal, silentMs: number | undefined): Promise<Connection> {
  return new Promise((resolve, reject) => {
    if (signal.aborted) return reject(signal.reason);
    const abort = (): void => reject(signal.reason);
    signal.addEventListener("abort", abort, { once: true });
    Connection.open(receiver, dial, signal, silentMs)
      .then((connection) => {
        if (signal.aborted) connection.end(signal.reason);
        resolve(connection);
      }, reject)
      .finally(() => signal.removeEventListener("abort", abort));
  });
}

/** Checks a duration of a caller, in milliseconds. */
export function duration(ms: number | undefined, name: string): number | undefined {
  if (ms === undefined) return undefined;
  if (typeof ms !== "number" || !(ms >= 0)) throw new UsageError(`${name} is ${String(ms)}, and must be a number of milliseconds from 0 on`);
  return Math.min(ms, 0x7fffffff); // the longest that a timer can have, 24 days
}

/** Waits for what runs in the background, and drops its error, which nobody waits for. */
export function background(work: Promise<unknown>): void {
  work.catch(() => {});
}

export const nothing: Check<unknown> = anything;
export type { Channel, ChannelEvents, Dial };
