/**
 * An agent as the sandbox of Strands, @strands-agents/sdk 1.19: commands, code and files.
 *
 * @packageDocumentation
 */

import { Sandbox, SandboxAbortError, SandboxPathNotFoundError, SandboxTimeoutError, type Tool } from "@strands-agents/sdk";
import { DEFAULT_FILE_EDITOR_DESCRIPTION, makeFileEditor } from "@strands-agents/sdk/vended-tools/file-editor";
import { makeShell, SANDBOX_SHELL_DESCRIPTION } from "@strands-agents/sdk/vended-tools/shell";
import type { Agent, Result } from "../agent.js";
import { ServerError, UsageError } from "../errors.js";
import { printable } from "../text.js";
import { isMissing, listed, textOf, Workspace, type Connect, type Ref, type WorkspaceOptions } from "./workspace.js";

export type { Connect, Ref, WorkspaceOptions } from "./workspace.js";

/** How a command or code is run. */
export interface ExecuteOptions {
  /** In seconds. By default that of the sandbox. */
  readonly timeout?: number | undefined;
  readonly cwd?: string | undefined;
  /** Kills the command. */
  readonly signal?: AbortSignal | undefined;
  readonly env?: Record<string, string> | undefined;
}

/** A piece of output. */
export interface StreamChunk {
  readonly type: "streamChunk";
  readonly data: string;
  readonly streamType: "stdout" | "stderr";
}

/** How a command has ended, with its output. */
export interface ExecutionResult {
  readonly type: "executionResult";
  readonly exitCode: number;
  readonly stdout: string;
  readonly stderr: string;
  readonly outputFiles: never[];
}

/** The names that interpreters of code may have: one word, found in the PATH of the agent. */
const language = /^[A-Za-z0-9][A-Za-z0-9._+-]*$/;

/**
 * Output that waits for whoever takes it. If too much waits, the rest is left out here, and is still in the result: a
 * command must not wait, because then all others of its connection would.
 */
class Chunks {
  readonly #most: number;
  readonly #decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
  #waiting: StreamChunk[] = [];
  #size = 0;
  #left = 0; // out, since the last chunk
  #ended = false;
  #wake = (): void => {};

  constructor(most: number) {
    this.#most = most;
  }

  add(streamType: "stdout" | "stderr", bytes: Uint8Array): void {
    this.#push(streamType, this.#decoders[streamType].decode(bytes, { stream: true }));
  }

  #push(streamType: "stdout" | "stderr", data: string): void {
    if (data === "") return;
    if (this.#size + data.length > this.#most) {
      this.#left += data.length;
      return;
    }
    const text = this.#left === 0 ? data : `\n[${this.#left} characters are left out here]\n${data}`;
    this.#left = 0;
    this.#size += data.length;
    const last = this.#waiting.at(-1);
    // Many small pieces are joined, because each takes much more memory than its text.
    if (last?.streamType === streamType && last.data.length < 4096) this.#waiting[this.#waiting.length - 1] = { ...last, data: last.data + text };
    else this.#waiting.push({ type: "streamChunk", data: text, streamType });
    this.#wake();
  }

  end(): void {
    for (const stream of ["stdout", "stderr"] as const) this.#push(stream, this.#decoders[stream].decode());
    this.#ended = true;
    this.#wake();
  }

  /** Waits for chunks, and takes all. There are none at the end. */
  async take(): Promise<StreamChunk[]> {
    while (this.#waiting.length === 0 && !this.#ended) await new Promise<void>((resolve) => (this.#wake = resolve));
    this.#size = 0;
    return this.#waiting.splice(0);
  }
}

/** A directory of an agent: the `sandbox` of an `Agent`. The first call connects. */
export class ExecagentSandbox extends Sandbox implements AsyncDisposable {
  readonly #workspace: Workspace;

  constructor(from: Agent | Connect, options: WorkspaceOptions = {}) {
    super();
    this.#workspace = new Workspace(from, "strands", options);
  }

  /** What leads back to the session of the sandbox, with `existing: true`. */
  get ref(): Ref {
    return this.#workspace.ref;
  }

  /** Says for a model where commands run, and what they may do: a part of the system prompt. */
  description(): Promise<string> {
    return this.#workspace.description();
  }

