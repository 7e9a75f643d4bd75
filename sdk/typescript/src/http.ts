import { integer, list, record, text } from "./check.js";
import { duration, type BodyNotice, type CallOptions, type Client, type ParamsOf, type WaitingBody } from "./client.js";
import { isUnsent, type Connection } from "./connection.js";
import { AgentError, DisconnectedError, ProtocolError, UnreadError } from "./errors.js";
import { Queue } from "./queue.js";
import { concat, encodeBase64, printable, toBytes, toText } from "./text.js";

/** A header line. */
export interface Header {
  readonly name: string;
  readonly value: string;
  /** A variable of the agent, whose content follows the value. The value does not come here. */
  readonly valueEnvVar?: string;
}

/** Options of a request. */
export interface HttpOptions extends CallOptions {
  headers?: Readonly<Record<string, string>> | readonly Header[] | undefined;
  body?: string | Uint8Array | undefined;
  /** Whether redirects are followed, at most 10; true by default. */
  redirect?: boolean | undefined;
  /** How long the agent may take for headers and body. */
  timeoutMs?: number | undefined;
}

/** The largest piece of a body. */
const pieceMost = 1 << 20;

/** How many pieces of one body wait to be read, and how many bytes of all bodies of a client. With more a body fails. */
const mostPieces = 256;
const mostBytes = 16 << 20;

const answer = record({ status: integer, headers: list(record({ name: text, value: text })) });

/** HTTP requests that the agent makes. */
export class Http {
  readonly #client: Client;

  /** @internal */
  constructor(client: Client) {
    this.#client = client;
  }

  /**
   * Has the agent make a request. It is made once: after a lost connection the error says whether it was sent. Every status
   * is a result.
   */
  async request(method: string, url: string | URL, options: HttpOptions = {}): Promise<HttpResponse> {
    const given = options.headers ?? {};
    const headers: Header[] = Array.isArray(given) ? [...(given as readonly Header[])] : Object.entries(given).map(([name, value]) => ({ name, value: String(value) }));
    const timeoutMs = duration(options.timeoutMs, "timeoutMs");
    const id = `http-${this.#client.nextId()}`;
    const params: ParamsOf<"http/request"> = {
      method, url: String(url), headers, redirectPolicy: options.redirect === false ? "stop" : "follow", requestId: id, streamResponse: true,
      ...(options.body !== undefined && { bodyBase64: encodeBase64(toBytes(options.body)) }),
      ...(timeoutMs !== undefined && { timeoutMs }),
    };
    for (;;) {
      const over = await this.#client.connected(options);
      const body = new Body(this.#client, over, id);
      try {
        const { status, headers } = await this.#client.calledOver(over, "http/request", params, answer, options.signal);
        return new HttpResponse(status, headers, body);
      } catch (error) {
        body.end(error);
        if (!isUnsent(error)) throw error;
      }
    }
  }
}

/** The answer to a request. */
export class HttpResponse {
  readonly status: number;
  /** The header lines, with names in lower case. A repeated one is there again. */
  readonly headers: readonly Header[];
  readonly #body: Body;

  /** @internal */
  constructor(status: number, headers: readonly Header[], body: Body) {
    this.status = status;
    this.headers = headers;
    this.#body = body;
  }

  /** Returns the first header of a name. */
  header(name: string): string | undefined {
    return this.headers.find((header) => header.name === name.toLowerCase())?.value;
  }

  /**
   * The body. It ends with the connection, because no body goes on over another one. Read it, or cancel it: with more than
   * 256 pieces that wait, or 16 MiB of all bodies, it fails with an {@link UnreadError}.
   */
  get body(): ReadableStream<Uint8Array> {
    return this.#body.stream;
  }

  /** Reads the body to its end. */
  async bytes(): Promise<Uint8Array> {
    const pieces: Uint8Array[] = [];
    const reader = this.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return concat(pieces);
      pieces.push(value);
    }
  }

  /** Reads the body to its end, as text in UTF-8. */
  async text(): Promise<string> {
    return toText(await this.bytes());
  }

  /** Reads the body to its end, as JSON. */
  async json(): Promise<unknown> {
    return JSON.parse(await this.text());
  }
}

/** A body that is on its way. */
class Body implements WaitingBody {
  readonly #client: Client;
  readonly #over: Connection;
  readonly #id: string;
  readonly #queue = new Queue<Uint8Array>((piece) => piece.length);
  #seq = 0;
  #stream: ReadableStream<Uint8Array> | undefined;

  constructor(client: Client, over: Connection, id: string) {
    this.#client = client;
    this.#over = over;
    this.#id = id;
    client.bodies.set(id, this);
  }

  get stream(): ReadableStream<Uint8Array> {
    return (this.#stream ??= new ReadableStream<Uint8Array>(
      {
        pull: async (controller) => {
          const piece = await this.#queue.take();
          if (piece === undefined) controller.close();
          else controller.enqueue(piece);
        },
        cancel: () => {
          this.#queue.discard(() => true);
          this.end();
        },
      },
      { highWaterMark: 0 },
    ));
  }

  accept(notice: BodyNotice, from: Connection): void {
    if (from !== this.#over) return;
    from.useful = true;
    const piece = notice.deltaBase64;
    if (notice.seq !== ++this.#seq) {
      this.end(new ProtocolError(`piece ${notice.seq} of the body came instead of ${this.#seq}`));
      return;
    }
    if (piece.length > pieceMost) {
      this.end(new ProtocolError(`a piece of the body has ${piece.length} bytes`));
      return;
    }
    if (piece.length > 0) this.#queue.push(piece);
    if (notice.error !== undefined) this.end(new BodyError(notice.error));
    else if (notice.done) this.end();
    else if (this.#queue.length > mostPieces) this.overflow(`${mostPieces} pieces`);
    else this.#overflowing()?.overflow(`${mostBytes >> 20} MiB`);
  }

  /** Returns the body that fails because too much waits: the one that has most of it. */
  #overflowing(): WaitingBody | undefined {
    let [all, most] = [0, this as WaitingBody];
    for (const body of this.#client.bodies.values()) {
      all += body.waiting;
      if (body.waiting > most.waiting) most = body;
    }
    return all > mostBytes ? most : undefined;
  }

  get waiting(): number {
    return this.#queue.bytes;
  }

  /** Fails, and drops what waits, so that nothing else has to wait for whoever should read it. */
  overflow(amount: string): void {
    this.#queue.discard(() => true);
    this.end(new UnreadError(`${amount} of HTTP bodies wait that nobody reads: read each body, or cancel it`));
  }

  lost(over: Connection): void {
    if (over === this.#over) this.end(new DisconnectedError(over.lost.message, true, over.lost.cause));
  }

  end(error?: unknown): void {
    this.#queue.end(error);
    if (this.#client.bodies.get(this.#id) === this) this.#client.bodies.delete(this.#id);
  }
}

/** The rest of a body did not come, because the agent could not read it. */
export class BodyError extends AgentError {
  readonly code = "REFUSED";

  constructor(text: string) {
    super(`the agent could not read the rest of the body: ${printable(text)}`);
  }
}
