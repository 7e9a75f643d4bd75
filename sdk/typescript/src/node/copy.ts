import { createHash, randomBytes, type Hash } from "node:crypto";
import { constants, type BigIntStats } from "node:fs";
import { link, lstat, lutimes, mkdir, open, readdir, readlink, realpath, rename, stat, symlink, unlink, type FileHandle } from "node:fs/promises";
import { basename, dirname, resolve } from "node:path";
import type { Agent } from "../agent.js";
import { cleanupMs } from "../client.js";
import { AgentError, messageOf, NotFoundError, ProtocolError, UsageError } from "../errors.js";
import { Feed } from "../feed.js";
import type { Process } from "../process.js";
import { printable } from "../text.js";
import { toURI } from "../uri.js";
import { padded, readHeader, writeHeader, type Header } from "./tar.js";

/** Options of a copy. */
export interface CopyOptions {
  /** Ends the copy. A file that was not complete is not there. */
  signal?: AbortSignal | undefined;
  /** Copy what a link leads to that is named itself. */
  follow?: boolean | undefined;
  /** Called with the bytes of content that were copied so far. */
  onProgress?: ((bytes: number) => void) | undefined;
}

/** Not everything was copied. Each file that was left out is named, with the reason, up to 100 of them. */
export class CopyError extends AgentError {
  readonly code = "COPY";

  constructor(
    /** Lines for people. */
    readonly notes: readonly string[],
    /** Whether all the rest was copied. */
    readonly incomplete: boolean,
    cause?: unknown,
  ) {
    super(`${incomplete ? "not everything was copied" : "the copy failed"}: ${notes.slice(0, 3).join("; ")}${notes.length > 3 ? `; and ${notes.length - 3} more` : ""}`, cause);
  }
}

const maxNotes = 100;
const maxDepth = 512;
const maxName = 64 << 10;
const maxEntries = 50_000_000;
const maxFile = 2 ** 50;

/** How much is read and written at once. A smaller file is sent with its sum in its header. */
const buffered = 512 << 10;

/** The agent sends so much beyond what was acknowledged. Each quarter is. */
const windowBytes = 4 << 20;

const slash = Buffer.from("/");

/** What a copy tells its caller in the end. @internal */
export class Notes {
  readonly lines: string[] = [];

  add(path: Buffer | string, error: unknown): void {
    if (this.lines.length < maxNotes) this.lines.push(`${printable(String(path), 512)}: ${reasonOf(error)}`);
  }
}

function reasonOf(error: unknown): string {
  const { code } = error as NodeJS.ErrnoException;
  return typeof code === "string" && error instanceof Error && !(error instanceof AgentError) ? (systemTexts[code] ?? code) : printable(messageOf(error));
}

const systemTexts: Readonly<Record<string, string>> = {
  ENOENT: "No such file or directory", EACCES: "Permission denied", EPERM: "Operation not permitted", ENOTDIR: "Not a directory", EISDIR: "Is a directory",
  EEXIST: "File exists", ELOOP: "Is a link", ENOTEMPTY: "Directory not empty", ENOSPC: "No space left on device", EROFS: "Read-only file system",
};

/** Errors that every other file would meet, too. */
const fatal = new Set(["ENOSPC", "EDQUOT", "EIO", "ENOMEM", "EMFILE", "ENFILE"]);

/** Reports whether a path means what is in the directory, and not the directory itself. */
function contents(path: string): boolean {
  return path.endsWith("/.") || [".", "..", "", "/"].includes(basename(path)) || path === "/";
}

/** The tool at the agent, and what it says. @internal */
export class Tool {
  readonly said: string[] = [];
  readonly #listening: Promise<void>;

  private constructor(readonly process: Process) {
    this.#listening = this.#listen().catch(() => {});
  }

  static async start(agent: Agent, request: object, options: CopyOptions): Promise<Tool> {
    return new Tool(await agent.builtin(["copy", JSON.stringify(request)], { signal: options.signal }));
  }

