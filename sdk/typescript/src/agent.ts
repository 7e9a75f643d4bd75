import { anything, count, flag, list, optional, record, text, type Check } from "./check.js";
import { duration, type CallOptions, type Client, type Info, type Method, type OpenedSession, type SessionOptions, type State } from "./client.js";
import { isLoss, within } from "./connection.js";
import { CommandError, OutputLimitError, ProtocolError, ServerError, TimeoutError, UsageError, type AgentError } from "./errors.js";
import { Feed } from "./feed.js";
import { Files } from "./files.js";
import { Http } from "./http.js";
import { Handle, listedProcesses, Process, readAnswer, type Exit, type ListedProcess, type Signal } from "./process.js";
import { confinement, named, type Policy } from "./sandbox.js";
import { Socket } from "./socket.js";
import { concat, printable, randomId, toBytes, toText } from "./text.js";
import { toURI } from "./uri.js";
import type { EnvPolicy, ExecApproval, StartParams } from "./wire.js";

/** How a command is started. */
export interface CommandOptions extends CallOptions {
  /** The directory of the command, absolute. By default that of the agent. */
  cwd?: string | undefined;
  /** Variables that are added to the inherited ones. */
  env?: Readonly<Record<string, string>> | undefined;
  /**
   * Which variables the command inherits from the agent: those that any program needs (`core`, the default), without names
   * like KEY, SECRET and TOKEN, `all`, or `none`.
   */
  inherit?: "core" | "all" | "none" | Partial<EnvPolicy> | undefined;
  /** What the command may do. Without it nothing confines the command but the agent's operator. */
  sandbox?: Policy | undefined;
  /** Rules of this client about commands. They can only tighten those of the agent's operator. */
  execPolicy?: ExecApproval | undefined;
  /** Names the process in its session. By default the client chooses. */
  id?: string | undefined;
  /** The name that the command sees as argv[0]. */
  arg0?: string | undefined;
  /** Kills the command after this time. Without it a command runs as long as it likes. */
  killAfterMs?: number | undefined;
}

/** How {@link Agent.spawn} starts a command. */
export interface SpawnOptions extends CommandOptions {
  /** Give the command a pipe as standard input, see {@link Process.stdin}. Otherwise its input is empty. */
  stdin?: boolean | undefined;
  /** Give the command a terminal, of 24 rows and 80 columns or of this size. */
  tty?: boolean | { readonly rows: number; readonly cols: number } | undefined;
}

/** How {@link Agent.run} runs a command. Its signal also kills the command. */
export interface RunOptions extends CommandOptions {
  /** Standard input. */
  input?: string | Uint8Array | undefined;
  /** Run the command in a terminal, whose output is all in stdout. */
  tty?: boolean | { readonly rows: number; readonly cols: number } | undefined;
  /**
   * How long to wait. Then the error is a {@link TimeoutError} that has the output, and the command is killed, because
   * nobody holds it. With {@link CommandOptions.killAfterMs} the output is a result.
   */
  timeoutMs?: number | undefined;
  /** How much of each stream is kept, 64 MiB by default. */
  maxOutputBytes?: number | undefined;
  /**
   * What happens beyond that: `truncate` keeps the beginning and sets a flag, `error` kills the command. The default is
   * `truncate` where maxOutputBytes is given, and `error` otherwise.
   */
  overflow?: "truncate" | "error" | undefined;
  /** Throw a {@link CommandError} if the exit code is not 0. */
  check?: boolean | undefined;
}

/** The output of a command, and how it ended. */
export class Result implements Exit {
  readonly exitCode: number;
  readonly signal: number | undefined;
  readonly sandboxDenied: boolean;
  readonly refusals: Exit["refusals"];
  readonly stdout: Uint8Array;
  readonly stderr: Uint8Array;
  readonly stdoutTruncated: boolean;
  readonly stderrTruncated: boolean;
  /** Whether {@link CommandOptions.killAfterMs} has killed the command. */
  readonly timedOut: boolean;

  /** @internal */
  constructor(exit: Exit, stdout: Kept, stderr: Kept, timedOut: boolean) {
    this.exitCode = exit.exitCode;
    this.signal = exit.signal;
    this.sandboxDenied = exit.sandboxDenied;
    this.refusals = exit.refusals;
    this.stdout = stdout.bytes();
    this.stderr = stderr.bytes();
    this.stdoutTruncated = stdout.truncated;
    this.stderrTruncated = stderr.truncated;
    this.timedOut = timedOut;
  }

