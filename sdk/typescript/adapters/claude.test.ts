/** The adapter for the Claude Agent SDK: on its own, and driven by the SDK if that is installed. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import { promisify } from "node:util";
import { spawnInside, type ClaudeOptions, type ClaudeProcess, type Spawner } from "@execagent/client/claude";
import { folder, type Ends } from "../test/rig.js";
import { claude, messages, noClaude, type Step } from "./messages.js";
import { cutCommand, cutOnce, site, Transcript, type Site } from "./session.js";

const timeout = 240_000;

function open(t: Ends, { dir, connect }: Site, options?: ClaudeOptions): Spawner {
  const spawn = spawnInside(connect, { cwd: dir, ...options });
  t.after(() => spawn.close());
  return spawn;
}

/** Starts a script in the place of Claude Code. */
function shell(spawn: Spawner, script: string, signal = new AbortController().signal, env: Record<string, string> = {}): ClaudeProcess {
  return spawn({ command: "sh", args: ["-c", script], env: { ...process.env, ...env }, signal });
}

async function text(stream: AsyncIterable<Buffer>): Promise<string> {
  let all = "";
  for await (const piece of stream) all += piece.toString();
  return all;
}

test("what the SDK wants of a process", { timeout }, async (t) => {
  const place = await site(t);
  let said = "";
  const spawn = open(t, place, { onStderr: (text) => (said += text) });
  process.env["SECRET_OF_THIS_PROGRAM"] = "x";
  process.env["ANTHROPIC_TEST"] = "a";
  const cat = shell(spawn, 'echo "$PWD $ANTHROPIC_TEST $SECRET_OF_THIS_PROGRAM $ADDED"; cat; echo end >&2; exit 3', undefined, { ADDED: "b" });
  assert.deepEqual([cat.exitCode, cat.killed], [null, false]);
  cat.stdin.write("one\n");
  cat.stdin.end("two\n");
  const exit = once(cat, "exit");
  assert.equal(await text(cat.stdout), `${place.dir} a  b\none\ntwo\n`);
  assert.deepEqual(await exit, [3, null]);
  assert.deepEqual([cat.exitCode, cat.kill("SIGTERM"), said], [3, false, "end\n"]);

  // A signal of the SDK, and one that it sends by its AbortSignal.
  const term = shell(spawn, "trap 'echo term; exit 5' TERM; echo up; while :; do sleep 0.1; done");
  await once(term.stdout, "data");
  assert.equal(term.kill("SIGTERM"), true);
  assert.deepEqual(await once(term, "exit"), [5, null]);
  assert.throws(() => term.kill("SIGSEGV"), /SIGSEGV cannot be sent/);
  const stop = new AbortController();
  const killed = shell(spawn, "echo up; exec sleep 1000", stop.signal);
  await once(killed.stdout, "data");
  stop.abort();
  assert.deepEqual(await once(killed, "exit"), [137, null]);

  for (const [start, want] of [
    [() => spawn({ command: "/no/such/claude", args: [], env: {}, signal: new AbortController().signal }), { code: "ENOENT", message: /no\/such\/claude/ }],
    [() => spawn({ command: "sh", args: [], cwd: "/no/such/dir", env: {}, signal: new AbortController().signal }), { code: "ENOENT", message: /no\/such\/dir/ }],
    [() => shell(spawn, "true", AbortSignal.abort(new Error("before"))), { message: /before/ }],
  ] as const) {
    const process = start();
    const [error] = (await once(process, "error")) as [Error & { code?: string }];
    assert.match(error.message, want.message);
    if ("code" in want) assert.equal(error.code, want.code);
    assert.equal(process.kill("SIGTERM"), false);
  }
  assert.throws(() => spawnInside(place.connect, { timeoutMs: 1 } as ClaudeOptions), /can only have/);
});

test("a lost connection is not noticed", { timeout }, async (t) => {
  const place = await site(t);
  const spawn = open(t, place);
  // Both ways, in the middle of 3 MB each.
  let passed = 0;
  place.proxy.passes = (_, bytes) => ((passed += bytes.length) > 1_000_000 && place.proxy.cuts < 5 ? ((passed = 0), Math.floor(bytes.length / 2)) : undefined);
  const all = shell(spawn, "cat");
  const input = Array.from({ length: 300_000 }, (_, i) => `line ${i}\n`).join("");
  all.stdin.end(input);
  assert.ok((await text(all.stdout)) === input, "the output is not the input");
  assert.equal(place.proxy.cuts, 5);
});

