import { anything, bytes, count, flag, integer, list, oneOf, optional, otherwise, record, text, type Check } from "./check.js";
import { background, cleanupMs, nothing, type CallOptions, type Client, type Method, type ParamsOf } from "./client.js";
import { isLoss, isShortOfMemory, isUnsent, until, within, type Connection } from "./connection.js";
import { AgentError, ClosedError, NotFoundError, ProtocolError, ServerError, serverError, TimeoutError, UsageError, withPath } from "./errors.js";
import { confinement, type Policy } from "./sandbox.js";
import { concat, encodeBase64, toBytes, toText } from "./text.js";
import { toPath, toURI } from "./uri.js";
import { Watch } from "./watch.js";
import type { Sandbox } from "./wire.js";

/** What a file is. */
export type FileType = "file" | "directory" | "symlink" | "fifo" | "socket" | "blockDevice" | "characterDevice" | (string & {});

/** Options of calls that describe files. */
export interface StatOptions extends CallOptions {
  /** Describe what links lead to, which is the default, or with `false` the links themselves. */
  follow?: boolean | undefined;
}

/**
 * What is known of a file; of a link, its target, unless `follow` is false. From `type` on it is undefined where the agent
 * does not know it, or has no `fsMetadata`.
 */
export interface Stat {
  readonly isFile: boolean;
  readonly isDirectory: boolean;
  /** Whether the path itself is a link. */
  readonly isSymlink: boolean;
  readonly size: number;
  /** 0 where the file system does not know it. */
  readonly createdAtMs: number;
  readonly modifiedAtMs: number;
  readonly type: FileType | undefined;
  /** Permissions, set-ID bits and the sticky bit. */
  readonly mode: number | undefined;
  readonly uid: number | undefined;
  readonly gid: number | undefined;
  /** The names of these numbers. */
  readonly owner: string | undefined;
  readonly group: string | undefined;
  /** What a link leads to, with `follow: false`: any text. */
  readonly linkTarget: string | undefined;
}

/**
 * A name in a directory. A link is described by its target, and left out if it has none. With `follow: false` each name is
 * described itself, and from `type` on there is what the agent knows of it.
 */
export interface Entry {
  readonly name: string;
  readonly isFile: boolean;
  readonly isDirectory: boolean;
  readonly type: FileType | undefined;
  readonly size: number | undefined;
  readonly modifiedAtMs: number | undefined;
  readonly mode: number | undefined;
}

/** Options of {@link Files.write}. Mode, parents, exclusive and atomic need the agent's `fsWriteOptions`, and content of at most 32 MiB. */
export interface WriteOptions extends CallOptions {
  /** The permissions afterwards, such as 0o755, whatever the umask is. By default those that the file has, or those of every new file. */
  mode?: number | undefined;
  /** Make the directories of the path that are missing. */
  parents?: boolean | undefined;
  /** Make a new file. A name that exists, also a link, is an {@link AlreadyExistsError}. */
  exclusive?: boolean | undefined;
  /** Replace the file as a whole: others see the old content or the new one. Permissions and owner stay, or nothing changes. */
  atomic?: boolean | undefined;
}

/** Options of {@link Files.search}. */
export interface SearchOptions extends CallOptions {
  /**
   * Which names are looked at, each as a line of a .gitignore, with braces for alternatives, such as `*.{ts,tsx}`. One without a
   * slash is about names at every depth, one with a slash about paths below the directory, one that begins with `!` leaves
   * names out. The last that matches decides.
   */
  globs?: string | readonly string[] | undefined;
  /** What is looked for in lines: a regular expression of RE2. Without it only names are looked for. */
  pattern?: string | undefined;
  /** The pattern is text, and no expression. */
  literal?: boolean | undefined;
  /** Upper and lower case are the same in lines. */
  ignoreCase?: boolean | undefined;
  /** Also names that begin with a dot. */
  hidden?: boolean | undefined;
  /** Also what a .gitignore names. */
  noIgnore?: boolean | undefined;
  /** The only kind that is listed, without a pattern. */
  kind?: SearchedFile["kind"] | undefined;
  /** How many lines before and after a match are given, up to 100. */
  before?: number | undefined;
  after?: number | undefined;
  /** How many lines are given, or files without a pattern; 1000 by default. */
  maxMatches?: number | undefined;
  /** How many lines of one file. */
  maxFileMatches?: number | undefined;
  /** How many names are looked at; 100,000 by default. */
  maxFiles?: number | undefined;
  /** How deep it goes; 0 looks only at what is in the directory. */
  maxDepth?: number | undefined;
  /** How many bytes of a line are given, around the match; 512 by default. */
  maxLineBytes?: number | undefined;
  /** How long the agent may search; 10 s by default. Then `truncated` is `time`. */
  timeoutMs?: number | undefined;
}