  /** Runs a script by `sh -c`. Its output comes as it is printed, and its end as the last. */
  executeStreaming(command: string, options: ExecuteOptions = {}): AsyncGenerator<StreamChunk | ExecutionResult, void, undefined> {
    return this.#stream(["sh", "-c", command], undefined, options);
  }

  /** Runs a program of the agent, such as `python3`, with the code as its standard input. No shell is between. */
  async *executeCodeStreaming(code: string, interpreter: string, options: ExecuteOptions = {}): AsyncGenerator<StreamChunk | ExecutionResult, void, undefined> {
    if (!language.test(interpreter)) throw new UsageError(`the language is ${printable(interpreter, 64)}, and must be the name of a program`);
    try {
      yield* this.#stream([interpreter], code, options);
    } catch (error) {
      if (!(error instanceof ServerError) || (error.what === undefined ? error.kind !== "spawnNotFound" : error.what !== "program" || !isMissing(error))) throw error;
      yield { type: "executionResult", exitCode: 127, stdout: "", stderr: `Language interpreter not found: ${interpreter}`, outputFiles: [] };
    }
  }

  async *#stream(argv: readonly string[], input: string | undefined, options: ExecuteOptions): AsyncGenerator<StreamChunk | ExecutionResult, void, undefined> {
    const { timeout, cwd, env, signal } = options;
    const began = performance.now();
    const chunks = new Chunks(this.#workspace.maxOutput);
    const stop = new AbortController();
    const running = this.#workspace.run(argv, {
      cwd, env, input, timeoutMs: timeout === undefined ? undefined : timeout * 1000, signal: signal === undefined ? stop.signal : AbortSignal.any([stop.signal, signal]),
      onOutput: (stream, data) => chunks.add(stream, data),
    }).finally(() => chunks.end());
    running.catch(() => {}); // it is looked at below
    try {
      for (let some = await chunks.take(); some.length > 0; some = await chunks.take()) yield* some;
      const result = await running;
      const { stdout, stderr } = this.#texts(result);
      if (result.timedOut) throw new SandboxTimeoutError(timeout ?? Math.round((performance.now() - began) / 1000), stdout, stderr);
      yield { type: "executionResult", exitCode: result.exitCode, stdout, stderr, outputFiles: [] };
    } catch (error) {
      throw signal?.aborted === true ? new SandboxAbortError() : error;
    } finally {
      stop.abort(); // whoever takes no more output wants no more of the command
    }
  }

  #texts({ stdout, stdoutOmitted, stderr, stderrOmitted }: Result): { stdout: string; stderr: string } {
    const { maxOutput } = this.#workspace;
    return { stdout: textOf(stdout, stdoutOmitted, maxOutput), stderr: textOf(stderr, stderrOmitted, maxOutput) };
  }

  /** Returns the bytes of a file. */
  async readFile(path: string): Promise<Uint8Array> {
    const { files, at } = await this.#workspace.place(path);
    return files.read(at);
  }

  /** Writes a file, with the directories of its path. */
  async writeFile(path: string, content: Uint8Array): Promise<void> {
    await this.#workspace.write(path, content);
  }

  /** Removes a file, or a link itself. */
  async removeFile(path: string): Promise<void> {
    if (!(await this.#workspace.remove(path))) throw new SandboxPathNotFoundError(path);
  }

  /** Lists a directory, sorted by name. A link is described by what it leads to. */
  async listFiles(path: string): Promise<{ name: string; isDir?: boolean; size?: number }[]> {
    const { files, at } = await this.#workspace.place(path);
    try {
      const found = await listed(files, at);
      return found.map(({ name, type, isDirectory, size }) => (type === "symlink" && size === undefined ? { name } : { name, isDir: isDirectory, size: size ?? 0 }));
    } catch (error) {
      throw isMissing(error) ? new SandboxPathNotFoundError(path) : error;
    }
  }

  /** The tools that an agent with this sandbox has, unless it has some of these names. */
  override getTools(): Tool[] {
    return [
      makeFileEditor(this, { name: "sandbox_file_editor", description: `${DEFAULT_FILE_EDITOR_DESCRIPTION} The files are those of the sandbox.` }),
      makeShell(this, { name: "sandbox_shell", description: `${SANDBOX_SHELL_DESCRIPTION} It runs in the sandbox.` }),
    ];
  }

  /** Ends the session, which kills all that runs in it, and closes the sandbox. */
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
}
