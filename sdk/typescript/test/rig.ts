/** Real agents, and what stands between them and a client. */

import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { existsSync, mkdtempSync, realpathSync, rmSync } from "node:fs";
import { createServer as createHTTP } from "node:http";
import { connect as connectTCP, createServer, type AddressInfo, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { connect, type NodeAgent, type NodeOptions } from "../src/node/index.js";

/** The folder of the package, and that of the repository. */
export const home = fileURLToPath(new URL("../..", import.meta.url));
export const repository = join(home, "../..");
export const program = process.env["EXECAGENT_AGENT"] ?? join(repository, "bin/agent");

export const registryProgram = process.env["EXECAGENT_REGISTRY"] ?? join(repository, "bin/registry");

/** Bounds that a machine with much to do keeps, too. The defaults are for a person who waits. */
export const patient = { connectTimeoutMs: 100_000, handshakeTimeoutMs: 100_000 };

/** Anything with an end, such as a test. */
export interface Ends {
  after(call: () => unknown): void;
}

/** Returns an empty folder, which is removed with the test. */
export function folder(t: Ends): string {
  const path = realpathSync(mkdtempSync(join(tmpdir(), "sdk-")));
  t.after(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

/** An agent that listens. */
export interface Listening {
  readonly url: string;
  readonly child: ChildProcess;
  readonly home: string;
}

/** Starts an agent at a port, or at a UNIX socket. It ends with the test. */
export async function serve(t: Ends, at: "ws" | "wss" | "unix" = "ws", flags: readonly string[] = [], env: Readonly<Record<string, string>> = {}): Promise<Listening> {
  const home = folder(t);
  const listen = at === "unix" ? `unix://${home}/agent.sock` : `${at}://127.0.0.1:0`;
  const child = spawn(program, ["--listen", listen, ...flags], { cwd: home, stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, ...env } });
  t.after(() => ended(child));
  const url = await printed(child, (text) => /^(?:wss?|unix):.*(?=\n)/m.exec(text)?.[0]);
  return { url, child, home };
}

/** Waits until find finds something in what a program prints, to standard output or error. */
async function printed<T>(child: ChildProcess, find: (text: string) => T | undefined): Promise<T> {
  return new Promise((resolve, reject) => {
    const streams = [child.stdout, child.stderr].flatMap((stream) => stream ?? []);
    const texts = streams.map(() => "");
    streams.forEach((stream, i) =>
      stream.on("data", (piece: Buffer) => {
        const text = (texts[i] + piece.toString()).slice(-4096);
        texts[i] = text;
        const found = find(text);
        if (found !== undefined) resolve(found);
      }),
    );
    child.on("error", reject);
    child.on("exit", () => reject(new Error(`${child.spawnfile} has ended: ${texts.join("\n")}`)));
  });
}

async function ended(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exit = new Promise((resolve) => child.on("exit", resolve));
  child.kill("SIGTERM");
  await exit;
}

/** Starts a registry, and an agent behind it, and waits until the agent is connected. */
export async function site(t: Ends): Promise<{ registry: string; executor: string; harness: string }> {
  const dir = folder(t);
  const env = { ...process.env, REGISTRY_DATA: join(dir, "data") };
  const key = (role: string): string => execFileSync(registryProgram, ["keys", "create", "--role", role, "--environment", "build-*"], { env, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }).trim();
  const [executor, harness] = [key("executor"), key("harness")];
  const children: ChildProcess[] = [spawn(registryProgram, ["--listen", "127.0.0.1:0"], { env, stdio: ["ignore", "pipe", "pipe"] })];
  t.after(async () => {
    for (const child of children.reverse()) {
      const exit = new Promise((resolve) => child.on("exit", resolve));
      if (child.exitCode === null && child.kill("SIGTERM")) await exit;
    }
  });
  const registry = await printed(children[0] as ChildProcess, (text) => {
    const found = /https?:\/\/127\.0\.0\.1:\d+|127\.0\.0\.1:\d+/.exec(text)?.[0];
    return found === undefined || found.startsWith("http") ? found : `http://${found}`;
  });
  const agent = spawn(program, ["--remote", registry, "--environment-id", "build-1"], { cwd: dir, env: { ...process.env, CODEX_API_KEY: executor }, stdio: ["ignore", "ignore", "pipe"] });
  children.push(agent);
  await printed(agent, (text) => text.includes("connected to the rendezvous") || undefined);
  return { registry, executor, harness };
}

/** Connects a client that is closed with the test. */
export async function client(t: Ends, url: string, options?: NodeOptions): Promise<NodeAgent> {
  const agent = await connect(url, { ...patient, ...options });
  t.after(() => agent.close());
  return agent;
}

/** Stands between clients and a server, and cuts. */
export class Proxy {
  cuts = 0;
  /** Whether a cut has yet to come. */
  waits = false;
  /** Called for what goes by; false: the connection is cut in its place. */
  passes: (from: "client" | "server", bytes: Buffer) => number | undefined = () => undefined;
  readonly #open = new Set<Socket>();
  readonly #server: Server;
  #refusing = false;
  #until: string | undefined;

  private constructor(private readonly target: string) {
    this.#server = createServer((here) => this.#carry(here));
  }

  static async start(t: Ends, url: string): Promise<Proxy> {
    const proxy = new Proxy(url);
    await new Promise<void>((resolve) => proxy.#server.listen(0, "127.0.0.1", resolve));
    t.after(() => {
      proxy.cut();
      proxy.#server.close();
    });
    return proxy;
  }

  get url(): string {
    return `ws://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  #carry(here: Socket): void {
    if (this.#refusing || (this.#until !== undefined && !existsSync(this.#until))) {
      here.destroy();
      return;
    }
    const there = this.target.startsWith("unix://") ? connectTCP(this.target.slice("unix://".length)) : connectTCP(Number(new URL(this.target).port), "127.0.0.1");
    const end = (): void => {
      here.destroy();
      there.destroy();
      this.#open.delete(here);
      this.#open.delete(there);
    };
    for (const [from, to, name] of [[here, there, "client"], [there, here, "server"]] as const) {
      this.#open.add(from);
      from.setNoDelay(true);
      from.on("error", end);
      from.on("close", end);
      from.on("data", (bytes: Buffer) => {
        const until = this.passes(name, bytes);
        if (until === undefined) {
          if (!to.write(bytes)) {
            from.pause();
            to.once("drain", () => from.resume());
          }
          return;
        }
        // What goes before the cut must arrive, and nothing behind it may.
        this.cuts++;
        from.pause();
        to.end(bytes.subarray(0, until));
        to.once("finish", end);
      });
    }
  }

  /** Cuts at the next message, of the client (request) or of the server (answer; half: half of it arrives). Then nobody can connect until a file exists. */
  cutAt(at: "request" | "answer" | "half", until: string | undefined): void {
    this.passes = (from, bytes) => {
      if (from !== (at === "request" ? "client" : "server")) return undefined;
      if (((bytes[0] ?? 0) & 0xf8) === 0x88) return undefined; // a ping or a pong is no message
      this.passes = () => undefined;
      this.#until = until;
      this.waits = false;
      return at === "half" ? bytes.length >> 1 : 0;
    };
    this.waits = true;
  }

  /** Cuts all connections. For so long nobody can connect. */
  cut(forMs = 0): void {
    this.cuts++;
    for (const socket of this.#open) socket.destroy();
    this.#open.clear();
    if (forMs > 0) {
      this.#refusing = true;
      setTimeout(() => (this.#refusing = false), forMs).unref();
    }
  }
}

/** A web server that also sends back what begins with something else than a capital letter. */
export async function web(t: Ends): Promise<number> {
  const http = createHTTP((request, response) => {
    switch (`${request.method} ${request.url}`) {
      case "GET /hello":
        response.writeHead(200, { "content-type": "text/plain", "x-test": "1" }).end("hello\n");
        return;
      case "POST /echo":
        request.pipe(response);
        return;
      case "GET /redirect":
        response.writeHead(302, { location: "/hello" }).end();
        return;
      case "GET /large":
        response.end("x".repeat(3_000_000));
        return;
    }
    response.writeHead(404).end("nothing here\n");
  });
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    socket.on("error", () => socket.destroy());
    socket.once("readable", () => {
      const first = socket.read() as Buffer | null;
      if (first === null) {
        socket.end();
        return;
      }
      socket.unshift(first);
      if (/[A-Z]/.test(String.fromCharCode(first[0] as number))) http.emit("connection", socket);
      else socket.pipe(socket);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    http.closeAllConnections();
    server.close();
  });
  return (server.address() as AddressInfo).port;
}

// A promise that was rejected and that nobody took fails the whole file. An assertion in after() would not, in Node 20.
process.on("unhandledRejection", (reason) => {
  console.error("a rejection that nobody took:", reason);
  process.exitCode = 1;
});