/** What this test uses of the SDK. */
interface SDK {
  query(call: { prompt: string; options: object }): AsyncIterable<{
    type: string;
    session_id?: string;
    message?: { content: string | { type: string; text?: string; name?: string; input?: object; content?: unknown; is_error?: boolean }[] };
    subtype?: string;
  }>;
}
const skip = noClaude;
const sdk = join(claude, "@anthropic-ai/claude-agent-sdk");

test("the SDK takes the function", { timeout, skip }, async () => {
  const dir = join(import.meta.dirname, "../types");
  mkdirSync(dir, { recursive: true });
  writeFileSync(join(dir, "types.ts"), `
    import type { Options } from "@anthropic-ai/claude-agent-sdk";
    import { spawnInside } from "@execagent/client/claude";
    const options: Options = { spawnClaudeCodeProcess: spawnInside(async () => { throw new Error(); }) };
    void options;
  `);
  const compilerOptions = { noEmit: true, skipLibCheck: true, rootDir: "/", paths: { "@anthropic-ai/claude-agent-sdk": [join(sdk, "sdk.d.ts")] } };
  writeFileSync(join(dir, "tsconfig.json"), JSON.stringify({ extends: "../../../tsconfig.json", compilerOptions, include: ["."] }));
  await promisify(execFile)(join(import.meta.dirname, "../../node_modules/.bin/tsc"), ["-p", dir]).catch((error: Error & { stdout: string }) => assert.fail(error.stdout));
});

test("a session", { timeout, skip }, async (t) => {
  const { query } = (await import(pathToFileURL(join(sdk, "sdk.mjs")).href)) as SDK;
  const place = await site(t);
  const transcript = new Transcript(place);
  const home = folder(t);
  const steps: Step[] = [];
  const api = await messages(t, steps);
  const drive = async (spawn: Spawner, prompt: string, script: Step[], more: object = {}): Promise<string> => {
    steps.push(...script);
    transcript.add("user", prompt);
    let session = "";
    const options = {
      spawnClaudeCodeProcess: spawn, cwd: place.dir, settingSources: [], allowedTools: ["Bash", "Edit", "Read"], ...more,
      env: { HOME: home, CLAUDE_CONFIG_DIR: join(home, ".claude"), ANTHROPIC_BASE_URL: api, ANTHROPIC_API_KEY: "not-a-key", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1", DISABLE_TELEMETRY: "1", CLAUDE_CODE_DISABLE_BACKGROUND_TASKS: "1" },
    };
    for await (const { type, session_id, message } of query({ prompt, options })) {
      session = session_id ?? session;
      if ((type !== "assistant" && type !== "user") || message === undefined || typeof message.content === "string") continue;
      for (const part of message.content) {
        if (part.type === "text" && type === "assistant") transcript.add("model", part.text);
        else if (part.type === "tool_use") transcript.add(`call ${part.name}`, part.input);
        else if (part.type === "tool_result") transcript.add(part.is_error === true ? "error" : "result", String(part.content).replace(/(EROFS: read-only file system|EACCES: permission denied).*/, "EACCES: permission denied"));
      }
    }
    assert.deepEqual(steps, []);
    return session;
  };

  const first = open(t, place);
  const cut = cutOnce(place);
  const session = await drive(first, "Mend sum.sh, so that the test passes.", [
    ["Bash", { command: "sh test.sh" }],
    ["Read", { file_path: join(place.dir, "sum.sh") }],
    ["Edit", { file_path: join(place.dir, "sum.sh"), old_string: "$1 - $2", new_string: "$1 + $2" }],
    ["Bash", { command: "sh test.sh" }],
    ["Bash", { command: "echo 'it waits for ever'; sleep 1000", timeout: 1000 }],
    ["Bash", { command: cutCommand }],
    "The test passes.",
  ]);
  await cut;
  await first.close();
  const again = open(t, place, { ...first.ref, existing: true });
  await drive(again, "What has the test said?", [["Bash", { command: "sh test.sh" }], "It has said ok."], { resume: session });
  const careful = open(t, place, { sandbox: { workspace: home, readable: place.dir, network: "on" } });
  await drive(careful, "Break it again, without a permission to write.", [
    ["Bash", { command: "echo broken 2>/dev/null >sum.sh || echo refused" }],
    ["Edit", { file_path: join(place.dir, "sum.sh"), old_string: "+", new_string: "-" }],
    "I cannot.",
  ]);
  transcript.is("claude");
});
