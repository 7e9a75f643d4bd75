/**
 * An agent as a sandbox of Vercel's AI SDK (the package `ai`), and tools for its models.
 *
 * @packageDocumentation
 */

import type { Agent } from "../agent.js";
import { size } from "../bounds.js";
import { duration } from "../client.js";
import { NotFoundError, UnreadError, UsageError } from "../errors.js";
import { wholeMost, type FileType } from "../files.js";
import { only } from "../sandbox.js";
import { printable, toText } from "../text.js";
import { isMissing, textOf, Workspace, type Connect, type Ref, type WorkspaceOptions } from "./workspace.js";

export type { Connect, Ref, WorkspaceOptions } from "./workspace.js";

/** What calls about one path take. */
export interface PathOptions {
  readonly path: string;
  readonly abortSignal?: AbortSignal;
}

/** What calls take that start a command. */
export interface CommandOptions {
  /** A script for `sh -c`. */
  readonly command: string;
  readonly workingDirectory?: string;
  readonly env?: Record<string, string>;
  /** Kills the command. */
  readonly abortSignal?: AbortSignal;
}

/**
 * A command that runs. Read both streams, or cancel one: each holds up to 1 MiB, and then all calls of the sandbox wait. If
 * nobody has asked for either, `wait` rejects then, and the output is dropped.
 */
export interface Spawned {
  readonly stdout: ReadableStream<Uint8Array>;
  readonly stderr: ReadableStream<Uint8Array>;
  /** Waits for the exit. What the command has left in the background is not waited for. */
  wait(): Promise<{ exitCode: number }>;
  /** Kills the command with its process group. It is no error to do it again. */
  kill(): Promise<void>;
}

/** A command that runs, and its standard input. */
export interface WritableSpawned extends Spawned {
  readonly stdin: WritableStream<Uint8Array>;
}

/** Connects to an agent, or takes a connected one, as a sandbox. It is the option `experimental_sandbox` of the AI SDK. */
export async function sandbox(from: Agent | Connect, options: WorkspaceOptions = {}): Promise<Sandbox> {
  const workspace = new Workspace(from, "ai-sdk", options);
  try {
    return new Sandbox(workspace, await workspace.description());
  } catch (error) {
    await workspace.close();
    throw error;
  }
}

/**
 * An agent with the members of the AI SDK's `SandboxSession`. Relative paths begin at the working directory. A lost
 * connection is invisible to commands that run, to reads of files up to 32 MiB, and to writes.
 */
export class Sandbox implements AsyncDisposable {
  /** Says for a model where commands run, and what they may do. */
  readonly description: string;
  /** @internal */
  readonly workspace: Workspace;

  /** @internal */
  constructor(workspace: Workspace, description: string) {
    this.workspace = workspace;
    this.description = description;
  }

  /** What leads back to the session of the sandbox, with `existing: true`. */
  get ref(): Ref {
    return this.workspace.ref;
  }

  // Tools may take these members out of the sandbox, so they are functions without `this`.

  /** Runs a command until it exits. */
  readonly run = async (options: CommandOptions): Promise<{ exitCode: number; stdout: string; stderr: string }> => {
    const { command, workingDirectory, env, abortSignal } = options;
    const ran = await this.workspace.shell(script(command), { cwd: workingDirectory, env, signal: abortSignal });
    const most = this.workspace.maxOutput;
    const late = ran.timedOut ? `\n[the command took too long, and was killed]\n` : "";
    return { exitCode: ran.exitCode, stdout: textOf(ran.stdout, ran.stdoutOmitted, most), stderr: textOf(ran.stderr, ran.stderrOmitted, most) + late };
  };

