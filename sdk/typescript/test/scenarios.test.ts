/** Runs the scenarios of sdk/scenarios, which the SDK for Python runs, too. Their README has the rules. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { connect as connectTCP } from "node:net";
import { dirname, join } from "node:path";
import { after, before, describe, test } from "node:test";
import {
  AgentError, connect, CommandError, PortWatch, ServerError, TimeoutError, UsageError, type Forward, type NodeAgent, type OpenFile, type Policy, type Process, type RunOptions, type Signal,
  type Bounds, type Socket, type Watch,
} from "../src/node/index.js";
import { folder, home, patient, program, Proxy, serve, web, type Ends } from "./rig.js";

type JSONValue = null | boolean | number | string | JSONValue[] | { [name: string]: JSONValue };
type Members = { [name: string]: JSONValue };

/** The arguments of a verb. Its call finds out what they are. */
type Args = Record<string, any>;

interface Step {
  do: string;
  on?: string;
  with?: Members;
  as?: string;
  see?: JSONValue;
  fails?: Members;
  background?: boolean;
}

interface Scenario {
  name: string;
  about: string;
  needs?: string[];
  over?: string[];
  steps: Step[];
}

const kinds: Record<string, string> = {
  notFound: "NOT_FOUND", permissionDenied: "PERMISSION_DENIED", alreadyExists: "ALREADY_EXISTS", notADirectory: "NOT_A_DIRECTORY",
  isADirectory: "IS_A_DIRECTORY", command: "COMMAND", timeout: "TIMEOUT", closed: "CLOSED", unsupported: "UNSUPPORTED", stdin: "STDIN", gap: "GAP",
  outputLimit: "OUTPUT_LIMIT", usage: "USAGE",
};

const encoder = new TextEncoder();

/** Returns bytes for what stands for bytes. */
function bytesOf(value: unknown): Uint8Array {
  if (typeof value === "string") return encoder.encode(value);
  if (value instanceof Uint8Array) return value;
  const { base64, repeat, times } = value as { base64?: string; repeat?: string; times?: number };
  if (base64 !== undefined) return new Uint8Array(Buffer.from(base64, "base64"));
  return encoder.encode((repeat as string).repeat(times as number));
}

function isBytes(value: unknown): boolean {
  return typeof value === "object" && value !== null && ("base64" in value || "repeat" in value);
}

/** Reports what does not match. */
function mismatch(got: unknown, want: unknown, at: string): string | undefined {
  const no = (why: string): string => `${at}: ${why}`;
  if (want instanceof Uint8Array || isBytes(want) || (typeof want === "string" && got instanceof Uint8Array)) {
    if (typeof got !== "string" && !(got instanceof Uint8Array)) return no(`${shown(got)} is no bytes`);
    const [a, b] = [Buffer.from(bytesOf(got)), Buffer.from(bytesOf(want))];
    return a.equals(b) ? undefined : no(`${shown(got)} instead of ${shown(b)}`);
  }
  if (typeof want !== "object" || want === null) return got === want || (want === null && got === undefined) ? undefined : no(`${shown(got)} instead of ${shown(want)}`);
  if (Array.isArray(want)) {
    if (!Array.isArray(got) || got.length !== want.length) return no(`${shown(got)} instead of ${want.length} members`);
    return want.map((one, i) => mismatch(got[i], one, `${at}[${i}]`)).find((found) => found !== undefined);
  }
  const keys = Object.keys(want);
  if (keys.length === 1) {
    const [key] = keys as [string];
    const value = (want as Members)[key];
    const text = got instanceof Uint8Array ? Buffer.from(got).toString() : got;
    switch (key) {
      case "matches":
        return typeof text === "string" && new RegExp(value as string).test(text) ? undefined : no(`${shown(got)} does not match ${String(value)}`);
      case "contains":
        if (Array.isArray(got)) return got.some((one) => mismatch(one, value, at) === undefined) ? undefined : no(`${shown(got)} has no ${shown(value)}`);
        return typeof text === "string" && text.includes(Buffer.from(bytesOf(value)).toString()) ? undefined : no(`${shown(got)} has no ${shown(value)}`);
      case "unordered": {
        if (!Array.isArray(got) || got.length !== (value as JSONValue[]).length) return no(`${shown(got)} has another length`);
        const left = [...got];
        for (const one of value as JSONValue[]) {
          const i = left.findIndex((member) => mismatch(member, one, at) === undefined);
          if (i < 0) return no(`${shown(got)} has no ${shown(one)}`);
          left.splice(i, 1);
        }
        return undefined;
      }
      case "length":
        return (got as { length?: number } | undefined)?.length === value ? undefined : no(`has the length ${String((got as { length?: number }).length)} instead of ${String(value)}`);
      case "sha256":
        return createHash("sha256").update(bytesOf(got)).digest("hex") === value ? undefined : no("has another sum");
      case "atLeast":
        return typeof got === "number" && got >= (value as number) ? undefined : no(`${shown(got)} is less than ${String(value)}`);
      case "any":
        return undefined;
      case "absent":
        return got === undefined || got === null ? undefined : no(`${shown(got)} is there`);
    }
  }
  for (const key of keys) {
    const found = mismatch((got as Record<string, unknown> | undefined)?.[key], (want as Members)[key], `${at}.${key}`);
    if (found !== undefined) return found;
  }
  return undefined;
}

