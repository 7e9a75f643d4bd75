/** Parts that can be looked at alone: the order of events, paths, base64, TOML, policies, proxies. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { size } from "../src/bounds.js";
import { anything } from "../src/check.js";
import { Connection, type ChannelEvents, type Dial, type Receiver } from "../src/connection.js";
import { Held } from "../src/held.js";
import { decodeBase64, encodeBase64, isText, printable } from "../src/text.js";
import { Order, type ProcessEvent, type ReadAnswer } from "../src/order.js";
import { Queue } from "../src/queue.js";
import { confinement } from "../src/sandbox.js";
import { parseTOML } from "../src/node/toml.js";
import { proxyFor } from "../src/node/dial.js";
import { toPath, toURI } from "../src/uri.js";

function shuffled<T>(list: readonly T[]): T[] {
  const all = [...list];
  for (let i = all.length - 1; i > 0; i--) {
    const j = Math.floor(Math.random() * (i + 1));
    [all[i], all[j]] = [all[j] as T, all[i] as T];
  }
  return all;
}

test("an answer before its call is given up, at that moment or after it ends no connection", async () => {
  let server!: ChannelEvents;
  const receiver: Receiver = { notified: () => {}, asked: () => Promise.reject(new Error("nothing")), lost: () => {} };
  const dial: Dial = async (events) => ((server = events), { send: () => {}, close: () => {} });
  const connection = await Connection.open(receiver, dial, new AbortController().signal);
  const answer = (id: number): void => server.message(`{"id":${id},"result":${id}}`);
  for (const [id, order, want] of [[1, "before", 1], [2, "during", "enough"], [3, "after", "enough"]] as const) {
    const stop = new AbortController();
    if (order === "during") stop.signal.addEventListener("abort", () => queueMicrotask(() => answer(id)));
    const call = connection.request("environment/status", {}, anything, stop.signal).catch((error: Error) => error.message);
    if (order === "before") answer(id);
    stop.abort(new Error("enough"));
    if (order === "after") {
      await call;
      answer(id);
    }
    assert.equal(await call, want);
    assert.ok(!connection.gone, order);
  }
  connection.end(new Error("over"));
});

test("events in any order, twice, and with answers between them, are published in order", () => {
  for (let round = 0; round < 3000; round++) {
    const count = 1 + Math.floor(Math.random() * 12);
    const truth: ProcessEvent[] = Array.from({ length: count }, (_, i) => ({ type: "output", seq: i + 1, stream: "stdout", data: Uint8Array.of(i), omitted: i % 3 }));
    const at = Math.floor(Math.random() * (count + 1));
    const ending = { sandboxDenied: false, refusals: undefined, timedOut: true, outOfMemory: false };
    truth.splice(at, 0, { type: "exited", seq: 0, exitCode: 7, ...ending });
    truth.push({ type: "closed", seq: 0 });
    const events = truth.map((event, i) => ({ ...event, seq: i + 1 }));
    const order = new Order(false);
    const got: ProcessEvent[] = [];
    const publish = (event: ProcessEvent): void => {
      order.publish(event);
      got.push(event);
    };
    for (const event of shuffled([...events, ...events.slice(0, round % 3)])) {
      order.hold(event);
      if (Math.random() < 0.3) {
        // The server answers with what has happened until some event.
        const through = Math.floor(Math.random() * (events.length + 1));
        const happened = events.slice(0, through);
        const answer: ReadAnswer = {
          chunks: happened.flatMap((event) => (event.type === "output" && event.seq > order.last ? [{ seq: event.seq, stream: event.stream, chunk: event.data, omitted: event.omitted }] : [])),
          nextSeq: through + 1, exited: happened.some(({ type }) => type === "exited"), exitCode: 7, closed: happened.at(-1)?.type === "closed",
          failure: undefined, ...ending,
        };
        order.merge(answer).forEach(publish);
      }
      for (let next = order.next(); next !== undefined; next = order.next()) publish(next);
    }
    assert.deepEqual(got, events);
    assert.equal(order.behind(), false);
  }
});

test("what waits for an earlier event is bounded, and is read again", () => {
  const order = new Order(false);
  for (let seq = 2; seq < 1000; seq++) order.hold({ type: "output", seq, stream: "stdout", data: new Uint8Array(10), omitted: 0 });
  order.publish({ type: "output", seq: 1, stream: "stdout", data: new Uint8Array(), omitted: 0 });
  let last = 1;
  for (let next = order.next(); next !== undefined; next = order.next()) {
    order.publish(next);
    last = next.seq;
  }
  assert.equal(last, 257);
  assert.equal(order.behind(), true);
});

test("a queue has room for 1 MiB or 256 items, and for one of any size", async () => {
  const queue = new Queue<Uint8Array>((item) => item.length);
  const large = new Uint8Array(3 << 20);
  assert.equal(queue.full(large), false);
  queue.push(large);
  assert.equal(queue.full(Uint8Array.of(1)), true);
  assert.equal(await queue.take(), large);
  for (let i = 0; i < 256; i++) queue.push(Uint8Array.of(1));
  assert.equal(queue.full(Uint8Array.of(1)), true);
  assert.equal(queue.full(undefined, 2), false);
  queue.end(new Error("over"));
  for (let i = 0; i < 256; i++) await queue.take();
  await assert.rejects(queue.take(), /over/);
  const enough = new AbortController();
  setTimeout(() => enough.abort(new Error("enough")), 5);
  await assert.rejects(new Queue<string>(() => 1).take(enough.signal), /enough/);
});

test("paths become URIs and come back", () => {
  for (const [path, uri] of [
    ["/", "file:///"], ["/srv/w", "file:///srv/w"], ["/a b#?%", "file:///a%20b%23%3F%25"], ["/é", "file:///%C3%A9"], ["/\u{1f600}", "file:///%F0%9F%98%80"],
    ["/a\\b`{}", "file:///a%5Cb%60%7B%7D"], ["/c:/x", "file:///%63:/x"], ["/\udcff\udc80", "file:///%FF%80"], ["/x\udce1y", "file:///x%E1y"], ["/!$&'()*+,-.0:;=@[]^_|~", "file:///!$&'()*+,-.0:;=@[]^_|~"],
  ] as [string, string][]) {
    assert.equal(toURI(path), uri);
    assert.equal(toPath(uri, "x"), path);
  }
  assert.equal(toPath("file:///%61%2fb", "x"), "/a/b");
  for (const bad of ["", "a", "./a", "/a\0b", "/\ud800"]) assert.throws(() => toURI(bad), { code: "USAGE" });
  for (const bad of ["", "/a", "http://x/", "file://host/x", "file:///a%00", 7, null]) assert.throws(() => toPath(bad, "x"), { code: "PROTOCOL" });
});

test("base64 is strict", () => {
  for (let length = 0; length < 50; length++) {
    const bytes = crypto.getRandomValues(new Uint8Array(length));
    assert.deepEqual(decodeBase64(encodeBase64(bytes)), bytes);
  }
  for (const bad of ["!", "a", "ab", "abc", "ab==c", "a===", "ab= ", "abcd ", "ab\ncd===", "äöüß"]) assert.equal(decodeBase64(bad), undefined, bad);
});

test("text of a server obeys no terminal", () => {
  assert.equal(printable("a\u001b[2J\u0000\u009b\u202e\nb\tc\ud800<b>"), "a\\u001b[2J\\u0000\\u009b\\u202e\nb\tc\\ud800<b>");
  assert.equal(printable("x".repeat(2000)).length, 1025);
  assert.deepEqual(["a", "\u{1f600}", "\ud800", "\udc00x"].map(isText), [true, true, false, false]);
});

test("TOML is read as it is written", () => {
  const plain = (value: unknown): unknown => JSON.parse(JSON.stringify(value, (_, one: unknown) => (typeof one === "bigint" ? Number(one) : one)));
  for (const [text, want] of [
    ["", {}], ["# only a comment", {}], ["a = 1\r\nb = true", { a: 1, b: true }], ["a.b.c = 'x'\na.d = 2", { a: { b: { c: "x" }, d: 2 } }],
    ["[a]\nb = 1\n[a.c]\nd = [1, 2,\n # x\n 3,]", { a: { b: 1, c: { d: [1, 2, 3] } } }], ["[[a]]\nb = 1\n[[a]]\nb = 2\n[a.c]\nd = 3", { a: [{ b: 1 }, { b: 2, c: { d: 3 } }] }],
    ["a = { b = 1, c.d = 'e' }", { a: { b: 1, c: { d: "e" } } }], ['a = "x\\n\\u00e9\\"\\\\"', { a: 'x\né"\\' }], ['a = """\nx\\\n   y"""', { a: "xy" }], ["a = '''x'y''z'''", { a: "x'y''z" }],
    ['a = """""x"""""', { a: '""x""' }], ['"a b"."c" = 1', { "a b": { c: 1 } }], ["a = 0x1F\nb = 1_000\nc = -1.5e3\nd = 1979-05-27T07:32:00Z\ne = 1979-05-27 07:32:00", { a: 31, b: 1000, c: -1500, d: "1979-05-27T07:32:00Z", e: "1979-05-27 07:32:00" }],
    ["[x.y]\n[x]\nz = 1", { x: { y: {}, z: 1 } }], ["__proto__ = 1", JSON.parse('{"__proto__": 1}')],
  ] as [string, unknown][]) assert.deepEqual(plain(parseTOML(text, "file")), plain(want), text);
  for (const text of [
    "a", "a =", "a = s3cret", "a = 's3cret", 'a = "s3cret\\x"', "a = 1 b = 2", "[a]\n[a]", "a = 1\na = 2", "a = 1\na.b = 2", "[a]\nb = 1\n[a.b]", "a = {}\na.b = 1", "a = []\n[[a]]",
    "a = [1", "a = {b = 1", "a = {b = 1,}", "[a", "a = [[[[[[[[[[1]]]]]]]]]]", "a = 01", "a = '\u0001'", 'a = "\\ud800"', "= 1", "[]", "a..b = 1", "a = 1_", "a = \"\"\"s3cret",
  ]) assert.throws(() => parseTOML(text, "file"), (error: Error) => /^file:\d+: /.test(error.message) && !error.message.includes("s3cret"), text);
});

test("a policy means what the flags mean", () => {
  const entries = (policy: Parameters<typeof confinement>[0]): unknown => confinement(policy, "/w").sandbox?.permissions;
  assert.deepEqual(confinement(undefined, "/w"), {});
  assert.deepEqual(entries({}), {
    type: "managed", file_system: { type: "restricted", entries: [{ path: { type: "special", value: { kind: "root" } }, access: "read" }] }, network: "restricted",
  });
  const all = confinement({ view: true, workspace: "/w", readable: ["/w/vendor"], deny: ["/w/vault", "**/*.env"], socket: "/run/x.sock", device: "/dev/fuse", network: "on" }, "/w");
  assert.deepEqual(all.sandbox, {
    permissions: {
      type: "managed", network: "enabled",
      file_system: {
        type: "restricted",
        entries: [
          { path: { type: "special", value: { kind: "minimal" } }, access: "read" }, { path: { type: "special", value: { kind: "project_roots" } }, access: "write" },
          { path: { type: "special", value: { kind: "slash_tmp" } }, access: "write" }, { path: { type: "special", value: { kind: "tmpdir" } }, access: "write" },
          { path: { type: "path", path: "file:///w/vendor" }, access: "read" }, { path: { type: "unix_socket", path: "file:///run/x.sock" }, access: "write" },
          { path: { type: "device", path: "file:///dev/fuse" }, access: "write" }, { path: { type: "path", path: "file:///w/vault" }, access: "deny" },
          { path: { type: "glob_pattern", pattern: "**/*.env" }, access: "deny" },
        ],
      },
    },
    windowsSandboxLevel: "disabled", cwd: "file:///w", workspaceRoots: ["file:///w"],
  });
  const asked = confinement({ network: { allow: ["a.test", "GET b.test/x"], deny: "c.test", ask: "d.test", local: true } }, "/w", true, true);
  assert.equal(asked.enforceManagedNetwork, true);
  assert.deepEqual({ ...asked.networkProxy?.proxy, domains: { ...asked.networkProxy?.proxy.domains } }, {
    enabled: true, enableSocks5: true, enableSocks5Udp: false, allowUpstreamProxy: true, dangerouslyAllowAllUnixSockets: false, mode: "full",
    domains: { "a.test": "allow", "GET b.test/x": "allow", "c.test": "deny" }, allowLocalBinding: true, reviewDomains: ["d.test"], transparentTcp: true,
  });
  assert.equal(asked.networkProxy?.policyDecisionTimeoutMs, 86_400_000);
  for (const bad of [{ workspaces: "/w" }, { network: { alow: "x" } }, { network: "of" }, { readable: "w" }, { network: { allow: "x", deny: "x" } }]) {
    assert.throws(() => confinement(bad as never, "/w"), { code: "USAGE" }, JSON.stringify(bad));
  }
});

