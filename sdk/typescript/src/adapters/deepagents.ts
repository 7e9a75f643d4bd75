/**
 * An agent as the backend of LangChain's deepagents for JavaScript, deepagents 1.14: files, search and commands.
 *
 * @packageDocumentation
 */

import type { Agent } from "../agent.js";
import { IsADirectoryError, NotADirectoryError, PermissionDeniedError, ServerError, UsageError } from "../errors.js";
import { wholeMost, type Files } from "../files.js";
import { concat, decodeBase64, printable, toBytes, toText } from "../text.js";
import { isMissing, listed, resolve, textOf, Workspace, type Connect, type Ref, type WorkspaceOptions } from "./workspace.js";

export type { Connect, Ref, WorkspaceOptions } from "./workspace.js";

/** A file or a directory. */
export interface FileInfo {
  /** A directory has a / at its end, where the path is absolute. */
  path: string;
  is_dir?: boolean;
  size?: number;
  modified_at?: string;
}

/** A line that matches. */
export interface GrepMatch {
  path: string;
  line: number;
  text: string;
}

/** A page of a text, or all bytes of another file. */
export interface ReadResult {
  error?: string;
  content?: string | Uint8Array;
  mimeType?: string;
  totalLines?: number;
  startLine?: number;
  endLine?: number;
  nextOffset?: number;
}

/** What came of a change. */
export interface ChangeResult {
  error?: string;
  path?: string;
  filesUpdate?: null;
}

/** Why a file could not be copied. */
export type FileOperationError = "file_not_found" | "permission_denied" | "is_directory" | "invalid_path";

/** How long a command may take if nothing else is said. */
const patienceMs = 30 * 60_000;

/** How many characters of a file are shown that is too large to be read as a whole. */
const pageMost = 4 << 20;
const blockBytes = 1 << 20;

/** The largest file other than a text; the harness gives none to a model that is larger. */
const binaryMost = 10 << 20;

/** How many files are copied at the same time. */
const copiesMost = 16;

/** Files that are no text for the harness, by their endings. Their content is base64 where it has to be text. */
const mimeTypes: Readonly<Record<string, string>> = {
  png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp", heic: "image/heic", heif: "image/heif",
  mp3: "audio/mpeg", wav: "audio/wav", aiff: "audio/aiff", aac: "audio/aac", ogg: "audio/ogg", flac: "audio/flac",
  mp4: "video/mp4", webm: "video/webm", mpeg: "video/mpeg", mpg: "video/mpeg", mov: "video/quicktime", avi: "video/x-msvideo", flv: "video/x-flv",
  wmv: "video/x-ms-wmv", "3gpp": "video/3gpp",
  pdf: "application/pdf", ppt: "application/vnd.ms-powerpoint", pptx: "application/vnd.openxmlformats-officedocument.presentationml.presentation",
};

/** A directory of an agent: the `backend` of `createDeepAgent`. The first call connects. */
export class ExecagentBackend implements AsyncDisposable {
  readonly #workspace: Workspace;
  readonly #timeoutMs: number;

  constructor(from: Agent | Connect, options: WorkspaceOptions = {}) {
    this.#timeoutMs = options.timeoutMs ?? patienceMs;
    this.#workspace = new Workspace(from, "deepagents", { ...options, timeoutMs: this.#timeoutMs });
  }

  /** The name of the session at the agent. */
  get id(): string {
    return this.#workspace.ref.session;
  }

  /** What leads back to the session, with `existing: true`. */
  get ref(): Ref {
    return this.#workspace.ref;
  }

  /** Says for a model where commands run, and what they may do: a part of the system prompt. */
  description(): Promise<string> {
    return this.#workspace.description();
  }

  /** Runs a command until it exits. Both of its streams go into one pipe, so the output is in the order in which it was printed. */
  async execute(command: string): Promise<{ output: string; exitCode: number | null; truncated: boolean }> {
    const { maxOutput } = this.#workspace;
    const { exitCode, timedOut, stdout, stdoutOmitted, stderr, stderrOmitted } = await this.#workspace.shell(`exec 2>&1; ${command}`);
    // Standard error has only what the shell says of a script that it cannot read.
    const text = textOf(stderr, stderrOmitted, maxOutput) + textOf(stdout, stdoutOmitted, maxOutput);
    const late = timedOut ? `\n[the command took longer than ${this.#timeoutMs / 1000} s, and was killed]` : "";
    return { output: text + late, exitCode: timedOut ? 124 : exitCode, truncated: stdoutOmitted + stderrOmitted > 0 };
  }

