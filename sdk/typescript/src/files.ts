import { anything, bytes, count, flag, list, oneOf, optional, otherwise, record, text, type Check } from "./check.js";
import { background, cleanupMs, nothing, type CallOptions, type Client, type Method, type ParamsOf } from "./client.js";
import { isLoss, isShortOfMemory, isUnsent, within, type Connection } from "./connection.js";
import { AgentError, ClosedError, NotFoundError, ProtocolError, ServerError, serverError, TimeoutError, UsageError } from "./errors.js";
import { confinement, type Policy } from "./sandbox.js";
import { concat, encodeBase64, toBytes, toText } from "./text.js";
import { toPath, toURI } from "./uri.js";
import { Watch } from "./watch.js";
import type { Sandbox } from "./wire.js";

/** What is known of a file; of a link, its target. */
export interface Stat {
  readonly isFile: boolean;
  readonly isDirectory: boolean;
  /** Whether the path itself is a link. */
  readonly isSymlink: boolean;
  readonly size: number;
  /** 0 where the file system does not know it. */
  readonly createdAtMs: number;
  readonly modifiedAtMs: number;
}

/** A name in a directory. A link is described by its target, and left out if it has none. */
export interface Entry {
  readonly name: string;
  readonly isFile: boolean;
  readonly isDirectory: boolean;
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

/** How large a file may be to pass as one message, in bytes: in base64 it is then below 64 MiB. */
const wholeMost = 32 << 20;

/** The most bytes of an open file that one request reads or writes. */
const blockMost = 1 << 20;

/** How many blocks of a file are read ahead. */
const blocksAhead = 4;

const path: Check<string> = (value, at) => toPath(value, at);
const metadata = record({ isDirectory: flag, isFile: flag, isSymlink: flag, size: count, createdAtMs: otherwise(anything, 0), modifiedAtMs: otherwise(anything, 0) });
const directory = record({ entries: list(record({ fileName: text, isDirectory: flag, isFile: flag })) });
const walked = record({
  entries: list(record({ path, kind: oneOf("file", "directory") })),
  errors: list(record({ path: (value, at) => (typeof value === "string" && value.startsWith("file:///") ? toPath(value, at) : text(value, at)), message: text })),
  truncated: flag,
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

  /** Returns the same files as a command with this policy sees and may change them. */
  under(policy: Policy): Files {
    return new Files(this.#client, confinement({ ...policy, network: "off" }, undefined).sandbox);
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
    const { size } = await this.stat(path, options);
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
   * there. The folder has to exist.
   */
  async write(path: string, data: string | Uint8Array | ReadableStream<Uint8Array>, options?: CallOptions): Promise<void> {
    if (typeof data !== "string" && !(data instanceof Uint8Array)) return this.#writeStream(path, data, options);
    const content = toBytes(data);
    if (content.length <= wholeMost) {
      await this.#change(path, "fs/writeFile", { ...this.#at(path), dataBase64: encodeBase64(content) }, options);
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
        const { done, value } = await reader.read();
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

  /** Describes a file; for a link, its target. */
  async stat(path: string, options?: CallOptions): Promise<Stat> {
    const { createdAtMs, modifiedAtMs, ...rest } = await this.#ask(path, "fs/getMetadata", this.#at(path), metadata, options);
    return { ...rest, createdAtMs: Number(createdAtMs), modifiedAtMs: Number(modifiedAtMs) };
  }

  /** Reports whether a path exists. A link to nothing does not. */
  async exists(path: string, options?: CallOptions): Promise<boolean> {
    try {
      await this.stat(path, options);
      return true;
    } catch (error) {
      if (error instanceof NotFoundError || (error instanceof ServerError && error.errno === 20)) return false;
      throw error;
    }
  }

  /** Resolves all links of a path that exists. */
  async realpath(path: string, options?: CallOptions): Promise<string> {
    return (await this.#ask(path, "fs/canonicalize", this.#at(path), record({ path: (value, at) => toPath(value, at) }), options)).path;
  }

  /** Lists a directory, in the order of the agent's system. */
  async list(path: string, options?: CallOptions): Promise<Entry[]> {
    const { entries } = await this.#ask(path, "fs/readDirectory", this.#at(path), directory, options);
    return entries.map(({ fileName, isFile, isDirectory }) => ({ name: fileName, isFile, isDirectory }));
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
    return Watch.open(this.#client, this.#with({ path: toURI(path), recursive: options.recursive === true }), options);
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
    if (error instanceof ServerError) throw serverError({ code: error.number, message: error.text, data: error.data }, path);
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