test("sizes are those of the command line", () => {
  for (const [text, bytes] of [[0, 0], [4096, 4096], ["7", 7], ["64k", 65536], ["64KiB", 65536], ["512M", 512 << 20], ["2gb", 2 ** 31], ["1t", 2 ** 40]] as const) assert.equal(size(text, "x"), bytes);
  for (const bad of [-1, 0.5, NaN, "", "k", "1.5m", "1kk", "1b", "9007199254740992", "8192t", " 1"]) assert.throws(() => size(bad, "memory"), { code: "USAGE", message: /^memory is / }, String(bad));
});

test("memory of what was taken is used again", () => {
  const held = new Held((size) => new Uint8Array(size));
  let sent = 0;
  let taken = 0;
  for (let i = 0; i < 3000; i++) {
    const piece = Uint8Array.from({ length: (i * 7919) % 5000 }, () => sent++ & 255);
    held.push(piece);
    const { bytes } = held;
    const some = (i * 104729) % (bytes.length + 1);
    for (let at = 0; at < some; at++) assert.equal(bytes[at], taken++ & 255);
    held.drop(some);
  }
  assert.equal(held.length, sent - taken);
  held.drop(held.length);
  held.push(new Uint8Array(9 << 20));
  const large = held.bytes.buffer;
  held.drop(9 << 20);
  held.push(Uint8Array.of(1));
  assert.notEqual(held.bytes.buffer, large, "large memory is kept");
  assert.deepEqual([...held.bytes], [1]);
});

