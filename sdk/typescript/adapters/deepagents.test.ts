/** The adapter for deepagents, driven by deepagents with a scripted model, and after the rules of its suite for sandboxes. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { AIMessage, HumanMessage, type BaseMessage } from "@langchain/core/messages";
import { fakeModel } from "@langchain/core/testing";
import { createDeepAgent, isSandboxBackend, type SandboxBackendProtocolV2 } from "deepagents";
import { ExecagentBackend } from "@execagent/client/deepagents";
import { cutOnce, cutCommand, readOnly, site, Transcript, type Site } from "./session.js";

// The harness takes it as it is.
((_: SandboxBackendProtocolV2): void => {})(undefined as unknown as ExecagentBackend);

/** Lets a model make calls, one after the other, and notes what is said. */
async function drive(backend: ExecagentBackend, transcript: Transcript, user: string, calls: readonly (readonly [string, object])[], end: string): Promise<void> {
  transcript.add("user", user);
  const model = fakeModel();
  const note = (messages: BaseMessage[]): void => {
    const last = messages.at(-1);
    if (last?.type === "tool") transcript.add("tool", last.text);
  };
  calls.forEach(([name, args], i) => model.respond((messages) => {
    note(messages);
    transcript.add("model", `${name} ${JSON.stringify(args)}`);
    return new AIMessage({ content: "", tool_calls: [{ id: `call-${i}`, name, args: { ...args } }] });
  }));
  model.respond((messages) => {
    note(messages);
    transcript.add("model", end);
    return new AIMessage(end);
  });
  const agent = createDeepAgent({ model, backend, systemPrompt: await backend.description() });
  const { messages } = await agent.invoke({ messages: [new HumanMessage(user)] }, { recursionLimit: 100 });
  assert.equal(messages.at(-1)?.text, end);
  assert.equal(model.callCount, calls.length + 1);
}

test("a session: it edits, tests, is too slow, is cut, is left and resumed, and is refused", async (t) => {
  const at = await site(t);
  const transcript = new Transcript(at);
  const cut = cutOnce(at);
  const first = new ExecagentBackend(at.connect, { cwd: at.dir, timeoutMs: 60_000 });
  assert.ok(isSandboxBackend(first));
  const program = join(at.dir, "sum.sh");
  await drive(first, transcript, "Mend sum.sh.", [
    ["ls", { path: at.dir }],
    ["execute", { command: "sh test.sh" }],
    ["grep", { pattern: "$1 - $2" }],
    ["read_file", { file_path: program }],
    ["edit_file", { file_path: program, old_string: "$1 - $2", new_string: "$1 + $2" }],
    ["execute", { command: "sh test.sh" }],
    ["execute", { command: cutCommand }],
    ["execute", { command: "nohup sleep 1000 >/dev/null 2>&1 & echo $! >pid" }],
  ], "It adds now.");
  await cut;
  assert.equal(at.proxy.cuts, 1);
  await first.close();

  // Another process comes back to the session.
  const kept = JSON.stringify(first.ref);
  assert.ok(!kept.includes(at.token));
  const second = new ExecagentBackend(at.connect, { ...(JSON.parse(kept) as { session: string }), existing: true, cwd: at.dir });
  await drive(second, transcript, "Go on.", [
    ["execute", { command: "kill -0 $(cat pid) && echo it still sleeps; kill $(cat pid)" }],
    ["glob", { pattern: "**/*.sh" }],
  ], "Done.");
  await second.end();

  const hasty = new ExecagentBackend(at.connect, { cwd: at.dir, timeoutMs: 500 });
  await drive(hasty, transcript, "Wait. (A command may take half a second.)", [["execute", { command: "exec sleep 1000" }]], "It takes too long.");
  await hasty.end();

  const third = new ExecagentBackend(at.connect, { cwd: at.dir, sandbox: readOnly });
  await drive(third, transcript, "Multiply. (The sandbox lets it write nothing.)", [
    ["edit_file", { file_path: program, old_string: "$1 + $2", new_string: "$1 * $2" }],
    ["write_file", { file_path: join(at.dir, "new"), content: "hello" }],
    ["execute", { command: "touch new" }],
    ["delete", { file_path: program }],
  ], "It is read-only.");
  await third.end();
  assert.equal(readFileSync(program, "utf8"), "echo $(($1 + $2))\n");
  assert.ok(!existsSync(join(at.dir, "new")));
  transcript.is("deepagents");
});

