import { anything, count, flag, integer, list, optional, otherwise, record, text, bytes, oneOf, type Check } from "./check.js";
import { heldBy, type HeldLimits } from "./bounds.js";
import { background, duration, ending, type CallOptions, type Client, type ProcessSink } from "./client.js";
import { isLoss, isUnsent, pauseMs, sentOver, sleep, until, within, type Connection } from "./connection.js";
import {
  BusyError, ClosedError, DisconnectedError, GapError, LostProcessError, ProtocolError, RecoveringError, ServerError, StdinError, TimeoutError, UnreadError,
  UsageError,
} from "./errors.js";
import { Feed, type Writer } from "./feed.js";
import { failureOf, Order, sizeOf, type ExitedEvent, type OutputEvent, type ProcessEvent, type ReadAnswer } from "./order.js";
import { Queue } from "./queue.js";
import { concat, printable, randomId, toBytes } from "./text.js";
import type { Refusals, StartParams } from "./wire.js";

/** How a process has ended. */
export interface Exit {
  /** 128 and the number of the signal after a signal. */
  readonly exitCode: number;
  /** The number of the signal that the exit code tells of. */
  readonly signal: number | undefined;
  /** Whether a sandbox may have been the reason. */
  readonly sandboxDenied: boolean;
  /** What a sandbox has refused; undefined: nothing is known. It needs the option `refusals` of connect. */
  readonly refusals: Refusals | undefined;
  /** Whether the time of {@link CommandOptions.killAfterMs} was up before it has exited by itself. */
  readonly timedOut: boolean;
  /** Whether the kernel has ended a process of it, because the limit of memory was reached. */
  readonly outOfMemory: boolean;
}

/** The words for signals. All but `interrupt` need the server's processSignals. */
export type Signal = "interrupt" | "terminate" | "kill" | "hangup" | "quit" | "user1" | "user2" | "stop" | "continue" | "windowChange";

/** What the server answered to a start. */
export interface Started {
  /** `none`, or `linuxSeccomp` for a process with a sandbox. */
  readonly sandboxType: string;
  /** What confines the process, for a process with a sandbox. */
  readonly sandboxLayers: readonly string[];
  /** Whether the process has a proxy and can bypass it. */
  readonly networkAdvisory: boolean;
  /** Whether somebody is asked first. */
  readonly approvalPending: boolean;
  /** What holds each limit of {@link Bounds}. */
  readonly limits: HeldLimits;
}

/** A process of a session. */
export interface ListedProcess {
  readonly id: string;
  readonly argv: readonly string[];
  readonly pid: number;
  readonly tty: boolean;
  readonly startedAtMs: number;
  readonly exited: boolean;
  readonly exitCode: number | undefined;
  readonly exitedAtMs: number | undefined;
  readonly closed: boolean;
  /** The number that the next event will have. */
  readonly nextSeq: number;
}

/** Options of {@link Process.wait}. */
export interface WaitOptions {
  signal?: AbortSignal | undefined;
  /** How long to wait. The process is not touched. */
  timeoutMs?: number | undefined;
}

/** How often in a row process/read may return nothing new although a later event was announced, and how long it then waits. */
const idleMost = 3;
const idleWaitMs = 1000;

const held = optional(text);

const started: Check<Started> = (value, at) => {
  const { network, approval, limits, ...rest } = record({
    sandboxType: text, sandboxLayers: otherwise(list(text), []), network: optional(text), approval: optional(text),
    limits: optional(record({ memoryBytes: held, milliCpus: held, processes: held, fileSizeBytes: held })),
  })(value, at);
  return { ...rest, networkAdvisory: network === "advisory", approvalPending: approval === "pending", limits: heldBy(limits ?? {}) };
};

const chunk = record({ seq: count, stream: oneOf("stdout", "stderr", "pty"), chunk: bytes, omitted: otherwise(count, 0), atMs: optional(count) });

/** The answer to process/read. */
export const readAnswer = record({
  chunks: list(chunk), nextSeq: count, exited: flag, exitCode: optional(integer), closed: flag, failure: optional(text),
  ...ending,
});