  /** Starts a command, and returns a handle of it. */
  readonly spawn: {
    (options: CommandOptions & { readonly stdin: true }): Promise<WritableSpawned>;
    (options: CommandOptions & { readonly stdin?: false }): Promise<Spawned>;
    (options: CommandOptions & { readonly stdin?: boolean }): Promise<Spawned | WritableSpawned>;
  } = (async ({ command, workingDirectory, env, abortSignal, stdin }: CommandOptions & { readonly stdin?: boolean }): Promise<Spawned | WritableSpawned> => {
    const argv = ["sh", "-c", script(command)];
    const process = await this.workspace.spawn(argv, { cwd: workingDirectory, env, stdin: stdin === true, signal: abortSignal });
    const kill = (): Promise<void> => process.kill();
    const aborted = new Promise<never>((_, reject) => {
      const abort = (): void => {
        reject(abortSignal?.reason);
        kill().catch(() => {}); // the command ends with its session then
      };
      if (abortSignal?.aborted) abort();
      else abortSignal?.addEventListener("abort", abort, { once: true });
      void process.exited.then(() => abortSignal?.removeEventListener("abort", abort), () => {});
    });
    aborted.catch(() => {}); // wait tells of it
    const wait = async (): Promise<{ exitCode: number }> => {
      // The end of all output comes later than the exit, but that nobody takes the output is told by waiting for that end alone.
      const unread = process.wait().catch((error: unknown) => {
        if (error instanceof UnreadError) process.discard();
        throw error;
      });
      return { exitCode: (await Promise.race([aborted, process.exited, unread])).exitCode };
    };
    return { get stdout() { return process.stdout; }, get stderr() { return process.stderr; }, wait, kill, ...(stdin === true && { stdin: process.stdin }) };
  }) as Sandbox["spawn"];

  /** Returns a file as a stream; null: there is none. */
  readonly readFile = async ({ path, abortSignal }: PathOptions): Promise<ReadableStream<Uint8Array> | null> => {
    const { files, at } = await this.workspace.place(path, abortSignal);
    return orNull(async () => {
      if ((await files.stat(at, { signal: abortSignal })).size > wholeMost) return files.stream(at, { signal: abortSignal });
      const bytes = await files.read(at, { signal: abortSignal });
      return new ReadableStream<Uint8Array>({
        start(controller) {
          if (bytes.length > 0) controller.enqueue(bytes);
          controller.close();
        },
      });
    });
  };

  /** Returns the bytes of a file; null: there is none. */
  readonly readBinaryFile = async ({ path, abortSignal }: PathOptions): Promise<Uint8Array | null> => {
    const { files, at } = await this.workspace.place(path, abortSignal);
    return orNull(() => files.read(at, { signal: abortSignal }));
  };

  /** Returns the text of a file, or its lines from startLine to endLine; null: there is none. */
  readonly readTextFile = async (options: PathOptions & { readonly encoding?: string; readonly startLine?: number; readonly endLine?: number }): Promise<string | null> => {
    const decoder = decoderOf(options.encoding ?? "utf-8");
    const bytes = await this.readBinaryFile(options);
    return bytes === null ? null : lines(decoder.decode(bytes), options.startLine, options.endLine);
  };

  /** Writes a file from a stream, with the directories of its path. */
  readonly writeFile = ({ path, content, abortSignal }: PathOptions & { readonly content: ReadableStream<Uint8Array> }): Promise<void> =>
    this.workspace.write(path, content, { signal: abortSignal });

  /** Writes bytes to a file. */
  readonly writeBinaryFile = ({ path, content, abortSignal }: PathOptions & { readonly content: Uint8Array }): Promise<void> =>
    this.workspace.write(path, content, { signal: abortSignal });

  /** Writes text to a file, in UTF-8 or UTF-16. */
  readonly writeTextFile = async ({ path, content, encoding, abortSignal }: PathOptions & { readonly content: string; readonly encoding?: string }): Promise<void> => {
    await this.workspace.write(path, encoded(content, encoding ?? "utf-8"), { signal: abortSignal });
  };

  /** Describes a file, or what a link leads to; null: there is nothing. */
  readonly stat = async ({ path, abortSignal }: PathOptions): Promise<{ type: "file" | "directory" | "other"; size: number } | null> => {
    const { files, at } = await this.workspace.place(path, abortSignal);
    return orNull(async () => {
      const { isFile, isDirectory, size } = await files.stat(at, { signal: abortSignal });
      return { type: isFile ? "file" : isDirectory ? "directory" : "other", size };
    });
  };