// The suite of deepagents for sandboxes is not published, so this one follows its rules.
describe("the rules of sandboxes", () => {
  let at: Site;
  let backend: ExecagentBackend;
  const path = (name: string): string => join(at.dir, name);
  const write = (name: string, content: string | Uint8Array): void => {
    mkdirSync(join(path(name), ".."), { recursive: true });
    writeFileSync(path(name), content);
  };

  const ends: (() => unknown)[] = [];
  before(async () => {
    at = await site({ after: (call) => ends.push(call) });
    backend = new ExecagentBackend(at.connect, { cwd: at.dir });
  });
  after(async () => {
    await backend.close();
    for (const end of ends) await end();
  });

  test("execute", async () => {
    assert.deepEqual(await backend.execute("echo out; echo err >&2; echo out; exit 3"), { output: "out\nerr\nout\n", exitCode: 3, truncated: false });
    assert.equal((await backend.execute("kill -9 $$")).exitCode, 128 + 9);
    assert.equal((await backend.execute("no-such-program")).exitCode, 127);
    assert.equal((await backend.execute("pwd")).output, `${at.dir}\n`);
    assert.equal((await backend.execute("printf 'caf\\303\\251 \\377'")).output, "café \ufffd");
    const long = await backend.execute("seq 300000");
    assert.equal(long.truncated, true);
    assert.match(long.output, /^1\n2\n[^]*\n\[\d+ bytes are left out here\]\n[^]*\n300000\n$/);
    assert.ok(long.output.length < (1 << 20) + 100);
    // What is left out does not come here at all.
    let came = 0;
    at.proxy.passes = (from, bytes) => void (from === "server" && (came += bytes.length));
    assert.match((await backend.execute("head -c 50000000 /dev/zero | tr '\\0' x; echo; echo end")).output, /^x+\n\[48951429 bytes are left out here\]\nx+\nend\n$/);
    at.proxy.passes = () => undefined;
    assert.ok(came < 3 << 20, `${came} bytes came`);
    assert.match((await backend.execute("if")).output, /[Ss]yntax error/);
  });

  test("read", async () => {
    write("lines", "one\ntwo\nthree\n");
    const text = { mimeType: "text/plain", totalLines: 3 };
    assert.deepEqual(await backend.read(path("lines")), { ...text, content: "one\ntwo\nthree", startLine: 1, endLine: 3 });
    assert.deepEqual(await backend.read(path("lines"), 1, 1), { ...text, content: "two", startLine: 2, endLine: 2, nextOffset: 2 });
    assert.deepEqual(await backend.read(path("lines"), 0, 0), { ...text, content: "" });
    assert.deepEqual(await backend.read(path("lines"), -1, NaN), { ...text, content: "" });
    assert.match((await backend.read(path("lines"), 3)).error ?? "", /behind the end/);
    write("empty", "");
    assert.equal((await backend.read(path("empty"))).content, "");
    assert.match((await backend.read(path("missing"))).error ?? "", /not found/);
    assert.match((await backend.read(at.dir)).error ?? "", /is a directory/);
    assert.match((await backend.read("lines")).error ?? "", new RegExp(`not absolute.*${path("lines")} may be meant`));
    write("dot.png", Buffer.from("89504e470d0a1a0a", "hex"));
    assert.deepEqual(await backend.read(path("dot.png")), { content: Uint8Array.from(Buffer.from("89504e470d0a1a0a", "hex")), mimeType: "image/png" });
    write("bytes", new Uint8Array([1, 0, 2]));
    assert.equal((await backend.read(path("bytes"))).mimeType, "application/octet-stream");
    const raw = await backend.readRaw(path("lines"));
    assert.equal(raw.data?.content, "one\ntwo\nthree\n");
    assert.equal(raw.data?.modified_at, new Date(Math.floor(statSync(path("lines")).mtimeMs)).toISOString());
  });

  test("read: a file that is larger than what is kept", async () => {
    execFileSync("sh", ["-c", "seq 4600000 >large; truncate -s 40M large.bin"], { cwd: at.dir });
    const page = await backend.read(path("large"), 4_599_990, 5);
    assert.deepEqual(page, { content: "4599991\n4599992\n4599993\n4599994\n4599995", mimeType: "text/plain", startLine: 4_599_991, endLine: 4_599_995, nextOffset: 4_599_995 });
    assert.match((await backend.read(path("large"), 7_000_000)).error ?? "", /behind the end/);
    assert.match((await backend.read(path("large.bin"))).error ?? "", /no text/);
    assert.match((await backend.edit(path("large"), "1", "2")).error ?? "", /too much/);
    const end = { mimeType: "text/plain", startLine: 4_600_000, endLine: 4_600_000 };
    assert.deepEqual(await backend.read(path("large"), 4_599_999, 5), { ...end, content: "4600000" }); // and no line behind the last line end
    execFileSync("sh", ["-c", "head -c 35651580 large >whole; printf '\\nend' >>whole; cat large large | tr -d '\\n' >long; printf '\\nlast' >>long"], { cwd: at.dir });
    assert.equal(statSync(path("whole")).size % (1 << 20), 0);
    const lines = Number(execFileSync("wc", ["-l"], { input: readFileSync(path("whole")) }));
    assert.deepEqual(await backend.read(path("whole"), lines, 5), { content: "end", mimeType: "text/plain", startLine: lines + 1, endLine: lines + 1 });
    const first = await backend.read(path("long"), 0, 5);
    assert.ok(readFileSync(path("long"), "latin1").startsWith((first.content as string).replace(/ \[the line goes on\]$/, "")), "a part of the line is missing");
    assert.equal(first.nextOffset, 1);
    assert.deepEqual(await backend.read(path("long"), 1, 5), { content: "last", mimeType: "text/plain", startLine: 2, endLine: 2 });
    assert.deepEqual(await backend.read(path("long"), 0, 0), { content: "", mimeType: "text/plain" });
    for (const name of ["large", "large.bin", "whole", "long"]) rmSync(path(name)); // a later search would take seconds for them
  });

  test("write and edit", async () => {
    assert.deepEqual(await backend.write(path("new/deep/file"), "höhe\n"), { path: path("new/deep/file"), filesUpdate: null });
    assert.equal(readFileSync(path("new/deep/file"), "utf8"), "höhe\n");
    await backend.write(path("new/deep/file"), "again");
    assert.equal(readFileSync(path("new/deep/file"), "utf8"), "again");
    await backend.write(path("pixel.gif"), "data:image/gif;base64,R0lGODlh");
    assert.equal(readFileSync(path("pixel.gif"), "latin1"), "GIF89a");
    assert.match((await backend.write(path("pixel.gif"), "no base64!")).error ?? "", /must be base64/);
    assert.match((await backend.write(at.dir, "x")).error ?? "", /is a directory/);

    const text = "apple\nbanana\napple\nPrice: $100.00 [a-z]*\n";
    write("fruit", text);
    assert.deepEqual(await backend.edit(path("fruit"), "banana", "pear"), { path: path("fruit"), filesUpdate: null, occurrences: 1 });
    assert.match((await backend.edit(path("fruit"), "apple", "x")).error ?? "", /Multiple occurrences \(2\)/);
    assert.equal((await backend.edit(path("fruit"), "apple", "$&", true)).occurrences, 2);
    assert.equal((await backend.edit(path("fruit"), "$100.00 [a-z]*\n", "")).occurrences, 1);
    assert.equal(readFileSync(path("fruit"), "utf8"), "$&\npear\n$&\nPrice: ");
    assert.match((await backend.edit(path("fruit"), "kiwi", "x")).error ?? "", /not found/);
    assert.match((await backend.edit(path("none"), "kiwi", "x")).error ?? "", /not found/);
    assert.match((await backend.edit(path("fruit"), "", "x")).error ?? "", /must not be empty/);
    assert.equal((await backend.edit(path("fruit"), "pear", "pear")).occurrences, 1);
    write("empty", "");
    assert.equal((await backend.edit(path("empty"), "", "begun")).occurrences, 1);
    assert.equal(readFileSync(path("empty"), "utf8"), "begun");
    // Bytes that are not UTF-8 stay, and so does the mode.
    writeFileSync(path("latin"), Buffer.from("caf\xe9 old\r\n", "latin1"), { mode: 0o755 });
    await backend.edit(path("latin"), "old", "new");
    assert.equal(readFileSync(path("latin"), "latin1"), "caf\xe9 new\r\n");
    assert.equal(statSync(path("latin")).mode & 0o777, 0o755);
  });

  test("ls, glob and delete", async () => {
    write("tree/file1.txt", "content");
    write("tree/.hidden", "");
    write("tree/a b/файл.txt", "x");
    write("tree/a b/c/deep.py", "x");
    symlinkSync("a b", path("tree/link"));
    symlinkSync("nothing", path("tree/broken"));
    const listed = (await backend.ls(`${path("tree")}/`)).files ?? [];
    assert.deepEqual(listed.map(({ path, is_dir }) => [path.slice(at.dir.length), is_dir]).sort(),
      [["/tree/.hidden", false], ["/tree/a b/", true], ["/tree/broken", false], ["/tree/file1.txt", false], ["/tree/link/", true]]);
    assert.equal(listed.find(({ path }) => path.endsWith("file1.txt"))?.size, 7);
    assert.deepEqual(await backend.ls(path("tree/none")), { files: [] });
    assert.match((await backend.ls(path("tree/file1.txt"))).error ?? "", /not a directory/);

    const glob = async (pattern: string, base: string | undefined = path("tree")): Promise<string[]> => ((await backend.glob(pattern, base)).files ?? []).map(({ path }) => path).sort();
    assert.deepEqual(await glob("*.txt"), ["file1.txt"]);
    assert.deepEqual(await glob("**/*.txt"), ["a b/файл.txt", "file1.txt"]);
    assert.deepEqual(await glob("*"), [".hidden", "a b", "broken", "file1.txt", "link"]);
    assert.deepEqual(await glob(".*"), [".hidden"]);
    assert.deepEqual(await glob("file?.txt"), ["file1.txt"]);
    assert.deepEqual(await glob("file[0-9].{txt,py}"), ["file1.txt"]);
    assert.deepEqual(await glob("**/deep.py"), ["a b/c/deep.py"]);
    assert.deepEqual(await glob("*.none"), []);
    assert.deepEqual(await glob("tree/*.txt", at.dir), ["tree/file1.txt"]);
    assert.deepEqual(((await backend.glob(`${path("tree")}/**/*.py`)).files ?? []).map(({ path }) => path), [path("tree/a b/c/deep.py")]);
    assert.equal((await backend.glob("*", path("tree"))).files?.find(({ path }) => path === "a b")?.is_dir, true);

    assert.deepEqual(await backend.delete(path("tree/link")), { path: path("tree/link"), filesUpdate: null });
    assert.ok(existsSync(path("tree/a b/c/deep.py")));
    await backend.delete(path("tree"));
    assert.ok(!existsSync(path("tree")));
    assert.match((await backend.delete(path("tree"))).error ?? "", /not found/);
    assert.match((await backend.delete("/")).error ?? "", /cannot be deleted/);
  });

  test("grep", async () => {
    write("search/one.txt", "Hello world\nPrice: $100 [a-z]*\nHELLO\n");
    write("search/sub/two.py", "x\nHello 世界\n");
    write("search/.gitignore", "two.py\n");
    write("search/bytes.bin", new Uint8Array([0, ...Buffer.from("Hello")]));
    const grep = async (...args: Parameters<typeof backend.grep>): Promise<string[]> => ((await backend.grep(...args)).matches ?? []).map(({ path, line, text }) => `${path.slice(path.lastIndexOf("/") + 1)}:${line}:${text}`).sort();
    const dir = path("search");
    assert.deepEqual(await grep("Hello", dir), ["one.txt:1:Hello world", "two.py:2:Hello 世界"]);
    assert.deepEqual(await grep("Hello", dir, "*.py"), ["two.py:2:Hello 世界"]);
    assert.deepEqual(await grep("$100 [a-z]*", dir), ["one.txt:2:Price: $100 [a-z]*"]);
    assert.deepEqual(await grep("世界", `${dir}/sub/two.py`), ["two.py:2:Hello 世界"]);
    assert.deepEqual(await grep("nothing of this", dir), []);
    assert.deepEqual(await grep("Hello 世界", "/"), ["two.py:2:Hello 世界"]);
    const some = await backend.grep("Hello", dir, null, 1);
    assert.deepEqual([some.matches?.length, some.truncated], [1, true]);
    assert.match((await backend.grep("x", path("none"))).error ?? "", /not found/);
  });

  test("upload and download", async () => {
    const bytes = new Uint8Array(1 << 20).map((_, i) => i);
    const up = await backend.uploadFiles([[path("up/a"), bytes], [at.dir, bytes], ["relative", bytes], [path("up/a/b"), bytes], [path("\ud800"), bytes]]);
    assert.deepEqual(up.map(({ error }) => error), [null, "is_directory", "invalid_path", "file_not_found", "invalid_path"]);
    const down = await backend.downloadFiles([path("up/a"), path("none"), at.dir, "x\0"]);
    assert.deepEqual(down.map(({ error }) => error), [null, "file_not_found", "is_directory", "invalid_path"]);
    assert.deepEqual(down[0]?.content, bytes);
  });

  test("a lost connection: writes and edits are made once", async () => {
    write("twice", "one\n");
    let done = false;
    // The answer to fs/writeFile is the first one without a result after the file has changed.
    at.proxy.passes = (from) => {
      if (done || from !== "server" || readFileSync(path("twice"), "utf8") === "one\n") return undefined;
      done = true;
      return 0;
    };
    const { cuts } = at.proxy;
    assert.equal((await backend.edit(path("twice"), "one", "one and one")).occurrences, 1);
    assert.equal(at.proxy.cuts, cuts + 1);
    assert.equal(readFileSync(path("twice"), "utf8"), "one and one\n");
    done = false;
    at.proxy.passes = (from) => {
      if (done || from !== "server" || existsSync(path("twice"))) return undefined;
      done = true;
      return 0;
    };
    assert.deepEqual(await backend.delete(path("twice")), { path: path("twice"), filesUpdate: null });
    assert.equal(at.proxy.cuts, cuts + 2);
  });
});