/** A line that matches. */
export interface SearchMatch {
  /** The number of the line, from 1. */
  readonly line: number;
  /** The byte of the line where the first match begins, from 1, and how many bytes it has. */
  readonly column: number;
  readonly length: number;
  /** The line, or of a long line a part with the match. */
  readonly text: string;
  /** The byte of the line where `text` begins, from 1, and whether the line goes on behind it. */
  readonly textColumn: number;
  readonly cut: boolean;
  /** The lines around, each once. */
  readonly before: readonly string[];
  readonly after: readonly string[];
}

/** A file that {@link Files.search} has found. */
export interface SearchedFile {
  readonly path: string;
  /** What it is. Links are not followed. */
  readonly kind: "file" | "directory" | "symlink" | "other";
  /** The lines that match. Without a pattern there are none. */
  readonly matches: readonly SearchMatch[];
}

/** What {@link Files.search} found, sorted by path. */
export interface Search {
  readonly files: readonly SearchedFile[];
  readonly errors: readonly { readonly path: string; readonly message: string }[];
  /** The bound that was reached, so that something is missing: `matches`, `files`, `depth`, `time`, `size` or `line`. */
  readonly truncated: string | undefined;
  /** How many files were searched, and how many were skipped because they are no text. */
  readonly filesRead: number;
  readonly binaryFiles: number;
}

/** Options of {@link Files.walk}. */
export interface WalkOptions extends CallOptions {
  /** 0 lists the directory alone; at most 64, the default. */
  maxDepth?: number | undefined;
  /** At most 50,000, the default. */
  maxEntries?: number | undefined;
  /** At most 10,000, the default. */
  maxDirectories?: number | undefined;
  /** Enter directories that links lead to. */
  followLinks?: boolean | undefined;
  /** Do not enter directories whose name begins with a dot. */
  skipHidden?: boolean | undefined;
}

/** What {@link Files.walk} found, breadth first. */
export interface Walk {
  readonly entries: readonly { readonly path: string; readonly isDirectory: boolean }[];
  readonly errors: readonly { readonly path: string; readonly message: string }[];
  /** Whether a limit was reached. */
  readonly truncated: boolean;
}

/** What {@link Files.applyPatch} did. */
export interface Patched {
  /** What the tool apply_patch would have printed. */
  readonly output: string;
  readonly changes: readonly { readonly kind: "added" | "updated" | "deleted"; readonly path: string; readonly from: string | undefined }[];
  /** Of a dry run: a unified diff. */
  readonly diff: string | undefined;
}

/** How large a file may be to pass as one message, in bytes: in base64 it is then below 64 MiB. @internal */
export const wholeMost = 32 << 20;

/** The most bytes of an open file that one request reads or writes. */
const blockMost = 1 << 20;

/** The options of a search that go to the agent as they are. */
const searchWords = [
  "pattern", "literal", "ignoreCase", "hidden", "noIgnore", "kind", "before", "after", "maxMatches", "maxFileMatches", "maxFiles", "maxDepth", "maxLineBytes", "timeoutMs",
] as const;

/** How many paths one request describes, and how many requests are under way where each is about one path. */
const manyMost = 1024;
const statsAhead = 32;

/** How many blocks of a file are read ahead. */
const blocksAhead = 4;

