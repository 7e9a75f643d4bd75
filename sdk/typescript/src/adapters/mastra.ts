/**
 * An agent as the sandbox and the file system of a Mastra workspace (the package `@mastra/core`).
 *
 * @packageDocumentation
 */

import {
  DirectoryNotEmptyError, DirectoryNotFoundError, FileExistsError, FileNotFoundError, FilesystemError, IsDirectoryError, MastraSandbox, NotDirectoryError,
  PermissionError, ProcessHandle, SandboxProcessManager, StaleFileError, UnsupportedGrepPatternError, type CommandResult, type ProcessInfo, type ProviderStatus,
  type SandboxInfo, type SpawnProcessOptions,
} from "@mastra/core/workspace";
import type { Agent } from "../agent.js";
import { duration } from "../client.js";
import { AlreadyExistsError, ServerError, UsageError } from "../errors.js";
import { wholeMost, type Files, type Search, type SearchOptions } from "../files.js";
import type { Exit, Process } from "../process.js";
import { concat, randomId, toBytes, toText } from "../text.js";
import { isMissing, joined, leave, listed, Workspace, type Connect, type Ref, type WorkspaceOptions } from "./workspace.js";

export type { Connect, Ref, WorkspaceOptions } from "./workspace.js";

/** What a Mastra workspace takes. Mastra bounds the output that it keeps. */
export type MastraOptions = Omit<WorkspaceOptions, "maxOutput">;

/** A sandbox and a file system over one session. */
export interface MastraWorkspace extends AsyncDisposable {
  readonly sandbox: AgentSandbox;
  readonly filesystem: AgentFilesystem;
  /** What leads back to the session, with `existing: true`. */
  readonly ref: Ref;
  /** Ends the connection, if the adapter has made it. The session lives on until it expires. */
  close(): Promise<void>;
}

/** Returns what the constructor of Mastra's `Workspace` takes. It connects when Mastra starts the sandbox, or with the first call. */
export function mastra(from: Agent | Connect, options: MastraOptions = {}): MastraWorkspace {
  if ("maxOutput" in options) throw new UsageError("maxOutput is Mastra's: set maxOutputTokens of the tool, or maxRetainedBytes of the call");
  const workspace = new Workspace(from, "mastra", options);
  const sandbox = new AgentSandbox(workspace, typeof from === "function", options.timeoutMs);
  const close = (): Promise<void> => workspace.close();
  return { sandbox, filesystem: new AgentFilesystem(workspace), close, [Symbol.asyncDispose]: close, get ref() { return workspace.ref; } };
}

/** The sandbox of a Mastra workspace. */
export class AgentSandbox extends MastraSandbox {
  override readonly id: string;
  override readonly name = "AgentSandbox";
  override readonly provider = "execagent";
  override status: ProviderStatus = "pending";
  readonly #workspace: Workspace;
  readonly #owned: boolean;
  readonly #processes: Processes;
  readonly #createdAt = new Date();
  #description = "Commands run by sh.";

  /** @internal owned: the session is the adapter's, and ends with the sandbox. */
  constructor(workspace: Workspace, owned: boolean, timeoutMs: number | undefined) {
    const processes = new Processes(workspace, duration(timeoutMs, "timeoutMs"));
    super({ name: "AgentSandbox", processes });
    this.id = workspace.ref.session;
    this.#workspace = workspace;
    this.#owned = owned;
    this.#processes = processes;
  }

  override async start(): Promise<{ outcome: "created" | "connected" }> {
    const { agent, cwd } = await this.#workspace.open();
    this.setWorkingDirectory(cwd);
    this.#description = await this.#workspace.description();
    return { outcome: agent.session?.created === true ? "created" : "connected" };
  }