  /** stdout as text. What is not UTF-8 becomes U+FFFD. */
  get text(): string {
    return toText(this.stdout);
  }

  /** stderr as text. */
  get errorText(): string {
    return toText(this.stderr);
  }
}

/** Output that is kept up to a bound. */
class Kept {
  truncated = false;
  #pieces: Uint8Array[] = [];
  #size = 0;

  constructor(private readonly most: number) {}

  /** Reports whether all of it could be kept. */
  add(piece: Uint8Array): boolean {
    const room = this.most - this.#size;
    const kept = piece.length <= room ? piece : piece.subarray(0, room);
    if (kept.length > 0) this.#pieces.push(kept);
    this.#size += kept.length;
    this.truncated ||= kept.length < piece.length;
    return !this.truncated;
  }

  bytes(): Uint8Array {
    return concat(this.#pieces, this.#size);
  }
}

const maxOutput = 64 << 20;

/** An agent, over one session of it. A lost connection is invisible to whoever holds a process. */
export class Agent implements AsyncDisposable {
  /** The files of the agent. */
  readonly fs: Files;
  /** HTTP requests that the agent makes. */
  readonly http: Http;
  /** Sessions with a name. */
  readonly sessions: Sessions;
  /** @internal */
  readonly client: Client;
  readonly #asks: boolean;

  /** @internal */
  constructor(client: Client, options: SessionOptions) {
    this.client = client;
    this.#asks = options.approveNetwork !== undefined;
    this.fs = new Files(client);
    this.http = new Http(client);
    this.sessions = new Sessions(client);
  }

  /** Names the session, for a later `sessionId` of connect. */
  get sessionId(): string {
    return this.client.sessionId;
  }

  /** The session, if it has a name or `retainMs` was given. */
  get session(): OpenedSession | undefined {
    return this.client.session;
  }

  get state(): State {
    return this.client.state;
  }

  /** How many connections the session has had. */
  get generation(): number {
    return this.client.generation;
  }

  /** Resolves when the client has failed or was closed, with the reason. A lost connection alone is no reason. */
  get ended(): Promise<AgentError> {
    const over = this.client.over.signal;
    return new Promise((resolve) => {
      if (over.aborted) resolve(over.reason as AgentError);
      else over.addEventListener("abort", () => resolve(over.reason as AgentError), { once: true });
    });
  }

  /** Describes the machine. */
  info(options?: CallOptions): Promise<Info> {
    return this.client.info(options);
  }

  /** Asks whether the agent is ready, for up to 10 s. It never waits for a lost connection. */
  status(options?: CallOptions): Promise<string> {
    return this.client.status(options);
  }

  /**
   * Runs a command to its end and returns all its output. The command is a program, found in its PATH, and its arguments.
   * An exit code other than 0 is no error, unless `check` is set.
   *
   * The end is that of all output: a background process that keeps the output open is waited for.
   */
  async run(argv: readonly string[], options: RunOptions = {}): Promise<Result> {
    const { input, tty, timeoutMs, maxOutputBytes, overflow, check, killAfterMs, ...rest } = options;
    const limitMs = duration(timeoutMs, "timeoutMs");
    duration(killAfterMs, "killAfterMs");
    const most = maxOutputBytes ?? maxOutput;
    if (!Number.isSafeInteger(most) || most < 0) throw new UsageError(`maxOutputBytes is ${String(most)}, and must be a whole number from 0 on`);
    const strict = (overflow ?? (maxOutputBytes === undefined ? "error" : "truncate")) === "error";
    const bytes = input === undefined ? undefined : toBytes(input);
    const fed = bytes !== undefined && bytes.length > 0;
    if (fed && tty !== undefined && tty !== false) throw new UsageError("input needs a pipe, not a terminal");
    if (fed) await this.client.require("processCloseStdin", "closing the standard input of a process", options);

    const stdout = new Kept(most);
    const stderr = new Kept(most);
    const late = (): TimeoutError => new TimeoutError("the command did not end", limitMs as number, stdout.bytes(), stderr.bytes(), true);
    return within(limitMs, late, options.signal, async (signal) => {
      const process = await this.#spawn(argv, { ...rest, tty, stdin: fed, signal });
      const { handle } = process;
      const enough = new AbortController();
      const feeding = fed ? feed(process, bytes, enough.signal) : undefined;
      void handle.done.then(() => enough.abort());
      const killer = new Killer(handle, killAfterMs);
      try {
        await handle.drain((event) => {
          const all = (event.stream === "stderr" ? stderr : stdout).add(event.data);
          if (!all && strict) throw new OutputLimitError(most, stdout.bytes(), stderr.bytes());
        }, signal);
        const result = new Result(await handle.ended(), stdout, stderr, killer.killed);
        if (check === true && result.exitCode !== 0) throw commandError(argv, result);
        return result;
      } catch (error) {
        if (!handle.settled) {
          handle.discard();
          void handle.terminate().then(() => handle.close()); // it does not reject
        }
        throw error;
      } finally {
        killer.stop();
        enough.abort();
        await feeding;
      }
    });
  }

