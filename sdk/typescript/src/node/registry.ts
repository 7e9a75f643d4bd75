import { request } from "node:http";
import type { Dial } from "../client.js";
import { messageOf, ProtocolError, UsageError } from "../errors.js";
import type { Post, RegistryTarget } from "../relay/index.js";
import type { TLSFiles } from "./contexts.js";
import { openStream, type URLOptions } from "./dial.js";
import { webSocket } from "./factory.js";

/** How large an answer of a registry may be. */
const maxAnswer = 1 << 20;

/** Dials an agent behind a registry, with the proxies and the authorities of this module. */
export function registryDial(target: RegistryTarget, options: URLOptions): Dial {
  const tls: TLSFiles = { ca: options.tls?.ca };
  let dial: Dial | undefined;
  return async (events, signal) => {
    dial ??= (await relay()).relayDial(target, { ...options, webSocket: (url, headers) => webSocket(url, headers, url.startsWith("wss:") ? tls : {}), post: poster(tls, options) });
    return dial(events, signal);
  };
}

/** Loads the module that needs packages which this one does not need. */
async function relay(): Promise<typeof import("../relay/index.js")> {
  try {
    return await import("../relay/index.js");
  } catch (error) {
    throw new UsageError(`an agent behind a registry needs the packages @noble/curves and @noble/post-quantum: ${messageOf(error)}`, error);
  }
}

function poster(tls: TLSFiles, options: URLOptions): Post {
  return async (url, headers, body, signal) => {
    const target = new URL(url);
    const stream = await openStream(target, target.protocol === "https:" ? { ...options, tls } : { ...options, tls: {} }, signal);
    return new Promise((resolve, reject) => {
      const sent = request(
        {
          method: "POST", path: target.pathname, signal, createConnection: () => stream,
          headers: { ...headers, host: target.host, "content-length": Buffer.byteLength(body), connection: "close" },
        },
        (answer) => {
          const pieces: Buffer[] = [];
          let length = 0;
          answer.on("data", (piece: Buffer) => {
            length += piece.length;
            if (length > maxAnswer) answer.destroy(new ProtocolError("the answer of the registry is too long"));
            else pieces.push(piece);
          });
          answer.on("error", reject);
          answer.on("end", () => resolve({ status: answer.statusCode ?? 0, text: Buffer.concat(pieces).toString("utf8") }));
        },
      );
      sent.on("error", reject);
      sent.on("close", () => stream.destroy());
      sent.end(body);
    });
  };
}
