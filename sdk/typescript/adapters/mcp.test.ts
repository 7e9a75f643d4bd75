/**
 * `agent mcp`, driven by the official SDKs for TypeScript: @modelcontextprotocol/sdk, and its successor
 * @modelcontextprotocol/client.
 *
 * The scenarios are the files of test/e2e/testdata/mcp; test/e2e/mcp_test.go explains their lines. A file that has the
 * word "versions" in its prose is played by each way to open a connection, others by the last one.
 */

import assert from "node:assert/strict";
import { execFile, execFileSync, spawn, type ChildProcess } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Client, StreamableHTTPClientTransport, type ClientOptions } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { Client as Client1 } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport as StdioClientTransport1 } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport as StreamableHTTPClientTransport1 } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import type { Transport as Transport1 } from "@modelcontextprotocol/sdk/shared/transport.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";
import { folder, program, type Ends } from "../test/rig.js";

const timeout = 240_000;
const files = join(import.meta.dirname, "../../../../../test/e2e/testdata/mcp"); // from the build

/** Says what the user does with a question. */
type Asked = (form: unknown) => { action: "accept"; content: { decision: string } } | { action: "decline" };

/** How to start a server, or where one is. */
type Where = { command: string; args: string[]; cwd: string; stderr: "ignore" } | { url: URL; token: string };

interface Result {
  content?: ReadonlyArray<{ type: string; text?: unknown; data?: unknown; mimeType?: unknown }>;
  structuredContent?: unknown;
  isError?: unknown;
}

interface Opened {
  tools(): Promise<string[]>;
  call(name: string, args: Record<string, unknown>, onprogress: (p: { message?: string | undefined }) => void, signal: AbortSignal): Promise<Result>;
  close(): Promise<void>;
  readonly pid: number | null;
}

/** An answer as text, and as data. */
type Answer = readonly [string, unknown];

type Way = (where: Where, asked: Asked | undefined) => Promise<Opened>;

/** The first generation, which begins with a handshake. */
async function first(where: Where, asked: Asked | undefined): Promise<Opened> {
  const client = new Client1({ name: "test", version: "1" }, asked && { capabilities: { elicitation: {} } });
  if (asked) client.setRequestHandler(ElicitRequestSchema, ({ params }) => asked(params));
  const stdio = "url" in where ? undefined : new StdioClientTransport1(where);
  const transport = stdio ?? ("url" in where ? new StreamableHTTPClientTransport1(where.url, { requestInit: { headers: { authorization: `Bearer ${where.token}` } } }) : undefined);
  await client.connect(transport as Transport1); // its own types differ under exactOptionalPropertyTypes
  return {
    pid: stdio?.pid ?? null,
    tools: async () => (await client.listTools()).tools.map(({ name }) => name),
    call: async (name, args, onprogress, signal) => (await client.callTool({ name, arguments: args }, undefined, { onprogress, signal })) as Result,
    close: () => client.close(),
  };
}

/** The second generation: as the first one, or by the newest protocol, for which it starts a second server that tells its versions. */
function second(mode: NonNullable<ClientOptions["versionNegotiation"]>["mode"] & {}, version: string): Way {
  return async (where, asked) => {
    const client = new Client({ name: "test", version: "1" }, { versionNegotiation: { mode }, ...(asked && { capabilities: { elicitation: { form: {} } } }) });
    if (asked) client.setRequestHandler("elicitation/create", ({ params }) => asked(params));
    const stdio = "url" in where ? undefined : new StdioClientTransport(where);
    await client.connect(stdio ?? new StreamableHTTPClientTransport((where as { url: URL }).url, { requestInit: { headers: { authorization: `Bearer ${(where as { token: string }).token}` } } }));
    assert.equal(client.getNegotiatedProtocolVersion(), version);
    return {
      pid: stdio?.pid ?? null,
      tools: async () => (await client.listTools()).tools.map(({ name }) => name),
      call: (name, args, onprogress, signal) => client.callTool({ name, arguments: args }, { onprogress, signal }),
      close: () => client.close(),
    };
  };
}