const listedRecord = record({
  processId: text, argv: list(text), pid: count, tty: flag, startedAtMs: count, exited: flag, exitCode: optional(integer),
  exitedAtMs: optional(count), closed: flag, nextSeq: count,
});

/** The answer to process/list. */
export const listedProcesses: Check<ListedProcess[]> = (value, at) =>
  record({ processes: list(listedRecord) })(value, at).processes.map(({ processId, ...rest }) => ({ id: processId, ...rest }));

const status = record({ status: text });

/**
 * A process at the agent. It outlives connections: after a reconnect it asks for what it has missed, so that each event
 * comes once and in order.
 *
 * Its output goes to one consumer: the events ({@link events}), or the streams ({@link stdout}, {@link stderr}). Up to 1 MiB
 * or 256 events wait for it. Then the whole connection waits, and in the end the process does.
 */
export class Process implements AsyncDisposable, AsyncIterable<ProcessEvent> {
  /** Names the process in its session. */
  readonly id: string;

  readonly #handle: Handle;
  #stdin: WritableStream<Uint8Array | string> | undefined;

  /** @internal */
  constructor(handle: Handle) {
    this.#handle = handle;
    this.id = handle.id;
  }

  /** The server's answer to the start; undefined for a process that was attached. */
  get started(): Started | undefined {
    return this.#handle.started;
  }

  /** How many early events the server no longer had when the process was attached. */
  get skipped(): number {
    return this.#handle.order.skipped;
  }

  /**
   * The events in their order: output, exited, closed. After a break another call continues. An error of the handle ends
   * them.
   */
  events(options: { signal?: AbortSignal | undefined } = {}): AsyncIterableIterator<ProcessEvent> {
    return this.#handle.take(options.signal);
  }

  [Symbol.asyncIterator](): AsyncIterableIterator<ProcessEvent> {
    return this.events();
  }

  /**
   * Standard output, and all output of a terminal. It is read only as fast as the stream is. Read stderr at the same time, or
   * cancel it: each of both holds up to 1 MiB, and then the connection waits.
   */
  get stdout(): ReadableStream<Uint8Array> {
    return this.#handle.pipes().stdout.stream;
  }

  /** Standard error, see {@link stdout}. */
  get stderr(): ReadableStream<Uint8Array> {
    return this.#handle.pipes().stderr.stream;
  }

  /**
   * Standard input as a stream. Closing it ends the input, and waits until the server has taken everything. It needs a
   * process with `stdin: true`, or a terminal, whose input cannot be closed.
   */
  get stdin(): WritableStream<Uint8Array | string> {
    return (this.#stdin ??= this.#handle.input());
  }

  /**
   * Writes to standard input, and waits until the server has queued the data. While the process does not read, it waits.
   * Writes of one handle go one after the other.
   */
  async write(data: string | Uint8Array, options: CallOptions = {}): Promise<void> {
    await this.#handle.writing(options, async () => {
      const feed = new Feed(this.#handle.writer, options);
      await feed.write(toBytes(data));
      await feed.flush();
    });
  }

  /** Ends standard input, after all writes before. The input of a terminal cannot be closed: write `\x04`. */
  async closeStdin(options: CallOptions = {}): Promise<void> {
    await this.#handle.client.require("processCloseStdin", "closing the standard input of a process", options);
    await this.#handle.writing(options, () => this.#handle.closeInput(options));
  }

  /** How the process has exited. Output of processes that it has left behind may follow. */
  get exited(): Promise<Exit> {
    return this.#handle.exited;
  }

