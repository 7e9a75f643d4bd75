import { anything, flag, otherwise, record, type Check } from "./check.js";
import { background, cleanupMs, ports, type CallOptions, type ChangedNotice, type Client, type PortNotice } from "./client.js";
import { isLoss, within, type Connection } from "./connection.js";
import { ClosedError, ProtocolError } from "./errors.js";
import { wakened } from "./queue.js";
import { printable } from "./text.js";
import { toPath, toURI } from "./uri.js";
import type { Sandbox } from "./wire.js";

/** Tells what has changed at the agent. It outlives connections. */
export abstract class Watching<News> implements AsyncDisposable, AsyncIterable<News> {
  /** @internal */
  readonly id: string;
  /** @internal */
  protected readonly client: Client;
  #over: Connection | undefined;
  #end: { error: unknown } | undefined;
  #waiting: (() => void)[] = [];

  /** @internal */
  constructor(client: Client) {
    this.client = client;
    this.id = `w${client.nextId()}`;
  }

  /** Asks the server to watch, for the first time or again. @internal */
  protected abstract ask(over: Connection, signal?: AbortSignal): Promise<void>;

  /** Takes what has come; undefined: nothing. @internal */
  protected abstract taken(): News | undefined;

  /** Lets notifications come here, or no longer. @internal */
  protected abstract listen(on: boolean): void;

  /** Ends it at the server. @internal */
  protected abstract stop(over: Connection, signal: AbortSignal | undefined): Promise<unknown>;

