/** The adapter for the OpenAI Agents SDK, driven by that SDK with a scripted model. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import { Runner, RunState, tool, type AgentOutputItem } from "@openai/agents";
import { dir, file, filesystem, gitRepo, localDir, localFile, Manifest, SandboxAgent, shell, type SandboxClient, type SandboxSession } from "@openai/agents/sandbox";
import { assistantMessage, functionCall, modelResponder, ScriptedModel, type ScriptedModelInput } from "@openai/agents/testing";
import type { NodeAgent, NodeOptions } from "@execagent/client/node";
import { ExecagentSandboxClient, type ExecagentSandboxOptions, type ExecagentSandboxSession } from "@execagent/client/openai-agents";
import { z } from "zod";
import { folder } from "../test/rig.js";
import { cutOnce, cutCommand, readOnly, site, Transcript, type Site } from "./session.js";

// The harness takes both as they are.
((_client: SandboxClient, _session: SandboxSession): void => {})(undefined as unknown as ExecagentSandboxClient, undefined as unknown as ExecagentSandboxSession);

const runner = new Runner({ tracingDisabled: true });

type PatchOperation = Extract<AgentOutputItem, { type: "apply_patch_call" }>["operation"];

/** Returns text without what differs each time. */
function plain(text: string): string {
  return text.replace(/Chunk ID: \w+/, "Chunk ID: 1a2b3c").replace(/Wall time: [\d.]+/, "Wall time: 0.1234").replace(/session (?:ID )?\d+/g, "session ID 4321").replaceAll("\r\n", "\n");
}

/** A model that makes calls, one after the other, each of which may depend on what the last one has returned. */
function model(transcript: Transcript, calls: readonly (readonly [string, object | ((last: string) => object)])[], end = "Done."): ScriptedModel {
  const steps: ScriptedModelInput[] = calls.map(([name, args], i) => modelResponder(({ request }) => {
    const last = lastOutput(request.input);
    if (last !== undefined) transcript.add("tool", plain(last));
    const given = typeof args === "function" ? args(last ?? "") : args;
    transcript.add("model", `${name} ${plain(JSON.stringify(given)).replace(/("session_id":)\d+/, "$14321")}`);
    if (name === "apply_patch") return [{ type: "apply_patch_call", callId: `call-${i}`, status: "completed", operation: given as PatchOperation }];
    return [functionCall(name, { ...given }, { callId: `call-${i}` })];
  }));
  steps.push(modelResponder(({ request }) => {
    const last = lastOutput(request.input);
    if (last !== undefined) transcript.add("tool", plain(last));
    transcript.add("model", end);
    return [assistantMessage(end)];
  }));
  return new ScriptedModel(steps);
}

function lastOutput(input: unknown): string | undefined {
  const items = Array.isArray(input) ? (input as { type?: string; output?: unknown }[]) : [];
  const result = items.filter(({ type }) => type === "function_call_result" || type === "apply_patch_call_output").at(-1);
  if (result === undefined) return undefined;
  const { output = "" } = result;
  return typeof output === "string" ? output : String((output as { text?: unknown }).text ?? JSON.stringify(output));
}

function numberIn(text: string): number {
  return Number([...text.matchAll(/session ID (\d+)/g)].at(-1)?.[1]);
}

function client(at: Pick<Site, "connect" | "dir">, options: ExecagentSandboxOptions = {}): ExecagentSandboxClient {
  return new ExecagentSandboxClient(at.connect, { cwd: at.dir, ...options });
}

