import type { CallOptions, Client } from "./client.js";
import { UsageError } from "./errors.js";
import type { ProcessLimits, StartParams } from "./wire.js";

/**
 * Bounds of one command with all its children, and its user, in the words of `agent exec`. What the agent's host cannot hold
 * is refused, and nothing runs.
 */
export interface Bounds {
  /** How much memory it may have, in bytes or as in `512m`. It needs a control group at the agent. */
  readonly memory?: number | string | undefined;
  /** How many processors it may use, such as 1.5. It needs a control group. */
  readonly cpus?: number | undefined;
  /** How many processes and threads it may have. Without a control group those of its user count, and root cannot be limited. */
  readonly pids?: number | undefined;
  /** How large a file may be that it writes, in bytes or as in `64m`. */
  readonly fileSize?: number | string | undefined;
  /** Who it runs as: `NAME` or `NAME:GROUP`, each also as a number. The agent has to be root, and the command is not confined. */
  readonly user?: string | undefined;
}

/** The words of {@link Bounds} for limits, and those of the wire. */
const wireNames = { memory: "memoryBytes", cpus: "milliCpus", pids: "processes", fileSize: "fileSizeBytes" } as const;

/** What holds each limit: `cgroup`, a control group of the command, or `rlimit`, a limit of each of its processes. */
export interface HeldLimits {
  readonly memory?: string;
  readonly cpus?: string;
  readonly pids?: string;
  readonly fileSize?: string;
}

/** Returns what holds limits, in the words of the options. */
export function heldBy(held: { readonly [name: string]: string | undefined }): HeldLimits {
  return Object.fromEntries(Object.entries(wireNames).flatMap(([word, name]) => (held[name] === undefined ? [] : [[word, held[name]]])));
}

/** Returns a number of bytes that is also written as in 64k, 512m and 2g. */
export function size(value: number | string, name: string): number {
  const [, digits, letter = ""] = (typeof value === "string" ? /^(\d+)(?:([kmgt])(?:i?b)?)?$/i : /^(\d+)$/).exec(String(value)) ?? [];
  const bytes = Number(digits) * 1024 ** (letter === "" ? 0 : "kmgt".indexOf(letter.toLowerCase()) + 1);
  if (!Number.isSafeInteger(bytes)) throw new UsageError(`${name} is ${String(value)}, and must be a whole number of bytes, or text such as 64k, 512m or 2g`);
  return bytes;
}

/** Adds bounds to the start of a process. */
export async function applyBounds(params: StartParams, bounds: Bounds, client: Client, options: CallOptions): Promise<void> {
  const limits: ProcessLimits = {};
  const limit = (word: keyof typeof wireNames, value: number, least: number, most: number, unit: string, factor = 1): void => {
    if (!(value >= least && value <= most)) throw new UsageError(`${word} is ${value}, and must be ${unit} from ${least} to ${most}`);
    limits[wireNames[word]] = Math.round(value * factor);
  };
  const { memory, cpus, pids, fileSize, user } = bounds;
  const mostBytes = Number.MAX_SAFE_INTEGER;
  if (memory !== undefined) limit("memory", size(memory, "memory"), 1, mostBytes, "a number of bytes");
  if (cpus !== undefined) limit("cpus", cpus, 0.01, 1000, "a number of processors", 1000);
  if (pids !== undefined) limit("pids", Number.isSafeInteger(pids) ? pids : NaN, 1, 1 << 22, "a whole number");
  if (fileSize !== undefined) limit("fileSize", size(fileSize, "fileSize"), 1, mostBytes, "a number of bytes");
  if (Object.keys(limits).length > 0) {
    await client.require("processLimits", "limits of one command", options);
    params.limits = limits;
  }
  if (user === undefined) return;
  const [, name, group] = /^([^:\0]{1,256})(?::([^:\0]{1,256}))?$/.exec(user) ?? [];
  if (name === undefined) throw new UsageError("user is not NAME or NAME:GROUP");
  await client.require("processRunAs", "running a command as another user", options);
  params.runAs = group === undefined ? { user: name } : { user: name, group };
}
