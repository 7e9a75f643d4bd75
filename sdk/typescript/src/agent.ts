import { applyBounds, size, type Bounds } from "./bounds.js";
import { anything, count, flag, list, optional, record, text, type Check } from "./check.js";
import { duration, type CallOptions, type Client, type Info, type Method, type OpenedSession, type SessionOptions, type State } from "./client.js";
import { isLoss, within } from "./connection.js";
import { CommandError, OutputLimitError, ProtocolError, ServerError, TimeoutError, UsageError, withPath, type AgentError } from "./errors.js";
import { Feed } from "./feed.js";
import { Files } from "./files.js";
import { Http } from "./http.js";
import { Kept } from "./kept.js";
import { Handle, listedProcesses, Process, readAnswer, type Exit, type ListedProcess, type Signal } from "./process.js";
import { confinement, named, only, type Policy } from "./sandbox.js";
import { Socket } from "./socket.js";
import { printable, randomId, toBytes, toText } from "./text.js";
import { toURI } from "./uri.js";
import { portList, PortWatch, type Ports } from "./watch.js";
import type { EnvPolicy, ExecApproval, StartParams } from "./wire.js";

/** How a command is started. */
export interface CommandOptions extends CallOptions, Bounds {
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
  /**
   * Ends the command after this time, with all that it has started: with SIGTERM, and two seconds later with SIGKILL. The
   * agent does so, also without this client. Where it cannot (`processTimeout`), this client kills the command, as long as it
   * has the handle. Without this option a command runs as long as it likes.
   */
  killAfterMs?: number | undefined;
}

/** How {@link Agent.spawn} starts a command. */
export interface SpawnOptions extends CommandOptions {
  /** Give the command a pipe as standard input, see {@link Process.stdin}. Otherwise its input is empty. */
  stdin?: boolean | undefined;
  /** Give the command a terminal, of 24 rows and 80 columns or of this size. */
  tty?: boolean | { readonly rows: number; readonly cols: number } | undefined;
  /**
   * The most that comes of each stream, up to 8 MiB, in bytes or as in `64k`: the first half as it comes, and the last half at
   * the end. {@link OutputEvent.omitted} says how much is left out between. The command never waits for its reader then.
   */
  maxOutput?: number | string | undefined;
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
  /**
   * How much of each stream is kept, in bytes or as in `64k`: the first half and the last half. {@link Result.stdoutOmitted} says
   * how much is left out between. By default it is 64 MiB, and a command that prints more is killed: an
   * {@link OutputLimitError}.
   */
  maxOutput?: number | string | undefined;
  /** Kill a command that prints more than maxOutput (`error`), or leave out what is between (`truncate`, the default). */
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
  readonly timedOut: boolean;
  readonly outOfMemory: boolean;
  readonly stdout: Uint8Array;
  readonly stderr: Uint8Array;
  /** How many bytes {@link RunOptions.maxOutput} has left out in the middle. */
  readonly stdoutOmitted: number;
  readonly stderrOmitted: number;

  /** @internal */
  constructor(exit: Exit, stdout: Kept, stderr: Kept) {
    this.exitCode = exit.exitCode;
    this.signal = exit.signal;
    this.sandboxDenied = exit.sandboxDenied;
    this.refusals = exit.refusals;
    this.timedOut = exit.timedOut;
    this.outOfMemory = exit.outOfMemory;
    this.stdout = stdout.bytes();
    this.stderr = stderr.bytes();
    this.stdoutOmitted = stdout.omitted;
    this.stderrOmitted = stderr.omitted;
  }

  /** Whether something of stdout was left out. */
  get stdoutTruncated(): boolean {
    return this.stdoutOmitted > 0;
  }