test("a session: it edits, tests, interrupts, is cut, is left and resumed, and is refused", async (t) => {
  const at = await site(t);
  const transcript = new Transcript(at);
  const cut = cutOnce(at);
  const patch = { type: "update_file", path: "sum.sh", diff: "@@\n-echo $(($1 - $2))\n+echo $(($1 + $2))\n" };
  const ask = tool({ name: "ask_user", description: "Asks.", parameters: z.object({ question: z.string() }), needsApproval: true, execute: async () => "yes" });
  const first = model(transcript, [
    ["exec_command", { cmd: "sh test.sh", login: false, yield_time_ms: 30_000 }],
    ["apply_patch", patch],
    ["exec_command", { cmd: "sh test.sh", login: false, yield_time_ms: 30_000 }],
    ["exec_command", { cmd: "exec sleep 1000", yield_time_ms: 250, login: false }],
    ["write_stdin", (last) => ({ session_id: numberIn(last), chars: "\u0003", yield_time_ms: 30_000 })],
    ["exec_command", { cmd: cutCommand, login: false, yield_time_ms: 30_000 }],
    ["exec_command", { cmd: "read word; echo the word is $word", tty: true, yield_time_ms: 250, login: false }],
    ["ask_user", { question: "Go on?" }],
    ["write_stdin", (last) => ({ session_id: numberIn(all.join("\n")), chars: `word${last === "yes" ? "\n" : ""}`, yield_time_ms: 30_000 })],
  ]);
  transcript.add("user", "Mend sum.sh.");
  const all: string[] = [];
  const agent = new SandboxAgent({ name: "coder", model: first, tools: [ask], capabilities: [filesystem(), shell()] });
  const result = await runner.run(agent, "Mend sum.sh.", { sandbox: { client: client(at) }, maxTurns: 30 });
  await cut;
  assert.equal(at.proxy.cuts, 1);
  assert.equal(result.interruptions.length, 1);
  for (const item of result.newItems) if (item.type === "tool_call_output_item") all.push(String(item.output));

  // Another process goes on with what was serialized.
  const serialized = result.state.toString();
  assert.ok(!serialized.includes(at.token), "the state has the token");
  assert.ok(!serialized.includes(new URL(at.proxy.url).port), "the state has the place of the agent");
  const state = await RunState.fromString(agent, serialized);
  state.approve(state.getInterruptions()[0] as never);
  const resumed = await runner.run(agent, state, { sandbox: { client: client(at) }, maxTurns: 30 });
  assert.equal(resumed.finalOutput, "Done.");
  first.assertComplete();

  const second = model(transcript, [
    ["apply_patch", { ...patch, diff: "@@\n-echo $(($1 + $2))\n+echo $(($1 * $2))\n" }],
    ["exec_command", { cmd: "touch new", login: false, yield_time_ms: 30_000 }],
  ], "It is read-only.");
  const reader = new SandboxAgent({ name: "reader", model: second, capabilities: [filesystem(), shell()] });
  transcript.add("user", "Multiply. (The sandbox lets it write nothing.)");
  assert.equal((await runner.run(reader, "Multiply.", { sandbox: { client: client(at, { sandbox: readOnly }) } })).finalOutput, "It is read-only.");
  assert.equal(readFileSync(join(at.dir, "sum.sh"), "utf8"), "echo $(($1 + $2))\n");
  assert.ok(!existsSync(join(at.dir, "new")));
  transcript.is("openai-agents");
});

