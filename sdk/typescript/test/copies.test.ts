/** Agents that send what nobody has asked for: nothing is written outside of the target, and nothing half. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { connect } from "../src/node/index.js";
import { padded, writeHeader } from "../src/node/tar.js";
import { folder } from "./rig.js";
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

/** Downloads /src/t from an agent that sends this. */
async function download(t: TestContext, to: string, stream: Buffer, exitCode = 0): Promise<unknown> {
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
  const agent = await connect(server.url);
  try {
    return await agent.download("/src/t", to).then(() => undefined, (error: unknown) => error);
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

test("a target is followed, and nothing below it", { timeout: 60_000 }, async (t) => {
  const top = folder(t);
  for (const name of ["to", "outside"]) mkdirSync(join(top, name));
  symlinkSync(join(top, "outside"), join(top, "to/t"));
  const error = await download(t, join(top, "to"), Buffer.concat([begin, directory("t"), file("t/x", "x"), end(2)]));
  assert.match((error as Error).message, /not everything was copied/);
  assert.deepEqual(readdirSync(join(top, "outside")), []);
  symlinkSync(join(top, "outside"), join(top, "link"));
  assert.equal(await download(t, join(top, "link"), Buffer.concat([begin, file("t", "x", undefined, 0o4755), end(1)])), undefined);
  assert.equal(readFileSync(join(top, "outside/t"), "utf8"), "x");
  writeFileSync(join(top, "outside/t"), "old");
  const late = await download(t, join(top, "outside"), Buffer.concat([begin, file("t", "new").subarray(0, -512)]));
  assert.match((late as Error).message, /ends too early/);
  assert.equal(readFileSync(join(top, "outside/t"), "utf8"), "old", "half a file has taken the place of a whole one");
});
