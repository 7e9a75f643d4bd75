/** The adapter for Strands, driven by Strands with a scripted model. */

import assert from "node:assert/strict";
import { existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { Agent, Model, Sandbox, SandboxAbortError, SandboxPathNotFoundError, SandboxTimeoutError, type BaseModelConfig, type Message, type ModelStreamEvent } from "@strands-agents/sdk";
import { ExecagentSandbox, type ExecutionResult, type StreamChunk } from "@execagent/client/strands";
import { cutOnce, cutCommand, readOnly, site, Transcript } from "./session.js";

/** A model that makes calls, one after the other, and notes what is said. */
class Scripted extends Model<BaseModelConfig> {
  #made = 0;

  constructor(
    private readonly transcript: Transcript,
    private readonly calls: readonly (readonly [string, object])[],
    private readonly end: string,
  ) {
    super();
  }

  updateConfig(): void {}

  getConfig(): BaseModelConfig {
    return { modelId: "scripted", contextWindowLimit: 100_000 };
  }

  async *stream(messages: Message[]): AsyncIterable<ModelStreamEvent> {
    for (const block of messages.at(-1)?.content ?? []) {
      if (block.type !== "toolResultBlock") continue;
      this.transcript.add("tool", block.content.map((piece) => (piece.type === "textBlock" ? piece.text : JSON.stringify((piece as { json?: unknown }).json))).join("\n"));
    }
    const call = this.calls[this.#made++];
    yield { type: "modelMessageStartEvent", role: "assistant" };
    if (call === undefined) {
      this.transcript.add("model", this.end);
      yield { type: "modelContentBlockStartEvent" };
      yield { type: "modelContentBlockDeltaEvent", delta: { type: "textDelta", text: this.end } };
      yield { type: "modelContentBlockStopEvent" };
      yield { type: "modelMessageStopEvent", stopReason: "endTurn" };
      return;
    }
    const [name, input] = call;
    this.transcript.add("model", `${name} ${JSON.stringify(input)}`);
    yield { type: "modelContentBlockStartEvent", start: { type: "toolUseStart", name, toolUseId: `call-${this.#made}` } };
    yield { type: "modelContentBlockDeltaEvent", delta: { type: "toolUseInputDelta", input: JSON.stringify(input) } };
    yield { type: "modelContentBlockStopEvent" };
    yield { type: "modelMessageStopEvent", stopReason: "toolUse" };
  }
}

async function drive(sandbox: Sandbox, transcript: Transcript, user: string, calls: readonly (readonly [string, object])[], end: string): Promise<void> {
  transcript.add("user", user);
  const agent = new Agent({ model: new Scripted(transcript, calls, end), sandbox, printer: false });
  const result = await agent.invoke(user);
  assert.equal(result.toString().trim(), end);
}

/** Takes all that comes of a command. */
async function all(stream: AsyncIterable<StreamChunk | ExecutionResult>): Promise<{ chunks: StreamChunk[]; result: ExecutionResult | undefined }> {
  const chunks: StreamChunk[] = [];
  let result: ExecutionResult | undefined;
  for await (const item of stream) {
    assert.equal(result, undefined, "something comes behind the result");
    if (item.type === "executionResult") result = item;
    else chunks.push(item);
  }
  return { chunks, result };
}

test("a session: it edits, tests, is too slow, is cut, is left and resumed, and is refused", async (t) => {
  const at = await site(t);
  const transcript = new Transcript(at);
  const cut = cutOnce(at);
  const program = join(at.dir, "sum.sh");
  const first = new ExecagentSandbox(at.connect, { cwd: at.dir });
  await drive(first, transcript, "Mend sum.sh.", [
    ["sandbox_file_editor", { command: "view", path: at.dir }],
    ["sandbox_shell", { command: "sh test.sh" }],
    ["sandbox_file_editor", { command: "view", path: program }],
    ["sandbox_file_editor", { command: "str_replace", path: program, old_str: "$1 - $2", new_str: "$1 + $2" }],
    ["sandbox_shell", { command: "sh test.sh" }],
    ["sandbox_shell", { command: "exec sleep 1000", timeout: 0.5 }],
    ["sandbox_shell", { command: cutCommand }],
    ["sandbox_shell", { command: "nohup sleep 1000 >/dev/null 2>&1 & echo $! >pid" }],
  ], "It adds now.");
  await cut;
  assert.equal(at.proxy.cuts, 1);
  await first.close();

  const kept = JSON.stringify(first.ref);
  assert.ok(!kept.includes(at.token));
  const second = new ExecagentSandbox(at.connect, { ...(JSON.parse(kept) as { session: string }), existing: true, cwd: at.dir });
  await drive(second, transcript, "Go on.", [["sandbox_shell", { command: "kill -0 $(cat pid) && echo it still sleeps; kill $(cat pid)" }]], "Done.");
  await second.end();

  const third = new ExecagentSandbox(at.connect, { cwd: at.dir, sandbox: readOnly });
  await drive(third, transcript, "Multiply. (The sandbox lets it write nothing.)", [
    ["sandbox_file_editor", { command: "str_replace", path: program, old_str: "$1 + $2", new_str: "$1 * $2" }],
    ["sandbox_file_editor", { command: "create", path: join(at.dir, "new"), file_text: "hello" }],
    ["sandbox_shell", { command: "touch new" }],
  ], "It is read-only.");
  await third.end();
  assert.equal(readFileSync(program, "utf8"), "echo $(($1 + $2))\n");
  assert.ok(!existsSync(join(at.dir, "new")));
  transcript.is("strands");
});

test("commands and code", async (t) => {
  const at = await site(t);
  await using sandbox = new ExecagentSandbox(at.connect, { cwd: at.dir, env: { WORD: "of the sandbox" }, maxOutput: 100 });
  assert.ok(sandbox instanceof Sandbox);
  const { chunks, result } = await all(sandbox.executeStreaming("echo out; echo err >&2; echo $WORD $MORE; exit 3", { env: { MORE: "and more" } }));
  assert.deepEqual(result, { type: "executionResult", exitCode: 3, stdout: "out\nof the sandbox and more\n", stderr: "err\n", outputFiles: [] });
  for (const stream of ["stdout", "stderr"] as const) assert.equal(chunks.filter(({ streamType }) => streamType === stream).map(({ data }) => data).join(""), result?.[stream]);
  assert.equal((await sandbox.execute("kill -9 $$")).exitCode, 128 + 9);
  assert.equal((await sandbox.execute("pwd", { cwd: "/" })).stdout, "/\n");
  assert.equal((await sandbox.execute("pwd", { cwd: ".." })).stdout, `${at.dir.slice(0, at.dir.lastIndexOf("/"))}\n`);
  assert.equal((await sandbox.execute("sleep 1000 & echo left")).stdout, "left\n");
  assert.match((await sandbox.execute("seq 1000")).stdout, /^1\n[^]*\n\[3793 bytes are left out here\]\n[^]*\n1000\n$/);

  assert.equal((await sandbox.executeCode("echo $((6 * 7)) 'and \"quotes\"'", "sh")).stdout, '42 and "quotes"\n');
  assert.deepEqual(await sandbox.executeCode("", "no-such-language"), { type: "executionResult", exitCode: 127, stdout: "", stderr: "Language interpreter not found: no-such-language", outputFiles: [] });
  for (const name of ["sh -c", "/bin/sh", "../sh", "-x", "sh;true"]) await assert.rejects(sandbox.executeCode("", name), /language/);

  await assert.rejects(sandbox.execute("echo begun; echo wrong >&2; exec sleep 1000", { timeout: 3 }), (error) => {
    assert.ok(error instanceof SandboxTimeoutError);
    assert.equal(error.message, "Execution timed out after 3 seconds");
    assert.ok("begun\n".startsWith(error.stdout) && "wrong\n".startsWith(error.stderr)); // on a slow machine they are empty
    return true;
  });
  const stop = new AbortController();
  const stream = sandbox.executeStreaming("echo begun; exec sleep 1000", { signal: stop.signal });
  await assert.rejects(async () => {
    for await (const item of stream) {
      assert.equal(item.type, "streamChunk");
      stop.abort();
    }
  }, SandboxAbortError);
  await assert.rejects(sandbox.execute("true", { signal: AbortSignal.abort() }), SandboxAbortError);
  // Whoever takes no more ends the command.
  for await (const _ of sandbox.executeStreaming("echo $$ >pid; echo begun; exec sleep 1000")) break;
  assert.equal((await sandbox.execute("while kill -0 $(cat pid) 2>/dev/null; do :; done; echo gone", { timeout: 60 })).stdout, "gone\n");
});

test("files", async (t) => {
  const at = await site(t);
  await using sandbox = new ExecagentSandbox(at.connect, { cwd: at.dir });
  await sandbox.writeText("a/b/text", "höhe\n");
  assert.equal(readFileSync(join(at.dir, "a/b/text"), "utf8"), "höhe\n");
  const bytes = new Uint8Array([0, 255, 10]);
  await sandbox.writeFile(join(at.dir, "bytes"), bytes);
  assert.deepEqual(await sandbox.readFile("bytes"), bytes);
  mkdirSync(join(at.dir, "tree/sub"), { recursive: true });
  writeFileSync(join(at.dir, "tree/file"), "content");
  symlinkSync("sub", join(at.dir, "tree/link"));
  symlinkSync("none", join(at.dir, "tree/broken"));
  const listed = await sandbox.listFiles("tree");
  assert.deepEqual(listed.map(({ name, isDir }) => [name, isDir]), [["broken", undefined], ["file", false], ["link", true], ["sub", true]]);
  assert.equal(listed[1]?.size, 7);
  await assert.rejects(sandbox.listFiles("none"), SandboxPathNotFoundError);
  await assert.rejects(sandbox.listFiles("tree/file"), SandboxPathNotFoundError);
  await assert.rejects(sandbox.readFile("none"), /No such file/);
  await sandbox.removeFile("tree/link");
  assert.ok(existsSync(join(at.dir, "tree/sub")));
  await assert.rejects(sandbox.removeFile("tree/link"), SandboxPathNotFoundError);
});
