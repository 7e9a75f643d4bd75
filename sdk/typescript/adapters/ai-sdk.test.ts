/** The adapter for Vercel's AI SDK, driven by the SDK with a model that follows a script. */

import assert from "node:assert/strict";
import { readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { sandbox, tools, type Sandbox, type WorkspaceOptions } from "@execagent/client/ai-sdk";
import { generateText, isStepCount, tool, ToolLoopAgent, type Experimental_SandboxSession, type ToolSet } from "ai";
import { MockLanguageModelV4 } from "ai/test";
import { z } from "zod";
import type { Ends } from "../test/rig.js";
import { cutOnce, cutCommand, readOnly, site, Transcript, type Site } from "./session.js";

const timeout = 240_000;

async function open(t: Ends, { dir, connect }: Site, options?: WorkspaceOptions): Promise<Sandbox> {
  const opened = await sandbox(connect, { cwd: dir, ...options });
  t.after(() => opened.close());
  return opened;
}

/** A call of a tool, or what the model says at last. */
type Step = readonly [tool: string, input: object] | string;

const usage = { inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 }, outputTokens: { total: 1, text: 1, reasoning: 0 } };

function model(steps: readonly Step[]): MockLanguageModelV4 {
  return new MockLanguageModelV4({
    doGenerate: steps.map((step, i) => ({
      content: [typeof step === "string" ? { type: "text" as const, text: step } : { type: "tool-call" as const, toolCallId: `c${i}`, toolName: step[0], input: JSON.stringify(step[1]) }],
      finishReason: { unified: typeof step === "string" ? ("stop" as const) : ("tool-calls" as const), raw: undefined },
      usage, warnings: [],
    })),
  });
}

/** Lets an agent of the SDK work, and notes what was said. */
async function drive(transcript: Transcript, sandbox: Sandbox, prompt: string, steps: readonly Step[]): Promise<void> {
  const agent = new ToolLoopAgent({ model: model(steps), tools: tools(sandbox), instructions: sandbox.description, stopWhen: isStepCount(20) });
  transcript.add("user", prompt);
  for (const { content } of (await agent.generate({ prompt, experimental_sandbox: sandbox })).steps) {
    for (const part of content) {
      if (part.type === "text") transcript.add("model", part.text);
      else if (part.type === "tool-call") transcript.add(`call ${part.toolName}`, part.input);
      else if (part.type === "tool-result") transcript.add("result", part.output);
      else if (part.type === "tool-error") transcript.add("error", (part.error as Error).message);
      else assert.fail(part.type);
    }
  }
}

test("a session", { timeout }, async (t) => {
  const place = await site(t);
  const transcript = new Transcript(place);
  const first = await open(t, place);
  transcript.add("instructions", first.description);
  const cut = cutOnce(place);
  await drive(transcript, first, "Mend sum.sh, so that the test passes.", [
    ["exec", { command: "sh test.sh" }],
    ["grep", { pattern: "\\$1 .* \\$2" }],
    ["read", { path: "sum.sh" }],
    ["edit", { path: "sum.sh", old: "$1 - $2", new: "$1 + $2" }],
    ["exec", { command: "sh test.sh" }],
    ["exec", { command: "sleep 1000", timeout_ms: 1000 }],
    ["exec", { command: cutCommand }],
    ["exec", { command: "mkfifo door answer; (read word <door; echo $word >answer) & echo 'it waits'" }],
    ["edit", { path: "sum.sh", old: "minus", new: "plus" }],
    "The test passes.",
  ]);
  await cut;
  const state = JSON.stringify(first.ref);
  assert.ok(!state.includes(place.token) && !state.includes("ws://"), state);
  await first.close();

  const again = await open(t, place, { ...JSON.parse(state), existing: true });
  await drive(transcript, again, "Is the process still there?", [["exec", { command: "echo 'still here' >door; cat answer", timeout_ms: 60_000 }], "It is."]);
  const careful = await open(t, place, { sandbox: readOnly });
  await drive(transcript, careful, "Break it again, without a permission to write.", [
    ["exec", { command: "echo broken 2>/dev/null >sum.sh || echo refused" }],
    ["write", { path: "sum.sh", content: "broken" }],
    "I cannot.",
  ]);
  transcript.is("ai-sdk");
  await again.end();
  await assert.rejects(open(t, place, { ...JSON.parse(state), existing: true }), /unknown session name/);
});