test("commands: exit codes, output, directories, variables and what goes on", async (t) => {
  const at = await site(t);
  await using session = await client(at).create({ manifest: { environment: { WORD: "from the manifest" } } });
  assert.equal(session.supportsPty(), true);
  assert.equal(await session.running(), true);
  const run = (cmd: string, more: object = {}): ReturnType<typeof session.exec> => session.exec({ cmd, login: false, yieldTimeMs: 30_000, ...more });

  assert.equal((await run("kill -9 $$")).exitCode, 128 + 9);
  assert.equal((await run("echo $WORD")).output, "from the manifest\n");
  assert.equal((await run("pwd", { workdir: ".." + at.dir.slice(at.dir.lastIndexOf("/")) })).output, `${at.dir}\n`);
  await assert.rejects(run("true", { workdir: "/etc" }), /etc is not below/);
  await assert.rejects(run("true", { workdir: "missing" }), /No such file/);
  await assert.rejects(run("true", { shell: "no-such-shell" }), /no-such-shell/);

  const both = await run("echo out; echo err >&2; exit 3");
  assert.deepEqual([both.exitCode, both.stdout, both.stderr], [3, "out\n", "err\n"]);
  // What is left in the background holds the output open, and delays nothing.
  const left = await run("sleep 1000 & echo left");
  assert.deepEqual([left.exitCode, left.output], [0, "left\n"]);

  const long = await run("seq 100000", { maxOutputTokens: 50 });
  assert.match(long.output, /^Total output lines: 100001\n\n1\n2\n[^]*…\d+ tokens truncated…[^]*99999\n100000\n$/);
  assert.equal(long.originalTokenCount, Math.ceil(588895 / 4));
  const huge = await run("head -c 3000000 /dev/zero | tr '\\0' x");
  assert.match(huge.output, /^x{524288}\n\[\.\.\. \d+ characters left out \.\.\.\]\nx{524288}$/);

  const asleep = await run("exec sleep 1000", { yieldTimeMs: 250 });
  assert.equal(asleep.exitCode, undefined);
  const { sessionId } = asleep as { sessionId: number };
  assert.match(await session.writeStdin({ sessionId, chars: "text" }), /running with session ID \d+[^]*stdin is not available[^]*tty=true/);
  assert.match(await session.writeStdin({ sessionId, chars: "\u0003", yieldTimeMs: 30_000 }), /exited with code 130/);
  assert.match(await session.writeStdin({ sessionId, chars: "" }), /session not found/);
  const asked = await run("read a; read b; echo $a and $b", { tty: true, yieldTimeMs: 250 });
  assert.match(await session.writeStdin({ sessionId: asked.sessionId as number, chars: "one\ntwo\n", yieldTimeMs: 30_000 }), /exited with code 0[^]*one and two/);

  // Two that start at once have two numbers.
  const random = t.mock.method(Math, "random", () => (random.mock.callCount() < 3 ? 0.5 : 0.7));
  const pair = await Promise.all([run("echo 1"), run("echo 2")]);
  random.mock.restore();
  assert.deepEqual(pair.map(({ output }) => output), ["1\n", "2\n"]);

  // Of many commands those go on that were used last.
  const sleep = async (): Promise<number> => (await run("exec sleep 1000", { yieldTimeMs: 0 })).sessionId as number;
  const oldest = await sleep();
  await Promise.all(Array.from({ length: 63 }, sleep));
  const newest = await sleep();
  assert.match(await session.writeStdin({ sessionId: oldest, chars: "\u0003" }), /session not found/);
  assert.match(await session.writeStdin({ sessionId: newest, chars: "\u0003", yieldTimeMs: 30_000 }), /exited with code 130/);
  await session.stop();
  const agent = at.agents.at(-1) as NodeAgent;
  while ((await agent.processes()).some(({ argv, exited }) => !exited && argv.includes("exec sleep 1000")));
});

test("a client that has failed: the commands and the ports are found again", async (t) => {
  const at = await site(t);
  const connect = (session?: NodeOptions): Promise<NodeAgent> => at.connect({ ...session, recoveryTimeoutMs: 1 });
  const made = client({ ...at, connect });
  await using session = await made.create();
  const web = createServer((_request, response) => response.end("served"));
  await new Promise<void>((resolve) => web.listen(0, "127.0.0.1", resolve));
  t.after(() => web.close());
  const { port } = web.address() as AddressInfo;
  const get = async (): Promise<string> => {
    const endpoint = await session.resolveExposedPort(port);
    return (await fetch(`http://${endpoint.host}:${endpoint.port}/`, { headers: { connection: "close" } })).text();
  };
  assert.equal(await get(), "served");
  const { sessionId = 0 } = await session.exec({ cmd: "echo begun; read word; echo the word is $word", tty: true, login: false, yieldTimeMs: 250 });
  at.proxy.cut();
  await at.agents.at(-1)?.ended;
  assert.deepEqual(Object.keys((await made.serializeSessionState(session.state))["commands"] as object), [String(sessionId)]);
  assert.match(await session.writeStdin({ sessionId, chars: "here\n", yieldTimeMs: 30_000 }), /the word is here/);
  assert.equal(await get(), "served");
});