/** Returns the words of the command line as a policy: its words for the network are one here. */
function policy(words: Args | undefined): Policy | undefined {
  if (words?.["network"] === undefined) return words;
  const network: Record<string, unknown> = {};
  for (const word of words["network"] as string[]) {
    const [verb, hosts] = word.split("=") as [string, string | undefined];
    if (word === "on" || word === "off") return { ...words, network: word };
    network[verb] = hosts === undefined ? true : hosts.split(",");
  }
  return { ...words, network };
}

function shown(value: unknown): string {
  const text = value instanceof Uint8Array ? JSON.stringify(Buffer.from(value).toString()) : JSON.stringify(value);
  return (text ?? "nothing").slice(0, 300);
}

/** Returns the bounds among the arguments of a command. */
function bounds({ memory, cpus, pids, fileSize, user }: Args): Bounds {
  return { memory, cpus, pids, fileSize, user };
}

/** What a scenario runs in. */
class Run {
  readonly values = new Map<string, unknown>();
  readonly handles = new Map<string, unknown>();

  constructor(
    readonly agent: NodeAgent,
    readonly proxy: Proxy | undefined,
  ) {}

  /** Puts values in the place of variables. */
  filled(value: JSONValue | undefined): unknown {
    if (typeof value === "string") {
      return value.replace(/\$\{([^}]+)\}/g, (_, name: string) => {
        const [first, ...rest] = name.split(".") as [string, ...string[]];
        let found: unknown = this.values.has(first) ? this.values.get(first) : this.handles.get(first);
        for (const part of rest) found = (found as Record<string, unknown>)[part];
        assert.notEqual(found, undefined, `no value for ${name}`);
        return found instanceof Uint8Array ? Buffer.from(found).toString() : String(found);
      });
    }
    if (Array.isArray(value)) return value.map((one) => this.filled(one));
    if (typeof value !== "object" || value === null) return value;
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, this.filled(one)]));
  }

  async step(step: Step, at: string): Promise<void> {
    const begun = this.#do(step);
    if (step.background === true) {
      begun.catch(() => {});
      this.handles.set(step.as as string, begun);
      return;
    }
    let result: unknown;
    try {
      result = await begun;
    } catch (error) {
      if (step.fails === undefined) throw error;
      const wrong = this.#failure(error, step.fails);
      assert.equal(wrong, undefined, `${at}: ${wrong}; the error is ${String((error as Error).stack)}`);
      return;
    }
    if (step.fails !== undefined) assert.fail(`${at} has succeeded with ${shown(result)}`);
    if (step.as !== undefined) (isHandle(result) ? this.handles : this.values).set(step.as, result);
    if (step.see !== undefined) assert.equal(mismatch(result, this.filled(step.see), at), undefined);
  }

  #failure(error: unknown, want: Members): string | undefined {
    assert.ok(error instanceof AgentError, `${String(error)} is no error of this package`);
    for (const [member, value] of Object.entries(want)) {
      let found: string | undefined;
      if (member === "kind") {
        const ok: boolean = value === "refused" ? error instanceof ServerError : value === "disconnected" ? ["DISCONNECTED", "CLOSED"].includes(error.code) : error.code === kinds[value as string];
        found = ok ? undefined : `${error.code} instead of ${String(value)}`;
      } else if (member === "code") found = mismatch((error as ServerError).number, value, "code");
      else found = mismatch((error as unknown as Record<string, unknown>)[member], value, member);
      if (found !== undefined) return found;
    }
    return undefined;
  }

  async #do(step: Step): Promise<unknown> {
    const given = this.filled(step.with ?? {}) as Args;
    const handle = step.on === undefined ? undefined : this.handles.get(step.on);
    if (step.on === undefined) return this.#client(step.do, given);
    assert.notEqual(handle, undefined, `no handle ${step.on}`);
    if (step.do === "await") return handle as Promise<unknown>;
    return this.#handle(step.do, handle, given);
  }

  async #client(verb: string, w: Args): Promise<unknown> {
    const { agent } = this;
    const { fs } = agent;
    const options = (): RunOptions => ({
      cwd: w["cwd"], env: w["env"], input: w["input"] === undefined ? undefined : bytesOf(w["input"]), timeoutMs: w["timeout"], killAfterMs: w["killAfter"],
      maxOutput: w["maxOutput"], check: w["check"], sandbox: policy(w["sandbox"]), tty: w["tty"], ...bounds(w),
    });
    switch (verb) {
      case "run":
        return agent.run(w["argv"] as unknown as string[], options());
      case "shell":
        return agent.shell(w["script"], options());
      case "spawn":
        return agent.spawn(w["argv"] as unknown as string[], { cwd: w["cwd"], env: w["env"], stdin: w["stdin"], tty: w["tty"], id: w["id"], sandbox: policy(w["sandbox"]), killAfterMs: w["killAfter"], maxOutput: w["maxOutput"], ...bounds(w) });
      case "attach":
        return agent.attach(w["id"], { after: w["after"] });
      case "processes":
        return agent.processes();
      case "readFile":
        return fs.read(w["path"]);
      case "writeFile":
        return fs.write(w["path"], bytesOf(w["data"]), { mode: w["mode"], parents: w["parents"], exclusive: w["exclusive"], atomic: w["atomic"] });
      case "list":
        return fs.list(w["path"], { follow: w["follow"] });
      case "stat":
        return fs.stat(w["path"], { follow: w["follow"] });
      case "statMany":
        return fs.statMany(w["paths"], { follow: w["follow"] });
      case "search":
        return fs.search(w["path"], w);
      case "ports":
        return (await agent.ports()).ports;
      case "watchPorts":
        return agent.watchPorts();
      case "exists":
        return fs.exists(w["path"]);
      case "makeDirectory":
        return fs.mkdir(w["path"], { parents: w["parents"] });
      case "remove":
        return fs.remove(w["path"], { recursive: w["recursive"], missingOk: w["missingOk"] });
      case "rename":
        return fs.rename(w["from"], w["to"], { replace: w["replace"] });
      case "copy":
        return fs.copy(w["from"], w["to"]);
      case "realpath":
        return fs.realpath(w["path"], { missingOk: w["missingOk"] });
      case "walk":
        return (await fs.walk(w["path"], { maxDepth: w["maxDepth"] })).entries;
      case "openFile":
        return fs.open(w["path"], w["mode"]);
      case "watch":
        return fs.watch(w["path"], { recursive: w["recursive"] });
      case "applyPatch":
        return fs.applyPatch(w["patch"], { cwd: w["cwd"], dryRun: w["dryRun"] });
      case "upload":
        return agent.upload(w["from"], w["to"]);
      case "download":
        return agent.download(w["from"], w["to"]);
      case "http": {
        const content = w["content"] === undefined ? undefined : bytesOf(w["content"]);
        const response = await agent.http.request(w["method"], w["url"], { headers: w["headers"], body: content, redirect: w["redirects"] });
        const headers = Object.fromEntries(response.headers.map(({ name, value }) => [name, value]));
        return { status: response.status, headers, content: await response.bytes() };
      }
      case "forward":
        return agent.forward(w["to"]);
      case "connectTo":
        return agent.connectTo(w["to"]);
      case "info":
        return agent.info();
      case "cut":
        if (w["at"] === undefined) this.proxy?.cut(w["for"]);
        else this.proxy?.cutAt(w["at"], w["until"]);
        return undefined;
      case "close":
        return agent.close();
      case "sleep":
        return new Promise((resolve) => setTimeout(resolve, w["ms"]));
      case "localWrite":
        mkdirSync(dirname(w["path"]), { recursive: true });
        return writeFileSync(w["path"], bytesOf(w["data"]));
      case "localRead":
        return new Uint8Array(readFileSync(w["path"]));
      case "sequence":
        return encoder.encode(Array.from({ length: (w["to"] as number) - (w["from"] as number) + 1 }, (_, i) => `${(w["from"] as number) + i}\n`).join(""));
    }
    throw new Error(`unknown verb ${verb}`);
  }

  async #handle(verb: string, handle: unknown, w: Args): Promise<unknown> {
    const process = handle as Process;
    const file = handle as OpenFile;
    switch (verb) {
      case "write":
        return (handle as Process | Socket).write(bytesOf(w["data"]));
      case "closeStdin":
        return process.closeStdin();
      case "signal":
        return process.signal(w["name"] as Signal);
      case "resize":
        return process.resize(w["rows"], w["cols"]);
      case "kill":
        return process.kill();
      case "wait":
        return process.wait({ timeoutMs: w["timeout"] });
      case "output": {
        const [stdout, stderr] = await Promise.all([all(process.stdout), all(process.stderr)]);
        return { ...(await process.wait()), stdout, stderr };
      }
      case "readUntil":
        return readUntil(w["stream"] === "stderr" ? process.stderr : process.stdout, w["text"]);
      case "readAt":
        return file.readAt(w["offset"], w["length"]);
      case "writeAt":
        return file.writeAt(w["offset"], bytesOf(w["data"]));
      case "next":
        return handle instanceof PortWatch ? handle.next() : next(handle as Watch);
      case "closeWrite":
        return (handle as Socket).closeWrite();
      case "readAll":
        return all((handle as Socket).readable);
      case "exchange":
        return exchange(handle as Forward, bytesOf(w["data"]));
      case "close":
        return (handle as { close(): unknown }).close();
    }
    throw new Error(`unknown verb ${verb}`);
  }
}

