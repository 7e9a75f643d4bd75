/** Servers that lie, flood or are silent: the error names what was wrong, nothing hangs, and no data is wrong. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import type { Socket } from "node:net";
import { Duplex } from "node:stream";
import { describe, test, type TestContext } from "node:test";
import { connect as connectPlain } from "../src/index.js";
import { AgentError, connect, NotFoundError, ServerError, webSocket, type Agent, type HttpResponse, type UnsupportedError, type NodeAgent, type NodeOptions, type Process } from "../src/node/index.js";
import { upgrade } from "../src/node/websocket.js";
import { REPEAT_OF } from "../src/wire.js";
import "./rig.js";
import { info, Refusal, Scripted, silence, type Answer, type Link } from "./scripted.js";

const quick: NodeOptions = { recoveryTimeoutMs: 300 };

async function meet(t: TestContext, script: Record<string, Answer> = {}, options: NodeOptions = quick): Promise<{ server: Scripted; agent: NodeAgent }> {
  const server = await Scripted.start(t, script);
  const agent = await connect(server.url, options);
  t.after(() => agent.close());
  return { server, agent };
}

const base64 = (text: string): string => Buffer.from(text).toString("base64");
type Told = [kind: "output" | "exited" | "closed", seq: number, what?: string | number];

function tell(link: Link, id: string, ...events: Told[]): void {
  for (const [kind, seq, what] of events) {
    const more = kind === "output" ? { stream: "stdout", chunk: base64(String(what)) } : kind === "exited" ? { exitCode: what, sandboxDenied: false } : {};
    link.notify(`process/${kind}`, { processId: id, seq, ...more });
  }
}

async function output(process: Process): Promise<{ text: string; error?: AgentError; exitCode?: number }> {
  let text = "";
  try {
    for await (const event of process) if (event.type === "output") text += Buffer.from(event.data).toString();
    return { text, exitCode: (await process.wait()).exitCode };
  } catch (error) {
    assert.ok(error instanceof AgentError, String(error));
    return { text, error };
  }
}

// What is true is that p prints one, two and three, and exits with 7.
const truth: Told[] = [["output", 1, "one"], ["output", 2, "two"], ["output", 3, "three"], ["exited", 4, 7], ["closed", 5]];
const [one, two, three, exit, closed] = truth as [Told, Told, Told, Told, Told];
const answerRead = (rest: object): Answer => ({ params }) =>
  params["processId"] === "p"
    ? { chunks: [], nextSeq: 2, exited: false, exitCode: null, closed: false, failure: null, sandboxDenied: false, ...rest }
    : { chunks: [], nextSeq: 1, exited: false, exitCode: null, closed: false, failure: null, sandboxDenied: false };

describe("events", { concurrency: 8 }, () => {
  for (const [name, told, want] of [
    ["as they are", truth, "right"],
    ["in another order", [closed, two, exit, one, three], "right"],
    ["twice", [one, two, two, three, exit, closed, closed], "right"],
    ["twice, and different", [one, ["output", 1, "ONE"], two, three, exit, ["exited", 4, 8], closed], "right"],
    ["from the beginning again", [one, two, three, one, two, exit, closed], "right"],
    ["behind the last one", [...truth, ["output", 6, "more"], ["exited", 7, 9]], "right"],
    ["with the number 0", [["output", 0, "zero"], ...truth], "right"],
    ["with a jump", [one, ["output", 2 ** 40, "far"], two, three], "LOST_PROCESS"],
    ["with an end too early", [one, ["closed", 2]], "PROTOCOL"],
    ["with two exits", [one, two, three, exit, ["exited", 5, 8], ["closed", 6]], "PROTOCOL"],
  ] as [string, Told[], string][]) {
    test(`come ${name}`, { timeout: 30_000 }, async (t) => {
      // The server keeps nothing, and says that nothing else has come.
      const { server, agent } = await meet(t, { "process/read": answerRead({}) });
      const p = await agent.spawn(["x"], { id: "p" });
      tell(server.link, "p", ...told);
      const { text, error, exitCode } = await output(p).catch((error: unknown) => ({ text: "", error: error as AgentError, exitCode: undefined }));
      if (want === "right") assert.deepEqual([text, error, exitCode], ["onetwothree", undefined, 7]);
      else {
        assert.equal(error?.code, want);
        assert.ok("onetwothree".startsWith(text), text);
      }
      assert.equal(await agent.status(), "ready");
    });
  }

  for (const [name, rest, want] of [
    ["nothing new", {}, "LOST_PROCESS"],
    ["a jump over what is missing", { nextSeq: 9 }, "GAP"],
    ["a failure", { failure: "gone" }, "LOST_PROCESS"],
    ["output of no stream", { chunks: [{ seq: 2, stream: "fourth", chunk: "eA==" }], nextSeq: 3 }, "LOST_PROCESS"],
    ["no list of chunks", { chunks: 7 }, "LOST_PROCESS"],
    ["chunks in another order", { chunks: [{ seq: 3, stream: "stdout", chunk: "eA==" }, { seq: 2, stream: "stdout", chunk: "eA==" }], nextSeq: 4 }, "LOST_PROCESS"],
    ["no base64", { chunks: [{ seq: 2, stream: "stdout", chunk: "!" }], nextSeq: 3 }, "LOST_PROCESS"],
  ] as [string, object, string][]) {
    test(`that are read have ${name}`, { timeout: 30_000 }, async (t) => {
      const { server, agent } = await meet(t, { "process/read": answerRead(rest) });
      const p = await agent.spawn(["x"], { id: "p" });
      tell(server.link, "p", one, three); // and so it asks for the second one
      const { text, error } = await output(p);
      assert.equal(text, "one");
      assert.equal(error?.code, want);
      assert.equal(await agent.status(), "ready");
      assert.equal(server.count("process/terminate"), 1, "the process is terminated");
    });
  }
});

test("a read that is aborted takes nothing", { timeout: 30_000 }, async (t) => {
  const { server, agent } = await meet(t);
  const [p, q] = [await agent.spawn(["x"], { id: "p" }), await agent.spawn(["x"], { id: "q" })];
  const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
  let [events, pieces] = ["", ""];
  const reader = (): ReadableStreamDefaultReader<Uint8Array> => q.stdout.getReader();
  for (let seq = 1; seq <= 100; seq++) {
    const enough = new AbortController();
    const event = p.events({ signal: enough.signal }).next();
    const reading = reader();
    const piece = reading.read();
    for (const id of ["p", "q"]) tell(server.link, id, ["output", seq, `${seq} `]);
    for (let i = 0; i < seq % 5; i++) await turn();
    enough.abort(new Error("enough"));
    reading.releaseLock();
    await event.then(({ value }) => (events += Buffer.from((value as { data: Uint8Array }).data).toString()), () => {});
    await piece.then(({ value }) => (pieces += Buffer.from(value as Uint8Array).toString()), () => {});
  }
  for (const id of ["p", "q"]) tell(server.link, id, ["exited", 101, 7], ["closed", 102]);
  for await (const event of p) if (event.type === "output") events += Buffer.from(event.data).toString();
  for await (const piece of q.stdout) pieces += Buffer.from(piece).toString();
  const all = Array.from({ length: 100 }, (_, i) => `${i + 1} `).join("");
  assert.deepEqual([events, pieces], [all, all]);
});

describe("a message ends the connection, and the error says why", { concurrency: 4 }, () => {
  const big = Buffer.alloc(0);
  for (const [name, say, want] of [
    ["no JSON", (link) => link.text("nonsense"), /no JSON: nonsense/],
    ["a list", (link) => link.text("[]"), /is an array/],
    ["null", (link) => link.text("null"), /is null/],
    ["an answer to nothing", (link) => link.send({ id: 4711, result: {} }), /answered 4711, which was not asked/],
    ["an answer again", (link) => link.send({ id: 1, result: { sessionId: "t" } }), /answered 1, which was not asked/],
    ["an answer with no id", (link) => link.send({ result: {} }), /without an id/],
    ["an error about no request", (link) => link.send({ id: -1, error: { code: -32600, message: "what\u001b[2J is that" } }), /not asked: what\\u001b\[2J is that/],
    ["a method that is no text", (link) => link.send({ method: 7 }), /the method of the server is a number/],
    ["a request with a strange id", (link) => link.send({ id: {}, method: "x" }), /an id that is no number and no text/],
    ["output of no stream", (link) => link.notify("process/output", { processId: "p", seq: 1, stream: "fourth", chunk: "eA==" }), /stream is "fourth"/],
    ["output without a number", (link) => link.notify("process/output", { processId: "p", stream: "stdout", chunk: "eA==" }), /process\/output\.seq is missing/],
    ["a negative number", (link) => link.notify("process/closed", { processId: "p", seq: -1 }), /seq is a number, and must be a whole/],
    ["a number that is not exact", (link) => link.text('{"method":"process/closed","params":{"processId":"p","seq":18446744073709551615}}'), /whole number from 0 to 2\^53-1/],
    ["no base64", (link) => link.notify("process/output", { processId: "p", seq: 1, stream: "stdout", chunk: "!" }), /chunk is a string, and must be base64/],
    ["params that are a list", (link) => link.text('{"method":"process/closed","params":[]}'), /process\/closed is an array/],
    ["an inherited member", (link) => link.text('{"method":"process/closed","params":{"__proto__":{"processId":"p","seq":1}}}'), /processId is missing/],
    ["changes at another place", (link) => link.notify("fs/changed", { watchId: "w", changes: [{ path: "http://x", kind: "created" }] }), /path is not a file: URI/],
    ["a question that is malformed", (link) => link.send({ id: 1, method: "network/policyRequest", params: { processId: 1 } }), /processId is a number/],
    ["brackets", (link) => link.text("[".repeat(1 << 18)), /no JSON/],
    ["very many brackets", (link) => link.text("[".repeat(60 << 20)), /more than 7864320 values/],
    ["very many values", (link) => link.text(`{"id":1,"result":[${"{},".repeat(300_000)}1]}`), /more than 262144 values/],
    ["very many commas in a text, and no JSON", (link) => link.text(`"${',["\\"'.repeat(1 << 20)}" 1`), /no JSON/],
    ["a binary message", (link) => link.frame(0x82, Buffer.from("{}")), /no text/],
    ["a message that is not UTF-8", (link) => link.frame(0x81, Buffer.from([0x22, 0xff, 0x22])), /not UTF-8/],
    ["a frame of 2^63 bytes", (link) => link.raw(Buffer.from([0x81, 127, 0x80, 0, 0, 0, 0, 0, 0, 0])), /9223372036854775808 bytes/],
    ["a message of parts that is too long", (link) => {
      link.frame(0x01, Buffer.alloc(40 << 20, 32));
      link.frame(0x00, Buffer.alloc(40 << 20, 32));
    }, /more than 67108864 bytes/],
    ["a masked frame", (link) => link.raw(Buffer.from([0x81, 0x80, 0, 0, 0, 0])), /masked/],
    ["a reserved bit", (link) => link.frame(0xc1, big), /reserved bit/],
    ["a kind of frame that does not exist", (link) => link.frame(0x83, big), /of the kind 3/],
    ["a part of nothing", (link) => link.frame(0x80, big), /part of no message/],
    ["a message inside another one", (link) => {
      link.frame(0x01, big);
      link.frame(0x81, big);
    }, /inside another one/],
    ["a part of a ping", (link) => link.frame(0x09, big), /control frame/],
    ["a ping that is too long", (link) => link.frame(0x89, Buffer.alloc(126)), /control frame/],
    ["a close with a reason", (link) => link.frame(0x88, Buffer.concat([Buffer.from([3, 240]), Buffer.from("go\u001b[31m away")])), /code 1008: go\\u001b\[31m away/],
  ] as [string, (link: Link) => void, RegExp][]) {
    test(name, { timeout: 30_000 }, async (t) => {
      const { server, agent } = await meet(t);
      const p = await agent.spawn(["x"], { id: "p" });
      server.upgrade = (link) => link.socket.destroy(); // nobody comes back
      say(server.link);
      const why = await agent.ended;
      assert.match(why.message, want);
      assert.equal(why.code, "DISCONNECTED");
      assert.doesNotMatch(why.message, /[\u0000-\u001f\u007f-\u009f]/, "a control character");
      await assert.rejects(p.wait(), { code: "DISCONNECTED" });
    });
  }
});

describe("an upgrade is refused", { concurrency: 8 }, () => {
  for (const [name, head, want] of [
    ["with a status", "HTTP/1.1 401 No\r\nContent-Length: 12\r\n\r\nwrong\u001b[2Jtok", /status 401: wrong\\u001b\[2Jtok/],
    ["by something else", "SSH-2.0-x\r\n\r\n", /no HTTP/],
    ["with another key", "HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n", /not the one that was asked for/],
    ["without an end", "x".repeat(20_000), /no WebSocket/],
  ] as [string, string, RegExp][]) {
    test(name, { timeout: 30_000 }, async (t) => {
      const server = await Scripted.start(t);
      server.upgrade = (link) => void link.raw(head);
      await assert.rejects(connect(server.url), (error: AgentError) => {
        assert.equal(error.code, "CONNECT");
        assert.match(error.message, want);
        assert.equal(error.retryable, false);
        return true;
      });
    });
  }
});

describe("silence", { concurrency: 8 }, () => {
  test("instead of an upgrade", { timeout: 30_000 }, async (t) => {
    const server = await Scripted.start(t);
    server.upgrade = () => {};
    await assert.rejects(connect(server.url, { connectTimeoutMs: 200 }), { code: "CONNECT", message: /within 200 ms/ });
    await assert.rejects(connect(server.url, { signal: AbortSignal.timeout(100) }), { name: "TimeoutError" });
  });

  test("instead of a handshake", { timeout: 30_000 }, async (t) => {
    const server = await Scripted.start(t, { initialize: () => silence });
    await assert.rejects(connect(server.url, { handshakeTimeoutMs: 200 }), { code: "HANDSHAKE_TIMEOUT", retryable: true });
    await assert.rejects(connect(server.url, { signal: AbortSignal.timeout(100) }), { name: "TimeoutError" });
  });

  // While output waits that nobody takes, the client reads only a bit more, now and then.
  for (const [name, taken] of [["and nothing waits", undefined], ["while nobody takes output", 0], ["while somebody takes output slowly", 5]] as [string, number | undefined][]) {
    for (const own of [true, false]) {
      test(`of a connection that is dead, ${name}, ${own ? "a WebSocket of ours" : "another WebSocket"}`, { timeout: 60_000 }, async (t) => {
        const server = await Scripted.start(t);
        const options = { recoveryTimeoutMs: 300, silenceTimeoutMs: 600 };
        const agent: Agent = own ? await connect(server.url, options) : await connectPlain(server.url, { ...options, webSocket });
        t.after(() => agent.close());
        const p = await agent.spawn(["x"], { id: "p" });
        server.answers["environment/status"] = () => silence;
        server.upgrade = (link) => link.socket.destroy(); // nobody comes back
        if (taken !== undefined) for (let seq = 1; seq <= 1000; seq++) tell(server.link, "p", ["output", seq, "x".repeat(4096)]);
        if (taken !== 0 && taken !== undefined) {
          const events = p.events();
          void (async () => {
            while (agent.state === "connected") {
              await events.next();
              await new Promise((resolve) => setTimeout(resolve, taken));
            }
          })().catch(() => {});
        }
        assert.match((await agent.ended).message, /has not said anything for 600 ms/);
      });
    }
  }

  test("of nobody who takes output: a server that answers pings stays", { timeout: 60_000 }, async (t) => {
    const { server, agent } = await meet(t, {}, { ...quick, silenceTimeoutMs: 300 });
    await agent.spawn(["x"], { id: "p" });
    const { link } = server;
    link.pongs = true;
    for (let seq = 1; seq <= 1000; seq++) tell(link, "p", ["output", seq, "x".repeat(4096)]);
    while (link.pings < 20 && agent.state === "connected") await new Promise((resolve) => setTimeout(resolve, 20));
    assert.deepEqual([agent.state, agent.generation], ["connected", 1]);
  });

  test("instead of answers: each call ends with its signal", { timeout: 30_000 }, async (t) => {
    const quiet: Record<string, Answer> = {};
    for (const method of Object.keys(REPEAT_OF)) if (method !== "initialize") quiet[method] = () => silence;
    const { agent } = await meet(t, quiet);
    const signal = AbortSignal.timeout(100);
    const calls = [
      agent.run(["x"], { signal }), agent.spawn(["x"], { signal }), agent.attach("p", { signal }), agent.processes({ signal }), agent.status({ signal }),
      agent.sessions.list({ signal }), agent.sessions.end("s", { signal }), agent.connectTo("tcp://h:1", { signal }), agent.call("environment/info", {}, { signal }),
      agent.http.request("GET", "http://h/", { signal }), agent.fs.read("/a", { signal }), agent.fs.write("/a", "", { signal }), agent.fs.open("/a", "read", { signal }),
      agent.fs.list("/a", { signal }), agent.fs.walk("/a", { signal }), agent.fs.watch("/a", { signal }), agent.fs.applyPatch("", { cwd: "/", signal }),
      agent.fs.mkdir("/a", { signal }), agent.fs.remove("/a", { signal }), agent.fs.rename("/a", "/b", { signal }), agent.fs.copy("/a", "/b", { signal }),
    ];
    for (const outcome of await Promise.allSettled(calls)) {
      assert.equal(outcome.status, "rejected");
      assert.equal((outcome.reason as Error).name, "TimeoutError");
    }
    await assert.rejects(agent.run(["x"], { timeoutMs: 50 }), { code: "TIMEOUT" });
    const left = assert.rejects(agent.run(["x"]), { code: "CLOSED" });
    await agent.close();
    await left;
  });
});

// By itself, because it replaces the timers of all tests.
test("silence instead of the end of what is closed or killed", { timeout: 60_000 }, async (t) => {
  const silent = { "fs/open": () => ({}), "fs/close": () => silence, "process/terminate": () => silence, "fs/watch": () => ({ path: "file:///a" }), "fs/unwatch": () => silence };
  const { agent } = await meet(t, silent);
  const [file, p, watch] = await Promise.all([agent.fs.open("/a"), agent.spawn(["x"]), agent.fs.watch("/a")]);
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const outcomes = Promise.all([
    assert.rejects(file.close(), { code: "TIMEOUT", message: /did not close \/a within 10000 ms/ }),
    assert.rejects(p.kill(), { code: "TIMEOUT", message: /process\/terminate within 10300 ms/ }),
    watch.close(),
    p[Symbol.asyncDispose](),
  ]);
  await new Promise((resolve) => setImmediate(resolve));
  t.mock.timers.tick(11_000);
  await outcomes;
  t.mock.timers.reset();
});

describe("floods", () => {
  test("of notifications that nobody knows", { timeout: 60_000 }, async (t) => {
    const { server, agent } = await meet(t);
    for (let i = 0; i < 20_000; i++) server.link.notify("no/such", { i });
    for (let i = 0; i < 20_000; i++) tell(server.link, "nobody", ["output", i, "x"]);
    assert.equal(await agent.status(), "ready");
  });

  test("of output: the server has to wait, and nothing is lost", { timeout: 120_000 }, async (t) => {
    const { server, agent } = await meet(t);
    const p = await agent.spawn(["x"], { id: "p" });
    const piece = "x".repeat(8192);
    const link = server.link;
    const before = process.memoryUsage().rss;
    let sent = 0;
    let full = false;
    while (sent < 20_000 && !full) {
      link.notify("process/output", { processId: "p", seq: ++sent, stream: "stdout", chunk: base64(piece) });
      if (sent % 100 === 0) {
        await new Promise((resolve) => setTimeout(resolve, 1));
        full = link.socket.writableLength > 8 << 20; // the kernel takes no more, because the client does not read
      }
    }
    assert.ok(full, "the client reads on and on");
    assert.ok(process.memoryUsage().rss - before < 300 << 20, `the memory grew by ${process.memoryUsage().rss - before}`);
    await assert.rejects(p.wait(), { code: "UNREAD" });
    const got = output(p);
    tell(link, "p", ["exited", ++sent, 0], ["closed", ++sent]);
    assert.equal((await got).text.length, (sent - 2) * piece.length);
  });

  test("of output on a pipe: a client that is closed meanwhile keeps nothing, and ends the program", { timeout: 60_000 }, async () => {
    // It does not end with its input, and ignores SIGTERM.
    const script = `
      process.on("SIGTERM", () => {});
      const say = (message) => process.stdout.write(JSON.stringify(message) + "\\n");
      let seq = 0;
      const flood = (processId, chunk) => {
        while (say({ method: "process/output", params: { processId, seq: ++seq, stream: "stdout", chunk } }));
        process.stdout.once("drain", () => flood(processId, chunk));
      };
      require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
        const { id, method, params } = JSON.parse(line);
        if (method === "initialize") say({ id, result: { sessionId: "s", environmentInfo: ${JSON.stringify(info)} } });
        if (method !== "process/start") return;
        say({ id, result: { processId: params.processId, sandboxType: "none" } });
        flood(params.processId, Buffer.alloc(65536).toString("base64"));
      });
      setInterval(() => {}, 1000);`;
    const agent = await connect({ command: [process.execPath, "-e", script] });
    const p = await agent.spawn(["x"]);
    await assert.rejects(p.wait(), { code: "UNREAD" });
    const before = process.memoryUsage().rss;
    await agent.close();
    const grown = process.memoryUsage().rss - before;
    assert.ok(grown < 100 << 20, `the memory grew by ${grown}`);
  });

  test("of questions", { timeout: 60_000 }, async (t) => {
    let asked = 0;
    const { server, agent } = await meet(t, {}, { ...quick, approveNetwork: () => (asked++, new Promise(() => {})) });
    for (let id = 0; id < 3000; id++) server.link.send({ id, method: "network/policyRequest", params: { processId: "p", request: { protocol: "http", host: "h", port: 80 } } });
    assert.equal(await agent.status(), "ready");
    assert.equal(asked, 1024);
  });

  test("of questions, by a server that does not read the answers", { timeout: 120_000 }, async (t) => {
    const { server, agent } = await meet(t);
    const { socket } = server.link;
    socket.pause();
    const text = JSON.stringify({ id: 1, method: "x" });
    const some = Buffer.concat(Array<Buffer>(1000).fill(Buffer.concat([Buffer.from([0x81, text.length]), Buffer.from(text)])));
    const asking = new Promise<void>((resolve) => {
      socket.on("close", resolve);
      const more = (): void => void socket.write(some, (error) => error ?? more());
      more();
    });
    await asking; // the client has ended the connection
    while (agent.generation === 1) await agent.client.change();
    assert.equal(await agent.status(), "ready");
  });

  test("of pings, by a server that does not read the answers", { timeout: 30_000 }, async () => {
    const written: Buffer[] = [];
    let taken: (() => void) | undefined; // takes what was written first, and all that follows
    const stream = Object.assign(new Duplex({
      read: () => {},
      write: (bytes: Buffer, _, done) => {
        written.push(bytes);
        if (!String(bytes).includes("HTTP") && taken === undefined) taken = done;
        else done();
      },
    }), { setNoDelay: () => {} }) as unknown as Socket;
    const opening = upgrade(stream, { host: "h", path: "/", headers: {} }, { message: () => {}, closed: () => {} }, new AbortController().signal);
    const key = /Sec-WebSocket-Key: (\S+)/.exec(String(written[0]))?.[1] as string;
    const accept = createHash("sha1").update(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest("base64");
    stream.push(`HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`);
    await opening;
    const ping = (text: string): Buffer => Buffer.concat([Buffer.from([0x89, text.length]), Buffer.from(text)]);
    stream.push(Buffer.concat([...Array<Buffer>(100_000).fill(ping("")), ping("last")]));
    while (stream.readableLength > 0 || taken === undefined) await new Promise((resolve) => setImmediate(resolve));
    assert.ok(stream.writableLength < 128 << 10, `${stream.writableLength} bytes wait`);
    taken();
    while (stream.writableLength > 0 || written.at(-1)?.length !== 4) await new Promise((resolve) => setImmediate(resolve));
    const [head, content] = written.slice(-2) as [Buffer, Buffer];
    assert.equal(String(content.map((byte, i) => byte ^ (head[2 + i] as number))), "last");
    stream.destroy();
  });

  test("of bodies that nobody reads: one fails, and nothing else waits", { timeout: 60_000 }, async (t) => {
    const { server, agent } = await meet(t, { "http/request": () => ({ status: 200, headers: [], bodyBase64: "" }) });
    const open = async (): Promise<{ id: unknown; response: HttpResponse; seq: number }> => {
      const response = await agent.http.request("GET", "http://h/");
      return { id: server.link.requests.at(-1)?.params["requestId"], response, seq: 0 };
    };
    const send = (to: { id: unknown; seq: number }, times: number, bytes: number): void => {
      const deltaBase64 = Buffer.alloc(bytes, "x").toString("base64");
      for (let i = 0; i < times; i++) server.link.notify("http/request/bodyDelta", { requestId: to.id, seq: ++to.seq, deltaBase64, done: false });
    };
    const [unread, small, many] = [await open(), await open(), await open()];
    send(small, 3, 1000);
    send(unread, 14, 1 << 20);
    assert.equal(await agent.status(), "ready");
    send(many, 256, 4096);
    send(unread, 2, 1 << 20);
    assert.equal(await agent.status(), "ready");
    await assert.rejects(unread.response.bytes(), { code: "UNREAD", message: /16 MiB of HTTP bodies wait/ });
    send(many, 1, 4096);
    assert.equal(await agent.status(), "ready");
    await assert.rejects(many.response.bytes(), { code: "UNREAD", message: /256 pieces/ });
    server.link.notify("http/request/bodyDelta", { requestId: small.id, seq: ++small.seq, deltaBase64: "", done: true });
    assert.equal((await small.response.bytes()).length, 3000);
    assert.equal(agent.client.bodies.size, 0);
  });

  test("of pieces of a body that are too large", { timeout: 60_000 }, async (t) => {
    const { agent } = await meet(t, {
      "http/request": ({ params }, link) => {
        setImmediate(() => link.notify("http/request/bodyDelta", { requestId: params["requestId"], seq: 1, deltaBase64: Buffer.alloc(2 << 20).toString("base64"), done: false }));
        return { status: 200, headers: [], bodyBase64: "" };
      },
    });
    const response = await agent.http.request("GET", "http://h/");
    await assert.rejects(response.bytes(), { code: "PROTOCOL", message: /a piece of the body has 2097152 bytes/ });
    assert.equal(await agent.status(), "ready");
  });
});

test("questions: no answer is no, and so is an error", { timeout: 30_000 }, async (t) => {
  const sorted = (...all: unknown[]): unknown[] => all.sort((a, b) => JSON.stringify(a).localeCompare(JSON.stringify(b)));
  const answersOf = async (options: NodeOptions): Promise<unknown[]> => {
    const { server } = await meet(t, {}, { ...quick, ...options });
    server.link.send({ id: "n", method: "network/policyRequest", params: { processId: "p", request: { protocol: "http", host: "h", port: 80 } } });
    server.link.send({
      id: "c", method: "process/execApproval",
      params: { processId: "p", approvalId: "a", kind: "start", argv: ["x"], exe: "/x", cwd: "/", reason: "", matchedRules: [], afterSeq: 0, timeoutMs: 1000 },
    });
    server.link.send({ id: "u", method: "no/such", params: {} });
    while (server.link.replies.length < 3) await new Promise((resolve) => setTimeout(resolve, 5));
    return sorted(...server.link.replies.map(({ result }) => result ?? "error"));
  };
  assert.deepEqual(await answersOf({}), sorted("error", { decision: "decline" }, { decision: { type: "deny", reason: "this client decides nothing" } }));
  const fails = (): never => {
    throw new Error("oh");
  };
  assert.deepEqual(
    await answersOf({ approveNetwork: fails, approveCommand: fails }),
    sorted("error", { decision: "decline" }, { decision: { type: "deny", reason: "the client failed to decide: oh" } }),
  );
  assert.deepEqual(await answersOf({ approveNetwork: () => "yes" as never, approveCommand: () => "yes" as never }), sorted("error", { decision: "decline" }, { decision: { type: "deny", reason: "" } }));
  assert.deepEqual(
    await answersOf({ approveNetwork: async () => "allow" as const, approveCommand: async () => ({ acceptWithRule: ["x"] }) }),
    sorted("error", { decision: { acceptWithRule: { prefix: ["x"] } } }, { decision: { type: "allow" } }),
  );
});

test("what is repeated after a loss is what the contract allows", { timeout: 120_000 }, async (t) => {
  const patch = { output: "", changes: [], diff: "" };
  const calls: [string, unknown, (agent: NodeAgent) => Promise<unknown>][] = [
    ["session/list", { sessions: [] }, (agent) => agent.sessions.list()],
    ["process/start", { processId: "p", sandboxType: "none" }, (agent) => agent.spawn(["x"])],
    ["process/list", { processes: [] }, (agent) => agent.processes()],
    ["process/write", { status: "accepted" }, async (agent) => (await agent.spawn(["x"], { stdin: true })).write("x")],
    ["process/closeStdin", { status: "accepted" }, async (agent) => (await agent.spawn(["x"], { stdin: true })).closeStdin()],
    ["process/signal", {}, async (agent) => (await agent.spawn(["x"])).signal("interrupt")],
    ["process/resize", {}, async (agent) => (await agent.spawn(["x"], { tty: true })).resize(1, 1)],
    ["http/request", { status: 200, headers: [], bodyBase64: "" }, (agent) => agent.http.request("GET", "http://h/")],
    ["fs/writeFile", {}, (agent) => agent.fs.write("/a", "")],
    ["fs/createDirectory", {}, (agent) => agent.fs.mkdir("/a")],
    ["fs/getMetadata", { isDirectory: true, isFile: false, isSymlink: false, size: 0, createdAtMs: 0, modifiedAtMs: 0 }, (agent) => agent.fs.stat("/a")],
    ["fs/canonicalize", { path: "file:///a" }, (agent) => agent.fs.realpath("/a")],
    ["fs/readDirectory", { entries: [] }, (agent) => agent.fs.list("/a")],
    ["fs/getMetadataMany", { files: [] }, (agent) => agent.fs.statMany([]).then(() => agent.client.replay("fs/getMetadataMany", { paths: [] }, () => {}))],
    ["fs/search", { files: [], errors: [], filesRead: 0, binaryFiles: 0 }, (agent) => agent.fs.search("/a")],
    ["port/list", { ports: [] }, (agent) => agent.ports()],
    ["fs/walk", { entries: [], errors: [], truncated: false }, (agent) => agent.fs.walk("/a")],
    ["fs/remove", {}, (agent) => agent.fs.remove("/a")],
    ["fs/copy", {}, (agent) => agent.fs.copy("/a", "/b")],
    ["fs/rename", {}, (agent) => agent.fs.rename("/a", "/b")],
    ["fs/applyPatch", patch, (agent) => agent.fs.applyPatch("", { cwd: "/" })],
  ];
  for (const [method, result, call] of calls) {
    let first = true;
    const { server, agent } = await meet(t, {
      "process/read": answerRead({ nextSeq: 1 }),
      [method]: (_, link) => {
        if (!first) return result;
        first = false;
        link.socket.destroy();
        return silence;
      },
    }, {});
    const repeats = REPEAT_OF[method] !== "never";
    const outcome = await call(agent).then(() => undefined, (error: unknown) => error as AgentError);
    if (repeats) assert.equal(outcome, undefined, `${method}: ${String(outcome)}`);
    else assert.deepEqual([outcome?.code, (outcome as { sent?: boolean } | undefined)?.sent, outcome?.retryable], ["DISCONNECTED", true, false], method);
    assert.equal(server.count(method), repeats ? 2 : 1, method);
    await agent.close();
  }
});

test("a server without a feature is not asked for it", { timeout: 30_000 }, async (t) => {
  const { server, agent } = await meet(t, { initialize: () => ({ sessionId: "s", environmentInfo: { ...info, capabilities: {} } }) });
  const p = await agent.spawn(["x"], { stdin: true });
  const calls = [
    agent.spawn(["x"], { tty: { rows: 1, cols: 1 } }), agent.spawn(["x"], { sandbox: { network: {} } }), agent.spawn(["x"], { execPolicy: {} }),
    agent.run(["x"], { input: "x" }), p.closeStdin(), p.signal("kill"), p.resize(1, 1), agent.processes(), agent.sessions.list(), agent.sessions.end("s"),
    agent.sessions.observe("s").processes(), agent.fs.rename("/a", "/b"), agent.fs.applyPatch("", { cwd: "/" }), agent.fs.watch("/a"), agent.connectTo("tcp://h:1"),
    agent.forward(1), agent.fs.open("/a", "write"), agent.fs.under({}).open("/a"), agent.fs.write("/a", new Uint8Array(33 << 20)), agent.upload("/etc/hostname", "/a"),
    agent.spawn(["x"], { maxOutput: "1k" }), agent.run(["x"], { memory: "1g" }), agent.run(["x"], { cpus: 1 }), agent.run(["x"], { pids: 1 }),
    agent.run(["x"], { fileSize: 1 }), agent.run(["x"], { user: "nobody" }), agent.fs.write("/a", "", { mode: 0o600 }), agent.fs.write("/a", "", { parents: true }),
    agent.fs.write("/a", "", { exclusive: true }), agent.fs.write("/a", "", { atomic: true }), agent.fs.stat("/a", { follow: false }),
    agent.fs.statMany(["/a"], { follow: false }), agent.fs.list("/a", { follow: false }), agent.fs.realpath("/a", { missingOk: true }), agent.fs.search("/a"),
    agent.ports(), agent.watchPorts(),
  ];
  for (const [i, outcome] of (await Promise.allSettled(calls)).entries()) {
    assert.equal(outcome.status, "rejected", `call ${i}`);
    assert.equal((outcome.reason as AgentError).code, "UNSUPPORTED", `call ${i}: ${String(outcome.reason)}`);
    const { flag, message } = outcome.reason as UnsupportedError;
    assert.ok(message.includes(`(${flag})`), message);
  }
  assert.deepEqual(server.link.requests.map(({ method }) => method), ["initialize", "process/start"]);
  await assert.rejects(connect(server.url, { sessionName: "x" }), { code: "UNSUPPORTED", flag: "namedSessions" });
});

test("a server without bounds: this client kills and cuts, and asks for each file", { timeout: 30_000 }, async (t) => {
  const found = { isDirectory: false, isFile: true, isSymlink: false, size: 7, createdAtMs: 0, modifiedAtMs: 0 };
  const { server, agent } = await meet(t, {
    "process/terminate": ({ params }, link) => {
      tell(link, String(params["processId"]), ["exited", 1, 137], ["closed", 2]);
      return { running: true };
    },
    "fs/getMetadata": ({ params }) => (params["path"] === "file:///7" ? found : new Refusal(-32004, "No such file or directory (os error 2)")),
  });
  const killed = await agent.run(["x"], { killAfterMs: 50 });
  assert.deepEqual([killed.timedOut, killed.exitCode], [true, 137]);
  const p = await agent.spawn(["x"], { killAfterMs: 50 });
  assert.deepEqual([(await p.wait()).timedOut, (await p.exited).signal], [true, 9]);
  // What a process has left behind is ended, too, and is not the process.
  const left = await agent.spawn(["x"], { id: "left", killAfterMs: 50 });
  const before = server.count("process/terminate");
  server.answers["process/terminate"] = () => {
    tell(server.link, "left", ["closed", 2]);
    return { running: false };
  };
  tell(server.link, "left", ["exited", 1, 0]);
  assert.deepEqual([(await left.wait()).timedOut, server.count("process/terminate") - before], [false, 1]);

  const running = agent.run(["x"], { id: "p", maxOutput: 7 });
  while (!server.link.requests.some(({ params }) => params["processId"] === "p")) await new Promise((resolve) => setImmediate(resolve));
  tell(server.link, "p", ["output", 1, "ab"], ["output", 2, "cdefgh"], ["output", 3, "ij"], ["output", 4, "klmn"], ["exited", 5, 0], ["closed", 6]);
  const { text, stdoutOmitted, stdoutTruncated, stderrTruncated, timedOut } = await running;
  assert.deepEqual([text, stdoutOmitted, stdoutTruncated, stderrTruncated, timedOut], ["abcdlmn", 7, true, false, false]);
  assert.deepEqual(server.link.requests.filter(({ params }) => "timeoutMs" in params || "maxOutputBytes" in params || "details" in params), []);

  for (const most of [0, 1, 4999, 50_000, 1_000_000]) {
    const printing = agent.run(["x"], { id: `of-${most}`, maxOutput: most });
    while (!server.link.requests.some(({ params }) => params["processId"] === `of-${most}`)) await new Promise((resolve) => setImmediate(resolve));
    let all = "";
    for (let seq = 1; seq <= 2000; seq++) {
      const piece = `${seq} `.repeat(seq % 100 === 0 ? 1000 : 1);
      all += piece;
      tell(server.link, `of-${most}`, ["output", seq, piece]);
    }
    tell(server.link, `of-${most}`, ["exited", 2001, 0], ["closed", 2002]);
    const { text, stdoutOmitted } = await printing;
    const want = all.length <= most ? all : all.slice(0, Math.ceil(most / 2)) + (most < 2 ? "" : all.slice(-Math.floor(most / 2)));
    assert.ok(text === want, `${most}: ${text.length} bytes, and not ${want.length}`);
    assert.equal(stdoutOmitted, all.length - want.length);
  }

  const paths = Array.from({ length: 100 }, (_, i) => `/${i}`);
  const stats = await agent.fs.statMany(paths);
  assert.deepEqual(stats.map((one) => (one instanceof ServerError ? one.errno : one.size)), paths.map((path) => (path === "/7" ? 7 : 2)));
  assert.ok(stats[9] instanceof NotFoundError && stats[9].message.startsWith("/9: "));
});

test("output that the agent has cut", { timeout: 30_000 }, async (t) => {
  const { server, agent } = await meet(t, { initialize: () => ({ sessionId: "s", environmentInfo: { ...info, capabilities: { processMaxOutput: true, processTimeout: true } } }) });
  const say = (id: string, from: number): void => {
    const out = (seq: number, chunk: string, omitted?: number): void => server.link.notify("process/output", { processId: id, seq, stream: "stdout", chunk: base64(chunk), omitted });
    out(from, "abc");
    out(from + 1, "", 5);
    out(from + 2, "xyz", 4);
    server.link.notify("process/exited", { processId: id, seq: from + 3, exitCode: 137, timedOut: true, outOfMemory: true });
    tell(server.link, id, ["closed", from + 4]);
  };
  const run = agent.run(["x"], { id: "p", maxOutput: 6, killAfterMs: 1500.4 });
  while (server.count("process/start") < 1) await new Promise((resolve) => setImmediate(resolve));
  say("p", 1);
  const result = await run;
  assert.deepEqual([result.text, result.stdoutOmitted, result.stderrOmitted, result.timedOut, result.outOfMemory], ["abcxyz", 9, 0, true, true]);
  const params = server.link.requests.at(-1)?.params;
  assert.deepEqual([params?.["maxOutputBytes"], params?.["timeoutMs"]], [6, 1500]);
  const [events, pieces] = [await agent.spawn(["x"], { id: "q", maxOutput: 6 }), await agent.spawn(["x"], { id: "r", maxOutput: 6 })];
  say("q", 1);
  say("r", 1);
  const seen: unknown[] = [];
  for await (const event of events) if (event.type === "output") seen.push([Buffer.from(event.data).toString(), event.omitted]);
  assert.deepEqual(seen, [["abc", 0], ["", 5], ["xyz", 4]]);
  for await (const piece of pieces.stdout) assert.ok(piece.length > 0);
  const { timedOut, outOfMemory } = await pieces.wait();
  assert.deepEqual([timedOut, outOfMemory], [true, true]);
});

test("ports: what a server tells is what there is", { timeout: 30_000 }, async (t) => {
  const port = (number: number, pid?: number): object => ({ port: number, address: "::", uid: 0, pid, program: "x" });
  let now: unknown = [port(80, 1), port(22, 2)];
  const { server, agent } = await meet(t, {
    initialize: () => ({ sessionId: "s", environmentInfo: { ...info, capabilities: { ports: true } } }),
    "port/list": () => ({ ports: now, truncated: true }),
    "port/watch": ({ id, params }, link) => {
      // What comes behind the answer, in the same piece, is about this list.
      link.socket.cork();
      link.send({ id, result: { ports: now } });
      link.notify("port/changed", { watchId: params["watchId"], opened: [port(8080, 3)], closed: [port(22, 2)] });
      link.socket.uncork();
      return silence;
    },
    "port/unwatch": () => ({}),
  }, {});
  assert.deepEqual(await agent.ports(), { ports: [{ port: 80, address: "::", uid: 0, pid: 1, program: "x" }, { port: 22, address: "::", uid: 0, pid: 2, program: "x" }], truncated: true });
  const watch = await agent.watchPorts();
  const next = async (): Promise<number[][]> => {
    const { opened, closed } = await watch.next();
    return [opened.map(({ port }) => port), closed.map(({ port }) => port)];
  };
  assert.deepEqual(await next(), [[80, 8080], []]);
  server.link.notify("port/changed", { watchId: watch.id, opened: [port(9, 5)], closed: [] });
  server.link.notify("port/changed", { watchId: watch.id, opened: [], closed: [port(9, 5)] });
  const enough = AbortSignal.timeout(50);
  await assert.rejects(watch.next({ signal: enough }), { name: "TimeoutError" }); // nothing is different
  server.link.notify("port/changed", { watchId: watch.id, opened: [port(80, 4)], closed: [port(80, 1)] });
  assert.deepEqual(await next(), [[80], [80]], "another process");
  now = [port(80, 4), port(443)];
  server.link.socket.destroy();
  assert.deepEqual(await next(), [[443], []], "after a lost connection");
  const waiting = assert.rejects(watch.next(), { code: "CLOSED" });
  await watch.close();
  await waiting;
  while (server.count("port/unwatch") === 0) await new Promise((resolve) => setImmediate(resolve)); // perhaps it is still being resumed
  await agent.status();
  assert.equal(server.count("port/unwatch"), 1);
  assert.deepEqual([agent.client.portWatches.size, agent.client.lasting.size], [0, 0]);
  for (const [bad, want] of [[[port(70_000)], /ports\[0\]\.port is 70000/], [[{ port: 1 }], /address is missing/], [7, /must be an array/]] as [unknown, RegExp][]) {
    now = bad;
    await assert.rejects(agent.ports(), { code: "PROTOCOL", message: want });
    await assert.rejects(agent.watchPorts(), { code: "PROTOCOL", message: want });
  }
  now = [];
  const flooded = await agent.watchPorts();
  server.link.notify("port/changed", { watchId: flooded.id, opened: Array.from({ length: 20_000 }, (_, i) => port(1, i)), closed: [] });
  await assert.rejects(async () => {
    for await (const news of flooded) assert.ok(news.opened.length > 0);
  }, { code: "PROTOCOL", message: /more than 16384 ports/ });
});

test("files: an answer has to be about what was asked for", { timeout: 30_000 }, async (t) => {
  const answers: Record<string, unknown> = {};
  const capabilities = { fsMetadata: true, fsReadDirectoryLstat: true, fsSearch: true, fsWriteOptions: true };
  const { server, agent } = await meet(t, {
    initialize: () => ({ sessionId: "s", environmentInfo: { ...info, capabilities } }),
    ...Object.fromEntries(["fs/getMetadata", "fs/getMetadataMany", "fs/readDirectory", "fs/search", "fs/writeFile"].map((method) => [method, () => answers[method]])),
  });
  const one = { isDirectory: false, isFile: true, isSymlink: false, size: 1, createdAtMs: 0, modifiedAtMs: 0, type: "somethingNew", mode: 0o644 };
  answers["fs/getMetadata"] = one;
  assert.deepEqual([(await agent.fs.stat("/a")).type, (await agent.fs.stat("/a")).owner], ["somethingNew", undefined]);
  for (const [files, want] of [[[], /2 files were asked for, and 0 came/], [[{}, {}], /neither metadata nor an error/], [[{ metadata: one }, { error: { code: "x" } }], /files\[1\]\.error\.code/]] as [unknown, RegExp][]) {
    answers["fs/getMetadataMany"] = { files };
    await assert.rejects(agent.fs.statMany(["/a", "/b"]), { code: "PROTOCOL", message: want });
  }
  answers["fs/getMetadataMany"] = { files: Array.from({ length: 1024 }, () => ({ metadata: one })) };
  const [before, asked] = [server.count("fs/getMetadataMany"), agent.fs.statMany(Array<string>(2048).fill("/a"))];
  assert.equal((await asked).length, 2048);
  assert.equal(server.count("fs/getMetadataMany") - before, 2);
  answers["fs/search"] = { files: [{ path: "file:///a", kind: "door" }], errors: [], filesRead: 0, binaryFiles: 0 };
  await assert.rejects(agent.fs.search("/"), { code: "PROTOCOL", message: /kind is "door"/ });
  answers["fs/search"] = { files: [], errors: [], filesRead: 0, binaryFiles: 0 };
  await agent.fs.search("/", { globs: "*.ts", before: 0, sandbox: {}, path: "file:///etc" } as never);
  assert.deepEqual(server.link.requests.at(-1)?.params, { path: "file:///", globs: ["*.ts"], before: 0 });
  for (const [content, options] of [["", { mode: 0o1777 }], ["", { mode: -1 }], ["", { mode: 1.5 }], [new Uint8Array(33 << 20), { atomic: true }], [new Blob(["x"]).stream(), { parents: true }]] as const) {
    await assert.rejects(agent.fs.write("/a", content, options), { code: "USAGE" });
  }
  assert.equal(server.count("fs/writeFile"), 0);
});

test("a directory has very many entries", { timeout: 30_000 }, async (t) => {
  const { agent } = await meet(t, { "fs/readDirectory": () => ({ entries: Array.from({ length: 100_000 }, (_, n) => ({ fileName: String(n), isDirectory: false, isFile: true })) }) });
  assert.equal((await agent.fs.list("/a")).length, 100_000);
});

test("a handshake that lies", { timeout: 30_000 }, async (t) => {
  for (const [result, options, want] of [
    [{}, {}, /sessionId is missing/],
    [{ sessionId: "" }, {}, /without a session/],
    [{ sessionId: "other" }, { sessionId: "mine" }, /another session: other/],
    ["text", {}, /is a string/],
    [{ sessionId: "s", session: { name: "b", created: true, retainMs: 1 } }, { sessionName: "a" }, /session b instead of a/],
  ] as [unknown, NodeOptions, RegExp][]) {
    const server = await Scripted.start(t, { initialize: () => result });
    await assert.rejects(connect(server.url, options), { code: "PROTOCOL", message: want });
  }
});

test("a command that does not start, and one with a word that there is not", { timeout: 30_000 }, async (t) => {
  let what: unknown = "program";
  const { server, agent } = await meet(t, { "process/start": () => new Refusal(-32603, "No such file or directory (os error 2)", { errno: 2, what }) });
  await assert.rejects(agent.run(["no\u001bne"], { cwd: "/w" }), { code: "NOT_FOUND", message: "no\\u001bne: No such file or directory (os error 2) (-32603)" });
  what = "cwd";
  await assert.rejects(agent.run(["x"], { cwd: "/w" }), { code: "NOT_FOUND", message: "/w: No such file or directory (os error 2) (-32603)" });
  what = "constructor";
  await assert.rejects(agent.run(["x"]), { message: "No such file or directory (os error 2) (-32603)" });

  const asked = server.link.requests.length;
  for (const [call, name] of [
    [agent.run(["x"], { sandbx: {} } as object), "sandbx"], [agent.spawn(["x"], { Sandbox: {} } as object), "Sandbox"], [agent.shell("x", { stdin: true } as object), "stdin"],
  ] as [Promise<unknown>, string][]) {
    await assert.rejects(call, (error: AgentError) => error.code === "USAGE" && error.message.startsWith(`a command has ${name}, and can only have `));
  }
  assert.equal(server.link.requests.length, asked);
});

test("errors of the server", { timeout: 30_000 }, async (t) => {
  let refusal = new Refusal(-32603, "x");
  const { agent } = await meet(t, { "fs/getMetadata": () => refusal });
  for (const [code, message, data, want] of [
    [-32004, "no", undefined, { code: "NOT_FOUND", errno: undefined }],
    [-32603, "No such file or directory (os error 2)", undefined, { code: "NOT_FOUND", errno: 2, errnoName: "ENOENT" }],
    [-32600, "Permission denied (os error 13)", undefined, { code: "PERMISSION_DENIED", errno: 13 }],
    [-32603, "it went wrong", { errno: 28 }, { code: "REFUSED", errno: 28, errnoName: "ENOSPC" }],
    [-32603, "gone (os error 5)", { errno: 2, name: "ENOENT", what: "program", kind: "spawnNotFound" }, { code: "NOT_FOUND", errno: 2, errnoName: "ENOENT", what: "program", kind: "spawnNotFound" }],
    [-32603, "x (os error 5)", { errno: "2", name: 7, what: ["x"], kind: "a\u001b[2J" }, { errno: 5, errnoName: "EIO", what: undefined, kind: "a\\u001b[2J" }],
    [-32600, "no", { reason: "execPolicy" }, { code: "REFUSED", reason: "execPolicy", retryable: false }],
    [-32603, "a\u001b]0;title\u0007b\u202ec", undefined, { message: "/a: a\\u001b]0;title\\u0007b\\u202ec (-32603)", text: "a\u001b]0;title\u0007b\u202ec" }],
    [-32603, "y".repeat(1 << 20), undefined, { text: "y".repeat(1 << 16) }],
    [-32603, "x", "text", { code: "REFUSED" }],
  ] as [number, string, unknown, object][]) {
    refusal = new Refusal(code, message, data);
    await assert.rejects(agent.fs.stat("/a"), want);
  }
});
