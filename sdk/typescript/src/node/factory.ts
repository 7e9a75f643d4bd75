import { checkURL, type WebSocketLike } from "../connect.js";
import type { TLSFiles } from "./contexts.js";
import { openURL } from "./dial.js";
import type { SocketChannel } from "./websocket.js";

type Kind = "open" | "close" | "error" | "message";

/**
 * Opens a WebSocket with the own client of this module: for `@execagent/client/relay` in Node 20, for certificates of your
 * own, and for proxies. It can pause.
 */
export function webSocket(url: string, headers: Readonly<Record<string, string>> = {}, tls: TLSFiles = {}): WebSocketLike {
  return new OwnWebSocket(url, headers, tls);
}

class OwnWebSocket implements WebSocketLike {
  binaryType = "arraybuffer";
  get bufferedAmount(): number {
    return this.#channel?.unsent?.() ?? 0;
  }

  readonly #listeners: { kind: Kind; listener: (event: never) => void }[] = [];
  readonly #opening = new AbortController();
  #channel: SocketChannel | undefined;
  #closed = false;

  constructor(url: string, headers: Readonly<Record<string, string>>, tls: TLSFiles) {
    // Whoever has made it adds its listeners first.
    queueMicrotask(() => {
      openURL(checkURL(url, Object.keys(headers).length > 0), headers, { tls }, {
        message: (data) => this.#tell("message", { data }),
        bytes: (content) => this.#tell("message", { data: content }),
        closed: (cause) => this.#end(cause),
      }, this.#opening.signal).then(
        (channel) => {
          if (this.#closed) return void channel.close();
          this.#channel = channel;
          this.#tell("open", {});
        },
        (error: unknown) => this.#end(error),
      );
    });
  }

  #tell(kind: Kind, event: object): void {
    for (const one of [...this.#listeners]) if (one.kind === kind) one.listener(event as never);
  }

  #end(cause: unknown): void {
    if (this.#closed) return;
    this.#closed = true;
    if (cause !== undefined) this.#tell("error", { error: cause });
    this.#tell("close", { code: cause === undefined ? 1000 : 1006 });
  }

  addEventListener(kind: Kind, listener: (event: never) => void): void {
    this.#listeners.push({ kind, listener });
  }

  send(message: string | Uint8Array): void {
    if (this.#channel === undefined) throw new Error("the WebSocket is not open");
    if (typeof message === "string") this.#channel.send(message);
    else this.#channel.sendBytes(message);
  }

  close(): void {
    this.#opening.abort(new Error("the WebSocket was closed"));
    void this.#channel?.close();
    this.#end(undefined);
  }

  pause(): void {
    this.#channel?.pause?.();
  }

  resume(): void {
    this.#channel?.resume?.();
  }
}