function isHandle(value: unknown): boolean {
  return typeof value === "object" && value !== null && "close" in value;
}

/** What was read behind the text that somebody waited for. */
const kept = new WeakMap<ReadableStream<Uint8Array>, Buffer>();

async function all(stream: ReadableStream<Uint8Array>): Promise<Uint8Array> {
  const pieces = [kept.get(stream) ?? Buffer.alloc(0)];
  for await (const piece of stream) pieces.push(Buffer.from(piece));
  return new Uint8Array(Buffer.concat(pieces));
}

async function readUntil(stream: ReadableStream<Uint8Array>, text: string): Promise<Uint8Array> {
  let got = kept.get(stream) ?? Buffer.alloc(0);
  const reader = stream.getReader();
  try {
    while (!got.includes(text)) {
      const { done, value } = await reader.read();
      assert.equal(done, false, `${text} has not come, but ${got.toString()}`);
      got = Buffer.concat([got, value as Uint8Array]);
    }
  } finally {
    reader.releaseLock();
  }
  const end = got.indexOf(text) + Buffer.byteLength(text);
  kept.set(stream, got.subarray(end));
  return new Uint8Array(got.subarray(0, end));
}

/** Takes changes until nothing new has come for 300 ms. */
async function next(watch: Watch): Promise<unknown> {
  const first = await watch.next();
  const changes = [...first.changes];
  let { overflow } = first;
  for (;;) {
    try {
      const more = await watch.next({ signal: AbortSignal.timeout(300) });
      changes.push(...more.changes);
      overflow ||= more.overflow;
    } catch (error) {
      if ((error as Error).name === "TimeoutError") return { changes, overflow };
      throw error;
    }
  }
}