  /** @internal */
  static async open<W extends Watching<unknown>>(watch: W, options: CallOptions): Promise<W> {
    const { client } = watch;
    watch.listen(true);
    for (;;) {
      let over: Connection | undefined;
      try {
        over = await client.connected(options);
        await watch.ask(over, options.signal);
        if (!client.isCurrent(over)) continue; // it has ended with its connection
        watch.#over = over;
        client.lasting.add(watch);
        return watch;
      } catch (error) {
        if (isLoss(error) && client.failure === undefined) continue;
        watch.listen(false);
        if (over !== undefined && options.signal?.aborted) background(watch.#stop(over)); // the server may have made it
        throw error;
      }
    }
  }

  /** Waits for changes, and takes all that have come. */
  async next(options: { signal?: AbortSignal | undefined } = {}): Promise<News> {
    for (;;) {
      const news = this.taken();
      if (news !== undefined) return news;
      if (this.#end !== undefined) throw this.#end.error;
      await wakened(this.#waiting, options.signal);
    }
  }

  /** Changes, as they come, until the watch is closed. */
  async *[Symbol.asyncIterator](): AsyncIterator<News> {
    for (;;) {
      try {
        yield await this.next();
      } catch (error) {
        if (error instanceof ClosedError && this.client.failure === undefined) return;
        throw error;
      }
    }
  }

  /** @internal */
  async resume(over: Connection): Promise<void> {
    this.#over = undefined;
    try {
      await this.ask(over);
    } catch (error) {
      if (isLoss(error)) return; // the next connection resumes it, if there is one
      throw error;
    }
    if (this.ended) background(this.#stop(over)); // it was closed meanwhile
    else this.#over = over;
    this.wake();
  }

  /** @internal */
  fail(error: unknown): void {
    if (this.ended) return;
    this.#end = { error };
    this.listen(false);
    this.client.lasting.delete(this);
    this.wake();
  }

  /** @internal */
  protected get ended(): boolean {
    return this.#end !== undefined;
  }

  /** @internal */
  protected wake(): void {
    for (const call of this.#waiting.splice(0)) call();
  }

  async #stop(over: Connection): Promise<void> {
    try {
      await within(cleanupMs, () => new Error("late"), undefined, (signal) => this.stop(over, signal));
    } catch {
      // It ends with its connection.
    }
  }

  /** Ends the watch, also at the server, within 10 s. It is no error to do it again. */
  async close(): Promise<void> {
    if (this.ended) return;
    this.fail(new ClosedError("the watch"));
    if (this.#over !== undefined) await this.#stop(this.#over);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** A change of a path. */
export interface Change {
  readonly kind: "created" | "modified" | "removed" | "renamed";
  readonly path: string;
  /** Of a renamed path: where it was. */
  readonly from: string | undefined;
}

/** Changes in the order in which they happened. */
export interface Changes {
  readonly changes: readonly Change[];
  /** More has changed, at the path or anywhere below it: read the tree again. There are no changes then. */
  readonly overflow: boolean;
}

/** Bounds of what waits to be taken. With more there is an overflow. */
const mostChanges = 4096;
const mostBytes = 1 << 20;

const watched: Check<{ path: string }> = record({ path: (value, at) => toPath(value, at) });

/** Tells of changes at a path. After a lost connection it tells an overflow. */
export class Watch extends Watching<Changes> {
  readonly #params: { path: string; recursive: boolean; sandbox?: Sandbox };
  #path = "";
  #changes: Change[] = [];
  #bytes = 0;
  #overflow = false;

  /** @internal */
  constructor(client: Client, params: { path: string; recursive: boolean; sandbox?: Sandbox }) {
    super(client);
    this.#params = params;
  }

  /** The watched path, with its links resolved. */
  get path(): string {
    return this.#path;
  }

  /** @internal */
  protected async ask(over: Connection, signal?: AbortSignal): Promise<void> {
    const first = this.#path === "";
    const { path } = await this.client.calledOver(over, "fs/watch", { ...this.#params, watchId: this.id }, watched, signal);
    if (!first && path !== this.#path) throw new ProtocolError("since the connection was lost, the path leads elsewhere");
    if (!first) this.#spill();
    // From now on it is about this path, even if a link leads elsewhere later.
    this.#path = path;
    this.#params.path = toURI(path);
  }

  /** @internal */
  protected taken(): Changes | undefined {
    if (!this.#overflow && this.#changes.length === 0) return undefined;
    const taken = { changes: this.#changes, overflow: this.#overflow };
    this.#changes = [];
    this.#bytes = 0;
    this.#overflow = false;
    return taken;
  }

  #spill(): void {
    this.#overflow = true;
    this.#changes = [];
    this.#bytes = 0;
  }

  /** @internal */
  protected listen(on: boolean): void {
    if (on) this.client.watches.set(this.id, this);
    else this.client.watches.delete(this.id);
  }

  /** @internal */
  protected stop(over: Connection, signal: AbortSignal | undefined): Promise<unknown> {
    return this.client.calledOver(over, "fs/unwatch", { watchId: this.id }, anything, signal);
  }

  /** @internal */
  changed(notice: ChangedNotice): void {
    if (this.ended) return;
    const below = this.#path.endsWith("/") ? this.#path : this.#path + "/";
    for (const { path, from } of notice.changes) {
      for (const one of [path, from]) {
        if (this.#path !== "" && one !== undefined && one !== this.#path && !one.startsWith(below)) {
          this.fail(new ProtocolError(`the server tells of ${printable(one, 256)}, which is not watched`));
          return;
        }
      }
      this.#bytes += path.length + (from?.length ?? 0);
    }
    for (const change of notice.changes) this.#changes.push(change); // there may be more than a call takes
    if (this.#overflow || notice.overflow || this.#changes.length > mostChanges || this.#bytes > mostBytes) this.#spill();
    this.wake();
  }
}

/** A TCP port that listens on the agent's side. */
export interface Port {
  readonly port: number;
  /** The IP address where it listens. 0.0.0.0 and :: are all addresses. */
  readonly address: string;
  /** The user who has opened it, the process that has it, and the name of its program; undefined: the agent does not see that. */
  readonly uid: number | undefined;
  readonly pid: number | undefined;
  readonly program: string | undefined;
}

/** The ports of {@link Agent.ports}, by port and address. */
export interface Ports {
  readonly ports: readonly Port[];
  /** Whether there are more: 4096 are listed. */
  readonly truncated: boolean;
}

/** Ports that have opened and closed, by port and address. One where another process listens now is in both lists. */
export interface PortChanges {
  readonly opened: readonly Port[];
  readonly closed: readonly Port[];
}

/** How many ports a watch holds. */
const mostPorts = 4 * 4096;

/** The answer to port/list and port/watch. */
export const portList: Check<Ports> = record({ ports, truncated: otherwise(flag, false) });

/** Tells which ports open and close, first those that are open already. After a lost connection it tells what is different. */
export class PortWatch extends Watching<PortChanges> {
  readonly #sandbox: Sandbox | undefined;
  #now = new Map<string, Port>();
  #told = new Map<string, Port>();
  #news = false;

  /** @internal */
  constructor(client: Client, sandbox: Sandbox | undefined) {
    super(client);
    this.#sandbox = sandbox;
  }

  /** @internal */
  protected async ask(over: Connection, signal?: AbortSignal): Promise<void> {
    // What is told next is about this list, so it is taken at once, before the caller is woken.
    const begin: Check<void> = (value, at) => {
      const { ports } = portList(value, at);
      this.#now = new Map();
      this.#apply(ports, []);
    };
    await this.client.calledOver(over, "port/watch", { watchId: this.id, ...(this.#sandbox && { sandbox: this.#sandbox }) }, begin, signal);
  }

  #apply(opened: readonly Port[], closed: readonly Port[]): void {
    for (const one of closed) this.#now.delete(keyOf(one));
    for (const one of opened) this.#now.set(keyOf(one), one);
    this.#news = true;
  }

  /** @internal */
  protected taken(): PortChanges | undefined {
    if (!this.#news) return undefined;
    this.#news = false;
    const missing = (of: Map<string, Port>, among: Map<string, Port>): Port[] =>
      [...of].filter(([key]) => !among.has(key)).map(([, one]) => one).sort((a, b) => a.port - b.port || (a.address < b.address ? -1 : 1));
    const [opened, closed] = [missing(this.#now, this.#told), missing(this.#told, this.#now)];
    this.#told = new Map(this.#now);
    return opened.length + closed.length === 0 ? undefined : { opened, closed };
  }

  /** @internal */
  protected listen(on: boolean): void {
    if (on) this.client.portWatches.set(this.id, this);
    else this.client.portWatches.delete(this.id);
  }

  /** @internal */
  protected stop(over: Connection, signal: AbortSignal | undefined): Promise<unknown> {
    return this.client.calledOver(over, "port/unwatch", { watchId: this.id }, anything, signal);
  }

  /** @internal */
  changed({ opened, closed }: PortNotice): void {
    if (this.ended) return;
    this.#apply(opened, closed);
    if (this.#now.size > mostPorts) this.fail(new ProtocolError(`the server tells of more than ${mostPorts} ports`));
    else this.wake();
  }
}

/** Returns what makes a port another one. */
function keyOf({ port, address, uid, pid }: Port): string {
  return [port, address, uid, pid].join(" ");
}