  /** Lists a directory. Links are not followed. null: there is nothing. */
  readonly listDirectory = async ({ path, abortSignal }: PathOptions): Promise<{ name: string; type: "file" | "directory" | "symlink" | "other" }[] | null> => {
    const { info } = await this.workspace.open(abortSignal);
    const { files, at } = await this.workspace.place(path);
    const follow = info.capabilities["fsReadDirectoryLstat"] === true ? { follow: false } : {};
    try {
      const entries = await files.list(at, { signal: abortSignal, ...follow });
      return entries.map(({ name, isFile, isDirectory, type }) => ({ name, type: kindOf(type) ?? (isFile ? "file" : isDirectory ? "directory" : "other") }));
    } catch (error) {
      if (error instanceof NotFoundError) return null;
      throw error;
    }
  };

  /** Deletes a file, or a link itself. It reports whether it was there. */
  readonly deleteFile = async ({ path, abortSignal }: PathOptions): Promise<boolean> => {
    const { files, at } = await this.workspace.place(path, abortSignal);
    const found = await orNull(() => files.stat(at, { signal: abortSignal }));
    if (found !== null && found.isDirectory && !found.isSymlink) throw new UsageError(`${printable(path, 256)} is a directory`);
    return this.workspace.remove(path, { signal: abortSignal }); // also a link that leads to nothing
  };

  /** Ends the session, which kills all that runs in it, and closes the sandbox. */
  end(): Promise<void> {
    return this.workspace.end();
  }