const path: Check<string> = (value, at) => toPath(value, at);
const time: Check<number> = (value) => Number(value ?? 0);
const metadata: Check<Stat> = record({
  isDirectory: flag, isFile: flag, isSymlink: flag, size: count, createdAtMs: time, modifiedAtMs: time, type: optional(text), mode: optional(count),
  uid: optional(count), gid: optional(count), owner: optional(text), group: optional(text), linkTarget: optional(text),
});
const many = record({ files: list(record({ metadata: optional(metadata), error: optional(record({ code: integer, message: text, data: anything })) })) });
const directory = record({
  entries: list(record({
    fileName: text, isDirectory: flag, isFile: flag, type: optional(text), size: optional(count), modifiedAtMs: optional(integer), mode: optional(count),
  })),
});
const errors = list(record({ path: (value, at) => (typeof value === "string" && value.startsWith("file:///") ? toPath(value, at) : text(value, at)), message: text }));
const walked = record({ entries: list(record({ path, kind: oneOf("file", "directory") })), errors, truncated: flag });
const lines = otherwise(list(text), []);
const searched: Check<Search> = record({
  files: list(record({
    path, kind: oneOf("file", "directory", "symlink", "other"),
    matches: otherwise(list(record({ line: count, column: count, length: count, text, textColumn: count, cut: flag, before: lines, after: lines })), []),
  })),
  errors, truncated: optional(text), filesRead: count, binaryFiles: count,
});
const patched: Check<Patched> = record({
  output: text, changes: list(record({ kind: oneOf("added", "updated", "deleted"), path, from: optional(path) })), diff: optional(text),
});
const block = record({ chunk: bytes, eof: flag });

/**
 * The files of the agent. Paths are absolute paths of the agent.
 *
 * After a lost connection requests that only read are made again. Requests that change something are not: their error is a
 * {@link DisconnectedError} that says whether the request was sent.
 */
export class Files {
  readonly #client: Client;
  readonly #sandbox: Sandbox | undefined;

  /** @internal */
  constructor(client: Client, sandbox?: Sandbox) {
    this.#client = client;
    this.#sandbox = sandbox;
  }

  /**
   * Returns the same files as a command with this policy sees and may change them, in the directory cwd. By default that is the
   * first folder of the workspace. Without both a relative pattern is refused.
   */
  under(policy: Policy, { cwd }: { cwd?: string | undefined } = {}): Files {
    return new Files(this.#client, confinement({ ...policy, network: "off" }, cwd ?? [policy.workspace].flat()[0]).sandbox);
  }

  #at(path: string): { path: string; sandbox?: Sandbox } {
    return this.#with({ path: toURI(path) });
  }