function exchange(forward: Forward, data: Uint8Array): Promise<Uint8Array> {
  return new Promise((resolve, reject) => {
    const pieces: Buffer[] = [];
    const socket = connectTCP({ port: forward.port, host: forward.host, allowHalfOpen: true });
    socket.on("data", (piece) => pieces.push(piece));
    socket.on("error", reject);
    socket.on("end", () => resolve(new Uint8Array(Buffer.concat(pieces))));
    socket.end(data);
  });
}

const scenarios = join(home, "../scenarios");
const files = existsSync(scenarios) ? readdirSync(scenarios).filter((name) => name.endsWith(".json")) : [];

for (const over of ["ws", "unix", "stdio"] as const) {
  describe(`scenarios over ${over}`, { concurrency: 4 }, () => {
    const ends: (() => unknown)[] = [];
    const t: Ends = { after: (call) => ends.push(call) };
    let url = "";
    let port = 0;
    before(async () => {
      port = await web(t);
      if (over !== "stdio") url = (await serve(t, over)).url;
    });
    after(async () => {
      for (const end of ends.reverse()) await end();
    });
    for (const name of files) {
      for (const scenario of (JSON.parse(readFileSync(join(scenarios, name), "utf8")) as { scenarios: Scenario[] }).scenarios) {
        if (scenario.over !== undefined && !scenario.over.includes(over)) continue;
        test(scenario.name, { timeout: 120_000 }, async (t) => {
          const cuts = scenario.steps.some((step) => step.do === "cut");
          const proxy = cuts ? await Proxy.start(t, url) : undefined;
          const agent = await connect(over === "stdio" ? { command: [program, "--listen", "stdio"] } : (proxy?.url ?? url), patient);
          t.after(() => agent.close());
          const { capabilities } = await agent.info();
          const lacking = (scenario.needs ?? []).filter((flag) => capabilities[flag] !== true);
          if (lacking.length > 0) {
            t.skip(`the agent lacks ${lacking.join(", ")}`);
            return;
          }
          const run = new Run(agent, proxy);
          run.values.set("dir", folder(t)).set("here", folder(t)).set("port", port).set("http", `http://127.0.0.1:${port}`);
          for (const [i, step] of scenario.steps.entries()) await run.step(step, `step ${i} (${step.do})`);
          assert.notEqual(proxy?.waits, true, "no message came at which to cut");
        });
      }
    }
  });
}

test("the scenarios are there", () => assert.ok(files.length > 0));

// They are named here because the table of kinds speaks of them.
void [CommandError, TimeoutError, UsageError];