  async #listen(): Promise<void> {
    let rest = "";
    const decoder = new TextDecoder();
    for await (const piece of this.process.stderr) {
      const lines = (rest + decoder.decode(piece, { stream: true })).split("\n");
      rest = (lines.pop() as string).slice(0, 4096);
      for (const line of lines) if (this.said.length < maxNotes) this.said.push(printable(line, 4096));
    }
  }

  /** Waits for the end of the tool, and throws if not everything was copied. */
  async finish(notes: Notes, signal: AbortSignal | undefined): Promise<void> {
    const { exitCode } = await this.process.wait({ signal });
    await this.#listening;
    const all = [...this.said, ...notes.lines];
    if (exitCode !== 0 && all.length === 0) all.push(`the agent's tool ended with ${exitCode}`);
    if (all.length > 0) throw new CopyError(all, true);
  }

  /** Ends the tool, which then removes what is incomplete. It returns why the copy has failed. */
  async giveUp(error: unknown, signal: AbortSignal | undefined): Promise<unknown> {
    try {
      void this.process.stdout.cancel().catch(() => {});
      await this.process.closeStdin({ signal: AbortSignal.timeout(cleanupMs) }).catch(() => {});
      const { exitCode } = await this.process.wait({ timeoutMs: 5000 });
      await this.#listening;
      // The error here is often only an effect of the tool's end.
      if (exitCode !== 0 && this.said.length > 0 && !signal?.aborted && !(error instanceof CopyError)) {
        return missing(this.said) ?? new CopyError(this.said, false, error);
      }
    } catch {
      await this.process.kill().catch(() => {});
    } finally {
      this.process.close();
    }
    return error;
  }
}

/** Returns the error for a source that does not exist. */
function missing(said: readonly string[]): NotFoundError | undefined {
  const [, path] = /^(.*): no such file or directory$/i.exec(said[0] ?? "") ?? [];
  return path === undefined || said.length > 1 ? undefined : notFound(path);
}

function notFound(path: string): NotFoundError {
  return new NotFoundError({ code: -32004, message: "No such file or directory (os error 2)" }, path);
}

/** Copies from here to the agent. */
export async function upload(agent: Agent, from: string, to: string, options: CopyOptions = {}): Promise<void> {
  toURI(to); // which refuses a relative path
  const { signal } = options;
  const inside = contents(from);
  const root = inside || options.follow === true || from.endsWith("/") ? await realpath(from).catch(throwLocal) : resolve(from);
  const info = await lstat(root).catch(throwLocal);
  if ((inside || from.endsWith("/")) && !info.isDirectory()) throw new UsageError(`${printable(from, 256)} is not a directory`);
  const tool = await Tool.start(agent, { receive: to }, options);
  void tool.process.stdout.cancel().catch(() => {}); // it writes nothing there
  const notes = new Notes();
  try {
    const feed = new Feed(tool.process.handle.writer, { signal });
    const sender = new Sender(feed, notes, options);
    await sender.send(inside ? "." : basename(root), root);
    await feed.flush();
    await tool.process.closeStdin({ signal });
    await tool.finish(notes, signal);
    tool.process.close();
  } catch (error) {
    if (error instanceof CopyError && error.incomplete) throw error;
    throw await tool.giveUp(error, signal);
  }
}

function throwLocal(error: unknown): never {
  const { code, path } = error as NodeJS.ErrnoException;
  if (code === "ENOENT") throw notFound(path ?? "the source");
  throw new UsageError(`${path ?? "the source"}: ${reasonOf(error)}`, error);
}

/** Sends a tree. A file that cannot be read is left out, and named. */
class Sender {
  #count = 0;
  #sent = 0;
  #gathered: Buffer[] = [];
  #gatheredLength = 0;
  readonly #links = new Map<string, Buffer>();
  readonly #buffer = Buffer.allocUnsafe(buffered);

  constructor(
    private readonly feed: Feed,
    private readonly notes: Notes,
    private readonly options: CopyOptions,
  ) {}

  /** Links are followed only on the way to the root, even if somebody replaces a directory meanwhile. */
  async send(name: string, root: string): Promise<void> {
    await this.#record({ "EXECAGENT.begin": "1" });
    const above = await open(dirname(root), constants.O_RDONLY | constants.O_DIRECTORY);
    try {
      await this.#tree(Buffer.from(name), above, Buffer.from(basename(root)), Buffer.from(root), 0);
    } finally {
      await above.close();
    }
    await this.#record({ "EXECAGENT.end": String(this.#count) });
    await this.#write(Buffer.alloc(1024));
    await this.#flush();
  }