  /** Ends the connection, if {@link sandbox} has made it. The session lives on until it expires. */
  close(): Promise<void> {
    return this.workspace.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

function script(command: unknown): string {
  if (typeof command !== "string") throw new UsageError(`command is ${typeof command}, and must be a string`);
  return command;
}

async function orNull<T>(call: () => Promise<T>): Promise<T | null> {
  try {
    return await call();
  } catch (error) {
    if (isMissing(error)) return null;
    throw error;
  }
}

function kindOf(type: FileType | undefined): "file" | "directory" | "symlink" | "other" | undefined {
  return type === undefined || type === "file" || type === "directory" || type === "symlink" ? (type as "file" | undefined) : "other";
}

function decoderOf(encoding: string): TextDecoder {
  try {
    return new TextDecoder(encoding, { ignoreBOM: true });
  } catch {
    throw new UsageError(`encoding is ${printable(encoding, 64)}, and must be one that TextDecoder has`);
  }
}

function encoded(text: string, encoding: string): Uint8Array | string {
  if (/^utf-?8$/i.test(encoding)) return text;
  if (!/^utf-?16(le)?$/i.test(encoding)) throw new UsageError(`encoding is ${printable(encoding, 64)}, and files are written in utf-8 or utf-16le`);
  const bytes = new DataView(new ArrayBuffer(2 * text.length));
  for (let i = 0; i < text.length; i++) bytes.setUint16(2 * i, text.charCodeAt(i), true);
  return new Uint8Array(bytes.buffer);
}

/** Returns lines of a text, counted from 1, both ends included. */
function lines(text: string, from: number | undefined, to: number | undefined): string {
  for (const [name, line] of [["startLine", from], ["endLine", to]] as const) {
    if (line !== undefined && !(Number.isInteger(line) && line >= 1)) throw new UsageError(`${name} is ${String(line)}, and must be a whole number from 1 on`);
  }
  if (from === undefined && to === undefined) return text;
  const end = ["\r\n", "\n", "\r"].find((end) => text.includes(end)) ?? "\n";
  return text.split(end).slice((from ?? 1) - 1, to).join(end);
}

/** A kind of member that the input of a tool has. */
interface Member<Kind extends "string" | "integer" | "boolean" = "string" | "integer" | "boolean", Needed extends boolean = boolean> {
  readonly type: Kind;
  readonly needed: Needed;
  readonly description: string;
}

type ValueOf<Kind> = Kind extends "string" ? string : Kind extends "integer" ? number : boolean;
type Input<Members extends Record<string, Member>> = {
  [Name in keyof Members as Members[Name]["needed"] extends true ? Name : never]: ValueOf<Members[Name]["type"]>;
} & {
  [Name in keyof Members as Members[Name]["needed"] extends true ? never : Name]?: ValueOf<Members[Name]["type"]> | undefined;
};

/** A schema as https://standardschema.dev describes it, which the AI SDK takes. */
export interface InputSchema<T> {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => { readonly value: T } | { readonly issues: readonly { readonly message: string; readonly path: readonly string[] }[] };
    readonly jsonSchema: { readonly input: () => Record<string, unknown>; readonly output: () => Record<string, unknown> };
    readonly types?: { readonly input: T; readonly output: T };
  };
}

/** A tool of the AI SDK. */
export interface Tool<T, Output> {
  readonly description: string;
  readonly inputSchema: InputSchema<T>;
  readonly execute: (input: T, options?: { readonly abortSignal?: AbortSignal | undefined }) => Promise<Output>;
}

const needed = <Kind extends Member["type"]>(type: Kind, description: string): Member<Kind, true> => ({ type, needed: true, description });
const optional = <Kind extends Member["type"]>(type: Kind, description: string): Member<Kind, false> => ({ type, needed: false, description });

function tool<Members extends Record<string, Member>, Output>(
  description: string,
  members: Members,
  execute: (input: Input<Members>, signal: AbortSignal | undefined) => Promise<Output>,
): Tool<Input<Members>, Output> {
  const all = Object.entries(members);
  const schema = {
    type: "object", additionalProperties: false,
    properties: Object.fromEntries(all.map(([name, { type, description }]) => [name, { type, description }])),
    required: all.filter(([, { needed }]) => needed).map(([name]) => name),
  };
  const validate = (value: unknown): { value: Input<Members> } | { issues: { message: string; path: string[] }[] } => {
    if (typeof value !== "object" || value === null || Array.isArray(value)) return { issues: [{ message: "the input must be an object", path: [] }] };
    const given = value as Record<string, unknown>;
    const issues = all.flatMap(([name, { type, needed }]) => {
      const found = Object.hasOwn(given, name) ? given[name] : undefined;
      if (found === undefined && !needed) return [];
      const fits = type === "integer" ? Number.isSafeInteger(found) && (found as number) >= 1 : typeof found === type;
      return fits ? [] : [{ message: `${name} must be ${type === "integer" ? "a whole number from 1 on" : `a ${type}`}`, path: [name] }];
    });
    for (const name of Object.keys(given)) {
      if (!Object.hasOwn(members, name)) issues.push({ message: `${printable(name, 64)} is unknown: there are ${Object.keys(members).join(", ")}`, path: [name] });
    }
    return issues.length > 0 ? { issues } : { value: value as Input<Members> };
  };
  const jsonSchema = { input: () => schema, output: () => schema };
  return {
    description,
    inputSchema: { "~standard": { version: 1, vendor: "execagent", validate, jsonSchema } },
    execute: (input, options) => execute(input, options?.abortSignal),
  };
}

/** Bounds of {@link tools}. */
export interface ToolOptions {
  /** How much of each stream of a command a model gets, and of a file: 16 KiB by default. */
  maxOutput?: number | string | undefined;
  /** Ends a command that takes longer: 120 s by default. */
  timeoutMs?: number | undefined;
}

/** The result of the tool `exec`. */
export interface ExecOutput {
  exitCode: number;
  stdout: string;
  stderr: string;
  /** The command took too long, and was killed. */
  timedOut?: true;
  /** The sandbox may be the reason that it failed. */
  sandboxDenied?: true;
}

const readLines = 2000;
const foundMost = 100;

/** Returns tools that let a model work in a sandbox. What fails is an error for the model. */
export function tools(sandbox: Sandbox, options: ToolOptions = {}) {
  only(options, ["maxOutput", "timeoutMs"], "tools");
  const { workspace } = sandbox;
  const most = size(options.maxOutput ?? 16 << 10, "maxOutput");
  const limitMs = duration(options.timeoutMs ?? 120_000, "timeoutMs") as number;
  const path = needed("string", "Absolute, or relative to the working directory.");

  const whole = async (path: string, signal: AbortSignal | undefined): Promise<{ at: string; bytes: Uint8Array }> => {
    const { files, at } = await workspace.place(path, signal);
    const { size } = await files.stat(at, { signal });
    if (size > wholeMost) throw new UsageError(`${printable(at, 256)} has ${size} bytes: read a part of it with exec`);
    return { at, bytes: await files.read(at, { signal }) };
  };

  return {
    exec: tool(
      `Runs a shell command and returns its output. ${sandbox.description}`,
      {
        command: needed("string", "A script for sh."),
        cwd: optional("string", "The directory of the command."),
        timeout_ms: optional("integer", `Kills the command after this time; ${limitMs} by default.`),
      },
      async ({ command, cwd, timeout_ms }, signal): Promise<ExecOutput> => {
        const ran = await workspace.shell(command, { cwd, timeoutMs: timeout_ms ?? limitMs, maxOutput: most, signal });
        return {
          exitCode: ran.exitCode, stdout: textOf(ran.stdout, ran.stdoutOmitted, most), stderr: textOf(ran.stderr, ran.stderrOmitted, most),
          ...(ran.timedOut && { timedOut: true as const }), ...(ran.sandboxDenied && { sandboxDenied: true as const }),
        };
      },
    ),

    read: tool(
      "Returns the text of a file.",
      { path, offset: optional("integer", "The first line, from 1."), limit: optional("integer", `How many lines; ${readLines} by default.`) },
      async ({ path, offset = 1, limit = readLines }, signal): Promise<string> => {
        const all = toText((await whole(path, signal)).bytes).split("\n");
        if (offset > all.length) throw new UsageError(`offset is ${offset}, and ${printable(path, 256)} has ${all.length} lines`);
        const some = all.slice(offset - 1, offset - 1 + limit);
        let length = 0;
        const fits = some.findIndex((line) => (length += line.length + 1) > most);
        const shown = fits < 0 ? some : fits === 0 ? [`${(some[0] as string).slice(0, most)} [the line goes on]`] : some.slice(0, fits);
        const next = offset + shown.length;
        return shown.join("\n") + (next > all.length ? "" : `\n[the file has ${all.length} lines: read on at offset ${next}]`);
      },
    ),

    write: tool("Writes a file, with the directories of its path.", { path, content: needed("string", "All of the file.") }, async ({ path, content }, signal): Promise<string> => {
      await workspace.write(path, content, { signal });
      return `wrote ${path}`;
    }),

    edit: tool(
      "Replaces text in a file.",
      {
        path, old: needed("string", "The text as it is in the file; once, unless all is true."), new: needed("string", "What takes its place."),
        all: optional("boolean", "Replace it wherever it is."),
      },
      async ({ path, old, new: instead, all }, signal): Promise<string> => {
        const { at, bytes } = await whole(path, signal);
        let text: string;
        try {
          text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
        } catch {
          throw new UsageError(`${printable(at, 256)} is not UTF-8: change it with exec`);
        }
        const parts = old === "" ? [text] : text.split(old);
        const times = parts.length - 1;
        if (times === 0) throw new UsageError(`old is not in ${printable(at, 256)}: read the file, and give the text as it is there`);
        if (times > 1 && all !== true) throw new UsageError(`old is ${times} times in ${printable(at, 256)}: give more of the text around it, or all`);
        await workspace.write(at, parts.join(instead), { signal });
        return `replaced ${times === 1 ? "once" : `${times} times`} in ${path}`;
      },
    ),

    grep: tool(
      "Finds lines in files. Names that begin with a dot, and what a .gitignore names, are left out.",
      {
        pattern: needed("string", "A regular expression of RE2."),
        path: optional("string", "A directory or a file; by default the working directory."),
        glob: optional("string", "Which files, such as *.ts."),
      },
      async ({ pattern, path = ".", glob }, signal): Promise<string> => {
        const { cwd } = await workspace.open(signal);
        const { files, at } = await workspace.place(path);
        const found = await files.search(at, { pattern, globs: glob, maxMatches: foundMost, signal });
        const below = (path: string): string => (cwd !== "/" && path.startsWith(`${cwd}/`) ? path.slice(cwd.length + 1) : path);
        const lines = found.files.flatMap((file) => file.matches.map((match) => `${below(file.path)}:${match.line}:${match.text}`));
        if (found.truncated !== undefined) lines.push(`[there is more, beyond the bound of ${found.truncated}]`);
        return lines.length === 0 ? "nothing was found" : lines.join("\n");
      },
    ),
  };
}