  #with<P extends object>(params: P): P & { sandbox?: Sandbox } {
    return this.#sandbox === undefined ? params : { ...params, sandbox: this.#sandbox };
  }

  /** Makes a request that only reads. */
  #ask<T, M extends Method>(path: string, method: M, params: ParamsOf<M>, check: Check<T>, options: CallOptions | undefined): Promise<T> {
    return about(path, this.#client.replay(method, params, check, options));
  }

  /** Makes a request that changes something, once. */
  async #change<M extends Method>(path: string, method: M, params: ParamsOf<M>, options: CallOptions | undefined): Promise<void> {
    await about(path, this.#client.call(method, params, anything, options));
  }

  /** Returns the content of a file. A file above 32 MiB is read in blocks. */
  async read(path: string, options?: CallOptions): Promise<Uint8Array> {
    const { size } = await this.#stat(path, options);
    if (size > wholeMost) return this.#readBlocks(path, options);
    try {
      return (await this.#ask(path, "fs/readFile", this.#at(path), record({ dataBase64: bytes }), options)).dataBase64;
    } catch (error) {
      if (!isShortOfMemory(error)) throw error;
      return this.#readBlocks(path, options);
    }
  }

  /** Returns the content of a file as text. What is not UTF-8 becomes U+FFFD. */
  async readText(path: string, options?: CallOptions): Promise<string> {
    return toText(await this.read(path, options));
  }

  async #readBlocks(path: string, options: CallOptions | undefined): Promise<Uint8Array> {
    const pieces: Uint8Array[] = [];
    const reader = (await this.stream(path, options)).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return concat(pieces);
      pieces.push(value);
    }
  }

  /** Returns the content of a file as a stream. It ends with the connection, because the agent then closes its files. */
  async stream(path: string, options?: CallOptions): Promise<ReadableStream<Uint8Array>> {
    const file = await this.open(path, "read", options);
    const ahead: Promise<{ chunk: Uint8Array; eof: boolean }>[] = [];
    let offset = 0;
    const ask = (): void => {
      while (ahead.length < blocksAhead) {
        const next = file.readBlock(offset, blockMost, options);
        background(next);
        ahead.push(next);
        offset += blockMost;
      }
    };
    return new ReadableStream<Uint8Array>(
      {
        async pull(controller) {
          try {
            ask();
            const { chunk, eof } = await (ahead.shift() as Promise<{ chunk: Uint8Array; eof: boolean }>);
            if (!eof && chunk.length < blockMost) throw new ProtocolError(`a block of ${path} is short, and not the last one`);
            if (chunk.length > 0) controller.enqueue(chunk);
            if (!eof) return;
            controller.close();
            await file.close();
          } catch (error) {
            background(file.close());
            throw error;
          }
        },
        async cancel() {
          await file.close();
        },
      },
      { highWaterMark: 0 },
    );
  }

  /**
   * Creates or replaces a file. Data above 32 MiB, and a stream, is written in blocks, so after an error a part of it may be
   * there. The folder has to exist, unless `parents` is set.
   */
  async write(path: string, data: string | Uint8Array | ReadableStream<Uint8Array>, options: WriteOptions = {}): Promise<void> {
    const { mode, parents, exclusive, atomic } = options;
    const special = mode !== undefined || parents === true || exclusive === true || atomic === true;
    const content = typeof data === "string" || data instanceof Uint8Array ? toBytes(data) : undefined;
    if (special) {
      if (mode !== undefined && !(Number.isInteger(mode) && mode >= 0 && mode <= 0o777)) throw new UsageError(`mode is ${String(mode)}, and must be from 0 to 0o777`);
      if (content === undefined || content.length > wholeMost) {
        throw new UsageError("mode, parents, exclusive and atomic need content of at most 32 MiB, and no stream: make the directory with mkdir, or use upload");
      }
      await this.#client.require("fsWriteOptions", "mode, parents, exclusive and atomic of a file", options);
    }
    if (content === undefined) return this.#writeStream(path, data as ReadableStream<Uint8Array>, options);
    if (content.length <= wholeMost) {
      const params: ParamsOf<"fs/writeFile"> = { ...this.#at(path), dataBase64: encodeBase64(content) };
      if (mode !== undefined) params.mode = mode;
      if (parents === true) params.parents = true;
      if (exclusive === true) params.exclusive = true;
      if (atomic === true) params.atomic = true;
      await this.#change(path, "fs/writeFile", params, options);
      return;
    }
    const file = await this.open(path, "write", options);
    try {
      await file.writeAt(0, content, options);
    } finally {
      await file.close();
    }
  }

  async #writeStream(path: string, data: ReadableStream<Uint8Array>, options: CallOptions | undefined): Promise<void> {
    const reader = data.getReader();
    let file: OpenFile | undefined;
    try {
      file = await this.open(path, "write", options);
      for (let offset = 0; ; ) {
        const { done, value } = await until(reader.read(), options?.signal);
        if (done) return;
        await file.writeAt(offset, value, options);
        offset += value.length;
      }
    } catch (error) {
      background(reader.cancel(error));
      throw error;
    } finally {
      await file?.close();
    }
  }

  #stat(path: string, options: CallOptions | undefined, details?: "stat" | "lstat"): Promise<Stat> {
    return this.#ask(path, "fs/getMetadata", { ...this.#at(path), ...(details && { details }) }, metadata, options);
  }

  /** Returns the details to ask for. */
  async #details({ follow, ...options }: StatOptions): Promise<"stat" | "lstat" | undefined> {
    if (follow === false) {
      await this.#client.require("fsMetadata", "describing links", options);
      return "lstat";
    }
    const { capabilities } = await this.#client.info(options);
    return capabilities["fsMetadata"] === true ? "stat" : undefined;
  }

  /** Describes a file. */
  async stat(path: string, options: StatOptions = {}): Promise<Stat> {
    return this.#stat(path, options, await this.#details(options));
  }

  /**
   * Describes many files, each by what is known of it or by the error that {@link stat} would throw, in their order. It makes
   * one request for 1,024 paths; an agent without `fsMetadata` is asked for each path.
   */
  async statMany(paths: readonly string[], options: StatOptions = {}): Promise<(Stat | ServerError)[]> {
    const details = await this.#details(options);
    const found: (Stat | ServerError)[] = [];
    while (found.length < paths.length) {
      const some = paths.slice(found.length, found.length + (details === undefined ? statsAhead : manyMost));
      found.push(...(details === undefined ? await Promise.all(some.map((path) => this.#statOrError(path, options))) : await this.#statSome(some, details, options)));
    }
    return found;
  }

  async #statOrError(path: string, options: CallOptions): Promise<Stat | ServerError> {
    return this.#stat(path, options).catch((error: unknown) => {
      if (error instanceof ServerError) return error;
      throw error;
    });
  }

  async #statSome(paths: readonly string[], details: "stat" | "lstat", options: CallOptions): Promise<(Stat | ServerError)[]> {
    const params = this.#with({ paths: paths.map(toURI), details });
    const { files } = await this.#client.replay("fs/getMetadataMany", params, many, options);
    if (files.length !== paths.length) throw new ProtocolError(`${paths.length} files were asked for, and ${files.length} came`);
    return files.map(({ metadata, error }, i) => {
      const found = metadata ?? (error && serverError(error, paths[i]));
      if (found === undefined) throw new ProtocolError("fs/getMetadataMany answered neither metadata nor an error");
      return found;
    });
  }

  /** Reports whether a path exists. A link to nothing does not. */
  async exists(path: string, options?: CallOptions): Promise<boolean> {
    try {
      await this.#stat(path, options);
      return true;
    } catch (error) {
      if (error instanceof NotFoundError || (error instanceof ServerError && error.errno === 20)) return false;
      throw error;
    }
  }

  /** Resolves all links of a path that exists. With `missingOk` names at its end may be missing, also behind a link. */
  async realpath(path: string, options: CallOptions & { missingOk?: boolean | undefined } = {}): Promise<string> {
    const params: ParamsOf<"fs/canonicalize"> = this.#at(path);
    if (options.missingOk === true) {
      await this.#client.require("fsCanonicalizeMissing", "canonical paths of missing files", options);
      params.allowMissing = true;
    }
    return (await this.#ask(path, "fs/canonicalize", params, record({ path: (value, at) => toPath(value, at) }), options)).path;
  }

  /** Lists a directory, in the order of the agent's system. */
  async list(path: string, options: StatOptions = {}): Promise<Entry[]> {
    const params: ParamsOf<"fs/readDirectory"> = this.#at(path);
    if (options.follow === false) {
      await this.#client.require("fsReadDirectoryLstat", "lists of links", options);
      params.entries = "lstat";
    }
    const { entries } = await this.#ask(path, "fs/readDirectory", params, directory, options);
    return entries.map(({ fileName, ...rest }) => ({ name: fileName, ...rest }));
  }

  /**
   * Looks for names, or with a pattern for lines of files, below a directory or in a file. Names that begin with a dot and
   * what a .gitignore names are left out. It needs no other program at the agent.
   */
  async search(path: string, options: SearchOptions = {}): Promise<Search> {
    await this.#client.require("fsSearch", "searching files", options);
    const params: Record<string, unknown> = { ...this.#at(path) };
    for (const word of searchWords) if (options[word] !== undefined) params[word] = options[word];
    if (options.globs !== undefined) params["globs"] = typeof options.globs === "string" ? [options.globs] : [...options.globs];
    return this.#ask(path, "fs/search", params as unknown as ParamsOf<"fs/search">, searched, options);
  }

  /** Lists a tree, breadth first. Links to files are not listed. */
  async walk(path: string, options: WalkOptions = {}): Promise<Walk> {
    const params = {
      ...this.#at(path),
      options: {
        maxDepth: options.maxDepth ?? 64, maxDirectories: options.maxDirectories ?? 10_000, maxEntries: options.maxEntries ?? 50_000,
        followDirectorySymlinks: options.followLinks === true, pruneHiddenDirectories: options.skipHidden === true,
      },
    };
    const { entries, errors, truncated } = await this.#ask(path, "fs/walk", params, walked, options);
    return { entries: entries.map((entry) => ({ path: entry.path, isDirectory: entry.kind === "directory" })), errors, truncated };
  }

  /** Makes a directory, with its parents. With `parents: false` the directory must not exist, and its parent must. */
  async mkdir(path: string, options: CallOptions & { parents?: boolean | undefined } = {}): Promise<void> {
    await this.#change(path, "fs/createDirectory", { ...this.#at(path), recursive: options.parents !== false }, options);
  }

  /** Removes a file, a link or an empty directory; with `recursive` a tree. With `missingOk` it need not exist. */
  async remove(path: string, options: CallOptions & { recursive?: boolean | undefined; missingOk?: boolean | undefined } = {}): Promise<void> {
    const params = { ...this.#at(path), recursive: options.recursive === true, force: options.missingOk === true };
    await this.#change(path, "fs/remove", params, options);
  }

  /** Moves a path within one mount. With `replace: false` nothing may be there. */
  async rename(from: string, to: string, options: CallOptions & { replace?: boolean | undefined } = {}): Promise<void> {
    await this.#client.require("fsRename", "renaming files", options);
    const params = this.#with({ sourcePath: toURI(from), destinationPath: toURI(to), replace: options.replace !== false });
    await this.#change(from, "fs/rename", params, options);
  }

  /** Copies a file, a link or a tree. */
  async copy(from: string, to: string, options?: CallOptions): Promise<void> {
    await this.#change(from, "fs/copy", this.#with({ sourcePath: toURI(from), destinationPath: toURI(to), recursive: true }), options);
  }

  /**
   * Opens a file, to read it at any place, or to write it: `write` empties or creates it at once. It ends with the
   * connection, because the agent then closes its files.
   */
  async open(path: string, mode: "read" | "write" = "read", options: CallOptions = {}): Promise<OpenFile> {
    if (mode !== "read" && mode !== "write") throw new UsageError(`the mode of open is ${String(mode)}, and must be read or write`);
    if (mode === "write") await this.#client.require("fileWriteStreaming", "writing files in blocks", options);
    if (this.#sandbox !== undefined) await this.#client.require("sandboxedFileStreaming", "open files under a policy", options);
    const id = `f${this.#client.nextId()}`;
    const params: ParamsOf<"fs/open"> = { ...this.#at(path), handleId: id, mode: mode === "read" ? "read" : "replace" };
    for (;;) {
      const over = await this.#client.connected(options);
      const file = new OpenFile(this.#client, over, id, path);
      try {
        await about(path, this.#client.calledOver(over, "fs/open", params, anything, options.signal));
        return file;
      } catch (error) {
        if (isUnsent(error)) continue;
        // It may be open at the agent, although no answer came.
        if (!(error instanceof AgentError)) background(file.close());
        throw error;
      }
    }
  }

  /**
   * Watches a path, which need not exist: the file there, in a directory each name, and with `recursive` everything below
   * it. What changes after this has returned is told.
   */
  async watch(path: string, options: CallOptions & { recursive?: boolean | undefined } = {}): Promise<Watch> {
    await this.#client.require("fsWatch", "watching files", options);
    return Watch.open(new Watch(this.#client, this.#with({ path: toURI(path), recursive: options.recursive === true })), options);
  }

  /**
   * Changes files as a patch of the tool apply_patch says, all of them or none. Relative paths of the patch are below cwd.
   * With `dryRun` nothing changes, and there is a diff. The `text` of a {@link ServerError} is what a model expects.
   */
  async applyPatch(patch: string, options: CallOptions & { cwd: string; dryRun?: boolean | undefined }): Promise<Patched> {
    await this.#client.require("fsApplyPatch", "applying patches", options);
    const params = this.#with({ patch, cwd: toURI(options.cwd), dryRun: options.dryRun === true });
    if (options.dryRun === true) return this.#client.replay("fs/applyPatch", params, patched, options);
    return this.#client.call("fs/applyPatch", params, patched, options);
  }
}

/** Puts a path before the text of an error. */
async function about<T>(path: string, call: Promise<T>): Promise<T> {
  try {
    return await call;
  } catch (error) {
    if (error instanceof ServerError) throw withPath(error, path);
    throw error;
  }
}

/** An open file at the agent. It ends with the connection. */
export class OpenFile implements AsyncDisposable {
  readonly path: string;
  readonly #client: Client;
  readonly #over: Connection;
  readonly #id: string;
  #closed = false;

  /** @internal */
  constructor(client: Client, over: Connection, id: string, path: string) {
    this.#client = client;
    this.#over = over;
    this.#id = id;
    this.path = path;
  }

  #call<T, M extends Method>(method: M, params: ParamsOf<M>, check: Check<T>, signal: AbortSignal | undefined): Promise<T> {
    if (this.#closed) return Promise.reject(new ClosedError("the file"));
    return about(this.path, this.#client.calledOver(this.#over, method, params, check, signal));
  }

  /** Reads bytes from an offset on. Fewer come at the end of the file, and none behind it. */
  async readAt(offset: number, length: number, options: { signal?: AbortSignal | undefined } = {}): Promise<Uint8Array> {
    place(offset, "offset");
    place(length, "length");
    const pieces: Uint8Array[] = [];
    for (let at = 0; at < length; ) {
      const { chunk, eof } = await this.readBlock(offset + at, Math.min(length - at, blockMost), options);
      pieces.push(chunk);
      at += chunk.length;
      if (eof || chunk.length === 0) break;
    }
    return pieces.length === 1 ? (pieces[0] as Uint8Array) : concat(pieces);
  }

  /** @internal */
  async readBlock(offset: number, len: number, options: { signal?: AbortSignal | undefined } = {}): Promise<{ chunk: Uint8Array; eof: boolean }> {
    const read = await this.#call("fs/readBlock", { handleId: this.#id, offset, len }, block, options.signal);
    if (read.chunk.length > len) throw new ProtocolError(`${len} bytes of ${this.path} were asked for, and ${read.chunk.length} came`);
    return read;
  }

  /** Writes bytes from an offset on. A gap behind the end of the file becomes zeros. */
  async writeAt(offset: number, data: string | Uint8Array, options: { signal?: AbortSignal | undefined } = {}): Promise<void> {
    place(offset, "offset");
    const content = toBytes(data);
    for (let at = 0; at < content.length; at += blockMost) {
      const chunk = encodeBase64(content.subarray(at, at + blockMost));
      await this.#call("fs/writeBlock", { handleId: this.#id, offset: offset + at, chunk }, nothing, options.signal);
    }
  }

  /** Closes the file, within 10 s. It is no error to do it again, nor to do it after the connection is gone. */
  async close(): Promise<void> {
    if (this.#closed) return;
    const late = (): TimeoutError => new TimeoutError(`the server did not close ${this.path}`, cleanupMs);
    const closing = within(cleanupMs, late, undefined, (signal) => this.#call("fs/close", { handleId: this.#id }, nothing, signal));
    this.#closed = true;
    try {
      await closing;
    } catch (error) {
      if (!isLoss(error)) throw error;
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

function place(value: number, name: string): void {
  if (!Number.isSafeInteger(value) || value < 0) throw new UsageError(`${name} is ${String(value)}, and must be a whole number from 0 on`);
}