  /** Ends the session, with all that runs in it. Of an agent that was given only what the sandbox has started is killed. */
  override async destroy(): Promise<void> {
    if (this.#owned) await this.#workspace.end();
    else await this.#processes.killAll();
  }

  /** Says for a model where commands run, and what they may do. It knows that once the sandbox has started. */
  override getInstructions(): string {
    return this.#description;
  }

  override getInfo(): SandboxInfo {
    const { id, name, provider, status } = this;
    return { id, name, provider, status, createdAt: this.#createdAt, metadata: { ...this.#workspace.ref } };
  }

  /** Writes files, with the directories of their paths. */
  override async writeFiles(files: { path: string; content: string | Buffer; mode?: number }[], options: { abortSignal?: AbortSignal } = {}): Promise<void> {
    const { abortSignal: signal } = options;
    for (const { path, content, mode } of files) {
      const place = await this.#workspace.place(path, signal);
      await this.#workspace.again(() => place.files.write(place.at, content, { parents: true, mode, signal }));
    }
  }
}

/** The processes of a session. Those that another program has left there are found by their ids. */
class Processes extends SandboxProcessManager {
  readonly #workspace: Workspace;
  readonly #limitMs: number | undefined;
  readonly #attaching = new Map<string, Promise<AgentProcess | undefined>>();

  constructor(workspace: Workspace, limitMs: number | undefined) {
    super();
    this.#workspace = workspace;
    this.#limitMs = limitMs;
  }

  override async spawn(command: string, options: SpawnProcessOptions = {}): Promise<ProcessHandle> {
    const limitMs = duration(options.timeout, "timeout") ?? this.#limitMs;
    const id = randomId().slice(0, 10).toLowerCase(); // a model writes it
    const process = await this.#workspace.spawn(["sh", "-c", command], { id, cwd: options.cwd, env: options.env, stdin: options.stdinMode !== "ignore", signal: options.abortSignal });
    return this.#track(new AgentProcess(process, options, limitMs));
  }

  #track(handle: AgentProcess): AgentProcess {
    this._tracked.set(handle.pid, handle);
    return handle;
  }

  override async list(): Promise<ProcessInfo[]> {
    const known = [...this._tracked.values()].map(({ pid, command, exitCode }) => ({
      pid, ...(command !== undefined && { command }), running: exitCode === undefined, ...(exitCode !== undefined && { exitCode }),
    }));
    const { agent, info } = await this.#workspace.open();
    const all = info.capabilities["processList"] === true ? await agent.processes() : [];
    // Those that have ended were read, or belong to another call.
    const others = all.filter(({ id, exited }) => !exited && !this._tracked.has(id));
    return [...known, ...others.map(({ id, argv }) => ({ pid: id, command: argv.at(-1) ?? "", running: true }))];
  }

  override async get(pid: string): Promise<ProcessHandle | undefined> {
    return this._tracked.get(pid) ?? joined(this.#attaching, pid, () => this.#attach(pid));
  }

  async #attach(pid: string): Promise<AgentProcess | undefined> {
    const { agent } = await this.#workspace.open();
    try {
      return this.#track(new AgentProcess(await agent.attach(pid), {}, undefined));
    } catch (error) {
      if (error instanceof ServerError) return undefined; // there is none
      throw error;
    }
  }

  async killAll(): Promise<void> {
    await Promise.all([...this._tracked.values()].map((handle) => handle.kill()));
  }
}

/** The most that is kept of each stream of a process: the last of it. */
const retainedMost = 64 << 20;

/** A process of Mastra. */
class AgentProcess extends ProcessHandle {
  override readonly pid: string;
  override exitCode: number | undefined;
  readonly #process: Process;
  readonly #result: Promise<CommandResult>;
  readonly #input: boolean;
  #killed = false;
  #timedOut = false;

