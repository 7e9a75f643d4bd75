/**
 * Claude Code inside an agent, for the Claude Agent SDK (the package `@anthropic-ai/claude-agent-sdk`).
 *
 * @packageDocumentation
 */

import { EventEmitter } from "node:events";
import { Readable, Writable } from "node:stream";
import type { Agent } from "../agent.js";
import { ServerError, StdinError, UsageError } from "../errors.js";
import type { Process, Signal } from "../process.js";
import { only } from "../sandbox.js";
import { optionWords, Workspace, type Connect, type Ref, type WorkspaceOptions } from "./workspace.js";

export type { Connect, Ref, WorkspaceOptions } from "./workspace.js";

/** What the SDK wants to start. */
export interface SpawnOptions {
  readonly command: string;
  readonly args: string[];
  readonly cwd?: string | undefined;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Kills the process. */
  readonly signal: AbortSignal;
}

/** How Claude Code is started. It runs without a limit of time, and all its output comes. */
export interface ClaudeOptions extends Omit<WorkspaceOptions, "timeoutMs" | "maxOutput"> {
  /** The program at the agent, in the place of the one that the SDK has found on this machine; such as `claude`. */
  program?: string | undefined;
  /** Called with what Claude Code writes to its standard error. Without it that is dropped. */
  onStderr?: ((text: string) => void) | undefined;
}

/** The option `spawnClaudeCodeProcess` of the SDK, and the connection behind it. */
export interface Spawner extends AsyncDisposable {
  (options: SpawnOptions): ClaudeProcess;
  /** What leads back to the session, with `existing: true`. */
  readonly ref: Ref;
  /** Ends the session, which kills all that runs in it, and closes the spawner. */
  end(): Promise<void>;
  /** Ends the connection, if the spawner has made it. */
  close(): Promise<void>;
}

/**
 * Returns a function that starts Claude Code at an agent, with all its tools.
 *
 * Variables of this program stay here, but for those of Claude (`ANTHROPIC_` and `CLAUDE`), and those that the option `env`
 * of the SDK adds or changes.
 */
export function spawnInside(from: Agent | Connect, options: ClaudeOptions = {}): Spawner {
  const { program, onStderr, ...rest } = options;
  only(rest, optionWords.filter((word) => word !== "timeoutMs" && word !== "maxOutput"), "the adapter");
  const workspace = new Workspace(from, "claude", rest);
  const spawn = ({ command, args, cwd, env, signal }: SpawnOptions): ClaudeProcess => {
    const started = workspace.spawn([program ?? command, ...args], { cwd, env: claudes(env), stdin: true, signal });
    return new ClaudeProcess(started, signal, onStderr);
  };
  return Object.defineProperties(spawn, {
    ref: { get: () => workspace.ref },
    end: { value: () => workspace.end() },
    close: { value: () => workspace.close() },
    [Symbol.asyncDispose]: { value: () => workspace.close() },
  }) as unknown as Spawner;
}

/** Returns the variables that are meant for Claude Code. */
function claudes(env: SpawnOptions["env"]): Record<string, string | undefined> {
  return Object.fromEntries(Object.entries(env).filter(([name, value]) => /^(ANTHROPIC_|CLAUDE)/.test(name) || value !== process.env[name]));
}

const words: { readonly [Name in NodeJS.Signals]?: Signal } = {
  SIGINT: "interrupt", SIGTERM: "terminate", SIGKILL: "kill", SIGHUP: "hangup", SIGQUIT: "quit", SIGUSR1: "user1", SIGUSR2: "user2", SIGSTOP: "stop", SIGCONT: "continue",
};

/** Claude Code at an agent, with the members of the SDK's `SpawnedProcess`. A lost connection is invisible to it. */
export class ClaudeProcess extends EventEmitter<{ exit: [code: number | null, signal: NodeJS.Signals | null]; error: [Error] }> {
  readonly stdin: Writable;
  readonly stdout: Readable;
  /** Whether {@link kill} was called. */
  killed = false;
  /** 128 and the number of the signal after a signal; null: it runs. */
  exitCode: number | null = null;

  readonly #started: Promise<Process>;
  #over = false;

  /** @internal */
  constructor(started: Promise<Process>, signal: AbortSignal, onStderr: ((text: string) => void) | undefined) {
    super();
    this.#started = started;
    this.stdout = Readable.from(outputOf(started), { objectMode: false });
    this.stdout.on("error", () => {}); // error tells of it
    this.stdin = inputOf(started);
    this.stdin.on("error", () => {}); // exit and error tell why it takes nothing
    const abort = (): void => void this.kill("SIGKILL");
    void this.#follow(signal, abort, onStderr);
  }

  async #follow(signal: AbortSignal, abort: () => void, onStderr: ((text: string) => void) | undefined): Promise<void> {
    try {
      const process = await this.#started;
      if (signal.aborted) abort();
      else signal.addEventListener("abort", abort, { once: true });
      void told(process, onStderr);
      const { exitCode } = await process.exited;
      this.#over = true;
      this.exitCode = exitCode;
      this.emit("exit", exitCode, null);
    } catch (error) {
      this.#over = true;
      this.emit("error", asSystemError(error));
    } finally {
      signal.removeEventListener("abort", abort);
    }
  }

  /** Sends a signal. It reports whether there was a process to send it to, as far as that is known here. */
  kill(signal: NodeJS.Signals = "SIGTERM"): boolean {
    const word = words[signal];
    if (word === undefined) throw new UsageError(`${String(signal)} cannot be sent: there are ${Object.keys(words).join(", ")}`);
    if (this.#over) return false;
    this.killed = true;
    void this.#started.then((process) => (word === "kill" ? process.kill() : process.signal(word))).catch(() => {}); // exit or error tells what has become of it
    return true;
  }
}

async function* outputOf(started: Promise<Process>): AsyncGenerator<Uint8Array> {
  yield* (await started).stdout;
}

function inputOf(started: Promise<Process>): Writable {
  const done = (work: Promise<void>, callback: (error?: Error | null) => void): void => {
    work.then(() => callback(), callback);
  };
  return new Writable({
    write: (data: Buffer, _, callback) => done(started.then((process) => process.write(data)), callback),
    final: (callback) =>
      done(
        started.then((process) => process.closeStdin()).catch((error: unknown) => {
          if (!(error instanceof StdinError)) throw error; // it has closed its input itself
        }),
        callback,
      ),
  });
}

/** Gives standard error to a function, as it comes. */
async function told(process: Process, onStderr: ((text: string) => void) | undefined): Promise<void> {
  if (onStderr === undefined) return process.stderr.cancel();
  try {
    for await (const text of process.stderr.pipeThrough(new TextDecoderStream() as unknown as TransformStream<Uint8Array, string>)) onStderr(text);
  } catch {
    // error tells of it
  }
}

/** Returns the error as Node has it for a program that was not started. */
function asSystemError(thrown: unknown): Error {
  const error = thrown instanceof Error ? thrown : new Error(String(thrown));
  if (!(error instanceof ServerError) || error.errnoName === undefined) return error;
  return Object.assign(new Error(error.message, { cause: error }), { code: error.errnoName, errno: error.errno });
}
