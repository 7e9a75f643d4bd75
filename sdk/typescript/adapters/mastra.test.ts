/** The adapter for Mastra, driven by its agents with a model that follows a script, and beside its own local provider. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdirSync, symlinkSync, truncateSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { mastra, type MastraOptions, type MastraWorkspace } from "@execagent/client/mastra";
import { Agent } from "@mastra/core/agent";
import { LocalFilesystem, Workspace, type WorkspaceFilesystem } from "@mastra/core/workspace";
import { MockLanguageModelV4 } from "ai/test";
import { folder, type Ends } from "../test/rig.js";
import { cutOnce, cutCommand, readOnly, site, Transcript, type Site } from "./session.js";

const timeout = 240_000;

function open(t: Ends, { dir, connect }: Site, options?: MastraOptions): MastraWorkspace {
  const opened = mastra(connect, { cwd: dir, ...options });
  t.after(() => opened.close());
  return opened;
}

/** A call of a tool of the workspace, or what the model says at last. */
type Step = readonly [tool: string, input: object] | string;

const usage = { inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 }, outputTokens: { total: 1, text: 1, reasoning: 0 } };

/** The first step of which the input is not known, because it has the id of a process, is made of the last result. */
function model(steps: readonly (Step | ((last: string) => Step))[]): MockLanguageModelV4 {
  let calls = 0;
  return new MockLanguageModelV4({
    doStream: async ({ prompt }) => {
      const next = steps[calls++] ?? "the script is at its end";
      const step = typeof next === "function" ? next(JSON.stringify(prompt.at(-1))) : next;
      const finish = { type: "finish" as const, usage, finishReason: { unified: typeof step === "string" ? ("stop" as const) : ("tool-calls" as const), raw: undefined } };
      const parts = typeof step === "string"
        ? [{ type: "text-start" as const, id: "t" }, { type: "text-delta" as const, id: "t", delta: step }, { type: "text-end" as const, id: "t" }]
        : [{ type: "tool-call" as const, toolCallId: `c${calls}`, toolName: `mastra_workspace_${step[0]}`, input: JSON.stringify(step[1]) }];
      const stream = new ReadableStream({
        start(controller) {
          for (const part of [{ type: "stream-start" as const, warnings: [] }, ...parts, finish]) controller.enqueue(part);
          controller.close();
        },
      });
      return { stream };
    },
  });
}