  constructor(process: Process, options: SpawnProcessOptions, limitMs: number | undefined) {
    // For a command that is waited for Mastra keeps all output, so that one that never stops would take all memory.
    super({ ...options, ...(options.maxRetainedBytes !== undefined && { maxRetainedBytes: Math.min(options.maxRetainedBytes, retainedMost) }) });
    this.pid = process.id;
    this.#process = process;
    this.#input = options.stdinMode !== "ignore";
    const timer = limitMs === undefined ? undefined : setTimeout(() => {
      this.#timedOut = this.exitCode === undefined;
      void this.kill().catch(() => {}); // wait tells what has become of it
    }, limitMs);
    const begun = performance.now();
    this.#result = this.#follow().then((exit) => ({
      success: exit.exitCode === 0, exitCode: exit.exitCode, stdout: this.stdout, stderr: this.stderr, executionTimeMs: Math.round(performance.now() - begun),
      ...(this.#timedOut && { timedOut: true }), ...(this.#killed && { killed: true }),
    }));
    this.#result.catch(() => {}).finally(() => clearTimeout(timer)); // wait tells of it
  }

  /** Hands over the output until the process exits. What it has left in the background goes on, and its output is dropped. */
  async #follow(): Promise<Exit> {
    const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
    const emit = (stream: "stdout" | "stderr", text: string): void => {
      if (text !== "") stream === "stdout" ? this.emitStdout(text) : this.emitStderr(text);
    };
    try {
      for await (const event of this.#process.events()) {
        if (event.type === "exited") break;
        if (event.type !== "output") continue;
        const stream = event.stream === "stderr" ? "stderr" : "stdout";
        emit(stream, decoders[stream].decode(event.data, { stream: true }));
      }
      const exit = await this.#process.exited;
      for (const stream of ["stdout", "stderr"] as const) emit(stream, decoders[stream].decode());
      this.exitCode = exit.exitCode;
      return exit;
    } catch (error) {
      this.exitCode = 128 + 9; // whoever cannot be followed was killed
      throw error;
    } finally {
      leave(this.#process); // which kills it if one of Mastra's listeners has failed
    }
  }

  override wait(): Promise<CommandResult> {
    return this.#result;
  }

  override async kill(): Promise<boolean> {
    if (this.exitCode !== undefined) return false;
    this.#killed = true;
    await this.#process.kill();
    return true;
  }

  override async sendStdin(data: string): Promise<void> {
    this.#needInput();
    await this.#process.write(data);
  }

  override async closeStdin(): Promise<void> {
    this.#needInput();
    await this.#process.closeStdin();
  }

  #needInput(): void {
    if (!this.#input) throw new UsageError(`the process ${this.pid} has no standard input: start it with stdinMode pipe`);
  }
}

/** A name in a directory. */
export interface FileEntry {
  name: string;
  type: "file" | "directory";
  size?: number;
  isSymlink?: boolean;
}

/** The bounds of the agent's search: how many names or lines it gives, how deep it goes, and how many lines around a match it has. */
const foundMost = 10_000;
const deepMost = 256;
const aroundMost = 100;

function atMost(value: number | undefined, most: number): number {
  return Math.max(0, Math.min(value ?? most, most));
}

/** The file system of a Mastra workspace. Relative paths begin at the working directory, absolute ones are those of the agent. */
export class AgentFilesystem {
  readonly id: string;
  readonly name = "AgentFilesystem";
  readonly provider = "execagent";
  status: ProviderStatus = "pending";
  readonly #workspace: Workspace;

  /** @internal */
  constructor(workspace: Workspace) {
    this.#workspace = workspace;
    this.id = `${workspace.ref.session}-files`;
  }

  async init(): Promise<void> {
    await this.#workspace.open();
    this.status = "ready";
  }

  getInstructions(): string {
    return "Relative paths begin at the working directory of commands. Absolute paths are those of the agent's machine.";
  }