test("a tool of the user has the sandbox", { timeout }, async (t) => {
  const place = await site(t);
  const box = await open(t, place);
  const shell = tool({
    inputSchema: z.object({ command: z.string() }),
    execute: async ({ command }, { experimental_sandbox, abortSignal }) => {
      const { run } = experimental_sandbox as Experimental_SandboxSession; // it is no method
      return (await run({ command, ...(abortSignal && { abortSignal }) })).stdout;
    },
  });
  const all: ToolSet = { shell };
  const { steps } = await generateText({ model: model([["shell", { command: "echo $((20 + 22))" }], "42"]), prompt: "?", tools: all, experimental_sandbox: box, stopWhen: isStepCount(3) });
  assert.equal(steps[0]?.toolResults[0]?.output, "42\n");

  const stop = new AbortController();
  const waits = tool({ inputSchema: z.object({}), execute: (_, { abortSignal }) => box.run({ command: "echo >begun; exec sleep 1000", ...(abortSignal && { abortSignal }) }) });
  const [begun] = await Promise.all([
    generateText({ model: model([["waits", {}], "no"]), prompt: "?", tools: { waits }, abortSignal: stop.signal, stopWhen: isStepCount(3) }).then(() => "ended", (error: Error) => error.message),
    (async () => {
      while ((await box.stat({ path: "begun" })) === null) await box.run({ command: "true" });
      stop.abort(new Error("enough"));
    })(),
  ]);
  assert.match(begun, /enough/);
});

// The SDK takes it as it is.
const asSession = (box: Sandbox): Experimental_SandboxSession => box;
void asSession;

// The rules of SandboxSession as its types and its reference have them.