const ways: ReadonlyArray<readonly [string, Way]> = [
  ["sdk", first],
  ["client, legacy", second("legacy", "2025-11-25")],
  ["client", second("auto", "2026-07-28")],
];

for (const file of readdirSync(files)) {
  const [prose = "", ...script] = readFileSync(join(files, file), "utf8").split("\n\n");
  if (script.join("\n").includes("registry\n")) continue; // the way to the agent is nothing to a client
  for (const [name, way] of prose.includes("versions") ? ways : ways.slice(-1)) {
    const skip = prose.includes("needs curl") && noCurl() && "there is no curl";
    test(`${file} by ${name}`, { timeout, skip }, (t) => new Stage(t, way).play(script.join("\n\n")));
  }
}

function noCurl(): boolean {
  try {
    execFileSync("curl", ["--version"], { stdio: "ignore" });
    return false;
  } catch {
    return true;
  }
}

/** Repeats a question until the answer is yes. */
async function until(ask: () => boolean | Promise<boolean>): Promise<void> {
  for (const end = Date.now() + timeout; !(await ask()); await sleep(20)) assert.ok(Date.now() < end, "it has not come");
}

/** Plays one file. */
class Stage {
  readonly #dir: string;
  readonly #names = new Map<string, string>();
  readonly #clients = new Map<string, Opened>();
  readonly #told: string[] = [];
  #asked = 0;
  #answer = "";
  #data: unknown;
  #begun: { answer: Promise<Answer>; cancel: () => void } | undefined;

