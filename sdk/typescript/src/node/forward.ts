import { createServer, type AddressInfo, type Server, type Socket as NetSocket } from "node:net";
import { chmod, unlink } from "node:fs/promises";
import type { Agent } from "../agent.js";
import { background, type CallOptions } from "../client.js";
import { UsageError } from "../errors.js";
import type { Policy } from "../sandbox.js";
import type { Socket } from "../socket.js";

/** Where to listen. */
export interface ForwardOptions extends CallOptions {
  /** The port here; any free one by default. */
  port?: number | undefined;
  /** The address here; 127.0.0.1 by default. */
  host?: string | undefined;
  /** A UNIX socket here, instead of a port. Only this user may connect. */
  path?: string | undefined;
  /** Connect only where a command with this policy could. */
  sandbox?: Policy | undefined;
  /** Called with why a connection could not be made, or broke. By default nobody is told but the peer, by a reset. */
  onError?: ((error: unknown) => void) | undefined;
}

/** Connections of one listener that an agent carries on. */
export interface Forward extends AsyncDisposable {
  /** The port that is listened at; 0 for a UNIX socket. */
  readonly port: number;
  readonly host: string;
  /** Stops listening, and ends all connections. */
  close(): Promise<void>;
}

/** How many connections a listener has at once: as many as a session has sockets. */
const most = 256;

/** Listens here for connections to an address on the agent's side. */
export async function forward(agent: Agent, to: string | number, options: ForwardOptions = {}): Promise<Forward> {
  const address = typeof to === "number" ? `tcp://127.0.0.1:${to}` : to;
  if (!/^(tcp|unix):\/\//.test(address)) throw new UsageError("forward needs a port, tcp://HOST:PORT or unix:///PATH");
  await agent.client.require("socketForward", "forwarding sockets", options);
  const open = new Set<NetSocket>();
  const server = createServer({ allowHalfOpen: true, pauseOnConnect: true }, (here) => {
    if (open.size >= most) {
      here.destroy();
      return;
    }
    open.add(here);
    here.on("close", () => open.delete(here));
    background(carry(agent, here, address, options));
  });
  const { host = "127.0.0.1", port = 0, path } = options;
  await listen(server, path === undefined ? { host, port } : { path }, path);
  const close = async (): Promise<void> => {
    for (const here of open) here.destroy();
    await new Promise<void>((resolve) => server.close(() => resolve()));
    agent.client.over.signal.removeEventListener("abort", end);
    if (path !== undefined) await unlink(path).catch(() => {}); // the listener removes it, mostly
  };
  const end = (): void => background(close());
  agent.client.over.signal.addEventListener("abort", end, { once: true });
  return { host, port: path === undefined ? (server.address() as AddressInfo).port : 0, close, [Symbol.asyncDispose]: close };
}

async function listen(server: Server, where: { host: string; port: number } | { path: string }, path: string | undefined): Promise<void> {
  const restore = path === undefined ? undefined : umask(0o177); // while the socket is made, which listen does at once
  try {
    await new Promise<void>((resolve, reject) => {
      server.once("error", (error) => reject(new UsageError(`cannot listen: ${error.message}`, error)));
      server.listen(where, resolve);
      restore?.();
    });
  } finally {
    restore?.();
  }
  if (path !== undefined) await chmod(path, 0o600);
  server.on("error", () => {}); // such as too many open files; the next connection may work
}

/** Sets the umask, and returns what sets the old one. A worker thread cannot. */
function umask(mask: number): (() => void) | undefined {
  try {
    let before: number | undefined = process.umask(mask);
    return () => {
      if (before !== undefined) process.umask(before);
      before = undefined;
    };
  } catch {
    return undefined;
  }
}

/** Carries one connection to its end. */
async function carry(agent: Agent, here: NetSocket, address: string, options: ForwardOptions): Promise<void> {
  here.on("error", () => here.destroy());
  let there: Socket | undefined;
  try {
    there = await agent.connectTo(address, { sandbox: options.sandbox });
    const socket = there;
    here.on("close", () => background(socket.close()));
    if (here.destroyed) return;
    await Promise.all([up(here, socket), down(here, socket)]);
    here.end();
    await socket.close();
  } catch (error) {
    here.resetAndDestroy();
    background(Promise.resolve(there?.abort()));
    if (!(error instanceof LocalEnd)) options.onError?.(error);
  }
}

/** The end of a connection here is not the fault of the agent. */
class LocalEnd extends Error {}

async function up(here: NetSocket, there: Socket): Promise<void> {
  try {
    here.resume();
    for await (const piece of here.iterator({ destroyOnReturn: false })) await there.write(piece as Uint8Array);
  } catch (error) {
    if (here.errored !== null || here.destroyed) throw new LocalEnd();
    throw error;
  }
  await there.closeWrite();
}

async function down(here: NetSocket, there: Socket): Promise<void> {
  for await (const piece of there.readable) {
    if (here.destroyed) throw new LocalEnd();
    if (!here.write(piece)) {
      await new Promise<void>((resolve) => {
        const go = (): void => {
          here.off("drain", go);
          here.off("close", go);
          resolve();
        };
        here.on("drain", go);
        here.on("close", go);
      });
    }
  }
  here.end();
}