  /** Lists a directory, sorted by name. One that does not exist is empty. */
  async ls(path: string): Promise<{ error?: string; files?: FileInfo[] }> {
    return this.#try(path, async (at, files) => {
      try {
        return { files: (await listed(files, at)).map(({ name, isDirectory, size, modifiedAtMs }) => ({
          path: resolve(at, `./${name}`) + (isDirectory ? "/" : ""), is_dir: isDirectory, size: size ?? 0, ...(modifiedAtMs !== undefined && { modified_at: dateOf(modifiedAtMs) }),
        })) };
      } catch (error) {
        if (isMissing(error) && !(error instanceof NotADirectoryError)) return { files: [] };
        throw error;
      }
    });
  }

  /** Returns lines of a text. Of another file it returns all bytes. */
  async read(path: string, offset = 0, limit = 500): Promise<ReadResult> {
    const from = whole(offset);
    const most = whole(limit);
    return this.#try(path, async (at, files): Promise<ReadResult> => {
      const { size, isDirectory } = await files.stat(at);
      if (isDirectory) return { error: `'${path}' is a directory` };
      const named = mimeTypeOf(at);
      if (size > wholeMost) {
        if (named !== undefined) return tooLarge(path, size);
        return most === 0 ? { content: "", mimeType: "text/plain" } : this.#workspace.again(() => readPage(files, at, from, most));
      }
      if (named !== undefined && size > binaryMost) return tooLarge(path, size);
      const bytes = await files.read(at);
      const mimeType = named ?? (bytes.subarray(0, 8192).includes(0) ? "application/octet-stream" : undefined);
      if (mimeType !== undefined) return bytes.length > binaryMost ? tooLarge(path, size) : { content: bytes, mimeType };
      return page(linesOf(toText(bytes)), from, most, path);
    });
  }

  /** Returns a file with what is known of it. */
  async readRaw(path: string): Promise<{ error?: string; data?: { content: string | Uint8Array; mimeType: string; created_at: string; modified_at: string } }> {
    return this.#try(path, async (at, files) => {
      const { size, createdAtMs, modifiedAtMs } = await files.stat(at);
      if (size > wholeMost) return tooLarge(path, size);
      const bytes = await files.read(at);
      const mimeType = mimeTypeOf(at) ?? (bytes.subarray(0, 8192).includes(0) ? "application/octet-stream" : "text/plain");
      const content = mimeType === "text/plain" ? toText(bytes) : bytes;
      return { data: { content, mimeType, created_at: dateOf(createdAtMs === 0 ? modifiedAtMs : createdAtMs), modified_at: dateOf(modifiedAtMs) } };
    });
  }

  /** Creates or replaces a file, with the directories of its path. What is no text by its ending is given in base64. */
  async write(path: string, content: string): Promise<ChangeResult> {
    return this.#try(path, async (at) => {
      const bytes = mimeTypeOf(at) === undefined ? toBytes(content) : decodeBase64(content.replace(/^data:[^,]*,/, "").replace(/\s/g, ""));
      if (bytes === undefined) throw new UsageError(`the content of '${printable(path, 256)}' must be base64`);
      await this.#workspace.write(at, bytes);
      return { path, filesUpdate: null };
    });
  }

  /** Replaces a text of a file. All other bytes stay as they are, whatever their encoding is. */
  async edit(path: string, oldString: string, newString: string, replaceAll = false): Promise<ChangeResult & { occurrences?: number }> {
    return this.#try(path, async (at, files) => {
      const { size } = await files.stat(at);
      if (size > wholeMost) return tooLarge(path, size);
      const bytes = await files.read(at);
      const old = toBytes(oldString);
      const places = old.length === 0 ? (bytes.length === 0 ? [0] : []) : placesOf(bytes, old);
      if (old.length === 0 && bytes.length > 0) return { error: "oldString must not be empty unless the file is empty" };
      if (places.length === 0) return { error: `String not found in file '${path}'` };
      if (places.length > 1 && !replaceAll) {
        return { error: `Multiple occurrences (${places.length}) found in '${path}'. Give more of the text around the one that is meant, or use replaceAll=true.` };
      }
      if (oldString !== newString) {
        const pieces = places.flatMap((place, i) => [bytes.subarray(i === 0 ? 0 : (places[i - 1] as number) + old.length, place), toBytes(newString)]);
        await this.#workspace.write(at, concat([...pieces, bytes.subarray((places.at(-1) as number) + old.length)]));
      }
      return { path, filesUpdate: null, occurrences: places.length };
    });
  }

  /** Deletes a file, a link or a tree. */
  async delete(path: string): Promise<ChangeResult> {
    return this.#try(path, async (at) => {
      if (at === "/") throw new UsageError("/ cannot be deleted");
      if (!(await this.#workspace.remove(at, { recursive: true }))) return { error: `Error: '${path}' not found` };
      return { path, filesUpdate: null };
    });
  }

  /**
   * Looks for a text in the lines of files. The tool of the harness says `/` where its model names no path; then the search
   * begins at the working directory. Also names with a dot and what a .gitignore names are searched.
   */
  async grep(pattern: string, path?: string | null, glob?: string | null, maxCount?: number | null): Promise<{ error?: string; matches?: GrepMatch[]; truncated?: boolean }> {
    const { cwd } = await this.#workspace.open();
    return this.#try(path === undefined || path === null || path === "/" ? cwd : path, async (at, files) => {
      const found = await files.search(at, {
        pattern, literal: true, hidden: true, noIgnore: true, ...(glob && { globs: glob }), ...(maxCount && { maxMatches: whole(maxCount) }),
      });
      const matches = found.files.flatMap((file) => file.matches.map(({ line, text }) => ({ path: file.path, line, text })));
      return { matches, truncated: found.truncated !== undefined && found.truncated !== "line" };
    });
  }

  /** Looks for files and directories. The paths are relative to the directory; those of an absolute pattern are absolute. */
  async glob(pattern: string, path?: string): Promise<{ error?: string; files?: FileInfo[]; truncated?: boolean }> {
    const { cwd } = await this.#workspace.open();
    const names = pattern.split("/").filter((name) => name !== "");
    const absolute = path === undefined && pattern.startsWith("/");
    const plain = absolute ? names.findIndex((name, i) => i === names.length - 1 || /[*?[{\\]/.test(name)) : 0;
    const base = absolute ? `/${names.slice(0, plain).join("/")}` : (path ?? cwd);
    return this.#try(base, async (at, files) => {
      const found = await files.search(at, { globs: `/${names.slice(plain).join("/")}`, hidden: true, noIgnore: true });
      const prefix = absolute ? 0 : (at === "/" ? at : `${at}/`).length;
      return {
        files: found.files.map(({ path, kind }) => ({ path: path.slice(prefix), is_dir: kind === "directory" })),
        truncated: found.truncated !== undefined,
      };
    });
  }

  /** Copies files to the agent, each by itself. */
  async uploadFiles(all: [string, Uint8Array][]): Promise<{ path: string; error: FileOperationError | null }[]> {
    return inTurns(all, async ([path, content]) => {
      const { error } = await this.#copied(path, (at) => this.#workspace.write(at, content));
      return { path, error };
    });
  }

  /** Copies files from the agent, each by itself. */
  async downloadFiles(paths: string[]): Promise<{ path: string; content: Uint8Array | null; error: FileOperationError | null }[]> {
    const { files } = await this.#workspace.open();
    return inTurns(paths, async (path) => {
      const { value, error } = await this.#copied(path, (at) => files.read(at));
      return { path, content: value, error };
    });
  }

  /** Copies a file, and says in the words of the harness why it was not copied. */
  async #copied<T>(path: string, copy: (at: string) => Promise<T>): Promise<{ value: T | null; error: FileOperationError | null }> {
    if (!path.startsWith("/")) return { value: null, error: "invalid_path" };
    const at = resolve("/", path);
    try {
      return { value: await copy(at), error: null };
    } catch (error) {
      if (error instanceof UsageError) return { value: null, error: "invalid_path" };
      if (!(error instanceof ServerError)) throw error;
      if (isMissing(error)) return { value: null, error: "file_not_found" };
      if (error instanceof PermissionDeniedError) return { value: null, error: "permission_denied" };
      const { files } = await this.#workspace.open();
      const directory = await files.stat(at).then(({ isDirectory }) => isDirectory, () => false);
      return { value: null, error: directory ? "is_directory" : "invalid_path" };
    }
  }

  /** Ends the session, which kills all that runs in it, and closes the backend. */
  end(): Promise<void> {
    return this.#workspace.end();
  }

  /** Ends the connection. The session lives on until it expires. */
  close(): Promise<void> {
    return this.#workspace.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Does something with a path. What the agent refuses is a result, because a model can do something about it. */
  async #try<T extends object>(path: string, call: (at: string, files: Files) => Promise<T | { error: string }>): Promise<T | { error: string }> {
    const { files, cwd } = await this.#workspace.open();
    try {
      if (typeof path !== "string") throw new UsageError("the path is not a string");
      if (!path.startsWith("/")) throw new UsageError(`'${printable(path, 256)}' is not absolute: the working directory is ${cwd}, so ${printable(resolve(cwd, path), 256)} may be meant`);
      return await call(resolve("/", path), files);
    } catch (error) {
      if (error instanceof NotADirectoryError) return { error: `'${path}' is not a directory` };
      if (isMissing(error)) return { error: `File '${path}' not found` };
      if (error instanceof IsADirectoryError) return { error: `'${path}' is a directory` };
      if (error instanceof ServerError) return { error: `'${path}': ${printable(error.text)}` };
      if (error instanceof UsageError) return { error: error.message };
      throw error;
    }
  }
}