  /**
   * Waits until the process has exited and all its output has come. Somebody has to read the output, or to call
   * {@link discard}: otherwise the error is an {@link UnreadError} once the queue is full.
   */
  async wait(options: WaitOptions = {}): Promise<Exit> {
    const limitMs = duration(options.timeoutMs, "timeoutMs");
    const late = (): TimeoutError => new TimeoutError("the process did not end", limitMs as number);
    return within(limitMs, late, options.signal, (signal) => until(this.#handle.ended(), signal));
  }

  /** Sends a signal to the process group, once. A process that has exited is no error. */
  async signal(signal: Signal, options: CallOptions = {}): Promise<void> {
    const { client } = this.#handle;
    if (signal !== "interrupt") await client.require("processSignals", `the signal ${signal}`, options);
    await client.call("process/signal", { processId: this.id, signal }, anything, options);
  }

  /** Kills the process group, also over a lost connection, because killing twice does no harm. It waits no longer than a recovery. */
  kill(options?: CallOptions): Promise<void> {
    return this.#handle.kill(options);
  }

  /** Sets the size of the terminal, in characters. */
  async resize(rows: number, cols: number, options: CallOptions = {}): Promise<void> {
    const { client } = this.#handle;
    await client.require("processResize", "resizing terminals", options);
    await client.replay("process/resize", { processId: this.id, rows, cols }, anything, options);
  }

  /** Drops all output that was not read, now and later. */
  discard(): void {
    this.#handle.discard();
  }

  /** Gives the handle up: the process goes on, and its events are dropped. */
  close(): void {
    this.#handle.close();
  }

  /** Kills the process if it has not ended, and gives the handle up. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#handle.settled) await this.#handle.terminate();
    this.close();
  }

  /** @internal */
  get handle(): Handle {
    return this.#handle;
  }
}

/** One stream of output. */
class Pipe {
  readonly queue = new Queue<Uint8Array>((piece) => piece.length);
  #stream: ReadableStream<Uint8Array> | undefined;

  get stream(): ReadableStream<Uint8Array> {
    return (this.#stream ??= new ReadableStream<Uint8Array>(
      {
        pull: async (controller) => {
          const first = await this.queue.take();
          if (first === undefined) {
            controller.close();
            return;
          }
          controller.enqueue(joined(first, this.queue));
        },
        cancel: () => this.drop(),
      },
      { highWaterMark: 0 },
    ));
  }

  drop(): void {
    this.queue.discard(() => true);
  }
}

/** How many bytes of waiting pieces a stream gives at once. */
const joinBytes = 64 << 10;

/** Joins a piece with those that wait behind it. */
function joined(first: Uint8Array, queue: Queue<Uint8Array>): Uint8Array {
  const pieces = [first];
  let size = first.length;
  while (size < joinBytes) {
    const piece = queue.shift();
    if (piece === undefined) break;
    pieces.push(piece);
    size += piece.length;
  }
  return pieces.length === 1 ? first : concat(pieces, size);
}

/** What is behind a process: its events, and how they are got. */
export class Handle implements ProcessSink {
  readonly client: Client;
  readonly id: string;
  readonly order: Order;
  readonly writer: Writer;
  readonly exited: Promise<Exit>;
  /** Resolves when the outcome is known. */
  readonly done: Promise<void>;
  started: Started | undefined;

  readonly #from: number;
  readonly #events = new Queue<ProcessEvent>(sizeOf);
  #pipes: { stdout: Pipe; stderr: Pipe } | undefined;
  #discarding = false; // output is dropped, also that of streams that are asked for later
  #read = false; // whether anybody has begun to take output
  #behind: boolean; // events are held until the server was asked for earlier ones
  #unknown = false; // whether the server has it: its start is made again, and nobody asks for events
  #chasing = false;
  #catching: Promise<void> = Promise.resolve();
  #deaf = false; // events are dropped from now on
  #exit: Exit | undefined;
  #killed = false; // by killAfter
  #end: { error: unknown } | undefined;
  #waiters: (() => void)[] = [];
  #resolveExited!: (exit: Exit) => void;
  #rejectExited!: (error: unknown) => void;
  #resolveDone!: () => void;
  #lastWrite: Promise<void> = Promise.resolve();

