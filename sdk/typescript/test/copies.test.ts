/** Agents that send what nobody has asked for: nothing is written outside of the target, and nothing half. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, lstatSync, mkdirSync, readdirSync, readFileSync, readlinkSync, renameSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { connect } from "../src/node/index.js";
import { padded, writeHeader } from "../src/node/tar.js";
import { client, folder, patient, serve } from "./rig.js";
import { Scripted } from "./scripted.js";

const sum = (text: string): string => createHash("sha256").update(text).digest("hex");
const global = (records: Record<string, string>): Buffer => writeHeader({ kind: "global", records: new Map(Object.entries(records).map(([key, value]) => [key, Buffer.from(value)])) });
const begin = global({ "EXECAGENT.begin": "1" });
const end = (count: number): Buffer => Buffer.concat([global({ "EXECAGENT.end": String(count) }), Buffer.alloc(1024)]);

function file(name: string, text: string, digest = sum(text), mode = 0o644): Buffer {
  const header = writeHeader({ kind: "file", name: Buffer.from(name, "latin1"), mode, size: text.length, mtime: "1", records: new Map([["EXECAGENT.sha256", Buffer.from(digest)]]) });
  return Buffer.concat([header, Buffer.from(text), Buffer.alloc(padded(text.length) - text.length)]);
}

const directory = (name: string): Buffer => writeHeader({ kind: "directory", name: Buffer.from(`${name}/`), mode: 0o755, mtime: "1" });
const symlink = (name: string, to: string): Buffer => writeHeader({ kind: "symlink", name: Buffer.from(name), link: Buffer.from(to), mtime: "1" });
const hardlink = (name: string, to: string): Buffer => writeHeader({ kind: "hardlink", name: Buffer.from(name), link: Buffer.from(to), mtime: "1" });

/** Downloads from an agent that sends this. */
async function download(t: TestContext, to: string, stream: Buffer, exitCode = 0, from = "/src/t"): Promise<unknown> {
  const server = await Scripted.start(t, {
    "process/start": ({ params }, link) => {
      setImmediate(() => {
        let seq = 0;
        for (let at = 0; at < stream.length; at += 8192) {
          link.notify("process/output", { processId: params["processId"], seq: ++seq, stream: "stdout", chunk: stream.subarray(at, at + 8192).toString("base64") });
        }
        link.notify("process/exited", { processId: params["processId"], seq: ++seq, exitCode, sandboxDenied: false });
        link.notify("process/closed", { processId: params["processId"], seq: ++seq });
      });
      return { processId: params["processId"], sandboxType: "none" };
    },
    "process/write": () => ({ status: "accepted" }),
    "process/closeStdin": () => ({ status: "accepted" }),
  });
  const agent = await connect(server.url, patient);
  try {
    return await agent.download(from, to).then(() => undefined, (error: unknown) => error);
  } finally {
    await agent.close();
  }
}

test("what an agent may send", { timeout: 60_000 }, async (t) => {
  for (const [name, parts, want] of [
    ["a name above", [file("../x", "x"), end(1)], /the name \.\.\/x, which nobody may have/],
    ["a name inside above", [directory("t"), file("t/../../x", "x"), end(2)], /which nobody may have/],
    ["an absolute name", [file("/t/x", "x"), end(1)], /which nobody may have/],
    ["another name", [file("u", "x"), end(1)], /the name u, which nobody has asked for/],
    ["what is in it", [file("./x", "x"), end(1)], /which nobody has asked for/],
    ["a NUL in a name", [writeHeader({ kind: "file", name: Buffer.from("t"), size: 0, records: new Map([["path", Buffer.from("t\0x")]]) }), end(1)], /nobody/],
    ["another sum", [file("t", "x", sum("y")), end(1)], /what came is not what was sent/],
    ["no end", [file("t", "x")], /ends too early/],
    ["a part of a file", [file("t", "x".repeat(5000)).subarray(0, 2000)], /ends too early/],
    ["another count", [file("t", "x"), end(2)], /has 1 entries, and says 2/],
    ["more behind the end", [end(0).subarray(0, -1024), file("t", "x"), Buffer.alloc(1024)], /out of its order/],
    ["a begin twice", [begin, end(0)], /out of its order/],
    ["a header with a wrong sum", [Buffer.alloc(512, 7)], /a header has a wrong (sum|number)/],
    ["a piece of no file", [writeHeader({ kind: "file", name: Buffer.from("t"), size: 16, records: new Map([["EXECAGENT.extents", Buffer.from("1")]]) }), Buffer.alloc(512), end(1)], /./],
    ["a piece beyond a file", [
      writeHeader({ kind: "file", name: Buffer.from("t"), size: 0, records: new Map([["EXECAGENT.size", Buffer.from("10")]]) }),
      writeHeader({ kind: "file", name: Buffer.from("piece"), size: 17, records: new Map([["EXECAGENT.extents", Buffer.from("1")]]) }),
      Buffer.concat([Buffer.from([0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 1]), Buffer.alloc(512 - 16)]), end(1),
    ], /a piece that fits no file/],
    ["a file through a link", [directory("t"), symlink("t/l", ".."), file("t/l/x", "x"), end(3)], /t\/l\/x: (Not a directory|Is a link)/],
    ["a folder through a link", [directory("t"), symlink("t/l", "/tmp"), directory("t/l/x"), end(3)], /t\/l\/x: (Not a directory|Is a link)/],
    ["a hard link to what is outside", [directory("t"), hardlink("t/h", "../x"), end(2)], /nobody may have/],
    ["one more name of a link", [directory("t"), symlink("t/l", "/etc/hostname"), hardlink("t/h", "t/l"), end(3)], /t\/h: is one more name of what is no file/],
    ["a hard link through a link", [directory("t"), symlink("t/l", "/etc"), hardlink("t/h", "t/l/hostname"), end(3)], /t\/h: (Not a directory|Is a link)/],
    ["a file over a folder", [directory("t"), directory("t/d"), file("t/d", "x"), end(3)], /t\/d: (Is a directory|EISDIR)/],
  ] as [string, Buffer[], RegExp][]) {
    const top = folder(t);
    const to = join(top, "to");
    mkdirSync(to);
    const error = await download(t, to, Buffer.concat([begin, ...parts]));
    assert.ok(error instanceof Error, name);
    assert.match(error.message, want, name);
    assert.ok(!existsSync(join(top, "x")) && !existsSync("/tmp/x"), name);
    const left = execFileSync("find", [to], { encoding: "utf8" }).trim().split("\n").slice(1);
    assert.deepEqual(left.filter((one) => one.includes(".agent-cp-")), [], `${name}: a temporary file is left`);
    if (existsSync(join(to, "t")) && left.length === 1) assert.notEqual(name, "another sum");
  }
});

