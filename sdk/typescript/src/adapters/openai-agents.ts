/**
 * An agent as the sandbox of the OpenAI Agents SDK, @openai/agents 0.20: commands, patches, images, archives and ports.
 *
 * @packageDocumentation
 */

import { cloneManifest, Manifest, permissionsForSandboxEntry } from "@openai/agents/sandbox";
import { DisconnectedError, ServerError, UnsupportedError, UsageError } from "../errors.js";
import { wholeMost, type Files, type Stat } from "../files.js";
import { upload } from "../node/copy.js";
import { forward, type Forward } from "../node/forward.js";
import { only } from "../sandbox.js";
import { decodeBase64, encodeBase64, printable, randomId } from "../text.js";
import { pack, unpack, type ArchiveLimits } from "./openai-archive.js";
import { Commands, describe, type Update } from "./openai-commands.js";
import { changed, childrenOf, supported, supportedEntry, variables, withContents, type Entry } from "./openai-manifest.js";
import { patchOf, type PatchOperation } from "./openai-patch.js";
import { isMissing, listed, resolve, Workspace, type Connect, type WorkspaceOptions } from "./workspace.js";

export type { Connect } from "./workspace.js";

/** What the sandbox client takes. */
export interface ExecagentSandboxOptions extends Omit<WorkspaceOptions, "session" | "existing" | "timeoutMs" | "maxOutput"> {
  /**
   * The workspace of manifests whose root is the default, `/workspace`. By default each sandbox has a new directory in `/tmp`
   * that nobody else can read, and that ends with it.
   */
  cwd?: string | undefined;
  /** The ports that may be exposed; by default every one. */
  exposedPorts?: readonly number[] | undefined;
  /** The shell of commands that name none; by default that of the agent's user. */
  shell?: string | undefined;
}

/** What is kept of a session, also by a serialized run. It has no token and no URL. */
export interface ExecagentSandboxState {
  manifest: Manifest;
  /** The name of the session at the agent. */
  sessionName: string;
  /** The numbers of commands that ran when the session was left, and the last event of each that was told. */
  commands: Readonly<Record<string, number>>;
  workspaceReady?: boolean;
  environment?: Record<string, string>;
  [key: string]: unknown;
}

interface CreateArgs {
  readonly manifest?: object;
  readonly snapshot?: { readonly type: string };
  readonly options?: object;
  readonly archiveLimits?: ArchiveLimits | null;
}

const ownWords = ["cwd", "exposedPorts", "shell"];
const defaultRoot = "/workspace";

/** Where a sandbox without a directory of its user is, by the name of its session. */
const temporary = (sessionName: string): string => `/tmp/${sessionName}`;

/** Makes sandboxes on an agent: the `client` of the harness's `sandbox` options. Each has a session of its own. */
export class ExecagentSandboxClient {
  readonly backendId = "execagent";
  readonly #connect: Connect;
  readonly #options: ExecagentSandboxOptions;
  readonly #sessions = new WeakMap<object, ExecagentSandboxSession>();

  constructor(connect: Connect, options: ExecagentSandboxOptions = {}) {
    if (typeof connect !== "function") throw new UsageError("the sandbox client needs a function that connects, because each sandbox has a session of its own");
    this.#connect = connect;
    this.#options = { ...options };
    const { cwd = defaultRoot, exposedPorts = [] } = options;
    if (resolve("/", cwd) !== cwd) throw new UsageError(`cwd is ${printable(cwd, 256)}, and must be absolute, without .. and a / at its end`);
    for (const port of exposedPorts) portNumber(port);
    this.#workspace(cwd, {}); // which looks at the other options
  }