  get stderrTruncated(): boolean {
    return this.stderrOmitted > 0;
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

const maxOutput = 64 << 20;

/** The options of commands. Another one is refused: a word for `sandbox` that is misspelt must not run a command without one. */
const commandWords = [
  "cwd", "env", "inherit", "sandbox", "execPolicy", "id", "arg0", "killAfterMs", "memory", "cpus", "pids", "fileSize", "user", "tty", "maxOutput", "signal", "failFast",
];
const spawnWords = [...commandWords, "stdin"];
const runWords = [...commandWords, "input", "timeoutMs", "overflow", "check"];

/** The most that an agent keeps of a stream until its end. */
export const agentOutputMost = 8 << 20;

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
    only(options, runWords, "a command");
    const { input, tty, timeoutMs, maxOutput: wanted, overflow, check, ...rest } = options;
    const limitMs = duration(timeoutMs, "timeoutMs");
    const most = wanted === undefined ? maxOutput : size(wanted, "maxOutput");
    const strict = (overflow ?? (wanted === undefined ? "error" : "truncate")) === "error";
    const bytes = input === undefined ? undefined : toBytes(input);
    const fed = bytes !== undefined && bytes.length > 0;
    if (fed && tty !== undefined && tty !== false) throw new UsageError("input needs a pipe, not a terminal");
    if (fed) await this.client.require("processCloseStdin", "closing the standard input of a process", options);

    const stdout = new Kept(most);
    const stderr = new Kept(most);
    const late = (): TimeoutError => new TimeoutError("the command did not end", limitMs as number, stdout.bytes(), stderr.bytes(), true);
    return within(limitMs, late, options.signal, async (signal) => {
      const { capabilities } = await this.client.info({ ...options, signal });
      const byAgent = !strict && most > 0 && most <= agentOutputMost && capabilities["processMaxOutput"] === true;
      const process = await this.spawn(argv, { ...rest, tty, stdin: fed, signal, maxOutput: byAgent ? most : undefined });
      const { handle } = process;
      const enough = new AbortController();
      const feeding = fed ? feed(process, bytes, enough.signal) : undefined;
      void handle.done.then(() => enough.abort());
      try {
        await handle.drain(({ stream, data, omitted }) => {
          const kept = stream === "stderr" ? stderr : stdout;
          kept.add(data, omitted);
          if (strict && kept.omitted > 0) throw new OutputLimitError(most, stdout.bytes(), stderr.bytes());
        }, signal);
        const result = new Result(await handle.ended(), stdout, stderr);
        if (check === true && result.exitCode !== 0) throw commandError(argv, result);
        return result;
      } catch (error) {
        if (!handle.settled) {
          handle.discard();
          void handle.terminate().then(() => handle.close()); // it does not reject
        }
        throw error;
      } finally {
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
   * If the connection is lost before the answer comes, the request is made again after the recovery, and the process runs once
   * (`processStartId`). Where the agent cannot do that, or the signal aborts first, the process may have been started. It is then
   * terminated as soon as possible.
   */
  async spawn(argv: readonly string[], options: SpawnOptions = {}): Promise<Process> {
    const { client } = this;
    only(options, spawnWords, "a command");
    const killAfterMs = duration(options.killAfterMs, "killAfterMs");
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
    await applyBounds(params, options, client, options);
    if (options.maxOutput !== undefined) {
      const most = size(options.maxOutput, "maxOutput");
      if (most < 1 || most > agentOutputMost) throw new UsageError(`maxOutput is ${most}, and must be from 1 to ${agentOutputMost} bytes`);
      await client.require("processMaxOutput", "bounds of the output of a command", options);
      params.maxOutputBytes = most;
    }
    const byAgent = killAfterMs !== undefined && capabilities["processTimeout"] === true;
    if (byAgent) params.timeoutMs = Math.max(1, Math.round(killAfterMs));
    const handle = await Handle.start(client, params, options).catch((error: unknown) => {
      // Its text does not name what does not exist.
      const what = error instanceof ServerError ? error.what : undefined;
      throw what === "program" || what === "cwd" ? withPath(error as ServerError, what === "cwd" ? cwd : (argv[0] as string)) : error;
    });
    if (killAfterMs !== undefined && !byAgent) handle.killAfter(killAfterMs);
    return new Process(handle);
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
   * Lists the TCP ports that listen on the agent's side; with a policy only those that a command under it could connect to.
   */
  async ports(options: CallOptions & { sandbox?: Policy | undefined } = {}): Promise<Ports> {
    await this.client.require("ports", "listing ports", options);
    const { sandbox } = confinement(options.sandbox, undefined);
    return this.client.replay("port/list", { ...(sandbox && { sandbox }) }, portList, options);
  }

  /** Watches the ports that {@link ports} lists. The first {@link PortWatch.next} tells those that listen already. */
  async watchPorts(options: CallOptions & { sandbox?: Policy | undefined } = {}): Promise<PortWatch> {
    await this.client.require("ports", "watching ports", options);
    return PortWatch.open(new PortWatch(this.client, confinement(options.sandbox, undefined).sandbox), options);
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
  /** How many bytes before it were left out, see {@link SpawnOptions.maxOutput}. */
  readonly omitted: number;
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
      for (const { seq, stream, chunk, omitted, atMs } of answer.chunks) yield { seq, stream, data: chunk, omitted, atMs };
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