  /** Runs a script with `sh -c`. */
  shell(script: string, options?: RunOptions): Promise<Result> {
    return this.run(["sh", "-c", script], options);
  }

  /**
   * Starts a command and returns a handle of it.
   *
   * If the signal aborts, or the connection is lost, before the answer comes, the process may have been started. It is then
   * terminated as soon as possible.
   */
  async spawn(argv: readonly string[], options: SpawnOptions = {}): Promise<Process> {
    duration(options.killAfterMs, "killAfterMs");
    const process = await this.#spawn(argv, options);
    const killer = new Killer(process.handle, options.killAfterMs);
    void process.handle.done.then(() => killer.stop());
    return process;
  }

  async #spawn(argv: readonly string[], options: SpawnOptions): Promise<Process> {
    const { client } = this;
    if (typeof argv === "string") throw new UsageError("the command is a string: give a list of words, or call shell() for a script");
    if (!Array.isArray(argv) || argv.length === 0) throw new UsageError("the command is empty");
    if (argv.some((word) => typeof word !== "string")) throw new UsageError("a word of the command is no string");
    const tty = options.tty ?? false;
    if (typeof tty === "object") await client.require("processResize", "terminals of a given size", options);
    const { cwd: here, home, capabilities } = await client.info(options);
    const cwd = options.cwd ?? here ?? home;
    if (cwd === undefined) throw new UsageError("the agent does not say where it is: cwd is needed");
    const env: Record<string, string> = {};
    for (const [name, value] of Object.entries(options.env ?? {})) {
      if (name === "" || name.includes("=")) throw new UsageError(`${printable(name, 64)} cannot be the name of a variable`);
      env[name] = String(value);
    }
    const params: StartParams = {
      processId: options.id ?? randomId(), argv: [...argv], cwd: toURI(cwd), env, envPolicy: envPolicy(options.inherit), tty: tty !== false,
      pipeStdin: options.stdin === true,
      ...confinement(options.sandbox, cwd, this.#asks, capabilities["networkProxyTransparentTcp"] === true),
    };
    if (options.sandbox !== undefined) await Promise.all(named(options.sandbox).map((path) => this.fs.realpath(path, options)));
    if (typeof tty === "object") {
      params.rows = tty.rows;
      params.cols = tty.cols;
    }
    if (options.arg0 !== undefined) params.arg0 = options.arg0;
    if (params.networkProxy !== undefined) await client.require("networkProxyLaunch", "proxies for processes", options);
    if (options.execPolicy !== undefined) {
      await client.require("subcommandApprovals", "rules about commands", options);
      const { opaque, forcedRm, enforce } = options.execPolicy;
      if (opaque ?? forcedRm ?? enforce) await client.require("execApprovalEnforce", "opaque, forcedRm and enforce in rules about commands", options);
      params.execApproval = options.execPolicy;
    }
    return new Process(await Handle.start(client, params, options));
  }

  /** Starts a tool of the agent's own. @internal */
  async builtin(argv: readonly string[], options: CallOptions): Promise<Process> {
    await this.client.require("processBuiltins", "tools of its own, which copying needs", options);
    const params: StartParams = {
      processId: randomId(), argv: [...argv], cwd: toURI("/"), env: {}, envPolicy: envPolicy("none"), tty: false, pipeStdin: true, builtin: true,
    };
    return new Process(await Handle.start(this.client, params, options));
  }