async function drive(transcript: Transcript, { sandbox, filesystem }: MastraWorkspace, prompt: string, steps: readonly (Step | ((last: string) => Step))[]): Promise<void> {
  // Mastra's types of a model are those of an earlier patch of the AI SDK.
  const agent = new Agent({ id: "a", name: "a", instructions: "", model: model(steps) as never, workspace: new Workspace({ sandbox, filesystem }) });
  transcript.add("user", prompt);
  const same = (text: unknown): unknown => JSON.parse(JSON.stringify(text ?? null).replaceAll(/(PID: |"pid":")\w{10}\b/g, "$1the-id"));
  for await (const chunk of (await agent.stream(prompt, { maxSteps: 20 })).fullStream) {
    if (chunk.type === "tool-call") transcript.add(`call ${chunk.payload.toolName.replace("mastra_workspace_", "")}`, same(chunk.payload.args));
    else if (chunk.type === "tool-result") transcript.add("result", same(chunk.payload.result));
    else if (chunk.type === "tool-error") transcript.add("error", (chunk.payload.error as Error).message);
    else if (chunk.type === "text-delta") transcript.add("model", chunk.payload.text);
    else if (chunk.type === "error") assert.fail(chunk.payload.error as Error);
  }
}

test("a session", { timeout }, async (t) => {
  const place = await site(t);
  const transcript = new Transcript(place);
  const first = open(t, place);
  const cut = cutOnce(place);
  await drive(transcript, first, "Mend sum.sh, so that the test passes.", [
    ["execute_command", { command: "sh test.sh" }],
    ["grep", { pattern: "\\$1 .* \\$2" }],
    ["read_file", { path: "sum.sh" }],
    ["edit_file", { path: "sum.sh", old_string: "$1 - $2", new_string: "$1 + $2" }],
    ["execute_command", { command: "sh test.sh" }],
    ["execute_command", { command: "sleep 1000", timeout: 1 }],
    ["execute_command", { command: cutCommand }],
    ["execute_command", { command: "mkfifo door answer; echo 'it waits'; read word <door; echo $word >answer", background: true }],
    "The test passes.",
  ]);
  await cut;
  const state = JSON.stringify([first.ref, first.sandbox.getInfo()]);
  assert.ok(!state.includes(place.token) && !state.includes("ws://"), state);
  await first.close();

  const again = open(t, place, { ...first.ref, existing: true });
  const [process] = (await again.sandbox.processes?.list()) ?? [];
  assert.ok(process?.running === true);
  const found = await Promise.all([1, 2].map(() => again.sandbox.processes?.get(process.pid)));
  assert.ok(found[0] !== undefined && found[0] === found[1]); // also by two calls at once
  await drive(transcript, again, "Is the process still there?", [
    ["execute_command", { command: "echo 'still here' >door; cat answer" }],
    ["get_process_output", { pid: process.pid, wait: true }],
    "It is.",
  ]);
  const careful = open(t, place, { sandbox: readOnly });
  await drive(transcript, careful, "Break it again, without a permission to write.", [
    ["execute_command", { command: "echo broken 2>/dev/null >sum.sh || echo refused" }],
    ["write_file", { path: "sum.sh", content: "broken" }],
    "I cannot.",
  ]);
  transcript.is("mastra");
  await again.sandbox._destroy();
  const lost = open(t, place, { ...first.ref, existing: true });
  await assert.rejects(lost.filesystem.exists("x"), /unknown session name/);
});

test("processes", { timeout }, async (t) => {
  const place = await site(t);
  const { sandbox } = open(t, place, { env: { A: "1", B: "1" } });
  assert.deepEqual(await sandbox._start(), { outcome: "created" });
  assert.equal(sandbox.workingDirectory, place.dir);
  const run = sandbox.executeCommand?.bind(sandbox) as NonNullable<typeof sandbox.executeCommand>;
  sandbox.setEnv((env) => ({ ...env, C: "3" }));
  let seen = "";
  const ran = await run('printf "%s"', ["$A$B$C x"], { onStdout: (text) => (seen += text) });
  assert.deepEqual([ran.success, ran.exitCode, ran.stdout, seen], [true, 0, "$A$B$C x", "$A$B$C x"]);
  assert.equal((await run('echo "$A$B$C"; pwd', [], { env: { B: "2" }, cwd: "/" })).stdout, "123\n/\n");
  const failed = await run("printf 'ä%.0s' $(seq 5000); echo no >&2; kill -9 $$");
  assert.deepEqual([failed.success, failed.exitCode, failed.stdout.length, failed.stderr], [false, 137, 5000, "no\n"]);
  const late = await run("echo begun; exec sleep 1000", [], { timeout: 1000 });
  assert.deepEqual([late.timedOut, late.killed, late.exitCode], [true, true, 137]);
  assert.match(late.stdout, /^(begun\n)?$/); // it may not have begun by then
  const stop = new AbortController();
  const given = await run("echo begun; exec sleep 1000", [], { abortSignal: stop.signal, onStdout: () => stop.abort() });
  assert.deepEqual([given.killed, given.exitCode], [true, 137]);
  await assert.rejects(run("true", [], { cwd: "/none" }), /none/);
  // Whoever cannot take the output ends the command.
  await assert.rejects(run("echo $$ >pid; echo begun; exec sleep 1000", [], { onStdout: () => { throw new Error("no more"); } }), /no more/);
  assert.equal((await run("while kill -0 $(cat pid) 2>/dev/null; do :; done; echo gone")).stdout, "gone\n");
  const much = await run("head -c 70000000 /dev/zero; echo end");
  assert.deepEqual([much.stdout.length, much.stdout.slice(-4), much.stdoutDroppedBytes], [64 << 20, "end\n", 70_000_004 - (64 << 20)]);
  assert.equal((await run("sleep 1000 & echo started")).stdout, "started\n"); // it does not wait for it

  const processes = sandbox.processes as NonNullable<typeof sandbox.processes>;
  const cat = await processes.spawn("cat; exit 3");
  assert.deepEqual(await processes.list(), [{ pid: cat.pid, command: "cat; exit 3", running: true }]);
  cat.writer.write("one\n");
  await once(cat.reader, "data");
  await cat.sendStdin("two\n");
  await cat.closeStdin();
  assert.deepEqual([(await cat.wait()).exitCode, cat.stdout, await cat.kill()], [3, "one\ntwo\n", false]);
  const silent = await processes.spawn("cat; exec sleep 1000", { stdinMode: "ignore" });
  await assert.rejects(silent.sendStdin("x"), /no standard input/);
  assert.equal(await processes.kill(silent.pid), true);
  assert.equal(await processes.kill("none"), false);
  await sandbox.writeFiles?.([{ path: "new/tool", content: "#!/bin/sh\necho tool\n", mode: 0o755 }, { path: "new/bytes", content: Buffer.of(0xff) }]);
  assert.equal((await run("new/tool")).stdout, "tool\n");
});

/** What one file system says to a row of calls. */
async function told(fs: WorkspaceFilesystem, dir: string): Promise<string[]> {
  const said: string[] = [];
  const note = async (name: string, work: Promise<unknown>): Promise<void> => {
    const shown = await work.then(
      (value) => (Buffer.isBuffer(value) ? value.toString("hex") : JSON.stringify(value) ?? "done"),
      (error: Error) => error.constructor.name,
    );
    said.push(`${name}: ${shown}`);
  };
  const sorted = async (list: Promise<readonly { name: string }[]>): Promise<unknown> =>
    (await list).map(({ name, ...rest }) => ({ name, ...rest, symlinkTarget: undefined })).sort((a, b) => (a.name < b.name ? -1 : 1));
  const kind = async (path: string): Promise<unknown> => {
    const { name, type, size, modifiedAt } = await fs.stat(path);
    return [name, type, type === "file" && size, modifiedAt instanceof Date];
  };
  await fs.init?.();
  await note("write", fs.writeFile("a/b/c.ts", "one\ntwo\n"));
  await note("write bytes", fs.writeFile("a/d.py", Buffer.of(1, 255)));
  await note("write without parents", fs.writeFile("x/y", "", { recursive: false }));
  await note("write once", fs.writeFile("a/d.py", "", { overwrite: false }));
  await note("write once, new", fs.writeFile("a/e", "", { overwrite: false }));
  await note("write what is stale", fs.writeFile("a/e", "", { expectedMtime: new Date(1) }));
  await note("write what is not", fs.writeFile("a/e", "e", { expectedMtime: (await fs.stat("a/e")).modifiedAt }));
  await note("append", fs.appendFile("a/e", "f"));
  await note("append, new", fs.appendFile("a/f", "g"));
  for (const path of ["a/e", "a/d.py", "none", "a", "none/none"]) await note(`read ${path}`, fs.readFile(path));
  await note("read text", fs.readFile("a/b/c.ts", { encoding: "utf8" }));
  symlinkSync("b", join(dir, "a/link"));
  symlinkSync("nowhere", join(dir, "a/dangling"));
  for (const path of ["a", "a/d.py", "none", "a/link"]) await note(`list ${path}`, sorted(fs.readdir(path)));
  await note("list some", sorted(fs.readdir("a", { extension: ".ts" })));
  for (const path of [".", "a", "a/d.py", "none", "a/link"]) await note(`stat ${path}`, path === "." ? kind(path).then((all) => (all as unknown[]).slice(1)) : kind(path));
  for (const path of ["a", "none", "none/none"]) await note(`exists ${path}`, fs.exists(path));
  await note("mkdir", fs.mkdir("m/n"));
  await note("mkdir again", fs.mkdir("m/n"));
  await note("mkdir at a file", fs.mkdir("a/e", { recursive: false }));
  await note("mkdir without parents", fs.mkdir("q/r", { recursive: false }));
  await note("copy", fs.copyFile("a/e", "m/o/e"));
  await note("copy once", fs.copyFile("a/e", "m/o/e", { overwrite: false }));
  await note("copy a folder", fs.copyFile("a/b", "m/b"));
  await note("copy a tree", fs.copyFile("a/b", "m/b", { recursive: true }));
  await note("copy nothing", fs.copyFile("none", "m/x"));
  await note("move", fs.moveFile("m/o/e", "m/p/e"));
  await note("move once", fs.moveFile("m/p/e", "a/e", { overwrite: false }));
  await note("move nothing", fs.moveFile("none", "a/e"));
  symlinkSync("nowhere", join(dir, "a/lost"));
  await note("move a link", fs.moveFile("a/lost", "m/lost"));
  await note("delete", fs.deleteFile("m/p/e"));
  await note("delete again", fs.deleteFile("m/p/e"));
  await note("delete by force", fs.deleteFile("m/p/e", { force: true }));
  await note("delete a folder", fs.deleteFile("m"));
  await note("rmdir full", fs.rmdir("m"));
  await note("rmdir nothing", fs.rmdir("none"));
  await note("rmdir by force", fs.rmdir("none", { force: true }));
  await note("rmdir a file", fs.rmdir("a/e"));
  await note("rmdir", fs.rmdir("m", { recursive: true, force: true }));
  await note("list all", sorted(fs.readdir(".", { recursive: true })).then((all) => (all as { name: string }[]).map(({ name }) => name).filter((name) => !name.includes("link/"))));
  return said;
}

test("files, as Mastra's own provider has them", { timeout }, async (t) => {
  const place = await site(t);
  const [mine, its] = [join(place.dir, "mine"), folder(t)];
  mkdirSync(mine);
  const { filesystem } = open(t, place, { cwd: mine });
  const asFilesystem: WorkspaceFilesystem = filesystem; // Mastra takes it as it is
  assert.deepEqual(await told(asFilesystem, mine), await told(new LocalFilesystem({ basePath: its }), its));
  await filesystem.writeFile("u.txt", "ä€ word\nword\nother\n");
  const found = { pattern: "word", path: ".", caseSensitive: true, includeHidden: false, contextLines: 1 };
  assert.deepEqual(await filesystem.grep(found), [
    { path: "u.txt", matches: [{ line: 1, column: 3, text: "ä€ word", before: [], after: [] }, { line: 2, column: 0, text: "word", before: [], after: ["other"] }] },
  ]);
  await assert.rejects(filesystem.grep({ ...found, pattern: "(?=x)" }), { name: "UnsupportedGrepPatternError" });
  assert.deepEqual((await filesystem.walk(".", { maxDepth: 1 })).map(({ path, type }) => `${type} ${path}`), ["directory a", "file u.txt"]);
  truncateSync(join(mine, "u.txt"), (32 << 20) + 1);
  await assert.rejects(filesystem.appendFile("u.txt", "x"), { code: "EFBIG" });
  assert.throws(() => mastra(place.connect, { maxOutput: 1 } as MastraOptions), /Mastra's/);
});
