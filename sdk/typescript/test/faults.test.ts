/** Connections that are cut, at the ends of messages and inside of them: nothing is lost, and nothing comes twice. */

import assert from "node:assert/strict";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { AgentError, DisconnectedError, type NodeAgent } from "../src/node/index.js";
import { client, folder, Proxy, serve, web } from "./rig.js";

/** How many cuts each test makes. */
const cuts = Number(process.env["EXECAGENT_CUTS"] ?? 300);

/** Finds the ends of WebSocket frames in a stream of bytes. */
class Frames {
  #head = Buffer.alloc(0);
  #left = 0;
  #upgraded = false;

  /** Returns the offsets behind the frames that end in these bytes. */
  ends(bytes: Buffer): number[] {
    const found: number[] = [];
    let at = 0;
    if (!this.#upgraded) {
      this.#head = Buffer.concat([this.#head, bytes]);
      const end = this.#head.indexOf("\r\n\r\n");
      if (end < 0) return found;
      at = bytes.length - (this.#head.length - end - 4);
      this.#head = Buffer.alloc(0);
      this.#upgraded = true;
    }
    while (at < bytes.length) {
      if (this.#left > 0) {
        const size = Math.min(this.#left, bytes.length - at);
        this.#left -= size;
        at += size;
        if (this.#left === 0) found.push(at);
        continue;
      }
      this.#head = Buffer.concat([this.#head, bytes.subarray(at, at + 1)]);
      at++;
      const head = this.#head;
      if (head.length < 2) continue;
      const short = (head[1] as number) & 0x7f;
      const size = 2 + (short === 126 ? 2 : short === 127 ? 8 : 0) + ((head[1] as number) & 0x80 ? 4 : 0);
      if (head.length < size) continue;
      this.#left = short === 126 ? head.readUInt16BE(2) : short === 127 ? Number(head.readBigUInt64BE(2)) : short;
      this.#head = Buffer.alloc(0);
      if (this.#left === 0) found.push(at);
    }
    return found;
  }
}

/** Makes a proxy cut each connection after a few messages, behind one or inside of one. */
function cutOften(proxy: Proxy, inside: boolean): void {
  let frames = { client: new Frames(), server: new Frames() };
  let left = 0;
  let last = -1;
  proxy.passes = (from, bytes) => {
    if (proxy.cuts >= cuts) return undefined;
    if (bytes.toString("latin1", 0, 4) === "GET ") {
      frames = { client: new Frames(), server: new Frames() };
      left = 2 + Math.floor(Math.random() * 60);
    }
    if (last === proxy.cuts) return 0; // of the other direction, which goes down with this one
    const ends = frames[from].ends(bytes);
    left -= ends.length;
    if (left > 0 || bytes.length === 0) return undefined;
    last = proxy.cuts;
    return inside ? Math.floor(Math.random() * bytes.length) : (ends.at(-1) ?? bytes.length);
  };
}

/** Does something until there were enough cuts. What may have been carried out is not repeated, and is no failure. */
async function keep(proxy: Proxy, step: (i: number) => Promise<void>): Promise<{ done: number; unsure: number }> {
  let done = 0;
  let unsure = 0;
  for (let i = 0; proxy.cuts < cuts; i++) {
    try {
      await step(i);
      done++;
    } catch (error) {
      if (!(error instanceof DisconnectedError && error.sent && !error.final)) throw error;
      unsure++;
    }
  }
  return { done, unsure };
}

function line(i: number): string {
  return `${i} ${"x".repeat(Math.floor(Math.random() * 3000))}\n`;
}

async function text(stream: ReadableStream<Uint8Array>): Promise<string> {
  const pieces: Buffer[] = [];
  for await (const piece of stream) pieces.push(Buffer.from(piece));
  return Buffer.concat(pieces).toString();
}

/** ready is called once a part has what it holds over the cuts. The cuts begin when all parts are ready. */
async function all(agent: NodeAgent, proxy: Proxy, dir: string, port: number, cut: () => void): Promise<void> {
  let missing = 0;
  let begin!: () => void;
  const begun = new Promise<void>((resolve) => (begin = resolve));
  const ready = async (): Promise<void> => {
    if (--missing === 0) {
      cut();
      begin();
    }
    await begun;
  };
  const work = [
    async () => {
      // What is written comes back, once and in order.
      const p = await agent.spawn(["cat"], { stdin: true });
      const back = text(p.stdout);
      let sent = "";
      await ready();
      const { unsure } = await keep(proxy, async (i) => {
        const one = line(i);
        sent += one;
        await p.write(one);
      });
      assert.equal(unsure, 0, "writes that were not repeated");
      await p.closeStdin();
      assert.equal((await p.wait()).exitCode, 0);
      assert.ok((await back) === sent, "what came back is not what was written");
    },
    async () => {
      // The same by a stream of large pieces.
      const p = await agent.spawn(["cat"], { stdin: true });
      const back = text(p.stdout);
      const writer = p.stdin.getWriter();
      let sent = "";
      await ready();
      await keep(proxy, async (i) => {
        const one = line(i).repeat(10);
        sent += one;
        await writer.write(one);
      });
      await writer.close();
      assert.equal((await p.wait()).exitCode, 0);
      assert.ok((await back) === sent, "what came back is not what was written to the stream");
    },
    async () => {
      // The events of a process have no gap.
      const stop = join(dir, "stop");
      const p = await agent.spawn(["sh", "-c", 'i=0; while [ ! -e "$1" ]; do i=$((i+1)); echo line $i; sleep 0.003; done; exit 7', "sh", stop]);
      await ready();
      void keep(proxy, () => new Promise((resolve) => setTimeout(resolve, 20))).then(() => writeFileSync(stop, ""));
      let got = "";
      let seq = 0;
      for await (const event of p) {
        assert.equal(event.seq, ++seq);
        if (event.type === "output") got += Buffer.from(event.data).toString();
      }
      const lines = got.trimEnd().split("\n");
      assert.deepEqual(lines.filter((one, i) => one !== `line ${i + 1}`), []);
      assert.equal((await p.wait()).exitCode, 7);
      assert.ok(existsSync(stop) && lines.length > 10);
    },
    async () => {
      // A socket carries on.
      const socket = await agent.connectTo(`tcp://127.0.0.1:${port}`);
      const back = text(socket.readable);
      let sent = "x";
      await socket.write("x");
      await ready();
      await keep(proxy, async (i) => {
        const one = line(i);
        sent += one;
        await socket.write(one);
      });
      await socket.closeWrite();
      assert.ok((await back) === sent, "what came back is not what was written to the socket");
      await socket.close();
    },
    async () => {
      // A command is run once.
      await ready();
      const ran = join(dir, "ran");
      const runs = await keep(proxy, async (i) => {
        const { text, exitCode } = await agent.run(["sh", "-c", `echo ${i} >> "$1"; echo ${i}; exit 3`, "sh", ran]);
        assert.equal(text, `${i}\n`);
        assert.equal(exitCode, 3);
      });
      assert.ok(runs.done > 0);
      assert.equal(runs.unsure, 0, "starts that were not repeated");
      assert.equal(readFileSync(ran, "utf8"), Array.from({ length: runs.done }, (_, i) => `${i}\n`).join(""));
    },
    async () => {
      // Files are read over cuts.
      const content = line(1).repeat(100);
      writeFileSync(join(dir, "file"), content);
      await ready();
      const { unsure } = await keep(proxy, async () => assert.ok((await agent.fs.readText(join(dir, "file"))) === content));
      assert.equal(unsure, 0);
      await keep(proxy, (i) => agent.fs.write(join(dir, "other"), `${i}`));
    },
    async () => {
      // A watch tells of each file, or says that it does not know.
      await using watch = await agent.fs.watch(dir);
      let told = 0;
      await ready();
      await keep(proxy, async (i) => {
        writeFileSync(join(dir, `w${i % 10}`), "");
        await watch.next({ signal: AbortSignal.timeout(30_000) });
        told++;
      });
      assert.ok(told > 0);
    },
  ];
  missing = work.length;
  await Promise.all(work.map((one) => one()));
}

for (const inside of [false, true]) {
  for (const at of ["ws", "unix"] as const) {
    test(`${cuts} cuts ${inside ? "inside" : "at the ends"} of messages, ${at}`, { timeout: 600_000 }, async (t) => {
      const port = await web(t);
      const { url } = await serve(t, at);
      const proxy = await Proxy.start(t, url);
      const agent = await client(t, proxy.url);
      await all(agent, proxy, folder(t), port, () => cutOften(proxy, inside));
      assert.ok(proxy.cuts >= cuts);
      assert.ok(agent.generation > cuts / 2, `${agent.generation} connections for ${proxy.cuts} cuts`);
      const { client: inner } = agent;
      // Whatever was given up meanwhile is cleaned up in the background.
      for (let i = 0; i < 100 && inner.processes.size > 0; i++) await new Promise((resolve) => setTimeout(resolve, 100));
      assert.deepEqual([inner.processes.size, inner.sockets.size, inner.watches.size, inner.bodies.size, inner.lasting.size], [0, 0, 0, 0, 0]);
      t.diagnostic(`${agent.generation} connections`);
    });
  }
}

test("an agent that does not come back ends everything", { timeout: 60_000 }, async (t) => {
  const { url } = await serve(t);
  const proxy = await Proxy.start(t, url);
  const agent = await client(t, proxy.url, { recoveryTimeoutMs: 1500 });
  const p = await agent.spawn(["sleep", "60"], { stdin: true });
  const stdout = p.stdout.getReader().read();
  const waits = [p.wait(), p.exited, stdout, agent.run(["sleep", "60"]), agent.fs.watch(folder(t)).then((watch) => watch.next()), agent.sessions.list().then(() => agent.processes().then(() => agent.attach("nobody")))];
  const outcomes = Promise.allSettled(waits);
  await new Promise((resolve) => setTimeout(resolve, 300));
  const begun = performance.now();
  proxy.cut(60_000);
  while (agent.state === "connected") await new Promise((resolve) => setTimeout(resolve, 5));
  const late = agent.run(["true"]);
  await assert.rejects(agent.status(), { code: "RECOVERING", retryable: true });
  await assert.rejects(agent.fs.stat("/", { failFast: true }), { code: "RECOVERING" });
  for (const outcome of await outcomes) {
    assert.equal(outcome.status, "rejected");
    assert.ok(outcome.reason instanceof AgentError, String(outcome.reason));
  }
  await assert.rejects(late, (error: AgentError) => error instanceof DisconnectedError && error.final && !error.retryable);
  const took = performance.now() - begun;
  assert.ok(took > 1000 && took < 20_000, `it took ${took} ms`);
  assert.match(String((await agent.ended).message), /not resumed: it took longer than 1500 ms/);
  assert.equal(agent.state, "failed");
  await assert.rejects(agent.run(["true"]), { code: "DISCONNECTED" });
});

test("a session that the agent no longer knows ends the client", { timeout: 60_000 }, async (t) => {
  const { url } = await serve(t, "ws", ["--session-ttl", "100ms"]);
  const proxy = await Proxy.start(t, url);
  const agent = await client(t, proxy.url);
  proxy.cut(1000);
  assert.match(String((await agent.ended).message), /not resumed: unknown session id/);
});

test("an agent that was started here fails with its connection", { timeout: 60_000 }, async (t) => {
  const { connect } = await import("../src/node/index.js");
  const { patient, program } = await import("./rig.js");
  const agent = await connect({ command: [program, "--listen", "stdio"] }, patient);
  t.after(() => agent.close());
  const p = await agent.spawn(["sh", "-c", "echo here; sleep 0.5; kill -KILL $PPID; sleep 60"]);
  await assert.rejects(p.wait(), { code: "DISCONNECTED" });
  assert.equal(agent.state, "failed");
});