function whole(value: number): number {
  return Number.isFinite(value) ? Math.max(0, Math.floor(value)) : 0;
}

function dateOf(ms: number): string {
  return new Date(ms).toISOString();
}

function mimeTypeOf(path: string): string | undefined {
  const ending = /[^/]\.([^./]+)$/.exec(path)?.[1]?.toLowerCase();
  return ending === undefined || !Object.hasOwn(mimeTypes, ending) ? undefined : mimeTypes[ending];
}

function tooLarge(path: string, size: number): { error: string } {
  return { error: `'${path}' has ${size} bytes, which is too much: use the execute tool for it` };
}

/** Returns the lines of a text. A line end at its end begins no further line. */
function linesOf(text: string): string[] {
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  return lines;
}

function page(lines: readonly string[], from: number, most: number, path: string): ReadResult {
  if (most === 0 || lines.length === 0) return { content: "", mimeType: "text/plain", totalLines: lines.length };
  if (from >= lines.length) return { error: `the offset ${from} is behind the end of '${path}', which has ${lines.length} lines` };
  const end = Math.min(lines.length, from + most);
  return {
    content: lines.slice(from, end).join("\n"), mimeType: "text/plain", totalLines: lines.length, startLine: from + 1, endLine: end,
    ...(end < lines.length && { nextOffset: end }),
  };
}