  /** from: events up to this one are not wanted. attached: the process runs already. */
  constructor(client: Client, id: string, from = 0, attached = false) {
    this.client = client;
    this.id = id;
    this.#from = from;
    this.#behind = attached;
    this.order = new Order(attached);
    const prefix = randomId() + "-";
    let writes = 0;
    this.writer = { client, processId: id, nextId: () => prefix + ++writes, unsure: [] };
    this.exited = new Promise((resolve, reject) => {
      this.#resolveExited = resolve;
      this.#rejectExited = reject;
    });
    this.done = new Promise((resolve) => (this.#resolveDone = resolve));
    this.exited.catch(() => {}); // whoever does not look at it need not know
  }

  /** Starts a process, see {@link Agent.spawn}. */
  static async start(client: Client, params: StartParams, options: CallOptions): Promise<Handle> {
    const once = (await client.info(options)).capabilities["processStartId"] === true;
    if (once) params.startId = randomId();
    for (;;) {
      const handle = new Handle(client, params.processId);
      // Events may come before the answer, so the handle is known before the request is sent.
      let lost: DisconnectedError | undefined;
      const over = await handle.#register(options);
      const starting = client.calledOver(over, "process/start", params, started, options.signal);
      const settling = starting.then(
        (answer) => {
          handle.started = answer;
        },
        (error: unknown) => {
          if (once && isLoss(error) && error.sent && client.failure === undefined) handle.#unknown = handle.#behind = true;
          else if (isUnsent(error) || error instanceof ServerError || error instanceof BusyError || error instanceof UsageError) handle.fail(error);
          else handle.#abandon(error);
        },
      );
      over.starts.add(settling);
      try {
        await starting;
        return handle;
      } catch (error) {
        await settling;
        if (handle.#unknown) lost = error as DisconnectedError;
        else if (!isUnsent(error)) throw error;
      } finally {
        await settling;
        over.starts.delete(settling);
      }
      if (lost !== undefined) return await handle.#startAgain(params, lost, options);
    }
  }

  /** Makes the request of a start again and again, until an answer comes. The agent knows it by its startId. */
  async #startAgain(params: StartParams, lost: DisconnectedError, options: CallOptions): Promise<this> {
    const { client } = this;
    for (;;) {
      try {
        const over = await client.connected(options);
        this.started = await client.calledOver(over, "process/start", params, started, options.signal);
        break;
      } catch (error) {
        if (error instanceof BusyError) await sleep(pauseMs);
        else if (error instanceof ServerError) {
          this.fail(error);
          throw error.reason === "forgotten" ? new DisconnectedError(`the answer to the start was lost: ${error.message}`, true, error) : error;
        } else if (!isLoss(error) || client.failure !== undefined) {
          const failure = error instanceof RecoveringError ? lost : isLoss(error) ? sentOver(error) : error;
          this.#abandon(failure);
          throw failure;
        }
      }
    }
    this.#unknown = false;
    this.#chase();
    return this;
  }

  /** Attaches to a process of the session, whose events up to `after` are known. */
  static async attach(client: Client, id: string, after: number | undefined, options: CallOptions): Promise<Handle> {
    const handle = new Handle(client, id, after ?? 0, true);
    let over = await handle.#register(options);
    try {
      for (;;) {
        try {
          await handle.catchUp(over, options.signal);
          break;
        } catch (error) {
          if (!isLoss(error)) throw error;
          over = await client.connected(options);
        }
      }
      if (handle.#end !== undefined && handle.#end.error !== undefined) throw handle.#end.error;
      if (after !== undefined && handle.order.skipped > after) throw new GapError(after, handle.order.skipped);
      return handle;
    } catch (error) {
      handle.fail(error);
      throw error;
    }
  }

  async #register(options: CallOptions): Promise<Connection> {
    for (;;) {
      const over = await this.client.connected(options);
      if (!this.client.isCurrent(over)) continue;
      if (this.client.processes.has(this.id)) throw new UsageError(`this client has a handle of the process ${printable(this.id, 256)} already`);
      this.client.processes.set(this.id, this);
      return over;
    }
  }

  #deregister(): void {
    if (this.client.processes.get(this.id) === this) this.client.processes.delete(this.id);
  }

  /** Whether the outcome is known. */
  get settled(): boolean {
    return this.#end !== undefined;
  }

  /** How the process has exited, if it has. */
  get exit(): Exit | undefined {
    return this.#exit;
  }

  /** Decides the outcome, once. */
  #settle(error: unknown): void {
    this.#deaf = true;
    this.#behind = false;
    if (this.#end === undefined) {
      this.#end = { error };
      const unfinished = error ?? new ProtocolError(`process ${printable(this.id, 256)} closed without having exited`);
      if (this.#exit === undefined) this.#rejectExited(unfinished);
      for (const wake of this.#waiters.splice(0)) wake();
      this.#resolveDone();
    }
    this.#events.end(error);
    this.#pipes?.stdout.queue.end(error);
    this.#pipes?.stderr.queue.end(error);
  }

  fail(error: unknown): void {
    this.#settle(error);
    this.#deregister();
  }

  /** Fails a process that may be running, and terminates it. Its id stays taken until then. */
  #abandon(error: unknown): void {
    this.#settle(error);
    background(this.terminate().finally(() => this.#deregister()));
  }

  /** Terminates the process, also after a recovery. */
  async kill(options: CallOptions = {}): Promise<void> {
    const { client } = this;
    const late = (): TimeoutError => new TimeoutError("the server did not answer process/terminate", client.killMs);
    await within(client.killMs, late, options.signal, (signal) =>
      client.replay("process/terminate", { processId: this.id }, anything, { ...options, signal }),
    );
  }

  /** Does so for somebody who does not wait for an error: the session ends with the client, and its processes with the session. */
  async terminate(): Promise<void> {
    await this.kill().catch(() => {});
  }

  /** Kills the process after a while. The agent does that itself if it can. */
  killAfter(ms: number): void {
    const timer = setTimeout(() => {
      this.#killed = this.#exit === undefined; // else it ends what the process has left behind
      void this.terminate(); // it does not reject
    }, ms);
    void this.done.then(() => clearTimeout(timer));
  }

  loseTrack(error: unknown): void {
    this.#abandon(error instanceof GapError ? error : new LostProcessError(this.id, error));
  }

  close(): void {
    this.#events.discard(() => true);
    this.#pipes?.stdout.drop();
    this.#pipes?.stderr.drop();
    this.fail(new ClosedError("the handle of the process"));
  }

  discard(): void {
    this.#read = true;
    this.#discarding = true;
    this.#events.discard((event) => event.type === "output");
    this.#pipes?.stdout.drop();
    this.#pipes?.stderr.drop();
  }

  async *take(signal?: AbortSignal): AsyncIterableIterator<ProcessEvent> {
    this.#read = true;
    for (;;) {
      const event = await this.#events.take(signal);
      if (event === undefined) return;
      yield event;
    }
  }

  /** Gives each output to a function, to the end. */
  async drain(each: (event: OutputEvent) => void, signal?: AbortSignal): Promise<void> {
    this.#read = true;
    for (;;) {
      const event = this.#events.shift() ?? (await this.#events.take(signal));
      if (event === undefined) return;
      if (event.type === "output") each(event);
    }
  }

  pipes(): { stdout: Pipe; stderr: Pipe } {
    if (this.#pipes !== undefined) return this.#pipes;
    this.#read = true;
    const pipes = { stdout: new Pipe(), stderr: new Pipe() };
    if (this.#discarding) {
      pipes.stdout.drop();
      pipes.stderr.drop();
    }
    // An event that waits for room enters the queue meanwhile, so it also comes in its turn.
    for (let event = this.#events.shift(); event !== undefined; event = this.#events.shift()) {
      if (event.type === "output" && event.data.length > 0) (event.stream === "stderr" ? pipes.stderr : pipes.stdout).queue.push(event.data);
    }
    this.#pipes = pipes;
    if (this.#end !== undefined) {
      pipes.stdout.queue.end(this.#end.error);
      pipes.stderr.queue.end(this.#end.error);
    }
    return pipes;
  }

  #pipe(event: OutputEvent): Pipe {
    const pipes = this.pipes();
    return event.stream === "stderr" ? pipes.stderr : pipes.stdout;
  }

  /** Waits for the end of the process and of its output. */
  async ended(): Promise<Exit> {
    while (this.#end === undefined) {
      if (this.#unread()) throw new UnreadError("output waits that nobody reads: read the events, or stdout and stderr, or call discard()");
      await new Promise<void>((resolve) => this.#waiters.push(resolve));
    }
    if (this.#end.error !== undefined) throw this.#end.error;
    return this.exited;
  }

  /** Reports whether the queue is full, and nobody has begun to take output. */
  #unread(): boolean {
    return !this.#read && this.#events.length > 0 && this.#stalled;
  }

  /** Whether an event waits for room. */
  #stalled = false;

  #stall(on: boolean): void {
    this.#stalled = on;
    if (on) for (const wake of this.#waiters.splice(0)) wake();
  }

  accept(event: ProcessEvent, from: Connection): void | Promise<void> {
    if (this.#deaf || event.seq <= this.order.last) return undefined;
    if (this.#behind || event.seq !== this.order.last + 1) {
      this.order.hold(event);
      if (!this.#behind) {
        this.#behind = true;
        this.#chase();
      }
      return undefined;
    }
    this.#note(event);
    if (event.seq > this.#from && !from.flushing && this.#full(event)) return this.#admit(event, from);
    this.#enter(event, from);
    return undefined;
  }

  #enter(event: ProcessEvent, from: Connection): void {
    from.useful = true;
    try {
      this.#publish(event);
    } catch (error) {
      this.#abandon(error);
      return;
    }
    if (this.order.closed) this.fail(undefined);
  }

  /** Waits until there is room for the next event. If the connection ends first, the event is read again over the next one. */
  #admit(event: ProcessEvent, from: Connection): Promise<void> {
    this.#stall(true);
    return new Promise((resolve) => {
      const done = (): void => {
        from.blocked = undefined;
        this.#stall(false);
        resolve();
      };
      const retry = (): void => {
        if (!this.#deaf && this.#full(event)) {
          cancel = this.#queue(event).onRoom(retry);
          return;
        }
        if (!this.#deaf) this.#enter(event, from);
        done();
      };
      let cancel = this.#queue(event).onRoom(retry);
      from.blocked = () => {
        cancel();
        if (from.flushing && !this.#deaf) this.#enter(event, from);
        done();
      };
    });
  }

  #queue(event: ProcessEvent): Queue<never> {
    const queue = this.#pipes !== undefined && event.type === "output" ? this.#pipe(event).queue : this.#events;
    return queue as unknown as Queue<never>;
  }

  #full(event: ProcessEvent): boolean {
    if (this.#pipes === undefined) return this.#events.full(event);
    return event.type === "output" && this.#pipe(event).queue.full(event.data);
  }

  /** Reports whether twice as much waits as usual. */
  #overfull(): boolean {
    const pipes = this.#pipes;
    return pipes === undefined ? this.#events.full(undefined, 2) : pipes.stdout.queue.full(undefined, 2) || pipes.stderr.queue.full(undefined, 2);
  }

  /** Notes the exit before anybody can see the event. */
  #note(event: ProcessEvent): void {
    if (event.type !== "exited" || this.#exit !== undefined) return;
    this.#exit = exitOf(event, this.#killed);
    this.#resolveExited(this.#exit);
  }

  #publish(event: ProcessEvent): void {
    this.#note(event);
    this.order.publish(event);
    if (event.seq <= this.#from) return;
    if (this.#pipes === undefined) this.#events.push(event);
    else if (event.type === "output" && event.data.length > 0) this.#pipe(event).queue.push(event.data);
  }

  fallBehind(): void {
    if (!this.#deaf) this.#behind = true;
  }

  /**
   * Asks the server for missed events, until none is missing. A process whose events are not taken stays behind, and is
   * caught up with when there is room.
   */
  async catchUp(over: Connection, signal?: AbortSignal): Promise<void> {
    const turn = this.#catching.then(() => this.#catchUp(over, signal));
    this.#catching = turn.catch(() => {});
    return turn;
  }

  async #catchUp(over: Connection, signal: AbortSignal | undefined): Promise<void> {
    let waitMs = 0;
    for (let idle = 0; idle < idleMost; ) {
      if (this.#deaf || !this.#behind || this.#unknown) return;
      if (this.#overfull()) {
        this.#chase();
        return;
      }
      const params = { processId: this.id, afterSeq: this.order.last, maxBytes: null, waitMs };
      const answer = await over.call("process/read", params, readAnswer, signal);
      if (this.#takeAnswer(answer)) {
        over.useful = true;
        idle = 0;
        waitMs = 0;
      } else {
        idle++;
        waitMs = idleWaitMs;
      }
    }
    if (this.#behind) throw new ProtocolError(`events after ${this.order.last} of the process were announced, and cannot be read`);
  }

  /** Publishes the events of an answer, and those that waited for them. It reports whether there were any. */
  #takeAnswer(answer: ReadAnswer): boolean {
    if (this.#deaf) return false;
    const failed = answer.failure !== undefined;
    const events = failed ? this.order.beside(answer) : this.order.merge(answer);
    let moved = false;
    const publish = (event: ProcessEvent): void => {
      this.#publish(event);
      moved = true;
    };
    events.forEach(publish);
    if (failed) throw failureOf(answer);
    for (let event = this.order.next(); event !== undefined; event = this.order.next()) publish(event);
    this.#behind = this.order.behind();
    if (this.order.closed) this.fail(undefined);
    return moved;
  }

  #chase(): void {
    if (this.#chasing) return;
    this.#chasing = true;
    void this.#chaseOn().finally(() => (this.#chasing = false)); // it handles its errors
  }

  /** Catches up as soon as the consumer has made room. */
  async #chaseOn(): Promise<void> {
    while (this.#behind && !this.#deaf) {
      try {
        await this.#roomForMore();
        const over = await this.client.connected();
        await this.catchUp(over);
      } catch (error) {
        if (this.#deaf || this.client.failure !== undefined) return;
        if (!isLoss(error)) this.loseTrack(error);
      }
    }
  }

  /** Waits until no queue is full. */
  async #roomForMore(): Promise<void> {
    const queues = (): Queue<never>[] =>
      (this.#pipes === undefined ? [this.#events] : [this.#pipes.stdout.queue, this.#pipes.stderr.queue]) as unknown as Queue<never>[];
    for (;;) {
      const full = queues().find((queue) => queue.full());
      if (full === undefined || this.#deaf) return;
      this.#stall(true);
      await new Promise<void>((resolve) => full.onRoom(resolve));
      this.#stall(false);
    }
  }

  /** Runs a write after the writes before it. */
  async writing(options: CallOptions, write: () => Promise<void>): Promise<void> {
    if (options.failFast === true) await this.client.connected(options);
    const before = this.#lastWrite;
    let release!: () => void;
    this.#lastWrite = new Promise((resolve) => (release = resolve));
    try {
      await until(until(before, options.signal), this.client.over.signal);
    } catch (error) {
      void before.then(release);
      throw error;
    }
    try {
      await write();
    } finally {
      release();
    }
  }

  async closeInput(options: CallOptions): Promise<void> {
    for (let sent = false; ; ) {
      const over = await this.client.connected(options);
      try {
        const answer = await this.client.calledOver(over, "process/closeStdin", { processId: this.id }, status, options.signal);
        // It may have been closed by the request whose answer was lost.
        if (answer.status === "accepted" || (sent && answer.status === "stdinClosed")) return;
        throw new StdinError(answer.status);
      } catch (error) {
        if (!isLoss(error)) throw error;
        sent ||= error.sent;
      }
    }
  }

  /** Returns standard input as a stream. */
  input(): WritableStream<Uint8Array | string> {
    let feed: Feed | undefined;
    let release: (() => void) | undefined;
    const options: { signal: AbortSignal } = { signal: new AbortController().signal };
    void this.done.then(() => release?.());
    return new WritableStream<Uint8Array | string>({
      write: async (data, controller) => {
        options.signal = controller.signal;
        if (feed === undefined) {
          // From its first write to its end the stream is the only writer.
          await new Promise<void>((begun, failed) => {
            this.writing(options, () => new Promise<void>((end) => ((release = end), begun()))).catch(failed);
          });
          feed = new Feed(this.writer, options);
        }
        try {
          await feed.write(toBytes(data));
        } catch (error) {
          release?.();
          throw error;
        }
      },
      close: async () => {
        try {
          await feed?.flush();
        } finally {
          release?.();
        }
        await this.client.require("processCloseStdin", "closing the standard input of a process");
        await this.writing({}, () => this.closeInput({}));
      },
      abort: () => release?.(),
    });
  }
}

function exitOf({ exitCode, sandboxDenied, refusals, timedOut, outOfMemory }: ExitedEvent, killed: boolean): Exit {
  const signal = exitCode > 128 && exitCode <= 128 + 64 ? exitCode - 128 : undefined;
  return { exitCode, signal, sandboxDenied, refusals, timedOut: timedOut || (killed && exitCode === 128 + 9), outOfMemory };
}

