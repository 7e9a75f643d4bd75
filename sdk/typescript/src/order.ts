import { GapError, ProtocolError } from "./errors.js";
import { printable } from "./text.js";
import type { Refusals } from "./wire.js";

/** Output of a process. */
export interface OutputEvent {
  readonly type: "output";
  /** The number of the event. The events of a process are numbered from 1 without gaps. */
  readonly seq: number;
  /** `pty` is all output of a terminal. */
  readonly stream: "stdout" | "stderr" | "pty";
  readonly data: Uint8Array;
  /** How many bytes of the stream were left out before it, see {@link SpawnOptions.maxOutput}. Then the data may be empty. */
  readonly omitted: number;
}

/** The process has exited. Output of processes that it has left behind may follow. */
export interface ExitedEvent {
  readonly type: "exited";
  readonly seq: number;
  /** 128 and the number of the signal after a signal. */
  readonly exitCode: number;
  /** Whether a sandbox may have been the reason. */
  readonly sandboxDenied: boolean;
  /** What a sandbox has refused; undefined: nothing is known. It needs the option `refusals`. */
  readonly refusals: Refusals | undefined;
  /** Whether the agent has ended it, because the time of {@link CommandOptions.killAfterMs} was up. */
  readonly timedOut: boolean;
  /** Whether the kernel has ended a process of it, because the limit of memory was reached. */
  readonly outOfMemory: boolean;
}

/** All output has ended. This is the last event. */
export interface ClosedEvent {
  readonly type: "closed";
  readonly seq: number;
}

/** An event of a process. */
export type ProcessEvent = OutputEvent | ExitedEvent | ClosedEvent;

/** What process/read answers. */
export interface ReadAnswer {
  readonly chunks: readonly { readonly seq: number; readonly stream: OutputEvent["stream"]; readonly chunk: Uint8Array; readonly omitted: number }[];
  readonly nextSeq: number;
  readonly exited: boolean;
  readonly exitCode: number | undefined;
  readonly closed: boolean;
  readonly failure: string | undefined;
  readonly sandboxDenied: boolean;
  readonly refusals: Refusals | undefined;
  readonly timedOut: boolean;
  readonly outOfMemory: boolean;
}

/** Bounds of what waits for an earlier event of the same process. */
const maxPending = 256;
const maxPendingBytes = 1 << 20;

/** How many bytes an event has. */
export function sizeOf(event: ProcessEvent): number {
  return event.type === "output" ? event.data.length : 0;
}

/**
 * Puts the events of a process in order. They come as notifications, mostly in order, and in the answers of process/read,
 * in whole ranges.
 */
export class Order {
  /** The number of the event that was published last. */
  last = 0;
  exited = false;
  closed = false;
  /** How many early events were skipped, because the server no longer had them. */
  skipped = 0;

  readonly #pending = new Map<number, ProcessEvent>();
  #bytes = 0;
  /** The greatest number that hold had no room for. */
  #dropped = 0;

  /** fresh: nothing was published yet, and early events that the server no longer has are skipped. */
  constructor(private fresh: boolean) {}

  /** Keeps an event that comes before its turn. Without room it notes the number, and the event has to be read again. */
  hold(event: ProcessEvent): void {
    if (event.seq <= this.last || this.#pending.has(event.seq)) return;
    if (this.#pending.size >= maxPending || this.#bytes + sizeOf(event) > maxPendingBytes) {
      this.#dropped = Math.max(this.#dropped, event.seq);
      return;
    }
    this.#pending.set(event.seq, event);
    this.#bytes += sizeOf(event);
  }

  /** Notes that an event was published. */
  publish(event: ProcessEvent): void {
    if (event.type === "exited") {
      if (this.exited) throw new ProtocolError(`the process has exited twice, at ${event.seq} again`);
      this.exited = true;
    }
    this.last = event.seq;
    this.fresh = false;
    if (event.type === "closed") this.closed = true;
  }

  /** Removes and returns the next event, if it is pending. */
  next(): ProcessEvent | undefined {
    const event = this.#pending.get(this.last + 1);
    if (event !== undefined) this.#release(event);
    return event;
  }

  #release(event: ProcessEvent): void {
    const held = this.#pending.get(event.seq);
    if (held === undefined) return;
    this.#pending.delete(event.seq);
    this.#bytes -= sizeOf(held);
  }

  /** Reports whether the server has announced more events than were published. */
  behind(): boolean {
    return this.#dropped > this.last || this.#pending.size > 0;
  }