test("files", { timeout }, async (t) => {
  const place = await site(t);
  const box = await open(t, place);
  const bytes = async (stream: ReadableStream<Uint8Array> | null): Promise<string> => (stream === null ? "null" : new Response(stream).text());
  const stream = (text: string): ReadableStream<Uint8Array> => new Blob([text]).stream();

  for (const path of ["none", "none/none", "sum.sh/none", "/none"]) {
    const missing = [box.readFile({ path }), box.readBinaryFile({ path }), box.readTextFile({ path }), box.stat({ path })];
    assert.deepEqual(await Promise.all(missing), [null, null, null, null], path);
    assert.equal(await box.deleteFile({ path }), false, path);
  }
  assert.equal(await box.listDirectory({ path: "none" }), null);
  await assert.rejects(box.listDirectory({ path: "sum.sh" }));

  await box.writeTextFile({ path: "a/b/text", content: "one\r\ntwo\r\nthree" });
  await box.writeBinaryFile({ path: join(place.dir, "a/bytes"), content: Uint8Array.of(0, 255, 10) });
  await box.writeFile({ path: "./a/../a/stream", content: stream("streamed") });
  await box.writeFile({ path: "a/stream", content: stream("again") });
  await box.writeFile({ path: "a/empty", content: stream("") });
  assert.equal(await bytes(await box.readFile({ path: "a/stream" })), "again");
  assert.equal(await bytes(await box.readFile({ path: "a/empty" })), "");
  assert.deepEqual([...((await box.readBinaryFile({ path: "a/bytes" })) as Uint8Array)], [0, 255, 10]);
  for (const [startLine, endLine, want] of [[1, 1, "one"], [2, 99, "two\r\nthree"], [2, undefined, "two\r\nthree"], [undefined, 2, "one\r\ntwo"], [9, 10, ""]] as const) {
    assert.equal(await box.readTextFile({ path: "a/b/text", ...(startLine && { startLine }), ...(endLine && { endLine }) }), want);
  }
  await assert.rejects(box.readTextFile({ path: "a/b/text", startLine: 0 }), /startLine is 0/);
  await box.writeTextFile({ path: "a/wide", content: "ä€😀", encoding: "utf-16le" });
  assert.equal(await box.readTextFile({ path: "a/wide", encoding: "utf-16le" }), "ä€😀");
  writeFileSync(join(place.dir, "a/latin"), Uint8Array.of(0xe4));
  assert.equal(await box.readTextFile({ path: "a/latin", encoding: "latin1" }), "ä");
  await assert.rejects(box.readTextFile({ path: "a/latin", encoding: "none" }), /encoding is none/);
  await assert.rejects(box.writeTextFile({ path: "a/latin", content: "x", encoding: "latin1" }), /utf-8 or utf-16le/);
  for (const write of [box.writeTextFile({ path: "a", content: "x" }), box.writeFile({ path: "a", content: stream("x") }), box.writeTextFile({ path: "sum.sh/x", content: "x" })]) await assert.rejects(write);

  symlinkSync("nowhere", join(place.dir, "a/dangling"));
  symlinkSync("b", join(place.dir, "a/link"));
  await box.run({ command: "mkfifo a/fifo" });
  const listed = await box.listDirectory({ path: "a" });
  assert.deepEqual(Object.fromEntries((listed ?? []).map(({ name, type }) => [name, type])), {
    b: "directory", bytes: "file", stream: "file", empty: "file", wide: "file", latin: "file", dangling: "symlink", link: "symlink", fifo: "other",
  });
  assert.deepEqual(await box.stat({ path: "a/bytes" }), { type: "file", size: 3 });
  assert.equal((await box.stat({ path: "a/link" }))?.type, "directory");
  assert.equal((await box.stat({ path: "a/fifo" }))?.type, "other");
  assert.equal(await box.stat({ path: "a/dangling" }), null);
  assert.deepEqual([await box.deleteFile({ path: "a/dangling" }), await box.deleteFile({ path: "a/link" }), await box.deleteFile({ path: "a/bytes" })], [true, true, true]);
  assert.equal(await box.deleteFile({ path: "a/bytes" }), false);
  await assert.rejects(box.deleteFile({ path: "a/b" }), /is a directory/);
  await box.run({ command: "mkdir a/void" });
  await assert.rejects(box.deleteFile({ path: "a/void" }), /is a directory/);
  await assert.rejects(box.stat({ path: "a", abortSignal: AbortSignal.abort(new Error("before")) }), /before/);
});

test("a large file streams both ways", { timeout }, async (t) => {
  const place = await site(t);
  const box = await open(t, place);
  const block = new Uint8Array(1 << 20).fill(65);
  let blocks = 34;
  await box.writeFile({ path: "large/file", content: new ReadableStream({ pull: (c) => (blocks-- > 0 ? c.enqueue(block) : c.close()) }) });
  assert.deepEqual(await box.stat({ path: "large/file" }), { type: "file", size: 34 << 20 });
  let size = 0;
  for await (const piece of (await box.readFile({ path: "large/file" })) as ReadableStream<Uint8Array>) size += piece.length;
  assert.equal(size, 34 << 20);
  await assert.rejects(tools(box).read.execute({ path: "large/file" }), /read a part of it with exec/);
});