  #workspace(cwd: string, session: Pick<WorkspaceOptions, "session" | "existing">): Workspace {
    const rest = Object.fromEntries(Object.entries(this.#options).filter(([word]) => !ownWords.includes(word)));
    return new Workspace(this.#connect, "openai-agents", { ...rest, ...session, cwd });
  }

  /** Makes a sandbox, with what its manifest lists. */
  async create(args?: CreateArgs | Manifest, more?: object): Promise<ExecagentSandboxSession> {
    const { manifest, snapshot, options = {}, archiveLimits } = args instanceof Manifest ? ({ manifest: args, options: more } as CreateArgs) : (args ?? {});
    only(options, [], "options of a sandbox");
    if (snapshot !== undefined && snapshot.type !== "noop") {
      throw new UsageError(`a snapshot of the type ${printable(String(snapshot.type), 64)} cannot be kept: the workspace stays at the agent; use persistWorkspace for a copy`);
    }
    const sessionName = `openai-agents-${randomId().toLowerCase()}`;
    const rooted = this.#rooted(manifest === undefined ? new Manifest() : cloneManifest(manifest), temporary(sessionName));
    supported(rooted);
    const environment = await rooted.resolveEnvironment();
    const workspace = this.#workspace(rooted.root, { session: sessionName });
    const session = await this.#session(workspace, { manifest: rooted, sessionName, commands: {}, workspaceReady: true, environment }, archiveLimits);
    try {
      if (rooted.root === temporary(sessionName)) await (await workspace.open()).agent.run(["chmod", "700", rooted.root], { check: true });
      await session.materialize(rooted);
      return session;
    } catch (error) {
      await session.delete().catch(() => {});
      throw error;
    }
  }

  /** Comes back to a sandbox whose session still exists, also from another process. Commands that ran go on. */
  async resume(state: ExecagentSandboxState, options: { readonly archiveLimits?: ArchiveLimits | null } = {}): Promise<ExecagentSandboxSession> {
    const { sessionName: session } = state;
    const manifest = this.#rooted(state.manifest, state.manifest.root); // which refuses another directory than that of the client
    return this.#session(this.#workspace(manifest.root, { session, existing: true }), { ...state, manifest }, options.archiveLimits);
  }

  async #session(workspace: Workspace, state: ExecagentSandboxState, limits: ArchiveLimits | null | undefined): Promise<ExecagentSandboxSession> {
    await workspace.open();
    const session = new ExecagentSandboxSession(workspace, state, this.#options);
    session.setArchiveLimits(limits);
    this.#sessions.set(state, session);
    return session;
  }

  /** Ends the session of a state, with all that runs in it, and a workspace that was made for it. */
  async delete(state: ExecagentSandboxState): Promise<void> {
    const session = this.#sessions.get(state) ?? (await this.resume(state));
    await session.delete();
  }

  async serializeSessionState(state: ExecagentSandboxState): Promise<Record<string, unknown>> {
    return { sessionName: state.sessionName, commands: this.#sessions.get(state)?.commands ?? state.commands };
  }

  async deserializeSessionState(record: Record<string, unknown>): Promise<ExecagentSandboxState> {
    const { sessionName, commands = {}, workspaceReady } = record;
    if (typeof sessionName !== "string" || !/^openai-agents-[a-z2-7]{26}$/.test(sessionName)) throw new UsageError("the state of the sandbox has no sessionName");
    if (typeof commands !== "object" || commands === null || !Object.entries(commands).every(([number, seq]) => /^\d{1,5}$/.test(number) && Number.isSafeInteger(seq) && seq >= 0)) {
      throw new UsageError("commands of the state of the sandbox must have numbers");
    }
    if (typeof record["manifest"] !== "object" || record["manifest"] === null) throw new UsageError("the state of the sandbox has no manifest");
    const manifest = record["manifest"] instanceof Manifest ? record["manifest"] : new Manifest(withContents(record["manifest"]));
    const environment = await manifest.resolveEnvironment();
    return { manifest, sessionName, commands: commands as Record<string, number>, environment, workspaceReady: workspaceReady === true };
  }

  /** A session that ends with its run leaves nothing to come back to. */
  canPersistOwnedSessionState(): boolean {
    return false;
  }

  resolveTrustedManifestForResume(manifest: Manifest): Manifest {
    return this.#rooted(manifest, manifest.root);
  }

  /** Gives a manifest with the default root the one of this client, or another one. */
  #rooted(manifest: Manifest, other: string): Manifest {
    const { cwd } = this.#options;
    const root = cwd ?? other;
    if (manifest.root !== defaultRoot) {
      if (cwd !== undefined && cwd !== manifest.root) throw new UsageError(`the manifest has the root ${printable(manifest.root, 256)}, and the client the cwd ${printable(cwd, 256)}: give only one`);
      return manifest;
    }
    return root === defaultRoot ? manifest : changed(manifest, { root });
  }
}

/** A path that is not there. The harness looks for this code. */
class MissingPath extends Error {
  readonly code = "ENOENT";
}

/** A sandbox. All its paths are below its root, or in a directory that its manifest grants. */
export class ExecagentSandboxSession implements AsyncDisposable {
  readonly state: ExecagentSandboxState;
  readonly #workspace: Workspace;
  readonly #options: ExecagentSandboxOptions;
  readonly #commands: Commands;
  readonly #ports = new Map<number, Promise<Forward>>();
  #limits: ArchiveLimits | null = null;
  #deleting: Promise<void> | undefined;

  /** @internal */
  constructor(workspace: Workspace, state: ExecagentSandboxState, options: ExecagentSandboxOptions) {
    this.#workspace = workspace;
    this.state = state;
    this.#options = options;
    this.#commands = new Commands(workspace, state.commands);
  }

  /** What leads back to the commands that run. @internal */
  get commands(): Record<string, number> {
    return this.#commands.running;
  }

  supportsPty(): boolean {
    return true;
  }

  /** Runs a command of a shell, and returns when it has exited or after `yieldTimeMs`. Then it goes on, and has a number. */
  async exec(args: {
    readonly cmd: string; readonly workdir?: string; readonly shell?: string; readonly login?: boolean; readonly tty?: boolean;
    readonly yieldTimeMs?: number; readonly maxOutputTokens?: number; readonly runAs?: string;
  }): Promise<Update> {
    const { info } = await this.#workspace.open();
    const shell = args.shell ?? this.#options.shell ?? info.shell.path;
    return this.#commands.start([shell, args.login === false ? "-c" : "-lc", args.cmd], {
      cwd: this.#allowed(args.workdir ?? "", false), env: this.state.environment, tty: args.tty === true,
      ...(args.runAs !== undefined && { user: args.runAs }),
    }, args);
  }

