/** What the adapters for harnesses share: a directory of an agent, with a session for its commands. */

import { agentOutputMost, Result, type Agent, type CommandOptions, type SpawnOptions } from "../agent.js";
import { size } from "../bounds.js";
import { background, duration, type CallOptions, type Info, type SessionOptions } from "../client.js";
import { until, within } from "../connection.js";
import { ClosedError, DisconnectedError, NotFoundError, ServerError, TakenError, TimeoutError, UsageError } from "../errors.js";
import { wholeMost, type Entry, type Files } from "../files.js";
import { Kept, Pieces } from "../kept.js";
import type { Exit, Process } from "../process.js";
import { only, type Policy } from "../sandbox.js";
import { concat, printable, randomId, toBytes, toText } from "../text.js";

/**
 * A way to the agent, such as `(session) => connect("wss://host:7000", { token, ...session })`. It is called when the agent is
 * needed first, and again if that client has failed for good, unless another one has taken its session. What it returns is
 * the adapter's, and is closed with it.
 */
export type Connect = (session: Required<Pick<SessionOptions, "sessionName" | "existing" | "take">>) => Promise<Agent>;

/** What every adapter takes. Bounds, variables and rules hold for each command. */
export interface WorkspaceOptions
  extends Pick<CommandOptions, "env" | "inherit" | "execPolicy" | "memory" | "cpus" | "pids" | "fileSize" | "user"> {
  /** The name of the session that holds the commands. By default a new one. */
  session?: string | undefined;
  /** Open only a session that exists. */
  existing?: boolean | undefined;
  /** The working directory, absolute; by default that of the agent. It is made if it is missing. */
  cwd?: string | undefined;
  /** What commands may do, and calls of files. Relative paths and patterns start at the working directory. */
  sandbox?: Policy | undefined;
  /** Ends a command that takes longer, unless its call has a limit of its own. By default there is no limit. */
  timeoutMs?: number | undefined;
  /** How much of each stream of a command is kept, in bytes or as in `64k`: the first half and the last half. 1 MiB by default. */
  maxOutput?: number | string | undefined;
}

export const optionWords = [
  "env", "inherit", "execPolicy", "memory", "cpus", "pids", "fileSize", "user", "session", "existing", "cwd", "sandbox", "timeoutMs", "maxOutput",
];

/** A session: what an adapter keeps of itself. No token and no URL is in it. */
export interface Ref {
  readonly session: string;
}

/** How one command runs. */
export interface RunCommand extends CallOptions {
  /** By default the working directory; a relative one starts there. */
  cwd?: string | undefined;
  /** Variables, beside those of the workspace. */
  env?: Readonly<Record<string, string | undefined>> | undefined;
  input?: string | Uint8Array | undefined;
  timeoutMs?: number | undefined;
  maxOutput?: number | string | undefined;
  /** Called with all output as it comes, also with what the result leaves out. */
  onOutput?: ((stream: "stdout" | "stderr", data: Uint8Array) => void) | undefined;
}

/** How long the last output of a command is waited for that was killed. */
const afterKillMs = 10_000;

/** How often a change is made again after a lost connection. */
const repeatsMost = 3;

/** A directory of an agent. The first call connects, and opens the session. */
export class Workspace implements AsyncDisposable {
  readonly #from: Agent | Connect;
  readonly #options: WorkspaceOptions;
  readonly #session: string;
  /** How many bytes of each stream of a command are kept. */
  readonly maxOutput: number;
  #existing: boolean;
  #opening: Promise<Opened> | undefined;
  #closed = false;

  /** kind: the beginning of the name of a new session. */
  constructor(from: Agent | Connect, kind: string, options: WorkspaceOptions = {}) {
    only(options, optionWords, "the adapter");
    if (typeof from !== "function" && (options.session !== undefined || options.existing !== undefined)) {
      throw new UsageError("session and existing need a function that connects, because a connected agent has its session");
    }
    if (options.existing === true && options.session === undefined) throw new UsageError("existing needs session, the name of the session that exists");
    if (options.cwd !== undefined && !options.cwd.startsWith("/")) throw new UsageError(`cwd is ${printable(options.cwd, 256)}, and must be absolute`);
    duration(options.timeoutMs, "timeoutMs");
    this.#from = from;
    this.#options = { ...options };
    this.#session = (typeof from === "function" ? options.session : from.session?.name) ?? `${kind}-${randomId().toLowerCase()}`;
    this.maxOutput = size(options.maxOutput ?? 1 << 20, "maxOutput");
    this.#existing = options.existing === true;
  }