  /**
   * Takes the answer to a process/read after the last event. It returns the events to publish now: all before nextSeq.
   * An answer that contradicts earlier events, or has gaps, throws and changes nothing.
   */
  merge(answer: ReadAnswer): ProcessEvent[] {
    const target = answer.nextSeq - 1;
    if (target < 0) throw new ProtocolError("process/read answered with nextSeq 0");
    if (this.closed || target <= this.last) return [];
    const known = this.#known(answer, target);
    // The answer has no number for the exit. It is the missing number.
    let exit = answer.exited && !this.exited && !known.some((event) => event.type === "exited");
    if (exit && answer.exitCode === undefined) throw new ProtocolError("process/read answered that the process has exited, without its code");
    const gap = new GapError(this.last, target);
    const events: ProcessEvent[] = [];
    let last = this.last;
    let skipped = 0;
    const fill = (before: number): void => {
      let missing = before - last - 1;
      if (this.fresh && events.length === 0 && missing > 0) {
        // The exit may be among the skipped events. It is better told late than never.
        skipped = exit && !holed(known, before, target) ? missing - 1 : missing;
        missing -= skipped;
        last += skipped;
      }
      if (missing === 1 && exit) {
        last++;
        events.push({
          type: "exited", seq: last, exitCode: answer.exitCode as number, sandboxDenied: answer.sandboxDenied, refusals: answer.refusals,
          timedOut: answer.timedOut, outOfMemory: answer.outOfMemory,
        });
        exit = false;
        missing = 0;
      }
      if (missing !== 0) throw gap;
    };
    for (const event of known) {
      fill(event.seq);
      events.push(
        event.type === "exited"
          ? { ...event, sandboxDenied: event.sandboxDenied || answer.sandboxDenied, refusals: event.refusals ?? answer.refusals }
          : event,
      );
      last = event.seq;
    }
    fill(target + 1);
    if (exit) throw gap;
    for (const event of known) this.#release(event);
    if (skipped > 0) {
      this.last += skipped;
      this.skipped = skipped;
      this.fresh = false;
    }
    return events;
  }

  /** Returns the events of an answer about a failed process, and the pending ones, as far as they follow the published ones. */
  beside(answer: ReadAnswer): ProcessEvent[] {
    if (this.closed || answer.nextSeq === 0) return [];
    let known: ProcessEvent[];
    try {
      known = this.#known(answer, answer.nextSeq - 1);
    } catch {
      return [];
    }
    const events: ProcessEvent[] = [];
    for (const event of known) {
      if (event.type === "closed" || event.seq !== this.last + events.length + 1) break;
      this.#release(event);
      events.push(event);
    }
    return events;
  }

  /** Returns the events up to target that are pending or in the answer, in order. */
  #known(answer: ReadAnswer, target: number): ProcessEvent[] {
    const known = new Map([...this.#pending].filter(([seq]) => seq <= target));
    let last = 0;
    for (const { seq, stream, chunk, omitted } of answer.chunks) {
      if (seq <= last || seq > target) throw new ProtocolError(`process/read answered with chunk ${seq} after ${last}, up to ${target}`);
      last = seq;
      const held = known.get(seq);
      if (held !== undefined && held.type !== "output") throw new ProtocolError(`event ${seq} of the process is output, and it is not`);
      if (seq > this.last) known.set(seq, { type: "output", seq, stream, data: chunk, omitted });
    }
    const end = known.get(target);
    for (const event of known.values()) {
      if (event.type === "closed" && (event !== end || !answer.closed)) throw contradiction(target);
    }
    if (answer.closed && end === undefined) known.set(target, { type: "closed", seq: target });
    else if (answer.closed && end?.type !== "closed") throw contradiction(target);
    return [...known.values()].sort((a, b) => a.seq - b.seq);
  }
}

function contradiction(target: number): ProtocolError {
  return new ProtocolError(`the server contradicts itself about the end of the process at ${target}`);
}

/** Reports whether a number from `from` to `target` is missing among the events. */
function holed(events: readonly ProcessEvent[], from: number, target: number): boolean {
  for (const event of events) {
    if (event.seq !== from) return true;
    from++;
  }
  return from <= target;
}

/** Returns the error for the failure that a server tells of a process. */
export function failureOf(answer: ReadAnswer): ProtocolError {
  return new ProtocolError(`the process has failed: ${printable(answer.failure ?? "")}`);
}
