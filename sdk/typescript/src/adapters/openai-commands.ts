import { DisconnectedError, GapError, ServerError } from "../errors.js";
import type { Process } from "../process.js";
import { joined, type Workspace } from "./workspace.js";

/* The commands that a model starts, comes back to, and writes to: the tools exec_command and write_stdin. */

/** What a call has to say. */
export interface Update {
  /** Standard output and standard error as they came, and each alone. */
  readonly output: string;
  readonly stdout: string;
  readonly stderr: string;
  readonly wallTimeSeconds: number;
  /** How it has ended; undefined while it runs. */
  readonly exitCode?: number;
  /** Names it for a later call; undefined when it has ended. */
  readonly sessionId?: number;
  /** How long the output was, if a part of it was left out. */
  readonly originalTokenCount?: number;
}

/** How long a call waits, in milliseconds: for a command, for one that was written to, and for one that is only looked at. */
const startWaitMs = 10_000;
const writeWaitMs = 250;
const lookWaitMs = 5000;
const waitLeastMs = 250;
const waitMostMs = 30_000;

/** How long the end of a command is waited for that was killed. */
const killedWaitMs = 5000;

/** How many commands there may be. The newest are never ended to make room. */
const commandsMost = 64;
const commandsSafe = 8;

/** How many characters of output wait for the next call, of each of the three. */
const keptMost = 1 << 20;

const firstNumber = 1000;
const lastNumber = 99_999;

/** Names a command in its session at the agent, so that another client finds it by its number. */
const idOf = (number: number): string => `command-${number}`;

/** Text that waits to be told: its first half and its last half, if there is too much. */
class Waiting {
  #head = "";
  #tail = "";
  #left = 0; // out, between them

  add(text: string): void {
    const room = keptMost / 2 - this.#head.length; // 0 from the first character of the tail on
    this.#head += text.slice(0, room);
    this.#tail += text.slice(room);
    if (this.#tail.length > keptMost) this.#cut();
  }

  #cut(): void {
    const from = this.#tail.length - keptMost / 2;
    if (from <= 0) return;
    this.#left += from;
    this.#tail = this.#tail.slice(from);
  }

  take(): string {
    this.#cut();
    const text = this.#head + (this.#left === 0 ? "" : `\n[... ${this.#left} characters left out ...]\n`) + this.#tail;
    this.#head = "";
    this.#tail = "";
    this.#left = 0;
    return text;
  }
}

/** A command, from its start until its end was told. */
class Command {
  readonly all = new Waiting();
  readonly stdout = new Waiting();
  readonly stderr = new Waiting();
  /** The last event that was taken, and the last one that was told. */
  seq = 0;
  toldSeq = 0;
  lastUsed = performance.now();
  exitCode: number | undefined;
  failure: unknown;
  /** Resolves when the command has ended, or can no longer be followed. */
  readonly ended: Promise<void>;

  constructor(
    readonly process: Process,
    readonly tty: boolean,
  ) {
    this.ended = this.#follow();
  }

  /** Takes all output as it comes, because output that nobody takes holds up the whole connection. */
  async #follow(): Promise<void> {
    const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder(), pty: new TextDecoder() };
    try {
      for await (const event of this.process) {
        this.seq = event.seq;
        if (event.type === "output") {
          const text = decoders[event.stream].decode(event.data, { stream: true });
          this.all.add(text);
          (event.stream === "stderr" ? this.stderr : this.stdout).add(text);
        } else if (event.type === "exited") {
          // What it has left behind may keep the output open, and is not waited for.
          this.exitCode = event.exitCode;
          break;
        }
      }
    } catch (error) {
      this.failure = error;
    }
    this.process.close();
  }

  get running(): boolean {
    return this.exitCode === undefined && this.failure === undefined;
  }

  /** Whether it may go on at the agent, although its client has failed for good. */
  get left(): boolean {
    return this.failure instanceof DisconnectedError;
  }
}

/** How long a call waits, and how much of the output it tells. */
export interface Patience {
  readonly yieldTimeMs?: number | undefined;
  readonly maxOutputTokens?: number | undefined;
}

type SpawnOptions = NonNullable<Parameters<Workspace["spawn"]>[1]>;