  /** What leads back here, with `existing: true`. */
  get ref(): Ref {
    return { session: this.#session };
  }

  /** The variables of each command. */
  get env(): Readonly<Record<string, string>> {
    return this.#options.env ?? {};
  }

  /** Opens the session, if no call has. The signal ends only the waiting. */
  async open(signal?: AbortSignal): Promise<Opened> {
    signal?.throwIfAborted();
    if (this.#closed) throw new ClosedError("the adapter");
    this.#opening ??= this.#open().catch((error: unknown) => {
      this.#opening = undefined; // another call may have more luck
      throw error;
    });
    return until(this.#opening, signal);
  }

  async #open(): Promise<Opened> {
    const from = this.#from;
    const agent = typeof from === "function" ? await from({ sessionName: this.#session, existing: this.#existing, take: this.#existing }) : from;
    try {
      const opened = await this.#at(agent);
      if (typeof from !== "function") return opened;
      if (this.#closed) throw new ClosedError("the adapter");
      // From now on the session is the adapter's own: one that is lost is an error, and never made again.
      this.#existing = true;
      void agent.ended.then((why) => {
        if (!(why instanceof TakenError)) this.#opening = undefined; // whoever has taken it keeps it
      });
      return opened;
    } catch (error) {
      if (typeof from === "function") background(agent.close());
      throw error;
    }
  }

  async #at(agent: Agent): Promise<Opened> {
    const info = await agent.info();
    const wanted = this.#options.cwd ?? info.cwd ?? info.home;
    if (wanted === undefined) throw new UsageError("the agent does not say where it is: cwd is needed");
    const cwd = await agent.fs.realpath(wanted).catch(async (error: unknown) => {
      if (!(error instanceof NotFoundError)) throw error;
      await this.again(() => agent.fs.mkdir(wanted));
      return agent.fs.realpath(wanted);
    });
    const sandbox = this.#options.sandbox && absolute(this.#options.sandbox, cwd);
    return { agent, info, cwd, sandbox, files: sandbox === undefined ? agent.fs : agent.fs.under(sandbox, { cwd }) };
  }

  /** Starts a program with its arguments, under the options of the workspace. */
  async spawn(argv: readonly string[], options: Pick<RunCommand, "cwd" | "env" | "signal"> & Pick<SpawnOptions, "stdin" | "tty" | "maxOutput" | "id" | "arg0" | "user"> = {}): Promise<Process> {
    const { agent, cwd, sandbox } = await this.open(options.signal);
    const { inherit, execPolicy, memory, cpus, pids, fileSize, user } = this.#options;
    const env = { ...this.#options.env, ...present(options.env) };
    return agent.spawn(argv, { inherit, execPolicy, memory, cpus, pids, fileSize, user, sandbox, ...options, env, cwd: resolve(cwd, options.cwd ?? ".") });
  }

  /**
   * Runs a program until it exits, and returns its output. What it leaves in the background goes on, unless it has a sandbox.
   *
   * When the time is up it is killed with its process group, and the result has `timedOut`. The timer is here, because the
   * agent's own would later end what the command has left in the background. A signal kills the command, too.
   */
  async run(argv: readonly string[], options: RunCommand = {}): Promise<Result> {
    const { cwd, env, input, onOutput, signal } = options;
    const limitMs = duration(options.timeoutMs ?? this.#options.timeoutMs, "timeoutMs");
    const most = options.maxOutput === undefined ? this.maxOutput : size(options.maxOutput, "maxOutput");
    const kept = { stdout: new Kept(most), stderr: new Kept(most) };
    const { info } = await this.open(signal);
    const byAgent = onOutput === undefined && most > 0 && most <= agentOutputMost && info.capabilities["processMaxOutput"] === true;
    const late = new TimeoutError("the command was not started", limitMs ?? 0);
    const bytes = input === undefined ? new Uint8Array() : toBytes(input);
    let process: Process | undefined;
    const collect = async (process: Process, signal?: AbortSignal): Promise<Exit> => {
      for await (const event of process.events({ signal })) {
        if (event.type === "exited") break;
        if (event.type !== "output") continue;
        const stream = event.stream === "stderr" ? "stderr" : "stdout";
        kept[stream].add(event.data, event.omitted);
        if (event.data.length > 0) onOutput?.(stream, event.data);
      }
      return process.exited;
    };
    try {
      const exit = await within(limitMs, () => late, signal, async (limited) => {
        process = await this.spawn(argv, { cwd, env, stdin: bytes.length > 0, maxOutput: byAgent ? most : undefined, signal: limited });
        if (bytes.length > 0) background(fed(process, bytes));
        return collect(process, limited);
      });
      return new Result(exit, kept.stdout, kept.stderr);
    } catch (error) {
      if (error !== late || process === undefined) throw error;
      await process.kill({ signal });
      const killed = process;
      const gone = new TimeoutError("the command did not end after it was killed", afterKillMs);
      const exit = await within(afterKillMs, () => gone, signal, (limited) => collect(killed, limited));
      return new Result({ ...exit, timedOut: true }, kept.stdout, kept.stderr);
    } finally {
      if (process !== undefined) leave(process);
    }
  }

  /** Runs a script by one `sh -c`. */
  shell(script: string, options?: RunCommand): Promise<Result> {
    return this.run(["sh", "-c", script], options);
  }

  /** Returns the files, as far as the sandbox allows, and the clean absolute form of a path, which may be relative to the working directory. */
  async place(path: string, signal?: AbortSignal): Promise<{ files: Files; at: string }> {
    const { files, cwd } = await this.open(signal);
    return { files, at: resolve(cwd, path) };
  }

  /** Makes a change that does no harm twice, and makes it again if the connection is lost before its answer. */
  async again<T>(change: (repeated: boolean) => Promise<T>): Promise<T> {
    for (let times = 0; ; times++) {
      try {
        return await change(times > 0);
      } catch (error) {
        if (!(error instanceof DisconnectedError) || error.final || times === repeatsMost) throw error;
      }
    }
  }

  /** Writes a whole file, with the directories of its path. Only what has more than 32 MiB can be left half written. */
  async write(path: string, content: string | Uint8Array | ReadableStream<Uint8Array>, options: CallOptions = {}): Promise<void> {
    if (typeof content === "string" || content instanceof Uint8Array) return this.#writeAll(path, toBytes(content), options);
    const reader = content.getReader();
    try {
      const { bytes, done } = await begin(reader, options.signal);
      if (done) return await this.#writeAll(path, bytes, options);
      const { files, at } = await this.place(path, options.signal);
      await this.parents(at, options);
      await files.write(at, behind(bytes, reader), options);
    } catch (error) {
      background(reader.cancel(error));
      throw error;
    }
  }

  async #writeAll(path: string, content: Uint8Array, options: CallOptions): Promise<void> {
    const { files, at } = await this.place(path, options.signal);
    const parents = content.length <= wholeMost;
    if (!parents) await this.parents(at, options);
    await this.again(() => files.write(at, content, { ...options, parents }));
  }

  /** Makes the directories of an absolute path. */
  async parents(at: string, options: CallOptions = {}): Promise<void> {
    const { files } = await this.open(options.signal);
    const parent = at.slice(0, at.lastIndexOf("/"));
    if (parent !== "") await this.again(() => files.mkdir(parent, options));
  }

  /** Removes a file, a link, or with `recursive` a tree. It reports whether it was there. */
  async remove(path: string, options: CallOptions & { recursive?: boolean | undefined } = {}): Promise<boolean> {
    const { files, at } = await this.place(path, options.signal);
    return this.again(async (repeated) => {
      try {
        await files.remove(at, options);
        return true;
      } catch (error) {
        if (isMissing(error)) return repeated; // by the request whose answer was lost
        throw error;
      }
    });
  }

  /** Says for a model where commands run, and what they may do. */
  async description(): Promise<string> {
    const { info, cwd, sandbox } = await this.open();
    const words = [`Commands run by sh on ${info.os}. They start in ${cwd}, and relative paths begin there.`];
    if (sandbox === undefined) words.push("What a command leaves in the background goes on.");
    else {
      const folders = sandbox.workspace === undefined ? [] : [sandbox.workspace].flat();
      words.push(folders.length === 0 ? "Nothing can be written." : `Only ${folders.join(", ")} and temporary folders can be written.`);
      const { network } = sandbox;
      if (network === undefined || network === "off") words.push("There is no network.");
      else if (network !== "on") words.push("The network is limited to some hosts.");
      words.push("What a command leaves in the background ends with it.");
    }
    return words.join(" ");
  }

  /** Ends the session, which kills all that runs in it, and closes the adapter. */
  async end(): Promise<void> {
    const { agent } = await this.open();
    await agent.sessions.end(agent.sessionId);
    await this.close();
  }

  /** Ends the connection, if the adapter has made it. The session lives on until it expires. */
  async close(): Promise<void> {
    this.#closed = true;
    const opened = await this.#opening?.catch(() => undefined);
    if (typeof this.#from === "function") await opened?.agent.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** A workspace that is connected. */
export interface Opened {
  readonly agent: Agent;
  readonly info: Info;
  /** The working directory, without links. */
  readonly cwd: string;
  readonly sandbox: Policy | undefined;
  /** The files, as far as the sandbox allows. */
  readonly files: Files;
}

/** Reads a stream to its end, or as soon as it has too much for one request. */
async function begin(reader: ReadableStreamDefaultReader<Uint8Array>, signal: AbortSignal | undefined): Promise<{ bytes: Uint8Array; done: boolean }> {
  const pieces = new Pieces();
  while (pieces.size <= wholeMost) {
    const { done, value } = await until(reader.read(), signal);
    if (done) return { bytes: concat(pieces.list), done };
    pieces.push(value);
  }
  return { bytes: concat(pieces.list), done: false };
}

/** Returns a stream of some bytes, and of what is still to be read. */
function behind(bytes: Uint8Array, reader: ReadableStreamDefaultReader<Uint8Array>): ReadableStream<Uint8Array> {
  return new ReadableStream<Uint8Array>({
    start: (controller) => controller.enqueue(bytes),
    async pull(controller) {
      const { done, value } = await reader.read();
      if (done) controller.close();
      else controller.enqueue(value);
    },
  });
}

/** Lets the paths and patterns of a policy start at one directory, because a command may start in another one. */
function absolute(policy: Policy, cwd: string): Policy {
  const places = (["workspace", "readable"] as const).map((word): Policy => (policy[word] === undefined ? {} : { [word]: [policy[word]].flat().map((path) => resolve(cwd, path)) }));
  const deny = policy.deny === undefined ? [] : [policy.deny].flat();
  if (/[*?[{\\]/.test(cwd) && !deny.every((path) => path.startsWith("/"))) {
    throw new UsageError(`${printable(cwd, 256)} has characters of patterns: give absolute patterns in deny`);
  }
  return Object.assign({ ...policy, deny: deny.map((path) => (path.startsWith("/") ? path : `${cwd === "/" ? "" : cwd}/${path}`)) }, ...places) as Policy;
}

/** Returns the clean absolute form of a path that begins at a directory, unless it is absolute. */
export function resolve(cwd: string, path: string): string {
  if (typeof path !== "string") throw new UsageError(`path is ${typeof path}, and must be a string`);
  const names: string[] = [];
  for (const name of (path.startsWith("/") ? path : `${cwd}/${path}`).split("/")) {
    if (name === "..") names.pop();
    else if (name !== "" && name !== ".") names.push(name);
  }
  return "/" + names.join("/");
}

/** Returns the variables that have a value. */
function present(env: Readonly<Record<string, string | undefined>> = {}): Record<string, string> {
  return Object.fromEntries(Object.entries(env).filter((pair): pair is [string, string] => pair[1] !== undefined));
}

/** Makes a call, or returns the one for the same thing that is under way. */
export function joined<K, T>(underWay: Map<K, Promise<T>>, thing: K, call: () => Promise<T>): Promise<T> {
  let made = underWay.get(thing);
  if (made === undefined) {
    made = call().finally(() => underWay.delete(thing));
    underWay.set(thing, made);
  }
  return made;
}

async function fed(process: Process, input: Uint8Array): Promise<void> {
  await process.write(input);
  await process.closeStdin();
}

/** Gives up a process that has exited, and kills one that has not. */
export function leave(process: Process): void {
  const { handle } = process;
  handle.discard();
  if (handle.exit !== undefined || handle.settled) handle.close();
  else void handle.terminate().then(() => handle.close()); // it does not reject
}

/**
 * Lists a directory, sorted by name. A link has the kind and the size of what it leads to, and its own type. One that leads to
 * nothing is neither a file nor a directory, and has no size.
 */
export async function listed(files: Files, at: string, options: CallOptions = {}): Promise<Entry[]> {
  const found = await files.list(at, { ...options, follow: false });
  const links = found.filter(({ type }) => type === "symlink");
  const targets = await files.statMany(links.map(({ name }) => resolve(at, `./${name}`)), options);
  const all = new Map(found.map((entry) => [entry.name, entry]));
  links.forEach((link, i) => {
    const target = targets[i] as (typeof targets)[number];
    const { isFile, isDirectory, size } = target instanceof ServerError ? { isFile: false, isDirectory: false, size: undefined } : target;
    all.set(link.name, { ...link, isFile, isDirectory, size });
  });
  return [...all.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
}

/** Reports whether the error says that nothing is at a path. */
export function isMissing(error: unknown): boolean {
  return error instanceof NotFoundError || (error instanceof ServerError && error.errno === 20);
}

/** Returns output of which `most` bytes are kept as text. Where its middle was left out, a line says so. */
export function textOf(bytes: Uint8Array, omitted: number, most: number): string {
  if (omitted === 0) return toText(bytes);
  const head = Math.ceil(most / 2);
  return `${toText(bytes.subarray(0, head))}\n[${omitted} bytes are left out here]\n${toText(bytes.subarray(head))}`;
}
