/** Agents behind a registry: the vectors of the protocol, and a real registry with a real agent. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import type { AgentError } from "../src/index.js";
import { connect as connectNode, webSocket } from "../src/node/index.js";
import { decodeFrame, encodeFrame, type Body } from "../src/relay/frame.js";
import { connect } from "../src/relay/index.js";
import { Cipher, Handshake, makeKeys, prologueOf, type Keys } from "../src/relay/noise.js";
import { folder, patient, program, Proxy, registryProgram, repository, site } from "./rig.js";

const hex = (text: string): Uint8Array => new Uint8Array(Buffer.from(text, "hex"));
const toHex = (bytes: Uint8Array): string => Buffer.from(bytes).toString("hex");
const vector = <T>(path: string): T => JSON.parse(readFileSync(join(repository, "internal/relay", path), "utf8")) as T;

test("the handshake is that of the vectors", async () => {
  type Half = { x25519_private_hex: string; x25519_public_hex: string; mlkem768_seed_hex: string; mlkem768_public_hex: string };
  const v = vector<Record<string, string> & Record<"executor_static" | "harness_static" | "harness_ephemeral", Half>>("noise/testdata/vectors/noise-deterministic.json");
  const keys = (half: Half): Keys => {
    const made = makeKeys(hex(half.x25519_private_hex), hex(half.mlkem768_seed_hex));
    assert.equal(toHex(made.x25519), half.x25519_public_hex);
    assert.equal(toHex(made.kem), half.mlkem768_public_hex);
    return made;
  };
  const prologue = prologueOf(v["environment_id"] as string, v["executor_registration_id"] as string, v["stream_id"] as string);
  assert.equal(toHex(prologue), v["prologue_hex"]);
  const fixed = { ephemeral: keys(v.harness_ephemeral), encapsulation: hex(v["harness_skem_encapsulation_randomness_hex"] as string) };
  const [handshake, first] = await Handshake.begin(keys(v.harness_static), keys(v.executor_static), prologue, new TextEncoder().encode(v["message1_payload_utf8"] as string), fixed);
  assert.equal(toHex(first), v["message1_hex"]);
  const second = hex(v["message2_hex"] as string);
  const { sending, receiving, hash } = await handshake.finish(second);
  assert.equal(toHex(hash), v["handshake_hash_hex"]);
  const sealed = async (key: string): Promise<string> => {
    const imported = await crypto.subtle.importKey("raw", Buffer.from(v[key] as string, "hex"), "AES-GCM", false, ["encrypt"]);
    return toHex(new Uint8Array(await crypto.subtle.encrypt({ name: "AES-GCM", iv: new Uint8Array(12) }, imported, Buffer.from("hello"))));
  };
  assert.equal(toHex(await sending.encrypt(Buffer.from("hello"))), await sealed("key_initiator_to_responder_hex"));
  assert.equal(Buffer.from(await receiving.decrypt(hex(await sealed("key_responder_to_initiator_hex")))).toString(), "hello");
  await assert.rejects(async () => receiving.decrypt(new Uint8Array(30)), { code: "PROTOCOL" });
  for (const at of [0, 1088, 2192, 2224, 3408]) {
    const tampered = Uint8Array.from(second);
    tampered[at] = (tampered[at] as number) ^ 1;
    const [again] = await Handshake.begin(keys(v.harness_static), keys(v.executor_static), prologue, new TextEncoder().encode(v["message1_payload_utf8"] as string), fixed);
    await assert.rejects(again.finish(tampered), { code: "PROTOCOL" }, `byte ${at}`);
  }
});

test("both ciphers do the same, with the numbers of the records", async () => {
  const key = crypto.getRandomValues(new Uint8Array(32));
  for (const web of [false, true]) {
    const [sending, receiving] = [await Cipher.of(key, web), await Cipher.of(key, !web)];
    for (const length of [0, 1, 61_440]) {
      const plain = crypto.getRandomValues(new Uint8Array(length));
      const data = crypto.getRandomValues(new Uint8Array(length % 40));
      assert.equal(toHex(await receiving.decrypt(await sending.encrypt(plain, data), data)), toHex(plain));
    }
    const text = await sending.encrypt(new Uint8Array(100));
    for (const bad of [text.subarray(1), text.subarray(0, 15), Uint8Array.from(text, (byte, i) => (i === 99 ? byte ^ 1 : byte))]) {
      const other = await Cipher.of(key, !web);
      for (let i = 0; i < 3; i++) await other.encrypt(new Uint8Array());
      await assert.rejects(async () => other.decrypt(bad), { code: "PROTOCOL", message: /cannot be decrypted/ });
    }
    await assert.rejects(async () => (await Cipher.of(key, !web)).decrypt(text), { code: "PROTOCOL" }, "a record with the number of another one");
  }
});

test("frames are those of the vectors, and what is malformed is refused", () => {
  const { frames } = vector<{ frames: { name: string; frame_hex: string }[] }>("frame/testdata/relay-frames.json");
  const known: Record<string, Body> = {
    "data seq 0": { type: "data", seq: 0, payload: hex("aabb") }, "data seq 300": { type: "data", seq: 300, payload: hex("aabb") }, resume: { type: "resume", nextSeq: 0 },
    reset: { type: "reset", reason: "noise_relay_protocol_error" }, heartbeat: { type: "other" }, handshake: { type: "handshake", payload: hex("010203") },
  };
  let seen = 0;
  for (const { name, frame_hex } of frames) {
    const decoded = decodeFrame(hex(frame_hex));
    assert.equal(decoded.streamId, "stream-1");
    const body = known[name];
    if (body === undefined) continue;
    seen++;
    assert.equal(toHex(encodeFrame({ streamId: "stream-1", body })), frame_hex, name);
    assert.equal(JSON.stringify(decoded.body), JSON.stringify(body), name);
  }
  assert.equal(seen, 6);
  for (const bad of ["", "08", "0802120161", "0801", "08011201ff3a00", "0801120161 2a0418022201aa", "08011201612a00", "0801120161420 0", "080112ffffffff0f", "0a0101"]) {
    assert.throws(() => decodeFrame(hex(bad.replaceAll(" ", ""))), { code: "PROTOCOL" }, bad);
  }
});

test("a rendezvous in clear text is on this machine", async () => {
  const key = (bytes: number): string => Buffer.alloc(bytes).toString("base64");
  const bundle = (url: string): string => JSON.stringify({
    environment_id: "e", url, security_profile: "noise_hybrid_ik_v1", executor_registration_id: "r", harness_key_authorization: "a",
    executor_public_key: { suite: "Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256", x25519_public_key: key(32), mlkem768_public_key: key(1184) },
  });
  const dialled: string[] = [];
  const open = (url: string): Promise<unknown> => connect({ registry: "https://registry.test", environmentId: "e", token: "k" }, {
    post: async () => ({ status: 200, text: bundle(url) }),
    webSocket: (to) => {
      dialled.push(to);
      throw new Error("dialled");
    },
  });
  for (const [url, want] of [
    ["ws://relay.test/s3cret", /neither wss nor on a loopback address/], ["ws://10.0.0.1/s3cret", /neither wss nor on a loopback/], ["ws://127.0.0.1.test/s3cret", /neither wss nor on a loopback/],
    ["WS://relay.test/s3cret", /neither wss nor on a loopback/], ["http://127.0.0.1/s3cret", /not of the form ws:\/\/HOST/], ["s3cret", /not of the form/], ["wss://user:s3cret@relay.test/", /holds credentials/],
  ] as [string, RegExp][]) {
    await assert.rejects(open(url), (error: AgentError) => error.code === "PROTOCOL" && want.test(error.message) && !error.message.includes("s3cret"), url);
  }
  assert.deepEqual(dialled, []);
  for (const url of ["wss://relay.test/x", "ws://127.0.0.1:1/x", "ws://localhost:1/x", "ws://[::1]:1/x"]) await assert.rejects(open(url), { message: "dialled" });
  assert.equal(dialled.length, 4);
});

test("an answer of a registry without end is given up", { timeout: 60_000 }, async (t) => {
  let sent = 0;
  const server = createServer((_, answer) => {
    const more = (): void => void answer.write("x".repeat(64 << 10), (error) => error ?? ((sent += 64 << 10), more()));
    more();
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  const registry = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  for (const way of [connect, connectNode]) {
    await assert.rejects(way({ registry, environmentId: "e", token: "k" }, { connectTimeoutMs: 50_000, webSocket }), { message: /the answer of the registry is too long/ });
  }
  assert.ok(sent < 64 << 20, `${sent} bytes came`);
});

test("an agent behind a registry", { timeout: 120_000, skip: !existsSync(registryProgram) && "there is no program registry" }, async (t) => {
  const { registry, harness } = await site(t);
  const target = { registry, environmentId: "build-1", token: harness };
  const open = (): ReturnType<typeof connect> => connect(target, { webSocket, ...patient });
  await using agent = await open();
  const result = await agent.run(["wc", "-c"], { input: "x".repeat(3_000_000) });
  assert.match(result.text, /^ *3000000\n$/);
  const large = await agent.shell("seq 400000");
  assert.equal(large.text.length, 2_688_895);
  const data = Buffer.alloc(5_000_000, "0123456789abcdef");
  const dir = folder(t);
  await agent.fs.write(join(dir, "f"), data);
  assert.ok(Buffer.from(await agent.fs.read(join(dir, "f"))).equals(data));

  // What is not read makes the agent wait, or ends the stream, and nothing is lost.
  const p = await agent.spawn(["seq", "600000"]);
  await new Promise((resolve) => setTimeout(resolve, 500));
  let text = "";
  for await (const piece of p.stdout) text += Buffer.from(piece).toString();
  assert.equal(text.length, 4_088_895);

  for (const [bad, want] of [
    [{ ...target, token: "wrong" }, { code: "CONNECT", status: 401, final: true }],
    [{ ...target, environmentId: "other-1" }, { code: "CONNECT", final: true }],
    [{ ...target, registry: "http://registry.test" }, { code: "USAGE" }],
    [{ ...target, environmentId: "a/b" }, { code: "USAGE" }],
    [{ ...target, token: "a b" }, { code: "CONNECT", final: true }],
  ] as [typeof target, object][]) {
    await assert.rejects(connect(bad, { webSocket }), want, JSON.stringify(bad));
  }
  const begun = performance.now();
  await assert.rejects(connect({ ...target, environmentId: "build-2" }, { webSocket, connectTimeoutMs: 1500 }), (error: AgentError) => error.code === "CONNECT" && error.retryable);
  assert.ok(performance.now() - begun < 10_000);
});

test("registries of contexts and variables", { timeout: 120_000, skip: !existsSync(registryProgram) && "there is no program registry" }, async (t) => {
  const { registry, harness } = await site(t);
  const dir = folder(t);
  const config = join(dir, "config.toml");
  const file = join(dir, "token");
  writeFileSync(file, harness, { mode: 0o600 });
  execFileSync(program, ["context", "add", "far", "--registry", registry, "--environment-id", "build-1", "--token-file", file], { env: { ...process.env, AGENT_CONFIG: config } });
  const works = async (...args: Parameters<typeof connectNode>): Promise<void> => {
    await using agent = await connectNode(args[0], { ...patient, ...args[1] });
    assert.equal((await agent.run(["echo", "far"])).text, "far\n");
  };
  process.env["AGENT_CONFIG"] = config;
  await works({ context: "far" });
  await works({ registry, environmentId: "build-1", token: harness });
  Object.assign(process.env, { AGENT_REGISTRY: registry, AGENT_ENVIRONMENT_ID: "build-1", AGENT_REGISTRY_TOKEN: harness });
  await works();
  for (const name of ["AGENT_CONFIG", "AGENT_REGISTRY", "AGENT_ENVIRONMENT_ID", "AGENT_REGISTRY_TOKEN"]) delete process.env[name];
});

test("cuts between a client and the relay", { timeout: 120_000, skip: !existsSync(registryProgram) && "there is no program registry" }, async (t) => {
  const { registry, harness } = await site(t);
  const proxy = await Proxy.start(t, registry.replace(/^http/, "ws"));
  const through = (url: string): string => url.replace(/^ws:\/\/[^/]+/, proxy.url);
  await using agent = await connect({ registry, environmentId: "build-1", token: harness }, { webSocket: (url, headers) => webSocket(through(url), headers), ...patient });
  const p = await agent.spawn(["sh", "-c", "for i in $(seq 150); do echo line $i; sleep 0.02; done; exit 7"]);
  const echo = await agent.spawn(["cat"], { stdin: true });
  const back = new Response(echo.stdout).text();
  const all = new Response(p.stdout).text();
  let sent = "";
  for (let i = 0; i < 10; i++) {
    proxy.cut();
    sent += `${i}\n`;
    await echo.write(`${i}\n`);
    await new Promise((resolve) => setTimeout(resolve, 150));
  }
  await echo.closeStdin();
  assert.equal(await back, sent);
  assert.equal(await all, Array.from({ length: 150 }, (_, i) => `line ${i + 1}\n`).join(""));
  assert.equal((await p.wait()).exitCode, 7);
  assert.ok(agent.generation > 5);
});
