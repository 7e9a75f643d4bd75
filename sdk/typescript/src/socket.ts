import { anything, count, record } from "./check.js";
import { background, cleanupMs, type CallOptions, type Client, type SocketNotice } from "./client.js";
import { isBusy, isLoss, pauseMs, sleep, within, type Connection } from "./connection.js";
import { ClosedError, ProtocolError, ServerError, SocketError, UsageError } from "./errors.js";
import { Pace } from "./feed.js";
import { Queue, wakened } from "./queue.js";
import { confinement, type Policy } from "./sandbox.js";
import { concat, encodeBase64, printable, randomId, toBytes } from "./text.js";

/** How many bytes the server sends that were not acknowledged, and how many of ours it has not taken. */
const windowBytes = 1 << 20;

/** The most bytes in one write, and how many writes are under way at once. */
const pieceBytes = 256 << 10;
const flyingMost = 3;

/** A quarter of the window is acknowledged at once, and less than that after a while. */
const ackDelayMs = 10;

const receivedAnswer = record({ received: count });

/**
 * A connection that the agent made to an address on its side. It outlives connections to the agent, with no byte lost or
 * repeated.
 */
export class Socket implements AsyncDisposable {
  /** The address. */
  readonly address: string;
  /** What comes from the other end, read as fast as this stream is. */
  readonly readable: ReadableStream<Uint8Array>;
  /** What goes to the other end. Closing it tells the other end that nothing follows. */
  readonly writable: WritableStream<Uint8Array | string>;

  readonly #client: Client;
  readonly #id = randomId();
  readonly #pace = new Pace(pieceBytes);
  readonly #in = new Queue<Uint8Array>((piece) => piece.length);
  #received = 0;
  #consumed = 0;
  #acked = 0;
  #ackTimer: ReturnType<typeof setTimeout> | undefined;
  #ignoring = false;
  #ended = false; // nothing more comes

  #out: Uint8Array[] = []; // from #confirmed on
  #written = 0;
  #confirmed = 0; // the server has what is before
  #next = 0; // what is before is on its way
  #eof = false;
  #eofSent = false;
  #eofTaken = false;
  #refused: unknown;
  #writing: Promise<void> = Promise.resolve();
  #waiting: (() => void)[] = [];

  #over: Connection | undefined; // bytes are carried on it
  #turn = 0; // of carrying
  #flying = 0;
  #end: { error: unknown } | undefined;

  private constructor(client: Client, address: string) {
    this.#client = client;
    this.address = address;
    this.readable = new ReadableStream<Uint8Array>(
      {
        pull: async (controller) => {
          const piece = await this.#in.take();
          if (piece === undefined) {
            controller.close();
            return;
          }
          this.#consume(piece.length);
          controller.enqueue(piece);
        },
        cancel: () => {
          this.#ignoring = true;
          this.#consume(this.#in.bytes);
          this.#in.discard(() => true);
        },
      },
      { highWaterMark: 0 },
    );
    this.writable = new WritableStream<Uint8Array | string>({
      write: (data) => this.write(data),
      close: () => this.closeWrite(),
      abort: () => this.abort(),
    });
  }