test("patches: each changes one file in the workspace, once", async (t) => {
  const at = await site(t);
  await using session = await client(at).create();
  const editor = session.createEditor();
  const read = (name: string): string => readFileSync(join(at.dir, name), "utf8");

  assert.equal((await editor.createFile({ type: "create_file", path: "a/b.txt", diff: "+one\n+two\n+three\n" })).status, "completed");
  assert.equal(read("a/b.txt"), "one\ntwo\nthree\n");
  await editor.updateFile({ type: "update_file", path: "a/b.txt", diff: "@@ one\n-two\n+2\n", moveTo: "c.txt" });
  assert.equal(read("c.txt"), "one\n2\nthree\n");
  assert.ok(!existsSync(join(at.dir, "a/b.txt")));
  await editor.updateFile({ type: "update_file", path: "c.txt", diff: "", moveTo: "d.txt" });
  const failed = await editor.updateFile({ type: "update_file", path: "d.txt", diff: "@@\n-four\n+4\n" });
  assert.equal(failed.status, "failed");
  assert.match(failed.output, /Failed to find expected lines/);

  for (const diff of ["@@\n-one\n+1\n*** Delete File: sum.sh\n", "*** Move to: x\n@@\n-one\n+1\n", "@@\n-one\n+1\n*** End Patch\n*** Begin Patch\n"]) {
    assert.match((await editor.updateFile({ type: "update_file", path: "d.txt", diff })).output, /cannot have the line/);
  }
  assert.match((await editor.createFile({ type: "create_file", path: "e", diff: "+one\n*** Delete File: sum.sh\n" })).output, /cannot have the line/);
  assert.match((await editor.createFile({ type: "create_file", path: "e\n*** Delete File: sum.sh", diff: "+one\n" })).output, /no line ends/);
  assert.match((await editor.createFile({ type: "create_file", path: "../e", diff: "+one\n" })).output, /not below/);
  symlinkSync(folder(t), join(at.dir, "out"));
  assert.match((await editor.createFile({ type: "create_file", path: "out/e", diff: "+one\n" })).output, /leads out/);
  assert.match((await editor.updateFile({ type: "update_file", path: "d.txt", diff: "", moveTo: "out/d" })).output, /leads out/);
  assert.ok(existsSync(join(at.dir, "sum.sh")));
  symlinkSync("/etc/hostname", join(at.dir, "link"));
  assert.equal((await editor.deleteFile({ type: "delete_file", path: "link" })).status, "completed"); // the link itself
  assert.deepEqual(readdirSync(at.dir).sort(), ["a", "d.txt", "gate", "out", "sum.sh", "test.sh"]);
  await assert.rejects(session.createEditor("nobody").deleteFile({ type: "delete_file", path: "d.txt" }), /another user/);

  // The connection is lost before the answer comes: each change was made, and is not made again.
  const lose = (): void => {
    let done = false;
    at.proxy.passes = (from, bytes) => {
      if (done || from !== "server" || !/"output":"Success/.test(bytes.toString("latin1"))) return undefined;
      done = true;
      return 0;
    };
  };
  for (const change of [
    () => editor.updateFile({ type: "update_file", path: "d.txt", diff: "@@ one\n+again\n" }),
    () => editor.createFile({ type: "create_file", path: "f.txt", diff: "+new\n" }),
    () => editor.deleteFile({ type: "delete_file", path: "sum.sh" }),
  ]) {
    const { cuts } = at.proxy;
    lose();
    assert.equal((await change()).status, "completed");
    assert.equal(at.proxy.cuts, cuts + 1);
  }
  assert.deepEqual([read("d.txt"), read("f.txt"), existsSync(join(at.dir, "sum.sh"))], ["one\n2\nthree\nagain\n", "new\n", false]);
});

test("files: what is there, what is not, and images", async (t) => {
  const at = await site(t);
  await using session = await client(at).create({ manifest: { extraPathGrants: [{ path: "/etc", readOnly: true }] } });
  assert.equal(await session.pathExists("sum.sh"), true);
  assert.equal(await session.pathExists("missing/deeper"), false);
  assert.equal(await session.pathExists("sum.sh/deeper"), false);
  assert.equal(await session.directoryExists(at.dir), true);
  assert.equal(await session.directoryExists("sum.sh"), false);
  assert.equal(await session.directoryExists("/etc"), true);
  await assert.rejects(session.pathExists("/usr"), /not below/);
  assert.match((await session.createEditor().createFile({ type: "create_file", path: "/etc/x", diff: "+x\n" })).output, /granted for reading only/);
  assert.equal(Buffer.from(await session.readFile({ path: "sum.sh", maxBytes: 4 })).toString(), "echo");
  await assert.rejects(session.readFile({ path: "missing" }), { code: "ENOENT" });
  await assert.rejects(session.listDir({ path: "missing" }), { code: "ENOENT" });
  mkdirSync(join(at.dir, "sub"));
  writeFileSync(join(at.dir, "sub/x"), "");
  symlinkSync("x", join(at.dir, "sub/link"));
  symlinkSync("nowhere", join(at.dir, "sub/lost"));
  const listed = (await session.listDir({ path: "./sub" })).sort((a, b) => (a.name < b.name ? -1 : 1));
  assert.deepEqual(listed, [{ name: "link", path: "sub/link", type: "file" }, { name: "lost", path: "sub/lost", type: "other" }, { name: "x", path: "sub/x", type: "file" }]);

  const png = Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==", "base64");
  writeFileSync(join(at.dir, "dot.png"), png);
  writeFileSync(join(at.dir, "dot.svg"), '<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>');
  assert.deepEqual(await session.viewImage({ path: "dot.png" }), { type: "image", image: { data: png.toString("base64"), mediaType: "image/png" } });
  assert.equal((await session.viewImage({ path: "dot.svg" })).image.mediaType, "image/svg+xml");
  await assert.rejects(session.viewImage({ path: "missing.png" }), /not found/);
  await assert.rejects(session.viewImage({ path: "sub" }), /not a file/);
  await assert.rejects(session.viewImage({ path: "sum.sh" }), /Unsupported image format/);
  execFileSync("truncate", ["-s", "11M", join(at.dir, "large.png")]);
  await assert.rejects(session.viewImage({ path: "large.png" }), /exceeds the 10 MB limit/);
});

test("manifests, archives and ports", async (t) => {
  const at = await site(t);
  const source = folder(t);
  writeFileSync(join(source, "local.txt"), "local\n");
  const repository = folder(t);
  const git = (...words: string[]): unknown => execFileSync("git", ["-C", repository, "-c", "user.name=x", "-c", "user.email=x@example.org", ...words]);
  git("init", "-q");
  mkdirSync(join(repository, "docs"));
  writeFileSync(join(repository, "docs/page"), "page\n");
  git("add", ".");
  git("commit", "-q", "-m", "x");
  await using session = await client(at).create({
    manifest: new Manifest({
      entries: {
        tree: dir({ children: { "run.sh": file({ content: "echo run\n", permissions: 0o755 }), bytes: file({ content: new Uint8Array([0, 255]) }) } }),
        cache: dir({ ephemeral: true, children: { x: file({ content: "x" }) } }),
        one: localFile({ src: join(source, "local.txt") }),
        all: localDir({ src: source }),
        repo: gitRepo({ repo: `file://${repository}` }),
        page: gitRepo({ repo: `file://${repository}`, subpath: "docs" }),
      },
    }),
  });
  assert.equal((await session.exec({ cmd: "tree/run.sh; cat one all/local.txt repo/docs/page page/page; ls -a repo; wc -c <tree/bytes", login: false })).output,
    "run\nlocal\nlocal\npage\npage\n.\n..\ndocs\n2\n");
  await session.materializeEntry({ path: "later/x", entry: file({ content: "later" }) });
  assert.equal(readFileSync(join(at.dir, "later/x"), "utf8"), "later");
  assert.ok("later/x" in session.state.manifest.entries);
  await session.applyManifest(new Manifest({ root: at.dir, entries: { "more/y": file({ content: "more" }) }, environment: { MORE: "1" } }));
  assert.equal((await session.exec({ cmd: "cat more/y; echo $MORE", login: false })).output, "more1\n");
  for (const [entry, why] of [
    [{ type: "s3_mount", bucket: "b" }, /type s3_mount/], [{ type: "git_repo", repo: "--upload-pack=x" }, /wrong repo/], [{ type: "file" }, /no content/],
    [{ type: "dir", permissions: 0o700 }, /permissions/], [{ type: "file", content: "", group: { name: "g" } }, /group/],
  ] as const) {
    await assert.rejects(session.materializeEntry({ path: "x", entry }), why);
  }
  await assert.rejects(session.materializeEntry({ path: "../x", entry: file({ content: "" }) }), /not below/);

  const archive = await session.persistWorkspace();
  const names = execFileSync("tar", ["-t"], { input: archive, encoding: "utf8" }).split("\n");
  assert.ok(names.includes("./tree/run.sh") && !names.some((name) => /cache|gate/.test(name)), names.join(" ")); // a FIFO has no place there
  const other = folder(t);
  await using copy = await client({ ...at, dir: other }).create();
  await copy.hydrateWorkspace(archive);
  assert.equal((await copy.exec({ cmd: "tree/run.sh && cat later/x", login: false })).output, "run\nlater");
  await assert.rejects(copy.hydrateWorkspace(archive, { archiveLimits: { maxMembers: 2 } }), /members/);
  await assert.rejects(copy.hydrateWorkspace(archive, { archiveLimits: { maxExtractedBytes: 3 } }), /bytes of content/);
  await assert.rejects(copy.hydrateWorkspace(archive, { archiveLimits: { maxInputBytes: 3 } }), /archiveLimits/);
  await assert.rejects(copy.hydrateWorkspace(Buffer.from("no archive".padEnd(512))), /archive/);
  const evil = folder(t);
  writeFileSync(join(evil, "x"), "x");
  const outside = execFileSync("tar", ["-c", "--transform", "s,^,../,", "-P", "-C", evil, "x"]);
  await assert.rejects(copy.hydrateWorkspace(outside), /\.\.\/x|name/);
  assert.ok(!existsSync(join(other, "../x")));

  const web = createServer((_request, response) => response.end("served"));
  await new Promise<void>((resolve) => web.listen(0, "127.0.0.1", resolve));
  t.after(() => web.close());
  const { port } = web.address() as AddressInfo;
  const endpoint = await session.resolveExposedPort(port);
  assert.notEqual(endpoint.port, port);
  assert.deepEqual(await session.resolveExposedPort(port), endpoint);
  assert.equal(await (await fetch(`http://${endpoint.host}:${endpoint.port}/`, { headers: { connection: "close" } })).text(), "served");
  await using strict = await client(at, { exposedPorts: [1] }).create();
  await assert.rejects(strict.resolveExposedPort(port), /not one of exposedPorts/);
});

test("states: they have no secret, and lead only to what exists", async (t) => {
  const at = await site(t);
  const made = client(at);
  const session = await made.create({ manifest: { environment: { SECRET: { value: "a-secret", ephemeral: true } } } });
  const asked = await session.exec({ cmd: "read word; echo the word is $word", tty: true, login: false, yieldTimeMs: 250 });
  const record = JSON.parse(JSON.stringify(await made.serializeSessionState(session.state))) as Record<string, unknown>;
  assert.deepEqual(Object.keys(record).sort(), ["commands", "sessionName"]);
  assert.equal(Object.keys(record["commands"] as object).length, 1);

  const other = client(at);
  const state = await other.deserializeSessionState({ ...record, manifest: { root: at.dir, entries: { f: { type: "file", content: { type: "base64", data: "AP8=" } } } } });
  assert.deepEqual((state.manifest.entries["f"] as { content?: unknown }).content, new Uint8Array([0, 255]));
  await assert.rejects(other.deserializeSessionState({ manifest: {} }), /no sessionName/);
  await assert.rejects(other.deserializeSessionState({ ...record, commands: { "../x": 1 }, manifest: {} }), /commands/);
  await assert.rejects(client(at).create({ manifest: new Manifest({ root: "/elsewhere" }) }), /only one/);
  await assert.rejects(client(at).create({ snapshot: { type: "local" } }), /snapshot/);
  assert.throws(() => client(at, { root: "x" } as object), /root/);
  assert.throws(() => new ExecagentSandboxClient(undefined as never), /function that connects/);
  assert.throws(() => client({ ...at, dir: "relative" }), /absolute/);

  await assert.rejects(other.deserializeSessionState({ ...record, sessionName: "../other" }), /no sessionName/);

  // Without a directory of its own a sandbox has one that ends with it.
  const hidden = new ExecagentSandboxClient(at.connect, { sandbox: { workspace: "." } });
  const box = await hidden.create();
  const { root } = box.state.manifest;
  assert.equal(root, `/tmp/${box.state.sessionName}`);
  assert.equal(statSync(root).mode & 0o777, 0o700);
  assert.match((await box.exec({ cmd: "pwd; echo hi >x && cat x; touch /etc/x 2>&1", login: false })).output, new RegExp(`^${root}\nhi\n.*(Read-only|denied)`));
  await box.disconnect();
  await hidden.delete(await hidden.deserializeSessionState(JSON.parse(JSON.stringify({ ...(await hidden.serializeSessionState(box.state)), manifest: { root } }))));
  assert.ok(!existsSync(root));

  await assert.rejects(client({ ...at, dir: "/elsewhere" }).resume(state), /only one/);
  await assert.rejects(other.deserializeSessionState({ ...record }), /no manifest/);
  // Two calls at once come back to one command.
  const back = await other.resume(state);
  const write = (chars: string): Promise<string> => back.writeStdin({ sessionId: asked.sessionId as number, chars, yieldTimeMs: 30_000 });
  assert.match((await Promise.all([write("two "), write("calls\n")])).join("\n"), /the word is (two calls|calls)/);
  await other.delete(state);
  await assert.rejects(client(at).resume(state), /session/);
  await session.disconnect();
});