  constructor(private readonly t: Ends, private readonly way: Way) {
    this.#dir = join(folder(t), "work");
    mkdirSync(this.#dir);
    this.#names.set("$DIR", this.#dir).set("$MEGA", "b".repeat(1 << 20));
    t.after(() => Promise.all([...this.#clients.values()].map((each) => each.close())));
  }

  async play(script: string): Promise<void> {
    for (const [number, written] of script.split("\n").entries()) {
      let line = written;
      for (const [name, value] of this.#names) line = line.replaceAll(name, value);
      const [, word = "", rest = ""] = /^(\S*) ?(.*)$/.exec(line) as RegExpExecArray;
      if (word === "" || word === "#") continue;
      await this.#step(word, rest).catch((error: unknown) => {
        throw new Error(`line ${number + 1}: ${written}\nthe answer is ${this.#answer}`, { cause: error });
      });
    }
  }

  async #step(word: string, rest: string): Promise<void> {
    switch (word) {
      case "agent":
        this.#names.set("$URL", (await this.#start("--listen", "ws://127.0.0.1:0", ...words(rest))).url);
        break;
      case "http": {
        const server = await this.#start("mcp", "--listen", "http://127.0.0.1:0", ...words(rest));
        let file: string | undefined;
        await until(() => (file = /token in the file (\S+)\n/.exec(server.said())?.[1]) !== undefined);
        this.#names.set("$HTTP", server.url).set("$TOKEN", readFileSync(file as string, "utf8").trim());
        break;
      }
      case "client":
        await this.#connect(...(words(rest) as [string, string]));
        break;
      case "~":
        assert.match(this.#answer, new RegExp(rest, "m"));
        break;
      case "!~":
        assert.doesNotMatch(this.#answer, new RegExp(rest, "m"));
        break;
      case "data": {
        const want = JSON.parse(rest) as Record<string, unknown> | null;
        const got = (this.#data ?? null) as typeof want;
        assert.deepEqual(want && got && Object.fromEntries(Object.keys(want).map((name) => [name, got[name]])), want);
        assert.equal(got === null, want === null);
        break;
      }
      case "begin": {
        const stop = new AbortController();
        this.#begun = { answer: this.#call(rest, stop.signal), cancel: () => stop.abort(new Error("cancelled")) };
        break;
      }
      case "until":
        if (rest.startsWith("sh ")) await until(() => this.#shell(rest.slice(3)));
        else await until(() => this.#told.some((line) => new RegExp(rest.slice(2), "m").test(line)));
        break;
      case "cancel":
        this.#begun?.cancel();
        this.#take(await this.#begun?.answer);
        break;
      case "end":
        this.#take(await this.#begun?.answer);
        break;
      case "close":
        await this.#clients.get(rest)?.close();
        break;
      case "kill":
        process.kill(this.#clients.get(rest)?.pid as number, "SIGKILL");
        break;
      case "asked":
        assert.equal(this.#asked, Number(rest));
        break;
      case "sh":
        assert.ok(await this.#shell(rest));
        break;
      default:
        this.#take(await this.#call(`${word} ${rest}`, new AbortController().signal));
    }
  }

  /** Starts an agent, and returns the URL that it prints, and what it says. */
  async #start(...args: string[]): Promise<{ url: string; said: () => string }> {
    const child: ChildProcess = spawn(program, args, { cwd: this.#dir, stdio: ["ignore", "pipe", "pipe"] });
    const exit = new Promise((resolve) => child.on("exit", resolve));
    this.t.after(() => {
      child.kill();
      return exit;
    });
    let said = "";
    child.stderr?.on("data", (text: Buffer) => (said += text.toString()));
    const url = await new Promise<string>((resolve) => {
      let text = "";
      child.stdout?.on("data", (piece: Buffer) => {
        text += piece.toString();
        if (text.includes("\n")) resolve(text.trim());
      });
    });
    return { url, said: () => said };
  }

  #shell(command: string): Promise<boolean> {
    const env = { ...process.env, PATH: `${dirname(program)}:${process.env["PATH"]}` };
    return new Promise((resolve) => {
      execFile("sh", ["-c", command], { cwd: this.#dir, env }, (error, stdout, stderr) => {
        this.#answer = stdout + stderr;
        resolve(error === null);
      });
    });
  }

  async #connect(name: string, answer: string, ...args: string[]): Promise<void> {
    const asked: Asked = (form) => {
      this.#asked++;
      assert.ok("decision" in (form as { requestedSchema: { properties: object } }).requestedSchema.properties);
      return answer === "decline" ? { action: "decline" } : { action: "accept", content: { decision: answer } };
    };
    const where: Where =
      args[0] === "http"
        ? { url: new URL(this.#names.get("$HTTP") as string), token: this.#names.get("$TOKEN") as string }
        : { command: program, args: ["mcp", ...args], cwd: this.#dir, stderr: "ignore" };
    const client = await this.way(where, answer === "none" ? undefined : asked);
    this.#clients.set(name, client);
    assert.equal((await client.tools()).length, 9);
  }

  #take(answer: Answer | undefined): void {
    assert.ok(answer);
    [this.#answer, this.#data] = answer;
  }

  /** Calls a tool. */
  async #call(line: string, signal: AbortSignal): Promise<Answer> {
    const [, name, tool, args] = /^(\S+) (\S+) (.*)$/.exec(line) as unknown as [string, string, string, string];
    const told = ({ message }: { message?: string | undefined }): unknown => this.#told.push(message ?? "");
    try {
      const { content = [], structuredContent, isError } = await (this.#clients.get(name) as Opened).call(tool, JSON.parse(args) as Record<string, unknown>, told, signal);
      const texts = content.map((part) => (part.type === "image" ? `${String(part.mimeType)} of ${Buffer.from(String(part.data), "base64").length} bytes` : String(part.text)));
      return [(isError === true ? "error: " : "") + texts.join(""), structuredContent];
    } catch (error) {
      return [`failed: ${(error as Error).message}`, undefined];
    }
  }
}

function words(text: string): string[] {
  return text.split(" ").filter((word) => word !== "").map((word) => word.replaceAll("%20", " "));
}