test("no link is followed, neither a target nor below it", { timeout: 60_000 }, async (t) => {
  const top = folder(t);
  for (const name of ["to", "outside"]) mkdirSync(join(top, name));
  symlinkSync(join(top, "outside"), join(top, "to/t"));
  const error = await download(t, join(top, "to"), Buffer.concat([begin, directory("t"), file("t/x", "x"), end(2)]));
  assert.match((error as Error).message, /not everything was copied/);
  assert.deepEqual(readdirSync(join(top, "outside")), []);

  // What the agent has made a link in one copy is replaced by the next one, or refused.
  writeFileSync(join(top, "outside/f"), "old");
  for (const leads of ["outside", "target", "outside/f", "nowhere"]) {
    const to = join(top, "target");
    assert.equal(await download(t, to, Buffer.concat([begin, symlink("t", join(top, leads)), end(1)])), undefined);
    assert.equal(readlinkSync(to), join(top, leads));
    for (const ending of ["/", "/.", "//"]) assert.match(String(await download(t, to + ending, Buffer.concat([begin, file("t", "x"), end(1)]))), /is a link, which no copy follows: name what it leads to, or remove it/);
    if (leads === "outside" || leads === "target") {
      assert.match(String(await download(t, to, Buffer.concat([begin, file("t", "x"), end(1)]))), /target is a link, which no copy follows/);
      rmSync(to);
      continue;
    }
    assert.equal(await download(t, to, Buffer.concat([begin, file("t", "x", undefined, 0o4755), end(1)])), undefined);
    assert.equal(lstatSync(to).mode, 0o100755);
    rmSync(to);
    symlinkSync(join(top, leads), to);
    assert.equal(await download(t, to, Buffer.concat([begin, directory("t"), file("t/x", "x"), end(2)])), undefined);
    assert.equal(readFileSync(join(to, "x"), "utf8"), "x");
    assert.ok(lstatSync(to).isDirectory());
    rmSync(to, { recursive: true });
  }
  assert.deepEqual(readdirSync(join(top, "outside")), ["f"]);
  assert.equal(readFileSync(join(top, "outside/f"), "utf8"), "old");

  const late = await download(t, join(top, "outside/f"), Buffer.concat([begin, file("t", "new").subarray(0, -512)]));
  assert.match((late as Error).message, /ends too early/);
  assert.equal(readFileSync(join(top, "outside/f"), "utf8"), "old", "half a file has taken the place of a whole one");
});

test("the content of a directory is in a directory", { timeout: 60_000 }, async (t) => {
  const top = folder(t);
  writeFileSync(join(top, "x"), "old");
  for (const [name, parts, want] of [
    ["a link as the directory", [symlink(".", join(top, "x")), end(1)], /the source \., which is no directory/],
    ["a file as the directory", [file("./", "x"), end(1)], /the source \.\/, which is no directory/],
    ["one more name as the directory", [directory("."), file("./f", "x"), hardlink(".", "./f"), end(3)], /the source \., which is no directory/],
    ["a name beside the directory", [symlink("t", join(top, "x")), end(1)], /which nobody has asked for/],
    ["the directory as one more name", [directory("."), hardlink("./f", "."), end(2)], /new\/f: is one more name of what is no file/],
  ] as [string, Buffer[], RegExp][]) {
    const to = join(top, "new");
    const error = await download(t, to, Buffer.concat([begin, ...parts]), 0, "/src/t/.");
    assert.match(String(error), want, name);
    assert.ok(!existsSync(to) || lstatSync(to).isDirectory(), name);
    rmSync(to, { recursive: true, force: true });
  }
  assert.equal(readFileSync(join(top, "x"), "utf8"), "old");
});

test("a directory that is replaced by a link while it is sent", { timeout: 60_000 }, async (t) => {
  const [here, there, secret] = [folder(t), folder(t), folder(t)];
  mkdirSync(join(here, "d"));
  for (const name of ["1", "2"]) {
    writeFileSync(join(here, "d", name), name);
    writeFileSync(join(secret, name), "secret");
  }
  const { url } = await serve(t);
  const agent = await client(t, url);
  let first = true;
  await agent.upload(join(here, "d"), there, {
    onProgress: () => {
      if (first) renameSync(join(here, "d"), join(here, "moved"));
      if (first) symlinkSync(secret, join(here, "d"));
      first = false;
    },
  });
  assert.equal(readFileSync(join(there, "d/2"), "utf8"), "2");
});
