import { anything, record, type Check } from "./check.js";
import { background, cleanupMs, type CallOptions, type ChangedNotice, type Client } from "./client.js";
import { isLoss, within, type Connection } from "./connection.js";
import { ClosedError, ProtocolError } from "./errors.js";
import { wakened } from "./queue.js";
import { printable } from "./text.js";
import { toPath, toURI } from "./uri.js";
import type { Sandbox } from "./wire.js";

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

/** Tells of changes at a path. It outlives connections: after a reconnect it tells an overflow. */
export class Watch implements AsyncDisposable, AsyncIterable<Changes> {
  readonly #client: Client;
  readonly #id: string;
  readonly #recursive: boolean;
  readonly #sandbox: Sandbox | undefined;
  #path = "";
  #over: Connection | undefined;
  #changes: Change[] = [];
  #bytes = 0;
  #overflow = false;
  #end: { error: unknown } | undefined;
  #waiting: (() => void)[] = [];

  private constructor(client: Client, recursive: boolean, sandbox: Sandbox | undefined) {
    this.#client = client;
    this.#id = `w${client.nextId()}`;
    this.#recursive = recursive;
    this.#sandbox = sandbox;
  }

  /** @internal */
  static async open(client: Client, params: { path: string; recursive: boolean; sandbox?: Sandbox }, options: CallOptions): Promise<Watch> {
    const watch = new Watch(client, params.recursive, params.sandbox);
    client.watches.set(watch.#id, watch);
    for (;;) {
      let over: Connection | undefined;
      try {
        over = await client.connected(options);
        const { path } = await watch.#ask(over, params.path, options.signal);
        if (!client.isCurrent(over)) continue; // it has ended with its connection
        // From now on it is about this path, even if a link leads elsewhere later.
        watch.#path = path;
        watch.#over = over;
        client.lasting.add(watch);
        return watch;
      } catch (error) {
        if (isLoss(error) && client.failure === undefined) continue;
        client.watches.delete(watch.#id);
        if (over !== undefined && options.signal?.aborted) background(watch.#unwatch(over)); // the server may have made it
        throw error;
      }
    }
  }

  #ask(over: Connection, uri: string, signal?: AbortSignal): Promise<{ path: string }> {
    const params = { watchId: this.#id, path: uri, recursive: this.#recursive, ...(this.#sandbox && { sandbox: this.#sandbox }) };
    return this.#client.calledOver(over, "fs/watch", params, watched, signal);
  }

  /** The watched path, with its links resolved. */
  get path(): string {
    return this.#path;
  }

  /** Waits for changes, and takes all that have come. */
  async next(options: { signal?: AbortSignal | undefined } = {}): Promise<Changes> {
    for (;;) {
      if (this.#overflow || this.#changes.length > 0) {
        const taken = { changes: this.#changes, overflow: this.#overflow };
        this.#changes = [];
        this.#bytes = 0;
        this.#overflow = false;
        return taken;
      }
      if (this.#end !== undefined) throw this.#end.error;
      await wakened(this.#waiting, options.signal);
    }
  }

  /** Changes, as they come, until the watch is closed. */
  async *[Symbol.asyncIterator](): AsyncIterator<Changes> {
    for (;;) {
      try {
        yield await this.next();
      } catch (error) {
        if (error instanceof ClosedError && this.#client.failure === undefined) return;
        throw error;
      }
    }
  }

  /** @internal */
  changed(notice: ChangedNotice): void {
    if (this.#end !== undefined) return;
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
    this.#changes.push(...notice.changes);
    if (notice.overflow || this.#changes.length > mostChanges || this.#bytes > mostBytes) this.#overflow = true;
    if (this.#overflow) {
      this.#changes = [];
      this.#bytes = 0;
    }
    this.#wake();
  }

  /** @internal */
  async resume(over: Connection): Promise<void> {
    this.#over = over;
    try {
      const { path } = await this.#ask(over, toURI(this.#path));
      if (path !== this.#path) throw new ProtocolError("since the connection was lost, the path leads elsewhere");
    } catch (error) {
      if (isLoss(error)) return; // the next connection resumes it, if there is one
      throw error;
    }
    if (this.#end !== undefined) background(this.#unwatch(over));
    this.#overflow = true;
    this.#changes = [];
    this.#wake();
  }

  /** @internal */
  fail(error: unknown): void {
    if (this.#end !== undefined) return;
    this.#end = { error };
    this.#client.watches.delete(this.#id);
    this.#client.lasting.delete(this);
    this.#wake();
  }

  #wake(): void {
    for (const call of this.#waiting.splice(0)) call();
  }

  async #unwatch(over: Connection): Promise<void> {
    try {
      await within(cleanupMs, () => new Error("late"), undefined, (signal) => this.#client.calledOver(over, "fs/unwatch", { watchId: this.#id }, anything, signal));
    } catch {
      // It ends with its connection.
    }
  }

  /** Ends the watch, also at the server. It is no error to do it again. */
  async close(): Promise<void> {
    if (this.#end !== undefined) return;
    this.fail(new ClosedError("the watch"));
    if (this.#over !== undefined) await this.#unwatch(this.#over);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