/** The commands of a session. */
export class Commands {
  readonly #workspace: Workspace;
  readonly #commands = new Map<number, Command>();
  /** Commands of an earlier client, or of one that has failed, and the last event of each that was told. */
  readonly #earlier: Map<number, number>;
  readonly #attaching = new Map<number, Promise<Command | undefined>>();
  readonly #starting = new Set<number>();

  constructor(workspace: Workspace, earlier: Readonly<Record<string, number>>) {
    this.#workspace = workspace;
    this.#earlier = new Map(Object.entries(earlier).map(([number, seq]) => [Number(number), seq]));
  }

  /** Returns what another client has to know to come back to what runs. */
  get running(): Record<string, number> {
    const all = [...this.#commands].filter(([, { running, left }]) => running || left).map(([number, { toldSeq }]): [string, number] => [String(number), toldSeq]);
    return Object.fromEntries([...[...this.#earlier].map(([number, seq]): [string, number] => [String(number), seq]), ...all]);
  }

  /** Starts a command, and waits for its end or for so long. */
  async start(argv: readonly string[], options: SpawnOptions, patience: Patience): Promise<Update> {
    const began = performance.now();
    for (;;) {
      const number = this.#free();
      this.#starting.add(number);
      let command: Command;
      try {
        await this.#makeRoom();
        command = new Command(await this.#workspace.spawn(argv, { ...options, id: idOf(number) }), options.tty === true);
        this.#commands.set(number, command);
      } catch (error) {
        // A command that has ended has its number as long as the agent remembers it.
        if (error instanceof ServerError && error.text.endsWith("already exists")) continue;
        throw error;
      } finally {
        this.#starting.delete(number);
      }
      return this.#tell(number, command, began, bounded(patience.yieldTimeMs ?? startWaitMs), patience);
    }
  }

  /** Writes to a command if there is something to write, waits, and returns what has come since the last call. */
  async write(number: number, chars: string, patience: Patience): Promise<Update> {
    const began = performance.now();
    await this.#workspace.open(); // again, if the client has failed
    this.#leave(number);
    const command = this.#commands.get(number) ?? (await joined(this.#attaching, number, () => this.#attach(number)));
    if (command === undefined) return told(`write_stdin failed: session not found: ${number}`);
    command.lastUsed = began;
    if (chars !== "" && command.running) {
      if (command.tty) await command.process.write(chars);
      else if (/^\u0003+$/.test(chars)) await command.process.signal("interrupt");
      else return told("write_stdin failed: stdin is not available for this process: only \\u0003 can be sent to it. Start it with tty=true to write to it.", number);
    }
    const waitMs = bounded(patience.yieldTimeMs ?? writeWaitMs);
    return this.#tell(number, command, began, chars === "" ? Math.max(waitMs, lookWaitMs) : waitMs, patience);
  }

  /** Ends all commands. */
  async end(): Promise<void> {
    const commands = [...this.#commands.values()];
    this.#commands.clear();
    const earlier = [...this.#earlier.keys()];
    this.#earlier.clear();
    await Promise.allSettled([
      ...commands.filter(({ running }) => running).map(({ process, ended }) => process.kill().then(() => wait(ended, killedWaitMs))),
      ...earlier.map(async (number) => (await this.#workspace.open()).agent.call("process/terminate", { processId: idOf(number) })),
    ]);
  }

  async #tell(number: number, command: Command, began: number, waitMs: number, { maxOutputTokens }: Patience): Promise<Update> {
    await wait(command.ended, waitMs);
    const { exitCode, failure } = command;
    this.#leave(number);
    if (!command.running) this.#commands.delete(number);
    if (failure !== undefined) throw failure;
    command.toldSeq = command.seq;
    const { text, tokens } = shorten(command.all.take(), maxOutputTokens);
    return {
      output: text, stdout: command.stdout.take(), stderr: command.stderr.take(), wallTimeSeconds: (performance.now() - began) / 1000,
      ...(exitCode === undefined ? { sessionId: number } : { exitCode }),
      ...(tokens !== undefined && { originalTokenCount: tokens }),
    };
  }

  /** Makes a command of a client that has failed one to come back to. */
  #leave(number: number): void {
    const command = this.#commands.get(number);
    if (command?.left !== true) return;
    this.#commands.delete(number);
    this.#earlier.set(number, command.toldSeq);
  }

  /** Comes back to a command of an earlier client. Its output that was told is not told again, if the agent still knows which it was. */
  async #attach(number: number): Promise<Command | undefined> {
    const after = this.#earlier.get(number);
    if (after === undefined) return undefined;
    const { agent } = await this.#workspace.open();
    const listed = (await agent.processes()).find(({ id }) => id === idOf(number));
    if (listed === undefined) return undefined;
    const process = await agent.attach(idOf(number), { after }).catch((error: unknown) => {
      if (error instanceof GapError) return agent.attach(idOf(number));
      throw error;
    });
    const command = new Command(process, listed.tty);
    this.#commands.set(number, command);
    this.#earlier.delete(number);
    return command;
  }

  #free(): number {
    for (;;) {
      const number = firstNumber + Math.floor(Math.random() * (lastNumber - firstNumber + 1));
      if (![this.#commands, this.#earlier, this.#starting].some((taken) => taken.has(number))) return number;
    }
  }

  /** Ends the command that was used least recently, but not one of the newest; first of all one that has ended. */
  async #makeRoom(): Promise<void> {
    if (this.#commands.size + this.#starting.size <= commandsMost) return;
    const old = [...this.#commands].sort(([, a], [, b]) => a.lastUsed - b.lastUsed).slice(0, -commandsSafe);
    const oldest = old.find(([, { running }]) => !running) ?? old[0];
    if (oldest === undefined) return;
    const [number, command] = oldest;
    this.#commands.delete(number);
    if (command.running) await command.process.kill();
  }
}

function bounded(ms: number): number {
  return Math.min(waitMostMs, Math.max(waitLeastMs, ms));
}

/** Waits for something, but no longer than so many milliseconds. */
async function wait(ended: Promise<void>, ms: number): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  await Promise.race([ended, new Promise<void>((resolve) => (timer = setTimeout(resolve, ms)))]);
  clearTimeout(timer);
}

/** Returns what a model is told that asked for something that cannot be done. */
function told(output: string, sessionId?: number): Update {
  return { output, stdout: "", stderr: output, wallTimeSeconds: 0, ...(sessionId === undefined ? { exitCode: 1 } : { sessionId }) };
}

/** How many bytes count as one token. */
const tokenBytes = 4;

/** Leaves out the middle of a text that has too many tokens, and says so. */
export function shorten(text: string, maxTokens: number | undefined): { text: string; tokens: number | undefined } {
  const bytes = new TextEncoder().encode(text);
  const most = maxTokens === undefined ? Infinity : Math.max(0, Math.floor(maxTokens)) * tokenBytes;
  if (bytes.length <= most) return { text, tokens: undefined };
  const tokens = Math.ceil(bytes.length / tokenBytes);
  const head = Math.floor(most / 2);
  const first = whole(bytes, 0, head);
  const last = whole(bytes, bytes.length - (most - head), bytes.length);
  const left = Math.ceil((bytes.length - first.length - last.length) / tokenBytes);
  const decoder = new TextDecoder();
  const lines = text.split("\n").length;
  return { text: `Total output lines: ${lines}\n\n${decoder.decode(first)}…${left} tokens truncated…${decoder.decode(last)}`, tokens };
}

/** Returns a part of UTF-8 text without the pieces of characters at its ends. */
function whole(bytes: Uint8Array, from: number, to: number): Uint8Array {
  const inside = (at: number): boolean => at > 0 && at < bytes.length && ((bytes[at] as number) & 0xc0) === 0x80;
  while (inside(from)) from++;
  while (inside(to)) to--;
  return bytes.subarray(from, Math.max(from, to));
}

/** Writes an update as the text that models know from the tool exec_command. */
export function describe({ output, wallTimeSeconds, exitCode, sessionId, originalTokenCount }: Update): string {
  return [
    `Chunk ID: ${Math.floor(Math.random() * 0x1000000).toString(16).padStart(6, "0")}`,
    `Wall time: ${wallTimeSeconds.toFixed(4)} seconds`,
    exitCode === undefined ? `Process running with session ID ${sessionId}` : `Process exited with code ${exitCode}`,
    ...(originalTokenCount === undefined ? [] : [`Original token count: ${originalTokenCount}`]),
    "Output:",
    output,
  ].join("\n");
}