  /** @internal */
  static async connect(client: Client, address: string, options: CallOptions & { sandbox?: Policy | undefined }): Promise<Socket> {
    if (!/^(tcp|unix):\/\//.test(address)) throw new UsageError(`${printable(address, 256)} is not tcp://HOST:PORT or unix:///PATH`);
    await client.require("socketForward", "forwarding sockets", options);
    const socket = new Socket(client, address);
    const { sandbox } = confinement(options.sandbox, undefined);
    const params = { socketId: socket.#id, address, ...(sandbox && { sandbox }) };
    client.sockets.set(socket.#id, socket); // data may come before the answer
    let sent = false;
    try {
      for (;;) {
        const over = await client.connected(options);
        try {
          let received = 0;
          let there = false;
          if (sent) {
            // The answer was lost, and perhaps the request too.
            try {
              received = (await socket.#ask(over, options.signal)).received;
              there = true;
            } catch (error) {
              if (!(error instanceof ServerError)) throw error;
            }
          }
          if (!there) await client.calledOver(over, "socket/open", params, anything, options.signal);
          sent = true;
          if (!client.isCurrent(over)) continue;
          client.lasting.add(socket);
          socket.#carry(over, received);
          return socket;
        } catch (error) {
          if (!isLoss(error) || client.failure !== undefined) throw error;
          sent ||= error.sent;
        }
      }
    } catch (error) {
      socket.fail(error);
      if (sent || options.signal?.aborted) background(socket.#hangUp());
      throw error;
    }
  }

  #ask(over: Connection, signal?: AbortSignal): Promise<{ received: number }> {
    return this.#client.calledOver(over, "socket/resume", { socketId: this.#id, received: this.#received }, receivedAnswer, signal);
  }

  /** Asks for missed bytes on a new connection, and goes on there. @internal */
  async resume(over: Connection): Promise<void> {
    this.#turn++;
    this.#over = undefined;
    try {
      const { received } = await this.#ask(over);
      if (this.#end === undefined && this.#client.isCurrent(over)) this.#carry(over, received);
    } catch (error) {
      if (!isLoss(error)) throw error; // else the next connection resumes it
    }
  }

  /** Carries bytes on a connection from now on. The server has so many of ours. */
  #carry(over: Connection, received: number): void {
    if (received < this.#confirmed || received > this.#written) {
      this.fail(new ProtocolError(`the server has ${received} bytes of a socket, of ${this.#confirmed} to ${this.#written}`));
      return;
    }
    this.#turn++;
    this.#over = over;
    this.#flying = 0;
    this.#confirm(received);
    this.#next = received;
    this.#eofSent = false;
    if (this.#consumed > 0) this.#acknowledge(); // the server may not have got the last one
    this.#pump();
  }

  #confirm(received: number): void {
    for (let left = received - this.#confirmed; left > 0; ) {
      const first = this.#out[0] as Uint8Array;
      if (first.length > left) this.#out[0] = first.subarray(left);
      else this.#out.shift();
      left -= Math.min(left, first.length);
    }
    this.#confirmed = received;
    this.#wake();
  }

  /** Returns bytes that are not on their way yet. */
  #cut(size: number): Uint8Array {
    const pieces: Uint8Array[] = [];
    let at = this.#confirmed;
    let left = Math.min(size, this.#written - this.#next);
    for (const bytes of this.#out) {
      if (left <= 0) break;
      const skip = Math.max(0, this.#next - at);
      at += bytes.length;
      if (skip >= bytes.length) continue;
      const piece = bytes.subarray(skip, skip + left);
      pieces.push(piece);
      left -= piece.length;
    }
    return pieces.length === 1 ? (pieces[0] as Uint8Array) : concat(pieces);
  }

  /** Sends what may be under way. */
  #pump(): void {
    const over = this.#over;
    while (over !== undefined && this.#end === undefined && this.#refused === undefined && this.#flying < flyingMost) {
      const chunk = this.#cut(this.#pace.size);
      const offset = this.#next;
      const eof = this.#eof && offset + chunk.length === this.#written;
      if (chunk.length === 0 && (!eof || this.#eofSent)) return;
      this.#next += chunk.length;
      this.#eofSent ||= eof;
      this.#flying++;
      const turn = this.#turn;
      const params = { socketId: this.#id, offset, chunk: encodeBase64(chunk), ...(eof && { eof }) };
      over.request("socket/write", params, receivedAnswer).then(
        ({ received }) => {
          if (turn === this.#turn) this.#taken(over, received, offset + chunk.length, eof);
        },
        (error: unknown) => {
          if (turn === this.#turn) this.#untaken(over, error);
        },
      );
    }
  }

  #taken(over: Connection, received: number, through: number, eof: boolean): void {
    over.useful = true;
    this.#flying--;
    this.#pace.taken();
    if (received < through || received > this.#next) {
      this.fail(new ProtocolError(`the server has ${received} bytes of a socket, and has taken those up to ${through}`));
      return;
    }
    if (eof) this.#eofTaken = true;
    if (received > this.#confirmed) this.#confirm(received);
    this.#wake();
    this.#pump();
  }

  #untaken(over: Connection, error: unknown): void {
    this.#turn++;
    this.#over = undefined;
    if (isLoss(error) || this.#end !== undefined) return; // the next connection resumes it
    const again = isBusy(error) || (error instanceof ServerError && (error.number === -32600 || error.number === -32602));
    if (again || (error as { code?: unknown }).code === "BUSY") {
      // The server had no room for one more request, and so not for the later ones.
      if (isBusy(error)) this.#pace.refused();
      const turn = this.#turn;
      background(
        sleep(pauseMs, this.#client.over.signal).then(async () => {
          if (turn === this.#turn && this.#client.isCurrent(over)) await this.resume(over);
        }).catch((error: unknown) => this.fail(error)),
      );
    } else if (error instanceof ServerError) {
      this.#refused = error;
      this.#wake();
      this.#over = over; // what comes is still acknowledged
    } else {
      this.fail(error);
    }
  }

  #consume(size: number): void {
    this.#consumed += size;
    if (this.#consumed - this.#acked >= windowBytes / 4) this.#acknowledge();
    else this.#ackTimer ??= setTimeout(() => this.#acknowledge(), ackDelayMs);
  }

  #acknowledge(): void {
    clearTimeout(this.#ackTimer);
    this.#ackTimer = undefined;
    const over = this.#over;
    if (over === undefined || this.#end !== undefined) return; // the next connection brings it
    // The server may send more as soon as it has this.
    this.#acked = this.#consumed;
    over.request("socket/ack", { socketId: this.#id, received: this.#consumed }, anything).catch((error: unknown) => {
      if (isLoss(error) || this.#end !== undefined) return;
      if ((error as { code?: unknown }).code === "BUSY") this.#ackTimer ??= setTimeout(() => this.#acknowledge(), pauseMs);
      else this.fail(error);
    });
  }

  /** @internal */
  received(notice: SocketNotice): void {
    if (this.#end !== undefined) return;
    const { offset, chunk, eof, error } = notice;
    if (offset > this.#received) {
      this.fail(new ProtocolError(`bytes of a socket from ${offset} on have come, after ${this.#received}`));
      return;
    }
    const bytes = chunk.subarray(Math.min(this.#received - offset, chunk.length));
    if (bytes.length > 0 && (this.#ended || this.#received + bytes.length > this.#acked + windowBytes)) {
      this.fail(new ProtocolError(this.#ended ? "bytes of a socket have come behind the end" : `more than ${windowBytes} bytes of a socket have come that were not acknowledged`));
      background(this.#hangUp());
      return;
    }
    if (bytes.length > 0) {
      this.#received += bytes.length;
      if (this.#ignoring) this.#consume(bytes.length);
      else this.#in.push(bytes);
    }
    if (this.#ended || (!eof && error === undefined)) return;
    this.#ended = true;
    this.#in.end(error === undefined ? undefined : new SocketError(`reading at the agent's side: ${printable(error)}`));
  }

  /** Writes to the other end, after the writes before. It waits while 1 MiB is on its way. */
  write(data: Uint8Array | string): Promise<void> {
    const bytes = toBytes(data);
    return this.#inTurn(() => this.#write(bytes));
  }

  /** Runs something after the writes before it. */
  #inTurn(run: () => Promise<void>): Promise<void> {
    const turn = this.#writing.then(run);
    this.#writing = turn.catch(() => {});
    return turn;
  }

  async #write(bytes: Uint8Array): Promise<void> {
    for (let at = 0; at < bytes.length; ) {
      const room = windowBytes - (this.#written - this.#confirmed);
      this.#check();
      if (room === 0) {
        await wakened(this.#waiting);
        continue;
      }
      const piece = bytes.slice(at, at + room); // the caller may use its memory again
      this.#out.push(piece);
      this.#written += piece.length;
      at += piece.length;
      this.#pump();
    }
  }

  #check(writes = true): void {
    if (this.#end !== undefined) throw this.#end.error;
    if (this.#refused !== undefined) throw this.#refused;
    if (writes && this.#eof) throw new ClosedError("the writing side of the socket");
  }

  /** Tells the other end that nothing follows, and waits until the server has taken all that was written. */
  closeWrite(): Promise<void> {
    return this.#inTurn(async () => {
      this.#check(false);
      this.#eof = true;
      this.#pump();
      await this.#flush();
      this.#check(false);
    });
  }

  async #flush(signal?: AbortSignal): Promise<void> {
    while (this.#end === undefined && this.#refused === undefined && (this.#confirmed < this.#written || (this.#eof && !this.#eofTaken))) {
      await wakened(this.#waiting, signal);
    }
  }

  /** Ends both directions. What was written is still sent, for up to 10 s. It is no error to do it again. */
  async close(): Promise<void> {
    if (this.#end !== undefined) return;
    this.#eof = true;
    this.#pump();
    await within(cleanupMs, () => new Error("late"), undefined, (signal) => this.#flush(signal)).catch(() => {});
    await this.abort();
  }

  /** Ends both directions at once. The other end sees a reset unless the writing side was closed. */
  async abort(): Promise<void> {
    if (this.#end !== undefined) return;
    this.fail(new ClosedError("the socket"));
    await this.#hangUp();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #hangUp(): Promise<void> {
    try {
      await within(cleanupMs, () => new Error("late"), undefined, (signal) =>
        this.#client.replay("socket/close", { socketId: this.#id }, anything, { signal }),
      );
    } catch {
      // It ends with its session.
    }
  }

  /** @internal */
  fail(error: unknown): void {
    if (this.#end !== undefined) return;
    this.#end = { error };
    clearTimeout(this.#ackTimer);
    this.#client.sockets.delete(this.#id);
    this.#client.lasting.delete(this);
    this.#in.end(error);
    this.#wake();
  }

  #wake(): void {
    for (const call of this.#waiting.splice(0)) call();
  }
}
