/** What the adapters for harnesses share. */

import assert from "node:assert/strict";
import { mkdirSync, readFileSync, realpathSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { Workspace, resolve, textOf, type Connect, type WorkspaceOptions } from "../src/adapters/workspace.js";
import { connect, NotFoundError, PermissionDeniedError, UsageError } from "../src/node/index.js";
import { client, Proxy, serve, type Ends } from "./rig.js";

const to = (url: string): Connect => (session) => connect(url, session);

function workspace(t: Ends, from: Connect, options?: WorkspaceOptions): Workspace {
  const made = new Workspace(from, "test", options);
  t.after(() => made.close());
  return made;
}

const timeout = 120_000;

test("paths", () => {
  for (const [cwd, path, want] of [
    ["/w", "a/b", "/w/a/b"], ["/w", "/a//b/", "/a/b"], ["/w", "../../../a", "/a"], ["/", ".", "/"], ["/w", "", "/w"], ["/w", "./a/../b", "/w/b"],
  ] as const) assert.equal(resolve(cwd, path), want);
  assert.throws(() => resolve("/w", 1 as never), UsageError);
  assert.equal(textOf(new TextEncoder().encode("abcde"), 7, 6), "abc\n[7 bytes are left out here]\nde");
});

test("options that cannot be", () => {
  const from = to("ws://127.0.0.1:1");
  for (const options of [{ existing: true }, { cwd: "w" }, { timeoutMs: -1 }, { maxOutput: "x" }, { sandboxes: {} }]) {
    assert.throws(() => new Workspace(from, "test", options as WorkspaceOptions), UsageError, JSON.stringify(options));
  }
});

test("commands and files", { timeout }, async (t) => {
  const { url, home } = await serve(t);
  const w = workspace(t, to(url), { cwd: join(home, "new/w"), env: { A: "1", B: "1" } });
  const { cwd } = await w.open();
  assert.equal(cwd, join(home, "new/w"));
  const ran = await w.shell('pwd; echo "$A$B" >&2; cat; kill -9 $$', { env: { B: "2", C: undefined }, input: "in" });
  assert.deepEqual([ran.exitCode, ran.text, ran.errorText], [137, `${cwd}\nin`, "12\n"]);

  await w.write("a/b.txt", "x");
  assert.equal(readFileSync(join(cwd, "a/b.txt"), "utf8"), "x");
  assert.deepEqual([await w.remove("a/b.txt"), await w.remove("a/b.txt"), await w.remove("no/thing")], [true, false, false]);
  await assert.rejects(w.shell("true", { cwd: "none" }), (error: unknown) => error instanceof NotFoundError && error.what === "cwd");
  assert.match(await w.description(), new RegExp(`start in ${cwd}`));
});

test("a child in the background delays nothing, and goes on", { timeout }, async (t) => {
  const { url, home } = await serve(t);
  const w = workspace(t, to(url), { timeoutMs: 60_000 });
  const ran = await w.shell("mkfifo f done; (read x <f; echo $x >g; echo >done) & echo started");
  assert.equal(ran.text, "started\n");
  await w.shell("echo later >f; read x <done");
  assert.equal(readFileSync(join(home, "g"), "utf8"), "later\n");
});

test("too long, too much, and given up", { timeout }, async (t) => {
  const { url } = await serve(t);
  const w = workspace(t, to(url), { maxOutput: 100 });
  const late = await w.shell("echo begun; exec sleep 1000", { timeoutMs: 1000 });
  assert.deepEqual([late.timedOut, late.exitCode], [true, 137]);
  assert.match(late.text, /^(begun\n)?$/); // it may not have begun by then
  const much = await w.shell("seq 1000");
  assert.equal(much.stdout.length, 100);
  assert.equal(much.stdoutOmitted, 3893 - 100);
  let all = "";
  const seen = await w.shell("seq 1000", { onOutput: (_, data) => (all += new TextDecoder().decode(data)) });
  assert.deepEqual([all.length, seen.stdoutOmitted], [3893, 3793]);

  const stop = new AbortController();
  const given = w.shell("echo $$; exec sleep 1000", { signal: stop.signal, onOutput: () => stop.abort(new Error("enough")) });
  await assert.rejects(given, /^Error: enough$/);
  const { agent } = await w.open();
  while ((await agent.processes()).some(({ exited }) => !exited)) await agent.run(["true"]); // it is being killed
  await assert.rejects(w.shell("true", { signal: AbortSignal.abort(new Error("before")) }), /before/);
});

test("a policy holds for commands and for files", { timeout }, async (t) => {
  const { url, home } = await serve(t);
  mkdirSync(join(home, "w/sub"), { recursive: true });
  writeFileSync(join(home, "w/key.pem"), "k");
  writeFileSync(join(home, "out"), "o");
  symlinkSync(join(home, "out"), join(home, "w/link"));
  const w = workspace(t, to(url), { cwd: join(home, "w"), sandbox: { workspace: ".", deny: ["*.pem", join(home, "out")] } });
  assert.equal((await w.shell("echo x >a && cat a", { cwd: "sub" })).text, "x\n");
  // Paths and patterns start at the working directory, not at that of the command.
  assert.notEqual((await w.shell("cat ../key.pem", { cwd: "sub" })).exitCode, 0);
  const { files } = await w.open();
  await w.write("sub/b", "y");
  assert.equal(await files.readText(join(home, "w/sub/b")), "y");
  await assert.rejects(files.read(join(home, "w/key.pem")), PermissionDeniedError);
  await assert.rejects(w.write("link", "x"), PermissionDeniedError);
  assert.equal(readFileSync(join(home, "out"), "utf8"), "o");
  assert.match(await w.description(), /Only .*\/w and temporary folders can be written. There is no network. .* ends with it.$/);
});

test("the session is found again, and one that is gone is not made again", { timeout }, async (t) => {
  const { url } = await serve(t);
  const proxy = await Proxy.start(t, url);
  const w = workspace(t, (session) => connect(proxy.url, { ...session, recoveryTimeoutMs: 1 }), { session: "one" });
  const { agent } = await w.open();
  assert.deepEqual(w.ref, { session: "one" });
  proxy.cut();
  await agent.ended; // it did not come back in time
  assert.equal((await w.shell("echo again")).text, "again\n");
  const other = await client(t, url);
  const sessionId = (await other.sessions.list())[0]?.sessionId as string;
  const ended = (await w.open()).agent.ended;
  await other.sessions.end(sessionId);
  await ended;
  await assert.rejects(w.shell("true"), /unknown session name one/);
  await assert.rejects(workspace(t, to(url), { session: "two", existing: true }).open(), /unknown session name two/);
  await w.close();
  await assert.rejects(w.shell("true"), /the adapter was closed/);
});

test("a change is made again if its answer is lost", { timeout }, async (t) => {
  const { url, home } = await serve(t);
  const proxy = await Proxy.start(t, url);
  const w = workspace(t, to(proxy.url));
  await w.open();
  // Each time the answer is cut off, so the agent has made the change.
  const loseOne = (): void => {
    let lost = false;
    proxy.passes = (from) => (from === "server" && !lost ? ((lost = true), 0) : undefined);
  };
  loseOne();
  await w.write("d/f", "content");
  assert.equal(readFileSync(join(home, "d/f"), "utf8"), "content");
  loseOne();
  assert.equal(await w.remove("d/f"), true);
  loseOne();
  await w.shell("echo once >>ran"); // its start is made again, too, and the agent knows it
  assert.equal(readFileSync(join(home, "ran"), "utf8"), "once\n");
  // A command that runs is followed over the next connection.
  const direct = await client(t, url);
  await direct.run(["mkfifo", "f"]);
  let released: Promise<unknown> | undefined;
  const ran = await w.shell("echo before; read x <f; echo after $x", {
    onOutput: (_, data) => {
      if (!new TextDecoder().decode(data).startsWith("before")) return;
      proxy.cut();
      released = direct.shell("echo now >f");
    },
  });
  await released;
  assert.equal(ran.text, "before\nafter now\n");
});

test("a working directory is one without links", { timeout }, async (t) => {
  const { url, home } = await serve(t);
  mkdirSync(join(home, "real"));
  symlinkSync("real", join(home, "link"));
  const agent = await client(t, url);
  const w = new Workspace(agent, "test", { cwd: join(home, "link") });
  assert.equal((await w.open()).cwd, realpathSync(join(home, "real")));
  await w.close();
  assert.equal(await agent.status(), "ready"); // it is not the workspace's
  assert.throws(() => new Workspace(agent, "test", { session: "s" }), UsageError);
});

test("a stream that is not taken to its end is cancelled", { timeout }, async (t) => {
  const { url, home } = await serve(t);
  const w = workspace(t, to(url));
  await w.open();
  writeFileSync(join(home, "file"), "");
  const large = new Uint8Array(33 << 20);
  const source = (pieces: readonly Uint8Array[]): { stream: ReadableStream<Uint8Array>; cancelled: Promise<unknown> } => {
    const left = [...pieces];
    let stream!: ReadableStream<Uint8Array>;
    const cancelled = new Promise((cancel) => {
      stream = new ReadableStream({
        pull: (controller) => {
          const piece = left.shift();
          if (piece === undefined) return new Promise(() => {}); // nothing more ever comes
          return controller.enqueue(piece);
        },
        cancel,
      });
    });
    return { stream, cancelled };
  };
  for (const pieces of [[], [large]]) {
    const stop = new AbortController();
    const { stream, cancelled } = source(pieces);
    const writing = w.write(`of ${pieces.length}`, stream, { signal: stop.signal });
    stop.abort(new Error("enough"));
    await assert.rejects(writing, /enough/);
    assert.match(String(await cancelled), /enough/);
  }
  const { stream, cancelled } = source([large]);
  await assert.rejects(w.write("file/below", stream));
  await cancelled;
});

test("a signal ends the waiting for a connection", { timeout }, async () => {
  let dialled!: () => void;
  const dialling = new Promise<void>((resolve) => (dialled = resolve));
  const w = new Workspace(() => (dialled(), new Promise(() => {})), "test");
  await assert.rejects(w.shell("true", { signal: AbortSignal.abort(new Error("before")) }), /before/);
  const stop = new AbortController();
  const calls = [w.shell("true", { signal: stop.signal }), w.write("f", "x", { signal: stop.signal }), w.remove("f", { signal: stop.signal })];
  await dialling;
  stop.abort(new Error("enough"));
  for (const call of calls) await assert.rejects(call, /enough/);
});

test("a session that another client has taken is left to it", { timeout }, async (t) => {
  const { url } = await serve(t);
  const first = workspace(t, to(url), { session: "one" });
  const { agent } = await first.open();
  const second = workspace(t, to(url), { session: "one", existing: true });
  await second.open();
  await agent.ended;
  for (const call of [first.shell("true"), first.end(), first.write("f", "x")]) await assert.rejects(call, /taken by another client/);
  assert.equal((await second.shell("echo here")).text, "here\n");
});
