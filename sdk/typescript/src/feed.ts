import { record, text } from "./check.js";
import { isBusy, isLoss, pauseMs, sleep, type Connection } from "./connection.js";
import { StdinError } from "./errors.js";
import { encodeBase64 } from "./text.js";
import type { CallOptions, Client } from "./client.js";

/** How many bytes one request carries: as many as a server queues for a process. */
const pieceBytes = 1 << 20;

/** How many requests are under way at once. */
const aheadMost = 3;

/**
 * How many bytes one request carries after the server had no memory for a larger one. In base64 they are a message below
 * 64 KiB: servers count such messages apart, and let each connection have four of them wait in any case.
 */
const smallBytes = 45 << 10;

/** After so many of these without a refusal the next ones get twice as large. */
const calmPieces = 16;

/** How many bytes of a stream one request carries: usual, or less while the server is short of memory. */
export class Pace {
  #size: number;
  #calm = 0;

  constructor(private readonly usual: number) {
    this.#size = usual;
  }

  get size(): number {
    return this.#size;
  }

  /** Notes that the server had no memory for a request. */
  refused(): void {
    this.#size = Math.min(smallBytes, this.usual);
    this.#calm = 0;
  }

  /** Notes that the server took a request. */
  taken(): void {
    if (++this.#calm < calmPieces) return;
    this.#size = Math.min(2 * this.#size, this.usual);
    this.#calm = 0;
  }
}

const written = record({ status: text });

/** A request of a feed. It is sent again, with its id, when its answer is lost. */
interface Write {
  readonly id: string;
  readonly data: Uint8Array;
  /** The answer, which never rejects; undefined: it is not under way. */
  answer?: Promise<{ status?: string; error?: unknown }>;
  /** Whether it was ever sent. */
  tried: boolean;
  /** Whether the server may have these very bytes under this id, so that other bytes must not have it. */
  fixed: boolean;
}

/** What the writes of one handle share. */
export interface Writer {
  readonly client: Client;
  readonly processId: string;
  /** Returns an id that no other write of the session has. */
  nextId(): string;
  /** Ids of writes that were given up. The server may still expect them. */
  unsure: string[];
}

/**
 * The standard input of a process for much data. It sends large pieces, several at once, so that the round-trip time does
 * not matter. The process gets the data in order. After an error it has got the beginning, and gets nothing that follows.
 */
export class Feed {
  readonly #writer: Writer;
  readonly #options: CallOptions;
  readonly #pace = new Pace(pieceBytes);
  #ahead: Write[] = [];
  #ids: string[] = [];
  #over: Connection | undefined;
  #refused = false;

  constructor(writer: Writer, options: CallOptions) {
    this.#writer = writer;
    this.#options = options;
    // A server that has refused a write expects it before all others. It gets the write without data, because the caller
    // was told that the write had failed.
    this.#ids = writer.unsure;
    writer.unsure = [];
    for (const _ of [...this.#ids]) this.#add(new Uint8Array());
  }

  /** Sends data, and waits while too much of it is under way. */
  async write(data: Uint8Array): Promise<void> {
    for (let at = 0; at < data.length || at === 0; ) {
      const size = Math.min(this.#pace.size, data.length - at);
      this.#add(data.subarray(at, at + size));
      at += Math.max(size, 1);
      await this.#finish(aheadMost - 1);
    }
  }

  /** Waits until the server has taken everything. */
  async flush(): Promise<void> {
    await this.#finish(0);
  }

  #add(data: Uint8Array): void {
    const kept = this.#ids.shift(); // the server has seen it, and takes no later one before it
    this.#ahead.push({ id: kept ?? this.#writer.nextId(), data, tried: kept !== undefined, fixed: false });
  }

  /** Sends until at most so many writes are not taken. */
  async #finish(most: number): Promise<void> {
    try {
      await this.#fill();
      while (this.#ahead.length > most) {
        await this.#settle();
        await this.#fill();
      }
    } catch (error) {
      this.#writer.unsure.push(...this.#ahead.filter((write) => write.tried).map((write) => write.id));
      this.#ahead = [];
      throw error;
    }
  }

  /** Sends what may be under way. All of it goes over one connection, because on another one a later write could overtake. */
  async #fill(): Promise<void> {
    const { client, processId } = this.#writer;
    for (let i = 0; i < Math.min(this.#ahead.length, aheadMost); i++) {
      const write = this.#ahead[i] as Write;
      if (write.answer !== undefined) continue;
      if (i === 0) this.#over = await client.connected(this.#options);
      const over = this.#over as Connection;
      if (over.full && i > 0) return; // nothing may be sent behind what cannot be sent
      while (over.full && !over.gone) await sleep(pauseMs, this.#options.signal);
      write.tried = true;
      const params = { processId, writeId: write.id, chunk: encodeBase64(write.data) };
      write.answer = over.request("process/write", params, written, this.#options.signal).then(
        ({ status }) => ({ status }),
        (error: unknown) => ({ error }),
      );
    }
  }

  /** Takes the answer to the oldest write. */
  async #settle(): Promise<void> {
    const write = this.#ahead[0] as Write;
    const { status, error } = (await write.answer) as { status?: string; error?: unknown };
    if (status === "accepted") {
      (this.#over as Connection).useful = true;
      this.#ahead.shift();
      this.#pace.taken();
      this.#refused = false;
      return;
    }
    for (const later of this.#ahead) delete later.answer; // they must be sent again
    if (isLoss(error)) {
      for (const later of this.#ahead) later.fixed = later.tried;
      return;
    }
    if (isBusy(error)) {
      // So are the later writes, until this one comes again. None of them was taken.
      this.#shrink();
      if (this.#refused) await sleep(pauseMs, this.#options.signal);
      this.#refused = true;
      return;
    }
    throw error ?? new StdinError(status ?? "");
  }

  /** Makes smaller writes of those ahead. Their ids stay, in order, because the server takes nothing else after a refusal. */
  #shrink(): void {
    this.#pace.refused();
    const ahead = this.#ahead;
    this.#ahead = [];
    while (ahead[0]?.fixed === true) this.#ahead.push(ahead.shift() as Write);
    this.#ids.push(...ahead.map((write) => write.id));
    for (const { data } of ahead) {
      for (let at = 0; at < data.length || at === 0; at += this.#pace.size) this.#add(data.subarray(at, at + this.#pace.size));
    }
  }
}
