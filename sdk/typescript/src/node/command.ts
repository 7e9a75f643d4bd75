import { spawn } from "node:child_process";
import { isAscii, isUtf8 } from "node:buffer";
import type { Channel, Dial } from "../client.js";
import { maxMessage } from "../connection.js";
import { ConnectError, ProtocolError, UsageError } from "../errors.js";

/** A program that speaks the protocol on its standard input and output, such as `agent --listen stdio`. */
export interface CommandTarget {
  readonly command: readonly string[];
  readonly cwd?: string | undefined;
  /** The environment of the program. By default that of this process. */
  readonly env?: Readonly<Record<string, string>> | undefined;
  /** Called with each line that the program writes to its standard error, cut to 8 KiB. By default they are dropped. */
  readonly stderr?: ((line: string) => void) | undefined;
}

const maxStderrLine = 8 << 10;

/** How long the program may take to end, once after its input has ended, and again after SIGTERM. */
const graceMs = 2_000;

/** Starts a program and speaks with it, one JSON message per line. Its process group ends with the connection. */
export function commandDial(target: CommandTarget): Dial {
  return (events, signal) =>
    new Promise((resolve, reject) => {
      const [file, ...args] = target.command;
      if (file === undefined || file === "") throw new UsageError("the command to connect to is empty");
      if (signal.aborted) return reject(signal.reason);
      const child = spawn(file, args, {
        stdio: "pipe", detached: true, ...(target.cwd !== undefined && { cwd: target.cwd }), ...(target.env !== undefined && { env: { ...target.env } }),
      });
      const kill = (name: NodeJS.Signals): void => {
        try {
          if (child.pid !== undefined) process.kill(-child.pid, name); // the whole group
        } catch {
          // It is gone.
        }
      };
      let over = false;
      let exited = false;
      const end = (cause?: unknown): void => {
        if (over) return;
        over = true;
        events.closed(cause);
      };
      const abort = (): void => {
        kill("SIGKILL");
        reject(signal.reason);
      };
      signal.addEventListener("abort", abort, { once: true });
      child.on("error", (error) => {
        signal.removeEventListener("abort", abort);
        reject(new ConnectError(`${file} cannot be started: ${(error as NodeJS.ErrnoException).code ?? error.message}`, true, error));
        end(error);
      });
      child.on("exit", () => {
        exited = true;
        kill("SIGKILL"); // what is left of its group
        lines.resume(); // what has come is delivered first
        child.stdout.resume();
      });
      let last = "";
      child.on("close", (code, name) => end(new Error(`${file} ended with ${name ?? code}${last === "" ? "" : `: ${last}`}`)));
      child.stdin.on("error", () => {}); // the end of the program says more
      readLines(child.stderr, (line) => {
        last = line.slice(0, 512);
        target.stderr?.(line);
      });
      const lines = new Lines((line) => {
        if (!over) events.message(line);
      }, (error) => {
        end(error);
        kill("SIGKILL");
      });
      child.stdout.on("data", (piece: Buffer) => lines.push(piece));
      child.stdout.on("error", end);
      child.on("spawn", () => {
        signal.removeEventListener("abort", abort);
        const channel: Channel = {
          watched: true,
          send: (message) => {
            if (over || child.stdin.destroyed) throw new Error(`${file} has ended`);
            child.stdin.write(message + "\n");
          },
          unsent: () => child.stdin.writableLength,
          pause: () => {
            if (exited) return;
            lines.paused = true;
            child.stdout.pause();
          },
          resume: () => {
            lines.resume();
            if (!lines.paused) child.stdout.resume();
          },
          close: () => {
            over = true;
            lines.drop();
            child.stdin.end();
            child.stdout.resume();
            if (exited) return Promise.resolve();
            const timers = [setTimeout(() => kill("SIGTERM"), graceMs), setTimeout(() => kill("SIGKILL"), 2 * graceMs)];
            return new Promise<void>((ended) => {
              child.once("exit", () => {
                timers.forEach(clearTimeout);
                ended();
              });
            });
          },
        };
        resolve(channel);
      });
    });
}

/** Puts lines together. Blank ones are left out. */
class Lines {
  paused = false;
  #pieces: Buffer[] = [];
  #length = 0;
  #rest: Buffer[] = [];
  #dropping = false;

  constructor(
    private readonly line: (line: string) => void,
    private readonly fail: (error: Error) => void,
  ) {}

  push(piece: Buffer): void {
    if (this.#dropping) return;
    if (this.paused) {
      this.#rest.push(piece);
      return;
    }
    for (let from = 0; from < piece.length; ) {
      const end = piece.indexOf(10, from);
      const part = piece.subarray(from, end < 0 ? piece.length : end);
      this.#pieces.push(part);
      this.#length += part.length;
      if (this.#length > maxMessage) {
        this.#pieces = [];
        this.fail(new ProtocolError(`the program printed a line of more than ${maxMessage} bytes`));
        return;
      }
      if (end < 0) return;
      from = end + 1;
      const bytes = this.#pieces.length === 1 ? part : Buffer.concat(this.#pieces, this.#length);
      this.#pieces = [];
      this.#length = 0;
      const ascii = isAscii(bytes);
      if (!ascii && !isUtf8(bytes)) {
        this.fail(new ProtocolError("the program printed a line that is not UTF-8"));
        return;
      }
      const line = bytes.toString(ascii ? "latin1" : "utf8").trim();
      if (line !== "") this.line(line);
      if (this.paused) {
        this.#rest.unshift(piece.subarray(from));
        return;
      }
    }
  }

  /** Drops what comes from now on, and what waits. The program must be able to print it, or it would not end. */
  drop(): void {
    this.#dropping = true;
    this.#rest = [];
    this.#pieces = [];
  }

  resume(): void {
    this.paused = false;
    for (const piece of this.#rest.splice(0)) this.push(piece);
  }
}

/** Gives each line to a function, cut to 8 KiB. */
function readLines(from: NodeJS.ReadableStream, line: (line: string) => void): void {
  let rest = "";
  from.setEncoding("utf8");
  from.on("data", (text: string) => {
    const lines = (rest + text).split("\n");
    rest = (lines.pop() as string).slice(0, maxStderrLine);
    for (const one of lines) line(one.slice(0, maxStderrLine));
  });
  from.on("end", () => {
    if (rest !== "") line(rest);
  });
  from.on("error", () => {});
}