  /** Makes a call about a path. Its errors become Mastra's. */
  async #call<T>(path: string, what: string, work: (files: Files, at: string) => Promise<T>, kind: "file" | "directory" = "file"): Promise<T> {
    const { files, at } = await this.#workspace.place(path);
    try {
      return await work(files, at);
    } catch (error) {
      throw translated(error, path, what, kind);
    }
  }

  async readFile(path: string, options: { encoding?: BufferEncoding } = {}): Promise<string | Buffer> {
    const bytes = await this.#call(path, "read", (files, at) =>
      files.read(at).catch(async (error: unknown) => {
        if (error instanceof ServerError && !isMissing(error) && (await files.stat(at)).isDirectory) throw new IsDirectoryError(path);
        throw error;
      }),
    );
    const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
    return options.encoding === undefined ? buffer : buffer.toString(options.encoding);
  }

  async writeFile(path: string, content: string | Uint8Array, options: { recursive?: boolean; overwrite?: boolean; expectedMtime?: Date } = {}): Promise<void> {
    const { expectedMtime, recursive, overwrite } = options;
    await this.#call(path, "write", async (files, at) => {
      const found = expectedMtime === undefined ? undefined : await files.stat(at).catch(nothingIfMissing);
      if (expectedMtime !== undefined && found !== undefined && found.modifiedAtMs !== expectedMtime.getTime()) {
        throw new StaleFileError(path, expectedMtime, new Date(found.modifiedAtMs));
      }
      // A second attempt would find the file of the first.
      if (overwrite === false) return files.write(at, content, { exclusive: true, parents: recursive !== false });
      if (recursive !== false) return this.#workspace.write(at, content);
      return this.#workspace.again(() => files.write(at, content));
    }, "directory");
  }

  /** Appends to a file, by reading and writing it: what another program appends meanwhile is lost. */
  async appendFile(path: string, content: string | Uint8Array): Promise<void> {
    await this.#call(path, "write", async (files, at) => {
      const found = await files.stat(at).catch(nothingIfMissing);
      if (found !== undefined && found.size > wholeMost) throw new FilesystemError(`${path} has ${found.size} bytes: append to it with a command`, "EFBIG", path);
      const before = found === undefined ? new Uint8Array() : await files.read(at);
      await this.#workspace.write(at, concat([before, toBytes(content)]));
    });
  }

  async deleteFile(path: string, options: { force?: boolean } = {}): Promise<void> {
    await this.#call(path, "delete", async (files, at) => {
      const found = await files.stat(at).catch(nothingIfMissing);
      if (found?.isDirectory === true && !found.isSymlink) throw new IsDirectoryError(path);
      if (!(await this.#workspace.remove(at)) && options.force !== true) throw new FileNotFoundError(path);
    });
  }

  async copyFile(from: string, to: string, options: { overwrite?: boolean; recursive?: boolean } = {}): Promise<void> {
    await this.#call(from, "copy", async (files, at) => {
      if ((await files.stat(at)).isDirectory && options.recursive !== true) throw new IsDirectoryError(from);
      const { at: target } = await this.#workspace.place(to);
      if (options.overwrite === false && (await files.exists(target))) throw new FileExistsError(to);
      await this.#workspace.parents(target);
      await this.#workspace.again(() => files.copy(at, target));
    });
  }

  async moveFile(from: string, to: string, options: { overwrite?: boolean } = {}): Promise<void> {
    await this.#call(from, "move", async (files, at) => {
      await files.stat(at, { follow: false });
      const { at: target } = await this.#workspace.place(to);
      await this.#workspace.parents(target);
      await files.rename(at, target, { replace: options.overwrite !== false }).catch((error: unknown) => {
        if (error instanceof AlreadyExistsError) throw new FileExistsError(to);
        throw error;
      });
    });
  }

  async mkdir(path: string, options: { recursive?: boolean } = {}): Promise<void> {
    await this.#call(path, "make", async (files, at) => {
      if (options.recursive !== false) return this.#workspace.again(() => files.mkdir(at));
      await files.mkdir(at, { parents: false }).catch(async (error: unknown) => {
        if (!(error instanceof AlreadyExistsError) || !(await files.stat(at)).isDirectory) throw error;
      });
    }, "directory");
  }

  async rmdir(path: string, options: { recursive?: boolean; force?: boolean } = {}): Promise<void> {
    await this.#call(path, "delete", async (files, at) => {
      const found = await files.stat(at).catch(nothingIfMissing);
      if (found !== undefined && !found.isDirectory) throw new NotDirectoryError(path);
      if (!(await this.#workspace.remove(at, { recursive: options.recursive === true })) && options.force !== true) throw new DirectoryNotFoundError(path);
    }, "directory");
  }

  async readdir(path: string, options: { recursive?: boolean; extension?: string | string[]; maxDepth?: number } = {}): Promise<FileEntry[]> {
    const endings = options.extension === undefined ? undefined : [options.extension].flat().map((end) => (end.startsWith(".") ? end : `.${end}`));
    const wanted = ({ name, type, isSymlink }: FileEntry): boolean => endings === undefined || type === "directory" || isSymlink === true || endings.some((end) => name.endsWith(end));
    if (options.recursive === true) {
      return (await this.walk(path, { includeHidden: true, maxDepth: (options.maxDepth ?? 100) + 1 })).map(({ path: name, ...rest }) => ({ ...rest, name })).filter(wanted);
    }
    return this.#call(path, "list", async (files, at) => {
      const found = (await listed(files, at)).map(({ name, isDirectory, type, size }): FileEntry => ({
        name, type: isDirectory ? "directory" : "file", ...(type === "file" && size !== undefined && { size }), ...(type === "symlink" && { isSymlink: true }),
      }));
      return found.filter(wanted);
    }, "directory");
  }

  /** Lists everything below a directory with one request. Links are not followed. */
  async walk(path: string, options: { maxDepth?: number; includeHidden?: boolean } = {}): Promise<(FileEntry & { path: string })[]> {
    const { found, at } = await this.#search(path, {
      hidden: options.includeHidden === true, maxMatches: foundMost, maxDepth: atMost((options.maxDepth ?? deepMost) - 1, deepMost),
    });
    if (found.truncated !== undefined && found.truncated !== "depth") {
      throw new FilesystemError(`${path} has too many names (the bound of ${found.truncated}): list a smaller directory`, "ETOOMANY", path);
    }
    return found.files.map(({ path, kind }) => {
      const below = path.slice(at === "/" ? 1 : at.length + 1);
      return { path: below, name: below.slice(below.lastIndexOf("/") + 1), type: kind === "directory" ? "directory" : "file", ...(kind === "symlink" && { isSymlink: true }) };
    });
  }

  /** Finds lines with one request, by the agent's own search. */
  async grep(options: {
    pattern: string; path: string; caseSensitive: boolean; includeHidden: boolean; maxCountPerFile?: number; maxTotalMatches?: number; contextLines?: number;
  }): Promise<{ path: string; matches: { line: number; column: number; text: string; before?: string[]; after?: string[] }[] }[]> {
    const around = atMost(options.contextLines ?? 0, aroundMost);
    const { found, at } = await this.#search(options.path, {
      pattern: options.pattern, ignoreCase: !options.caseSensitive, hidden: options.includeHidden, before: around, after: around,
      maxFileMatches: Math.max(1, atMost(options.maxCountPerFile, foundMost)), maxMatches: Math.max(1, atMost(options.maxTotalMatches, foundMost)),
    });
    return found.files.map(({ path, matches }) => ({
      path: path === at ? "" : path.slice(at === "/" ? 1 : at.length + 1),
      matches: matches.map(({ line, column, text, textColumn, before, after }) => ({
        line, column: toText(toBytes(text).subarray(0, column - textColumn)).length, text, ...(around > 0 && { before: [...before], after: [...after] }),
      })),
    }));
  }

  async #search(path: string, options: SearchOptions): Promise<{ found: Search; at: string }> {
    return this.#call(path, "search", async (files, at) => {
      if (options.pattern === undefined && !(await files.stat(at)).isDirectory) throw new NotDirectoryError(path);
      try {
        return { found: await files.search(at, { ...options, noIgnore: true }), at };
      } catch (error) {
        // RE2 has not all that JavaScript has.
        if (options.pattern !== undefined && error instanceof ServerError && error.errno === undefined) throw new UnsupportedGrepPatternError(options.pattern, error.message);
        throw error;
      }
    }, "directory");
  }

  async exists(path: string): Promise<boolean> {
    return this.#call(path, "read", (files, at) => files.exists(at));
  }

  async stat(path: string): Promise<{ name: string; path: string; type: "file" | "directory"; size: number; createdAt: Date; modifiedAt: Date }> {
    return this.#call(path, "read", async (files, at) => {
      const { isDirectory, size, createdAtMs, modifiedAtMs } = await files.stat(at);
      return { name: at.slice(at.lastIndexOf("/") + 1), path, type: isDirectory ? "directory" : "file", size, createdAt: new Date(createdAtMs), modifiedAt: new Date(modifiedAtMs) };
    });
  }

  async realpath(path: string): Promise<string> {
    return this.#call(path, "read", (files, at) => files.realpath(at));
  }
}

function nothingIfMissing(error: unknown): undefined {
  if (isMissing(error)) return undefined;
  throw error;
}

/** Returns Mastra's error for one of the agent. */
function translated(thrown: unknown, path: string, what: string, kind: "file" | "directory"): unknown {
  if (!(thrown instanceof ServerError)) return thrown;
  switch (thrown.errnoName) {
    case "ENOENT":
      return kind === "file" ? new FileNotFoundError(path) : new DirectoryNotFoundError(path);
    case "EEXIST":
      return new FileExistsError(path);
    case "EISDIR":
      return new IsDirectoryError(path);
    case "ENOTDIR":
      return new NotDirectoryError(path);
    case "ENOTEMPTY":
      return new DirectoryNotEmptyError(path);
    case "EACCES":
    case "EPERM":
    case "EROFS":
      return new PermissionError(path, what);
  }
  return thrown;
}