  /** Does so, and says what came of it in the words of the tool exec_command. */
  async execCommand(args: Parameters<ExecagentSandboxSession["exec"]>[0]): Promise<string> {
    return describe(await this.exec(args));
  }

  /** Writes to a command that runs, or only waits for its output, and says what has come. */
  async writeStdin(args: { readonly sessionId: number; readonly chars?: string; readonly yieldTimeMs?: number; readonly maxOutputTokens?: number }): Promise<string> {
    return describe(await this.#commands.write(args.sessionId, args.chars ?? "", args));
  }

  /** Changes files by diffs in the form V4A, each file as a whole or not at all. */
  createEditor(runAs?: string): Editor {
    const apply = async (operation: PatchOperation): Promise<EditResult> => {
      asAgent(runAs);
      try {
        return { status: "completed", output: await this.#edit(operation) };
      } catch (error) {
        // Why a patch does not fit is for the model. That there is no agent is not.
        if (error instanceof ServerError || error instanceof UsageError) return { status: "failed", output: error instanceof ServerError ? error.text : error.message };
        throw error;
      }
    };
    return { createFile: apply, updateFile: apply, deleteFile: apply };
  }

  async #edit(operation: PatchOperation): Promise<string> {
    const { files, cwd } = await this.#workspace.open();
    const path = operation.type === "delete_file" ? await this.#name(operation.path) : await this.#place(operation.path, true);
    const apply = async (one: PatchOperation): Promise<string> => (await files.applyPatch(patchOf(one), { cwd })).output;
    if (operation.type !== "update_file") {
      // A new file is the same file when it is made twice, and a file that was removed is not there.
      return this.#workspace.again(async (repeated) => {
        if (repeated && operation.type === "delete_file" && !(await there(files, path))) return "";
        return apply({ ...operation, path });
      });
    }
    const moveTo = operation.moveTo === undefined ? undefined : await this.#place(operation.moveTo, true);
    const change = async (): Promise<string> => {
      if (moveTo === undefined || operation.diff.trim() !== "") return apply({ ...operation, path, moveTo });
      await files.rename(path, moveTo);
      return "";
    };
    const before = await look(files, path);
    try {
      return await change();
    } catch (error) {
      if (!(error instanceof DisconnectedError) || error.final) throw error;
      // An update must not be made twice. Whether it was made shows the file.
      return before === (await look(files, path)) ? change() : "";
    }
  }

  async viewImage(args: { readonly path: string; readonly runAs?: string }): Promise<{ type: "image"; image: { data: string; mediaType: string } }> {
    asAgent(args.runAs);
    const { files } = await this.#workspace.open();
    const info = await this.#stat(args.path);
    if (info === undefined) throw new MissingPath(`Image file not found: ${args.path}`);
    if (!info.isFile) throw new UsageError(`Image path is not a file: ${args.path}`);
    if (info.size > imageMost) throw new UsageError(`Image file exceeds the 10 MB limit: ${args.path}`);
    const bytes = await files.read(await this.#place(args.path, false));
    const mediaType = imageType(bytes);
    if (mediaType === undefined) throw new UsageError(`Unsupported image format for view_image: ${args.path}`);
    return { type: "image", image: { data: encodeBase64(bytes), mediaType } };
  }

  async pathExists(path: string, runAs?: string): Promise<boolean> {
    asAgent(runAs);
    return (await this.#stat(path)) !== undefined;
  }

  async directoryExists(path: string, runAs?: string): Promise<boolean> {
    asAgent(runAs);
    return (await this.#stat(path))?.isDirectory === true;
  }

  async #stat(path: string): Promise<Stat | undefined> {
    const { files } = await this.#workspace.open();
    try {
      return await files.stat(await this.#place(path, false));
    } catch (error) {
      if (isMissing(error)) return undefined;
      throw error;
    }
  }

  async readFile(args: { readonly path: string; readonly runAs?: string; readonly maxBytes?: number }): Promise<Uint8Array> {
    asAgent(args.runAs);
    const { files } = await this.#workspace.open();
    const { maxBytes = Infinity } = args;
    try {
      const at = await this.#place(args.path, false);
      const { size } = await files.stat(at);
      if (size <= Math.max(maxBytes, wholeMost)) return (await files.read(at)).subarray(0, maxBytes);
      await using file = await files.open(at);
      return await file.readAt(0, maxBytes);
    } catch (error) {
      return throwMissing(error, `${args.path} was not found`);
    }
  }

  async listDir(args: { readonly path: string; readonly runAs?: string }): Promise<{ name: string; path: string; type: "file" | "dir" | "other" }[]> {
    asAgent(args.runAs);
    const { files } = await this.#workspace.open();
    const at = this.#allowed(args.path, false);
    const above = this.#relative(at) ?? at;
    const list = async (): ReturnType<Files["list"]> => listed(files, await this.#place(args.path, false));
    const found = await list().catch((error: unknown) => throwMissing(error, `${args.path} was not found`));
    return found.map(({ name, isDirectory, isFile }) => ({ name, path: above === "" ? name : `${above}/${name}`, type: isDirectory ? "dir" : isFile ? "file" : "other" }));
  }

  /** Puts a file or a directory into the workspace. */
  async materializeEntry(args: { readonly path: string; readonly entry: Entry; readonly runAs?: string }): Promise<void> {
    asAgent(args.runAs);
    const at = this.#allowed(args.path, true);
    const path = this.#relative(at);
    if (path === undefined || path === "") throw new UsageError(`${printable(args.path, 256)} is not below the root of the workspace`);
    supportedEntry(path, args.entry);
    const { manifest } = this.state;
    const next = changed(manifest, { entries: { ...manifest.entries, [path]: structuredClone(args.entry) } });
    await this.#put(at, args.entry);
    this.state.manifest = next;
  }

  async applyManifest(manifest: Manifest, runAs?: string): Promise<void> {
    asAgent(runAs);
    if (manifest.root !== this.state.manifest.root) throw new UsageError("the root of a sandbox cannot change: make a new sandbox");
    supported(manifest);
    const { entries, environment, extraPathGrants } = this.state.manifest;
    const next = changed(this.state.manifest, {
      entries: { ...entries, ...manifest.entries }, environment: { ...variables({ environment }), ...variables(manifest) },
      extraPathGrants: [...extraPathGrants.filter(({ path }) => !manifest.extraPathGrants.some((grant) => grant.path === path)), ...manifest.extraPathGrants],
    });
    await this.materialize(manifest);
    this.state.environment = { ...this.state.environment, ...(await manifest.resolveEnvironment()) };
    this.state.manifest = next;
  }

  /** Returns a path below the root as it is called there. */
  #relative(at: string): string | undefined {
    const { root } = this.state.manifest;
    return isBelow(at, root) ? at.slice(root.length).replace(/^\//, "") : undefined;
  }

  /** Puts all that a manifest lists into the workspace. @internal */
  async materialize(manifest: Manifest): Promise<void> {
    for (const [path, entry] of Object.entries(manifest.entries)) await this.#put(this.#allowed(path, true), entry as Entry);
  }

  /**
   * Puts an entry into the workspace. It does so under the sandbox if that lets commands write there, because one of them
   * could put a link in the way. If they can write nothing, what the application puts there is still put there.
   */
  async #put(at: string, entry: Entry): Promise<void> {
    const { agent, files: confined, sandbox } = await this.#workspace.open();
    const files = sandbox?.workspace === undefined ? agent.fs : confined;
    const real = await this.#place(at, true, files);
    const makeDirectory = (path: string): Promise<void> => this.#workspace.again(() => files.mkdir(path));
    switch (entry.type) {
      case "dir":
        await makeDirectory(real);
        for (const [name, child] of childrenOf(entry)) await this.#put(resolve(at, name), child);
        break;
      case "file": {
        const mode = entry["permissions"] === undefined ? undefined : permissionsForSandboxEntry(entry["permissions"] as number).toMode() & 0o777;
        await this.#workspace.again(() => files.write(real, entry["content"] as string | Uint8Array, { parents: true, mode }));
        break;
      }
      case "local_file":
        await makeDirectory(parentOf(real));
        await this.#workspace.again(() => upload(agent, String(entry["src"]), real));
        break;
      case "local_dir":
        await makeDirectory(real);
        await this.#workspace.again(() => upload(agent, `${String(entry["src"])}/.`, real));
        break;
      default:
        if (!(await there(files, real))) await this.#clone(entry, real, files);
    }
  }

  /** Clones a repository at the agent, by its git, without the history. */
  async #clone(entry: Entry, to: string, files: Files): Promise<void> {
    const { repo, host = "github.com", ref = "HEAD", subpath } = entry;
    const url = /:\/\/|^git@/.test(String(repo)) ? String(repo) : `https://${String(host)}/${String(repo)}.git`;
    const temporary = resolve(parentOf(to), `.git-repo-${randomId().toLowerCase()}`);
    await this.#workspace.again(() => files.mkdir(temporary));
    try {
      for (const words of [["init", "-q"], ["fetch", "-q", "--depth", "1", "--", url, String(ref)], ["checkout", "-q", "FETCH_HEAD"]]) {
        const { exitCode, errorText } = await this.#workspace.run(["git", "-C", temporary, ...words], { env: { ...this.state.environment, GIT_TERMINAL_PROMPT: "0" } });
        if (exitCode !== 0) throw new UsageError(`the repository ${printable(String(repo), 256)} could not be cloned: ${printable(errorText.trim())}`);
      }
      await files.remove(`${temporary}/.git`, { recursive: true });
      const from = subpath === undefined ? temporary : await files.realpath(resolve(temporary, String(subpath)));
      if (!isBelow(from, await files.realpath(temporary))) throw new UsageError(`the subpath ${printable(String(subpath), 256)} leads out of the repository`);
      await files.copy(from, to);
    } finally {
      await files.remove(temporary, { recursive: true, missingOk: true }).catch(() => {});
    }
  }

  /** Returns the absolute form of a path that is below the root, or in a directory that the manifest grants. */
  #allowed(path: string, write: boolean): string {
    const { root, extraPathGrants } = this.state.manifest;
    if (typeof path !== "string") throw new UsageError(`path is ${typeof path}, and must be a string`);
    const at = resolve(root, path.trim());
    if (isBelow(at, root)) return at;
    const grant = extraPathGrants.filter((one) => isBelow(at, one.path)).sort((a, b) => b.path.length - a.path.length)[0];
    if (grant === undefined) throw new UsageError(`${printable(path, 256)} is not below ${printable(root, 256)}, the root of the workspace`);
    if (write && grant.readOnly) throw new UsageError(`${printable(path, 256)} is in ${printable(grant.path, 256)}, which is granted for reading only`);
    return at;
  }

  /** Returns an allowed path without links, if it is allowed then, too. */
  async #place(path: string, write: boolean, files?: Files): Promise<string> {
    const { cwd, files: confined } = await this.#workspace.open();
    const fs = files ?? confined;
    const at = this.#allowed(path, write);
    const real = await fs.realpath(at, { missingOk: true });
    if (real === at || isBelow(real, cwd)) return real;
    for (const grant of this.state.manifest.extraPathGrants) {
      if ((!write || !grant.readOnly) && isBelow(real, await fs.realpath(grant.path, { missingOk: true }))) return real;
    }
    throw new UsageError(`${printable(path, 256)} leads out of the workspace, to ${printable(real, 256)}`);
  }

  /** Returns an allowed name, which may be that of a link. */
  async #name(path: string): Promise<string> {
    const at = this.#allowed(path, true);
    const parent = await this.#place(parentOf(at), true);
    return resolve(parent, `./${at.slice(at.lastIndexOf("/") + 1)}`);
  }

  /** Returns all files of the workspace as a tar archive, without what the manifest calls ephemeral. */
  async persistWorkspace(): Promise<Uint8Array> {
    const { agent, cwd } = await this.#workspace.open();
    return pack(agent, cwd, this.state.manifest.ephemeralPersistencePaths());
  }

  /** Puts the files of such an archive into the workspace. Other files stay. */
  async hydrateWorkspace(data: string | ArrayBuffer | Uint8Array, options: { readonly archiveLimits?: ArchiveLimits | null } = {}): Promise<void> {
    const { agent, cwd } = await this.#workspace.open();
    const bytes = typeof data === "string" ? decodeBase64(data) : data instanceof ArrayBuffer ? new Uint8Array(data) : data;
    if (bytes === undefined) throw new UsageError("the archive is a string that is not base64");
    await unpack(agent, cwd, bytes, options.archiveLimits === undefined ? this.#limits : options.archiveLimits);
  }

  setArchiveLimits(limits?: ArchiveLimits | null): void {
    this.#limits = limits ?? null;
  }

  /** Listens here for connections to a port at the agent. The endpoint is for programs on this machine. */
  async resolveExposedPort(port: number): Promise<{ host: string; port: number; tls: boolean }> {
    const { agent, sandbox } = await this.#workspace.open();
    const { exposedPorts = [] } = this.#options;
    if (exposedPorts.length > 0 && !exposedPorts.includes(portNumber(port))) throw new UsageError(`port ${port} is not one of exposedPorts`);
    let open = this.#ports.get(portNumber(port));
    if (open === undefined) {
      const made = (open = forward(agent, port, { sandbox }));
      this.#ports.set(port, made);
      const forget = (): void => void (this.#ports.get(port) === made && this.#ports.delete(port));
      made.then(() => agent.ended.then(forget), forget); // it ends with the client
    }
    const { host, port: here } = await open;
    return { host, port: here, tls: false };
  }

  /** Reports whether the agent answers. */
  async running(): Promise<boolean> {
    try {
      const { agent } = await this.#workspace.open();
      return (await agent.status()) === "ready";
    } catch {
      return false;
    }
  }

  /** Ends the commands that run. */
  async stop(): Promise<void> {
    await this.#commands.end();
  }

  /** Ends the session at the agent, and a workspace that was made for it. */
  delete(): Promise<void> {
    return (this.#deleting ??= this.#delete().catch((error: unknown) => {
      this.#deleting = undefined;
      throw error;
    }));
  }

  async #delete(): Promise<void> {
    await this.#closePorts();
    await this.stop();
    const { root } = this.state.manifest;
    if (root === temporary(this.state.sessionName)) {
      const { agent } = await this.#workspace.open();
      await this.#workspace.again(() => agent.fs.remove(root, { recursive: true, missingOk: true }));
    }
    await this.#workspace.end();
  }

  /** Does the same. */
  close(): Promise<void> {
    return this.delete();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Leaves the session as it is, to come back to it by its state. */
  async disconnect(): Promise<void> {
    await this.#closePorts();
    await this.#workspace.close();
  }

  async #closePorts(): Promise<void> {
    const ports = [...this.#ports.values()];
    this.#ports.clear();
    await Promise.allSettled(ports.map(async (port) => (await port).close()));
  }
}