/** Reads lines of a file that is too large to be kept. */
async function readPage(files: Files, at: string, from: number, most: number): Promise<ReadResult> {
  await using file = await files.open(at);
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const kept: string[] = [];
  let size = 0;
  let line = 0; // which `rest` begins
  let rest = "";
  const shown = (more: boolean): ReadResult => {
    if (kept.length === 0) return { error: `the offset ${from} is behind the end of '${at}', which has ${line} lines` };
    const endLine = from + kept.length;
    return { content: kept.join("\n"), mimeType: "text/plain", startLine: from + 1, endLine, ...(more && { nextOffset: endLine }) };
  };
  for (let offset = 0; ; offset += blockBytes) {
    const block = await file.readAt(offset, blockBytes);
    if (offset === 0 && block.subarray(0, 8192).includes(0)) return { error: `'${at}' is no text, and too large to be read: use the execute tool for it` };
    const ended = block.length < blockBytes;
    const lines = (rest + decoder.decode(block, { stream: !ended })).split("\n");
    rest = lines.pop() as string;
    if (ended && rest !== "") lines.push(rest);
    for (const text of lines) {
      if (line++ < from) continue;
      if (kept.length === most || size >= pageMost) return shown(true);
      kept.push(text);
      size += text.length;
    }
    if (ended) return shown(false);
    if (line < from) rest = rest.slice(0, 1); // nobody has asked for it
    else if (rest.length >= pageMost) {
      // One line alone can be larger than all that is shown.
      if (kept.length < most && size < pageMost) kept.push(`${rest.slice(0, pageMost)} [the line goes on]`);
      return shown(true);
    }
  }
}

/** Returns where some bytes are, from left to right and apart from each other. */
function placesOf(bytes: Uint8Array, wanted: Uint8Array): number[] {
  const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const places: number[] = [];
  for (let at = buffer.indexOf(wanted); at >= 0; at = buffer.indexOf(wanted, at + wanted.length)) places.push(at);
  return places;
}

/** Does something with each of many things, with some of them at the same time. */
async function inTurns<T, R>(all: readonly T[], one: (item: T) => Promise<R>): Promise<R[]> {
  const results: R[] = [];
  for (let at = 0; at < all.length; at += copiesMost) results.push(...(await Promise.all(all.slice(at, at + copiesMost).map(one))));
  return results;
}