test("proxies are those that the program uses", () => {
  const via = (url: string, env: Record<string, string>): string | undefined => {
    const target = new URL(url);
    return proxyFor(target, target.hostname.replace(/^\[|\]$/g, ""), Number(target.port) || 443, env)?.href;
  };
  assert.equal(via("wss://h.test", {}), undefined);
  assert.equal(via("wss://h.test", { HTTPS_PROXY: "http://p:1", HTTP_PROXY: "http://q:2" }), "http://p:1/");
  assert.equal(via("ws://h.test", { https_proxy: "http://p:1", http_proxy: "q:2" }), "http://q:2/");
  assert.equal(via("wss://h.test", { ALL_PROXY: "socks5h://p:1" }), "socks5h://p:1");
  for (const local of ["ws://localhost:1", "ws://127.0.0.1", "ws://[::1]:1"]) assert.equal(via(local, { ALL_PROXY: "http://p:1" }), undefined, local);
  for (const [host, list, excluded] of [
    ["wss://h.test", "*", true], ["wss://h.test", "x, h.test", true], ["wss://a.h.test", "h.test", true], ["wss://a.h.test", ".h.test", true], ["wss://h.test", ".h.test", false],
    ["wss://ah.test", "h.test", false], ["wss://h.test:1", "h.test:2", false], ["wss://h.test:1", "h.test:1", true], ["wss://10.1.2.3", "10.0.0.0/8", true],
    ["wss://11.1.2.3", "10.0.0.0/8", false], ["wss://10.1.2.3", "10.1.2.3", true], ["wss://[fd00::1]", "fd00::/8", true], ["wss://[fe00::1]", "fd00::/8", false],
  ] as [string, string, boolean][]) {
    assert.equal(via(host, { ALL_PROXY: "http://p:1", NO_PROXY: list }) === undefined, excluded, `${host} in ${list}`);
  }
  assert.throws(() => via("wss://h.test", { ALL_PROXY: "ftp://p" }), { code: "CONNECT" });
  assert.throws(() => via("wss://h.test", { ALL_PROXY: "http://user:s3cret@[" }), (error: Error) => !error.message.includes("s3cret"));
});