/** What came of a change, in words for a model. */
export interface EditResult {
  status: "completed" | "failed";
  output: string;
}

/** What changes files, by one function for each kind of change. */
export interface Editor {
  createFile(operation: Extract<PatchOperation, { type: "create_file" }>): Promise<EditResult>;
  updateFile(operation: Extract<PatchOperation, { type: "update_file" }>): Promise<EditResult>;
  deleteFile(operation: Extract<PatchOperation, { type: "delete_file" }>): Promise<EditResult>;
}

/** How large an image may be. */
const imageMost = 10 << 20;

/** Refuses another user than that of the agent, because the agent has no files of others. */
function asAgent(runAs: string | undefined): void {
  if (runAs !== undefined) throw new UnsupportedError("files as another user: only commands can run as one, so leave runAs or filesystem() out", "runAs");
}

function portNumber(port: number): number {
  if (!Number.isInteger(port) || port < 1 || port > 65535) throw new UsageError(`the port is ${String(port)}, and must be from 1 to 65535`);
  return port;
}

function isBelow(path: string, directory: string): boolean {
  return path === directory || path.startsWith(directory === "/" ? "/" : `${directory}/`);
}

function parentOf(path: string): string {
  return path.slice(0, path.lastIndexOf("/")) || "/";
}

/** Reports whether a name is there, also that of a link to nothing. */
async function there(files: Files, path: string): Promise<boolean> {
  return (await look(files, path)) !== "";
}

/** Returns what tells a file from the same file after a change; empty: nothing is there. */
async function look(files: Files, path: string): Promise<string> {
  try {
    const { size, modifiedAtMs } = await files.stat(path, { follow: false });
    return `${size} bytes of ${modifiedAtMs}`;
  } catch (error) {
    if (isMissing(error)) return "";
    throw error;
  }
}

function throwMissing(error: unknown, message: string): never {
  throw isMissing(error) ? new MissingPath(message) : error;
}

/** Tells an image by its first bytes. */
function imageType(bytes: Uint8Array): string | undefined {
  const text = Array.from(bytes.subarray(0, 512), (byte) => String.fromCharCode(byte)).join("");
  const found = ([
    [/^\x89PNG\r\n\x1a\n/, "image/png"], [/^\xff\xd8\xff/, "image/jpeg"], [/^GIF8[79]a/, "image/gif"], [/^RIFF....WEBP/s, "image/webp"],
    [/^BM/, "image/bmp"], [/^(?:II\*\0|MM\0\*)/, "image/tiff"], [/^\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<svg[\s>]/is, "image/svg+xml"],
  ] as const).find(([pattern]) => pattern.test(text));
  return found?.[1];
}