  async #write(bytes: Buffer): Promise<void> {
    this.#gathered.push(bytes);
    this.#gatheredLength += bytes.length;
    if (this.#gatheredLength >= 1 << 20) await this.#flush();
  }

  async #flush(): Promise<void> {
    this.options.signal?.throwIfAborted();
    const all = Buffer.concat(this.#gathered, this.#gatheredLength);
    this.#gathered = [];
    this.#gatheredLength = 0;
    if (all.length > 0) await this.feed.write(all);
  }

  #record(records: Readonly<Record<string, string>>): Promise<void> {
    return this.#write(writeHeader({ kind: "global", records: new Map(Object.entries(records).map(([key, value]) => [key, Buffer.from(value)])) }));
  }

  /** Sends what is under a name in an open directory. path is for people. */
  async #tree(name: Buffer, at: FileHandle, last: Buffer, path: Buffer, depth: number): Promise<void> {
    const here = within(at, last);
    let info: BigIntStats;
    try {
      info = await lstat(here, { bigint: true });
    } catch (error) {
      return this.notes.add(path, error);
    }
    if (name.length > maxName) return this.notes.add(path, new Error("its name is too long"));
    const common = { mode: Number(info.mode) & 0o777, mtime: timeOf(info) };
    if (info.isFile()) return this.#file(name, here, path);
    if (info.isSymbolicLink()) {
      try {
        await this.#entry({ kind: "symlink", name, link: await readlink(here, { encoding: "buffer" }), ...common });
      } catch (error) {
        this.#omit(path, error);
      }
      return;
    }
    if (!info.isDirectory()) return this.notes.add(path, new Error("left out: neither a file nor a directory nor a link"));
    await this.#entry({ kind: "directory", name: Buffer.concat([name, slash]), mode: Number(info.mode) & 0o1777, mtime: common.mtime });
    let directory: FileHandle | undefined;
    try {
      let names: Buffer[];
      try {
        directory = await openDirectory(at, last);
        names = (await readdir(within(directory, Buffer.from(".")), { encoding: "buffer" })).sort(Buffer.compare);
      } catch (error) {
        return this.notes.add(path, error);
      }
      if (depth >= maxDepth && names.length > 0) return this.notes.add(path, new Error(`it would be more than ${maxDepth} directories deep`));
      for (const one of names) await this.#tree(Buffer.concat([name, slash, one]), directory, one, Buffer.concat([path, slash, one]), depth + 1);
    } finally {
      await directory?.close();
    }
  }

  /** Notes that something cannot be read. An error of the connection ends the copy. */
  #omit(path: Buffer, error: unknown): void {
    if (error instanceof AgentError || typeof (error as NodeJS.ErrnoException).code !== "string") throw error;
    this.notes.add(path, error);
  }

  async #entry(header: Parameters<typeof writeHeader>[0]): Promise<void> {
    this.#count++;
    await this.#write(writeHeader(header));
  }

  async #file(name: Buffer, here: Buffer, path: Buffer): Promise<void> {
    let file: FileHandle;
    try {
      file = await open(here, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
    } catch (error) {
      return this.notes.add(path, error);
    }
    try {
      const info = await file.stat({ bigint: true });
      if (!info.isFile()) return this.notes.add(path, new Error("left out: neither a file nor a directory nor a link"));
      const common = { name, mode: Number(info.mode) & 0o777, mtime: timeOf(info) };
      const id = info.nlink > 1n ? `${info.dev}:${info.ino}` : undefined;
      const first = id === undefined ? undefined : this.#links.get(id);
      if (first !== undefined) return await this.#entry({ kind: "hardlink", link: first, ...common });
      const size = Number(info.size);
      let length = 0;
      // A small file is sent with the size that was read, whatever its file system says.
      while (length < buffered) {
        const { bytesRead } = await file.read(this.#buffer, length, buffered - length);
        if (bytesRead === 0) break;
        length += bytesRead;
      }
      const begin = Buffer.from(this.#buffer.subarray(0, length));
      if (length < buffered || size === length) {
        const sum = createHash("sha256").update(begin).digest("hex");
        await this.#entry({ kind: "file", ...common, size: length, records: new Map([["EXECAGENT.sha256", Buffer.from(sum)]]) });
        await this.#content(begin);
        await this.#write(Buffer.alloc(padded(length) - length));
      } else if (size < length) {
        return this.notes.add(path, new Error("left out: its size is not known"));
      } else {
        await this.#entry({ kind: "file", ...common, size });
        if (!(await this.#rest(file, path, begin, size))) return;
      }
      if (id !== undefined) this.#links.set(id, name);
    } catch (error) {
      this.#omit(path, error);
    } finally {
      await file.close();
    }
  }

  async #content(piece: Buffer): Promise<void> {
    await this.#write(piece);
    this.#sent += piece.length;
    this.options.onProgress?.(this.#sent);
  }

  /** Sends a large file. It reports whether all of it was there; otherwise the rest is zeros, and the receiver drops it. */
  async #rest(file: FileHandle, path: Buffer, begin: Buffer, size: number): Promise<boolean> {
    const sum = createHash("sha256").update(begin);
    await this.#content(begin);
    let whole = true;
    for (let at = begin.length; at < size; ) {
      const want = Math.min(buffered, size - at);
      let piece = Buffer.alloc(want);
      if (whole) {
        try {
          const { bytesRead } = await file.read(piece, 0, want);
          if (bytesRead === 0) throw new Error("left out: it has become shorter while it was read");
          piece = piece.subarray(0, bytesRead);
        } catch (error) {
          whole = false;
          this.notes.add(path, error);
        }
      }
      sum.update(piece);
      await this.#content(piece);
      at += piece.length;
    }
    await this.#write(Buffer.alloc(padded(size) - size));
    await this.#record({ "EXECAGENT.sha256": whole ? sum.digest("hex") : "changed" });
    return whole;
  }
}

function timeOf(info: BigIntStats): string {
  const seconds = info.mtimeNs / 1_000_000_000n;
  const rest = info.mtimeNs % 1_000_000_000n;
  return info.mtimeNs < 0n || rest === 0n ? String(seconds) : `${seconds}.${String(rest).padStart(9, "0")}`;
}

/** Copies from the agent to here. */
export async function download(agent: Agent, from: string, to: string, options: CopyOptions = {}): Promise<void> {
  toURI(from); // which refuses a relative path
  const { signal } = options;
  const receiver = await Receiver.aim(to, contents(from) ? undefined : basename(from), options);
  try {
    const tool = await Tool.start(agent, { send: [from], follow: options.follow === true }, options);
    try {
      const stream = new Incoming(tool.process, options);
      await receiver.receive(stream);
      await stream.end();
      await tool.finish(receiver.notes, signal);
      tool.process.close();
    } catch (error) {
      if (error instanceof CopyError && error.incomplete) throw error;
      throw await tool.giveUp(error, signal);
    }
  } finally {
    await receiver.close();
  }
}

/** The output of the tool. It tells the tool how much has come. @internal */
export class Incoming {
  readonly #reader: ReadableStreamDefaultReader<Uint8Array>;
  readonly #process: Process;
  readonly #signal: AbortSignal | undefined;
  #pieces: Buffer[] = [];
  #length = 0;
  #received = 0;
  #acked = 0;
  #acking: Promise<void> = Promise.resolve();
  #ended = false;

  constructor(process: Process, options: CopyOptions) {
    this.#process = process;
    this.#signal = options.signal;
    this.#reader = process.stdout.getReader();
    const cancel = (): void => void this.#reader.cancel(options.signal?.reason).catch(() => {});
    options.signal?.addEventListener("abort", cancel, { once: true });
  }

  readonly read = async (size: number): Promise<Buffer> => {
    while (this.#length < size && !this.#ended) {
      const { done, value } = await this.#reader.read();
      this.#signal?.throwIfAborted();
      if (done) {
        this.#ended = true;
        break;
      }
      this.#pieces.push(Buffer.from(value.buffer, value.byteOffset, value.byteLength));
      this.#length += value.length;
      this.#received += value.length;
      if (this.#received - this.#acked >= windowBytes / 4) this.#acknowledge();
    }
    const all = this.#pieces.length === 1 ? (this.#pieces[0] as Buffer) : Buffer.concat(this.#pieces, this.#length);
    const taken = all.subarray(0, size);
    this.#pieces = taken.length === all.length ? [] : [all.subarray(taken.length)];
    this.#length = all.length - taken.length;
    return taken;
  };

  #acknowledge(): void {
    this.#acked = this.#received;
    const message = Buffer.alloc(8);
    message.writeBigUInt64BE(BigInt(this.#received));
    // If that fails, the tool or the connection has ended, and the next read says so.
    this.#acking = this.#acking.then(() => this.#process.write(message, { signal: this.#signal })).catch(() => {});
  }

  /** Reads the padding of the archive. */
  async end(): Promise<void> {
    while ((await this.read(64 << 10)).length > 0);
    await this.#acking;
  }
}

/** A directory that is written to, open as long as that lasts. No name below the target is followed if it is a link. */
interface Place {
  readonly name: Buffer;
  readonly handle: FileHandle;
  /** What a directory gets that was made here, once nothing more is written in it. */
  readonly made: Header | undefined;
}

/** Writes the files of a stream. */
class Receiver {
  readonly notes = new Notes();
  readonly #base: FileHandle;
  readonly #path: string;
  readonly #name: Buffer | undefined; // takes the place of the first name
  readonly #asked: Buffer | undefined; // the first name that entries may have
  readonly #slash: boolean; // only a directory may be made at the target
  readonly #options: CopyOptions;
  #stack: Place[] = [];
  #count = 0;
  #began = false;
  #ended = false;
  #received = 0;
  #omitted: Buffer[] | undefined;

  private constructor(base: FileHandle, path: string, name: string | undefined, asked: string | undefined, slash: boolean, options: CopyOptions) {
    this.#base = base;
    this.#path = path;
    this.#name = name === undefined ? undefined : Buffer.from(name);
    this.#asked = asked === undefined ? undefined : Buffer.from(asked);
    this.#slash = slash;
    this.#options = options;
  }

  /**
   * Finds the target by the rules of docker: into a directory, else to a name whose folder exists. A link is never followed,
   * because an earlier copy may have made it. One to a file or to nothing is replaced. Any other link is refused, because
   * it may be one that the host needs, as /bin is. So is every link where a directory is meant.
   */
  static async aim(to: string, asked: string | undefined, options: CopyOptions): Promise<Receiver> {
    if (to === "") throw new UsageError("the path to copy to is empty");
    const bare = to.replace(/(?:\/\.?)+$/, "") || "/";
    const info = await lstat(bare).catch((error: unknown) => ((error as NodeJS.ErrnoException).code === "ENOENT" ? undefined : throwLocal(error)));
    const linked = info?.isSymbolicLink() === true;
    if (linked && (bare !== to || !(await replaceable(bare)))) throw new UsageError(`${printable(bare, 256)} is a link, which no copy follows: name what it leads to, or remove it`);
    const directory = async (path: string, flags = 0): Promise<FileHandle> => open(path, constants.O_RDONLY | constants.O_DIRECTORY | flags).catch(throwLocal);
    if (info?.isDirectory()) return new Receiver(await directory(bare, constants.O_NOFOLLOW), to, undefined, asked, false, options);
    if (info !== undefined && !linked && (!info.isFile() || bare !== to)) throw new UsageError(`${printable(to, 256)} is neither a file nor a directory to copy to`);
    if (info === undefined && contents(to)) throw notFound(to);
    return new Receiver(await directory(dirname(bare)), dirname(bare), basename(bare), asked, info === undefined && to.endsWith("/"), options);
  }

  async close(): Promise<void> {
    for (const { handle } of this.#stack.splice(0)) await handle.close();
    await this.#base.close();
  }

  #show(names: readonly Buffer[]): string {
    return [this.#path.replace(/\/$/, ""), ...names].join("/");
  }

  async receive(stream: Incoming): Promise<void> {
    for (;;) {
      this.#options.signal?.throwIfAborted();
      const header = await readHeader(stream.read);
      if (header === undefined) {
        if (!this.#ended) throw new ProtocolError("the stream of the agent ends too early");
        break;
      }
      if (header.kind === "global") this.#record(header.records);
      else await this.#entry(header, stream);
    }
    await this.#leave(0);
  }

  #record(records: ReadonlyMap<string, Buffer>): void {
    const begin = records.get("EXECAGENT.begin")?.toString();
    const end = records.get("EXECAGENT.end")?.toString();
    if (begin !== undefined && !this.#began) {
      if (begin !== "1") throw new ProtocolError(`the stream of the agent is of version ${printable(begin, 32)}, and not of 1`);
      this.#began = true;
    } else if (end !== undefined && this.#began && !this.#ended) {
      if (end !== String(this.#count)) throw new ProtocolError(`the stream of the agent has ${this.#count} entries, and says ${printable(end, 32)}`);
      this.#ended = true;
    } else throw new ProtocolError("the stream of the agent has a record out of its order");
  }

  /** Returns where an entry goes, as names from the target on. */
  #place(name: Buffer): Buffer[] {
    const text = name.toString("latin1");
    const inside = text === "." || text === "./" || text.startsWith("./");
    const names = text.split("/").filter((part) => part !== "" && part !== ".");
    if (text.startsWith("/") || names.includes("..") || text.includes("\0") || names.length > maxDepth || name.length > maxName) {
      throw new ProtocolError(`the stream of the agent has the name ${printable(String(name), 256)}, which nobody may have`);
    }
    const wanted = this.#asked === undefined ? inside : !inside && names.length > 0 && this.#asked.equals(Buffer.from(names[0] as string, "latin1"));
    if (!wanted) {
      throw new ProtocolError(`the stream of the agent has the name ${printable(String(name), 256)}, which nobody has asked for`);
    }
    const found = names.map((part) => Buffer.from(part, "latin1"));
    if (this.#name === undefined) return found;
    return [this.#name, ...(inside ? found : found.slice(1))];
  }

  async #entry(header: Header, stream: Incoming): Promise<void> {
    if (!this.#began || this.#ended) throw new ProtocolError("the stream of the agent has an entry out of its order");
    if (++this.#count > maxEntries) throw new ProtocolError(`the stream of the agent has more than ${maxEntries} entries`);
    const names = this.#place(header.name);
    if (this.#asked === undefined && names.length === (this.#name === undefined ? 0 : 1) && header.kind !== "directory") {
      throw new ProtocolError(`the stream of the agent has the source ${printable(String(header.name), 256)}, which is no directory`);
    }
    const omitted = this.#omitted;
    const skipped = omitted !== undefined && names.length > omitted.length && omitted.every((name, i) => name.equals(names[i] as Buffer));
    if (header.kind === "file") return this.#file(skipped ? undefined : names, header, stream);
    try {
      if (skipped) return;
      if (header.kind === "directory") return await this.#directory(names, header);
      if (names.length === 0) throw new Error("Is a directory");
      if (this.#slash && names.length === 1) throw new Error("there is no such directory");
      const at = await this.#enter(names.slice(0, -1));
      const last = names.at(-1) as Buffer;
      if (header.kind === "symlink") {
        await replace(at, last, async (path) => {
          await symlink(header.link, path);
          const time = Number(header.mtime);
          await lutimes(path, time, time);
        });
      } else if (header.kind === "hardlink") {
        const first = this.#place(header.link);
        if (first.length === 0) throw new Error("Is a directory");
        const from = await this.#find(first);
        const existing = within(from, first.at(-1) as Buffer);
        try {
          if (!(await lstat(existing)).isFile()) throw new Error("is one more name of what is no file");
          await replace(at, last, (path) => link(existing, path));
        } finally {
          await from.close();
        }
      } else throw new Error("left out: neither a file nor a directory nor a link");
    } catch (error) {
      if (header.kind === "directory") this.#omitted = names;
      this.#lose(names, error);
    }
  }

  #lose(names: readonly Buffer[], error: unknown): void {
    if (error instanceof AgentError || fatal.has((error as NodeJS.ErrnoException).code ?? "")) throw error;
    this.notes.add(this.#show(names), error);
  }

  async #directory(names: Buffer[], header: Header): Promise<void> {
    if (names.length === 0) return this.#leave(0);
    const at = await this.#enter(names.slice(0, -1));
    const last = names.at(-1) as Buffer;
    const make = (): Promise<boolean> => mkdir(within(at, last), 0o700).then(() => true, (error: NodeJS.ErrnoException) => {
      if (error.code !== "EEXIST") throw error;
      return false;
    });
    if (!(await make())) {
      const linked = this.#name !== undefined && names.length === 1 && (await lstat(within(at, last))).isSymbolicLink();
      if (linked) await unlink(within(at, last));
      if (!linked || !(await make())) {
        await this.#enter(names); // an existing directory stays as it is
        return;
      }
    }
    this.#stack.push({ name: last, handle: await openDirectory(at, last), made: header });
  }

  /** Returns the open directory of some names. */
  async #enter(names: readonly Buffer[]): Promise<FileHandle> {
    let same = 0;
    while (same < names.length && same < this.#stack.length && (this.#stack[same] as Place).name.equals(names[same] as Buffer)) same++;
    await this.#leave(same);
    for (const name of names.slice(same)) {
      const handle = await openDirectory(this.#stack.at(-1)?.handle ?? this.#base, name);
      this.#stack.push({ name, handle, made: undefined });
    }
    return this.#stack.at(-1)?.handle ?? this.#base;
  }

  /** Opens the directory of a path apart from the stack. */
  async #find(names: readonly Buffer[]): Promise<FileHandle> {
    let at = await openDirectory(this.#base, Buffer.from("."));
    for (const name of names.slice(0, -1)) {
      const above = at;
      try {
        at = await openDirectory(above, name);
      } finally {
        await above.close();
      }
    }
    return at;
  }

  /** Leaves all directories but the first ones. Those that were made here get their mode and time. */
  async #leave(depth: number): Promise<void> {
    while (this.#stack.length > depth) {
      const { handle, made } = this.#stack.at(-1) as Place;
      try {
        if (made !== undefined) await give(handle, made, 0o1777);
      } catch (error) {
        this.#lose(this.#stack.map((place) => place.name), error);
      } finally {
        this.#stack.pop();
        await handle.close();
      }
    }
  }

  /** Writes a file, and puts it in its place if it has the sum that was sent. Without names it is read and dropped. */
  async #file(names: Buffer[] | undefined, header: Header, stream: Incoming): Promise<void> {
    const sparse = header.records.get("EXECAGENT.size");
    const size = sparse === undefined ? header.size : Number(sparse.toString());
    if (!Number.isSafeInteger(size) || size < 0 || size > maxFile || (sparse !== undefined && header.size !== 0)) {
      throw new ProtocolError(`the stream of the agent has a file of the size ${printable(String(sparse ?? size), 32)}`);
    }
    let file: NewFile | undefined;
    try {
      if (names !== undefined) {
        if (names.length === 0) throw new Error("Is a directory");
        if (this.#slash && names.length === 1) throw new Error("there is no such directory");
        file = await NewFile.begin(await this.#enter(names.slice(0, -1)), names.at(-1) as Buffer);
      }
    } catch (error) {
      this.#lose(names ?? [], error);
    }
    const sum = createHash("sha256");
    const write = async (from: number, length: number): Promise<void> => {
      for (let at = 0; at < length; ) {
        this.#options.signal?.throwIfAborted();
        const piece = await stream.read(Math.min(length - at, buffered));
        if (piece.length === 0) throw new ProtocolError("the stream of the agent ends too early");
        sum.update(piece);
        try {
          await file?.write(piece, from + at);
        } catch (error) {
          this.#lose(names ?? [], error);
          await file?.drop();
          file = undefined;
        }
        at += piece.length;
        this.#received += piece.length;
        this.#options.onProgress?.(this.#received);
      }
    };
    try {
      await write(0, header.size);
      await stream.read(padded(header.size) - header.size);
      let digest = header.records.get("EXECAGENT.sha256")?.toString();
      digest ??= await this.#pieces(stream, sparse === undefined ? 0 : size, sum, write);
      if (digest === "changed") return; // the agent says why
      const got = sum.digest("hex");
      if (digest !== got) throw new ProtocolError(`${this.#show(names ?? [])}: what came is not what was sent: its SHA-256 is ${got}, and not ${printable(digest, 64)}`);
      try {
        await file?.put(header, size);
        file = undefined;
      } catch (error) {
        this.#lose(names ?? [], error);
      }
    } finally {
      await file?.drop();
    }
  }

  /** Reads the pieces of a file with holes, and the sum behind it. */
  async #pieces(stream: Incoming, size: number, sum: Hash, write: (from: number, length: number) => Promise<void>): Promise<string> {
    const wrong = (): ProtocolError => new ProtocolError("the stream of the agent has a piece that fits no file");
    for (let filled = 0; ; ) {
      const header = await readHeader(stream.read);
      if (header === undefined) throw new ProtocolError("the stream of the agent ends too early");
      const digest = header.kind === "global" ? header.records.get("EXECAGENT.sha256")?.toString() : undefined;
      if (digest !== undefined) return digest;
      const extents = Number(header.records.get("EXECAGENT.extents")?.toString() ?? 0);
      if (header.kind !== "file" || !Number.isSafeInteger(extents) || extents < 1 || extents > 1024 || header.size < extents * 16) throw wrong();
      const places = Buffer.from(await stream.read(extents * 16));
      sum.update(places);
      let left = header.size - places.length;
      for (let i = 0; i < extents; i++) {
        const from = Number(places.readBigUInt64BE(16 * i));
        const length = Number(places.readBigUInt64BE(16 * i + 8));
        if (from < filled || length < 1 || length > left || from > size - length) throw wrong();
        await write(from, length);
        filled = from + length;
        left -= length;
      }
      if (left !== 0) throw wrong();
      await stream.read(padded(header.size) - header.size);
    }
  }
}

/** Reports whether a link leads to a file or to nothing. */
function replaceable(link: string): Promise<boolean> {
  return stat(link).then((info) => info.isFile(), (error: NodeJS.ErrnoException) => error.code === "ENOENT");
}

/** Returns a path to a name in an open directory. */
function within(directory: FileHandle, name: Buffer): Buffer {
  return Buffer.concat([Buffer.from(`/proc/self/fd/${directory.fd}/`), name]);
}

function openDirectory(at: FileHandle, name: Buffer): Promise<FileHandle> {
  return open(within(at, name), constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW);
}

/** Gives mode and time to an open file or directory. Set-ID bits never come along. */
async function give(handle: FileHandle, header: Header, bits: number): Promise<void> {
  await handle.chmod(header.mode & bits);
  const time = Number(header.mtime);
  if (Number.isFinite(time)) await handle.utimes(time, time);
}

/** Makes something under a name. If the name exists, it is made under another one, and takes its place in one step. */
async function replace(at: FileHandle, name: Buffer, make: (path: Buffer) => Promise<void>): Promise<void> {
  try {
    await make(within(at, name));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
    const temporary = within(at, temporaryName());
    try {
      await make(temporary);
      await rename(temporary, within(at, name));
    } finally {
      await unlink(temporary).catch(() => {}); // rename does nothing if both are the same file
    }
  }
}

function temporaryName(): Buffer {
  return Buffer.from(`.agent-cp-${randomBytes(12).toString("hex")}`);
}

/** A file that is being written, under a temporary name. */
class NewFile {
  private constructor(
    private readonly at: FileHandle,
    private readonly name: Buffer,
    private readonly temporary: Buffer,
    private readonly handle: FileHandle,
  ) {}

  static async begin(at: FileHandle, name: Buffer): Promise<NewFile> {
    const temporary = temporaryName();
    const handle = await open(within(at, temporary), constants.O_CREAT | constants.O_EXCL | constants.O_WRONLY | constants.O_NOFOLLOW, 0o600);
    return new NewFile(at, name, temporary, handle);
  }

  async write(piece: Buffer, position: number): Promise<void> {
    for (let at = 0; at < piece.length; ) at += (await this.handle.write(piece, at, piece.length - at, position + at)).bytesWritten;
  }

  async put(header: Header, size: number): Promise<void> {
    try {
      await this.handle.truncate(size);
      await give(this.handle, header, 0o777);
      await rename(within(this.at, this.temporary), within(this.at, this.name));
      await this.handle.close();
    } catch (error) {
      await this.drop();
      throw error;
    }
  }

  async drop(): Promise<void> {
    await this.handle.close().catch(() => {});
    await unlink(within(this.at, this.temporary)).catch(() => {}); // it may be in its place
  }
}