  /**
   * Returns a handle of a process of the session that this client has no handle of. Its events begin with the oldest one
   * that the server has kept, see {@link Process.skipped}, or behind the event `after`, which must not be missing then.
   */
  async attach(id: string, options: CallOptions & { after?: number | undefined } = {}): Promise<Process> {
    const { after } = options;
    if (after !== undefined && (!Number.isSafeInteger(after) || after < 0)) throw new UsageError(`after is ${String(after)}, and must be a whole number from 0 on`);
    return new Process(await Handle.attach(this.client, id, after, options));
  }

  /** Lists the processes of the session, oldest first. */
  async processes(options?: CallOptions): Promise<ListedProcess[]> {
    await this.client.require("processList", "listing processes", options);
    return this.client.replay("process/list", {}, listedProcesses, options);
  }

  /**
   * Has the agent connect to an address on its side, `tcp://HOST:PORT` or `unix:///PATH`; with a policy only if a command
   * under it could.
   */
  connectTo(address: string, options: CallOptions & { sandbox?: Policy | undefined } = {}): Promise<Socket> {
    return Socket.connect(this.client, address, options);
  }

  /**
   * Makes any request of the protocol, once, and returns the answer as it came. After a lost connection the error says
   * whether it was sent.
   */
  call(method: string, params: object = {}, options?: CallOptions): Promise<unknown> {
    return this.client.call(method as Method, params as never, anything, options);
  }

  /** Ends the client. Its session lives on at the agent for 80 s, or as long as its name. It is no error to do it again. */
  close(): Promise<void> {
    return this.client.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** Kills a process after a while. */
class Killer {
  killed = false;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(handle: Handle, afterMs: number | undefined) {
    const ms = duration(afterMs, "killAfterMs");
    if (ms === undefined) return;
    this.#timer = setTimeout(() => {
      if (handle.settled) return;
      this.killed = true;
      void handle.terminate(); // it does not reject
    }, ms);
  }

  stop(): void {
    clearTimeout(this.#timer);
  }
}

/** Writes all input. The write fails if the command has ended, or has closed its input. */
async function feed(process: Process, input: Uint8Array, signal: AbortSignal): Promise<void> {
  try {
    const feed = new Feed(process.handle.writer, { signal });
    await feed.write(input);
    await feed.flush();
    await process.closeStdin({ signal });
  } catch {
    // The command says what came of it.
  }
}

function commandError(argv: readonly string[], { exitCode, stdout, stderr }: Result): CommandError {
  const last = toText(stderr).trimEnd().split("\n").at(-1) ?? "";
  const words = `${printable(argv.join(" "), 256)} ended with ${exitCode}`;
  return new CommandError(last === "" ? words : `${words}: ${printable(last, 512)}`, exitCode, stdout, stderr);
}

function envPolicy(inherit: CommandOptions["inherit"]): EnvPolicy {
  const policy = typeof inherit === "object" ? inherit : { inherit: inherit ?? "core" };
  return { inherit: "core", ignoreDefaultExcludes: false, exclude: [], set: {}, includeOnly: [], ...policy };
}

/** A session with a name. */
export interface ListedSession {
  readonly sessionId: string;
  readonly name: string;
  /** Whether a client is attached. */
  readonly attached: boolean;
  /** How the client names itself that is attached, or was last. */
  readonly clientName: string;
  readonly createdAtMs: number;
  readonly retainMs: number;
  /** When it will end; undefined while something holds it. */
  readonly expiresAtMs: number | undefined;
  /** How many of its processes run, and have ended. */
  readonly running: number;
  readonly ended: number;
}

const sessionName = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/;

// A name is printed, and offered to a shell, as it is.
const name: Check<string> = (value, at) => {
  const found = text(value, at);
  if (!sessionName.test(found)) throw new ProtocolError(`${at} is ${printable(found, 128)}, which no session can have as its name`);
  return found;
};

const listedSessions = record({
  sessions: list(record({
    sessionId: text, name, attached: flag, clientName: (value, at) => printable(text(value, at), 128), createdAtMs: count, retainMs: count,
    expiresAtMs: optional(count), running: count, ended: count,
  })),
});

/** The sessions with a name that belong to the same principal. */
export class Sessions {
  readonly #client: Client;