test("commands", { timeout }, async (t) => {
  const place = await site(t);
  const box = await open(t, place, { env: { A: "1", B: "1" }, timeoutMs: 60_000, maxOutput: "1k" });
  await box.run({ command: "mkdir sub && cd sub" });
  const ran = await box.run({ command: 'pwd; echo "$A$B" >&2; exit 3', env: { B: "2" } });
  assert.deepEqual(ran, { exitCode: 3, stdout: `${place.dir}\n`, stderr: "12\n" });
  assert.equal((await box.run({ command: "pwd", workingDirectory: "sub" })).stdout, `${place.dir}/sub\n`);
  assert.equal((await box.run({ command: "kill -TERM $$" })).exitCode, 143);
  assert.match((await box.run({ command: "seq 10000" })).stdout, /^1\n2\n[^]*\n\[\d+ bytes are left out here\]\n[^]*\n10000\n$/);
  await assert.rejects(box.run({ command: "true", workingDirectory: "none" }), /none: .*\(os error 2\)/);

  const writer = await box.spawn({ command: 'while read x; do echo "<$x>"; done; echo end >&2', stdin: true });
  const input = writer.stdin.getWriter();
  await input.write(new TextEncoder().encode("a\nb\n"));
  await input.close();
  const [out, err, exit] = await Promise.all([new Response(writer.stdout).text(), new Response(writer.stderr).text(), writer.wait()]);
  assert.deepEqual([out, err, exit], ["<a>\n<b>\n", "end\n", { exitCode: 0 }]);

  const silent = await box.spawn({ command: "cat; exec sleep 1000" });
  assert.equal("stdin" in silent, false);
  await silent.kill();
  assert.deepEqual(await silent.wait(), { exitCode: 137 });
  await silent.kill();

  // Output that nobody takes is an error, and holds up no other call then.
  const unread = await box.spawn({ command: "seq 1000000" });
  await assert.rejects(async () => unread.wait(), /nobody reads/);
  assert.equal((await box.run({ command: "echo beside" })).stdout, "beside\n");

  const stop = new AbortController();
  const aborted = await box.spawn({ command: "exec sleep 1000", abortSignal: stop.signal });
  stop.abort(new Error("enough"));
  await assert.rejects(async () => aborted.wait(), /enough/);
  assert.equal(await new Response(aborted.stdout).text(), ""); // which ends with the process
});

test("what the tools say to a model", { timeout }, async (t) => {
  const place = await site(t);
  const box = await open(t, place);
  const { exec, read, write, edit, grep } = tools(box, { maxOutput: 100, timeoutMs: 60_000 });
  assert.match(exec.description, new RegExp(`start in ${place.dir}`));
  assert.deepEqual(Object.keys(await exec.execute({ command: "seq 1000; exit 1" })), ["exitCode", "stdout", "stderr"]);
  writeFileSync(join(place.dir, "lines"), Array.from({ length: 50 }, (_, i) => `line ${i + 1}`).join("\n"));
  assert.equal(await read.execute({ path: "lines", offset: 49 }), "line 49\nline 50");
  assert.match(await read.execute({ path: "lines" }), /^line 1\n[^]*line 13\n\[the file has 50 lines: read on at offset 14\]$/);
  assert.equal(await read.execute({ path: "lines", offset: 2, limit: 1 }), "line 2\n[the file has 50 lines: read on at offset 3]");
  await assert.rejects(read.execute({ path: "lines", offset: 51 }), /has 50 lines/);
  await assert.rejects(read.execute({ path: "none" }), /none: /);
  await write.execute({ path: "x/y", content: "aXbX" });
  await assert.rejects(edit.execute({ path: "x/y", old: "X", new: "" }), /2 times/);
  await assert.rejects(edit.execute({ path: "x/y", old: "", new: "z" }), /old is not in/);
  await edit.execute({ path: "x/y", old: "X", new: "$&", all: true });
  assert.equal(readFileSync(join(place.dir, "x/y"), "utf8"), "a$&b$&");
  writeFileSync(join(place.dir, "bytes"), Uint8Array.of(0xff));
  await assert.rejects(edit.execute({ path: "bytes", old: "a", new: "b" }), /not UTF-8/);
  assert.equal(await grep.execute({ pattern: "line 1.", glob: "lin*" }), Array.from({ length: 10 }, (_, i) => `lines:${i + 10}:line ${i + 10}`).join("\n"));
  assert.equal(await grep.execute({ pattern: "no such" }), "nothing was found");
  await assert.rejects(grep.execute({ pattern: "(" }), /missing closing/);

  const { "~standard": schema } = read.inputSchema;
  assert.deepEqual(schema.jsonSchema.input()["required"], ["path"]);
  assert.ok("value" in schema.validate({ path: "a", offset: 1 }));
  for (const wrong of [null, [], {}, { path: 1 }, { path: "a", offset: 0 }, { path: "a", lines: 1 }]) assert.ok("issues" in schema.validate(wrong), JSON.stringify(wrong));
});