  /** @internal */
  constructor(client: Client) {
    this.#client = client;
  }

  #require(options: CallOptions | undefined): Promise<void> {
    return this.#client.require("namedSessions", "named sessions", options);
  }

  /** Lists them, oldest first. */
  async list(options?: CallOptions): Promise<ListedSession[]> {
    await this.#require(options);
    return (await this.#client.replay("session/list", {}, listedSessions, options)).sessions;
  }

  /** Ends one: its processes are killed, its output is dropped, and its name is free. */
  async end(sessionId: string, options: CallOptions = {}): Promise<void> {
    await this.#require(options);
    for (let sent = false; ; ) {
      const over = await this.#client.connected(options);
      try {
        await this.#client.calledOver(over, "session/end", { sessionId }, anything, options.signal);
        return;
      } catch (error) {
        if (isLoss(error) && this.#client.failure === undefined) sent ||= error.sent;
        else if (sent && error instanceof ServerError) return; // the request whose answer was lost ended it
        else throw error;
      }
    }
  }

  /** Looks into one, also while another client is attached, which does not notice. */
  observe(sessionId: string): Observer {
    return new Observer(this.#client, sessionId, (options) => this.#require(options));
  }
}

/** A piece of output that an observer sees. */
export interface Chunk {
  readonly seq: number;
  readonly stream: "stdout" | "stderr" | "pty";
  readonly data: Uint8Array;
  /** When it was read from the process. */
  readonly atMs: number | undefined;
}

/** How long one request waits for something new, and how much it asks for. */
const observeWaitMs = 5 * 60 * 1000;
const observeBytes = 256 << 10;

/** Looks into a session with a name. */
export class Observer {
  readonly #client: Client;
  readonly #sessionId: string;
  readonly #require: (options: CallOptions | undefined) => Promise<void>;

  /** @internal */
  constructor(client: Client, sessionId: string, require: (options: CallOptions | undefined) => Promise<void>) {
    this.#client = client;
    this.#sessionId = sessionId;
    this.#require = require;
  }

  /** Lists the processes, oldest first. */
  async processes(options?: CallOptions): Promise<ListedProcess[]> {
    await this.#require(options);
    return this.#client.replay("process/list", { sessionId: this.#sessionId }, listedProcesses, options);
  }

  /** Gives the output of a process behind an event. With `follow` it waits for the end of the process. */
  async *output(processId: string, options: CallOptions & { after?: number; follow?: boolean } = {}): AsyncIterableIterator<Chunk> {
    await this.#require(options);
    let after = options.after ?? 0;
    for (;;) {
      const params = {
        processId, sessionId: this.#sessionId, afterSeq: after, maxBytes: observeBytes, waitMs: options.follow === true ? observeWaitMs : null, timestamps: true,
      };
      const answer = await this.#client.replay("process/read", params, readAnswer, options);
      for (const { seq, stream, chunk, atMs } of answer.chunks) yield { seq, stream, data: chunk, atMs };
      if (answer.chunks.length === 0 && (answer.closed || options.follow !== true)) return;
      after = Math.max(after, answer.nextSeq - 1);
    }
  }

  /** Waits for the exit of a process, and returns its code. It takes no output. */
  async wait(processId: string, options?: CallOptions): Promise<number> {
    await this.#require(options);
    for (;;) {
      const params = { processId, sessionId: this.#sessionId, afterSeq: null, maxBytes: null, waitMs: observeWaitMs, exitOnly: true };
      const answer = await this.#client.replay("process/read", params, readAnswer, options);
      if (!answer.exited) continue;
      if (answer.exitCode === undefined) throw new ProtocolError("process/read answered that the process has exited, without its code");
      return answer.exitCode;
    }
  }

  /** Sends a signal to a process group. */
  async signal(processId: string, signal: Signal, options?: CallOptions): Promise<void> {
    await this.#require(options);
    await this.#client.call("process/signal", { processId, signal, sessionId: this.#sessionId }, anything, options);
  }

  /** Kills a process group and the rest of its session. */
  async kill(processId: string, options?: CallOptions): Promise<void> {
    await this.#require(options);
    await this.#client.replay("process/terminate", { processId, sessionId: this.#sessionId }, anything, options);
  }
}
