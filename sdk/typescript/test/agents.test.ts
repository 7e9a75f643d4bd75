/** Ways to an agent, and what only an agent can answer: contexts, TLS, tokens, proxies, sessions, questions, policies. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { chmodSync, existsSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { connect as connectTCP, createServer, type AddressInfo } from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import { connect as connectPlain } from "../src/index.js";
import { AgentError, connect, CopyError, ServerError, type CommandQuestion, type NetworkQuestion, type WebSocketLike } from "../src/node/index.js";
import { client, folder, patient, program, Proxy, serve, web } from "./rig.js";

/** Runs something with other variables. One test at a time does. */
async function environment<T>(values: Record<string, string | undefined>, run: () => Promise<T>): Promise<T> {
  const before = Object.fromEntries(Object.keys(values).map((name) => [name, process.env[name]]));
  const set = (all: Record<string, string | undefined>): void => {
    for (const [name, value] of Object.entries(all)) {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
  };
  set(values);
  try {
    return await run();
  } finally {
    set(before);
  }
}

function secret(dir: string, name: string, text: string, mode = 0o600): string {
  const path = join(dir, name);
  writeFileSync(path, text, { mode });
  chmodSync(path, mode);
  return path;
}

test("contexts, tokens and variables are found as the program finds them", { timeout: 120_000 }, async (t) => {
  const dir = folder(t);
  const token = secret(dir, "token", "t0p-s3cret\n");
  const { url } = await serve(t, "ws", ["--ws-auth", "capability-token", "--ws-token-file", token]);
  const config = join(dir, "config.toml");
  const env = { AGENT_CONFIG: config, AGENT_URL: undefined, AGENT_TOKEN_FILE: undefined, AGENT_CONTEXT: undefined, AGENT_REGISTRY: undefined };
  const run = (...args: string[]): string => execFileSync(program, args, { env: { ...process.env, AGENT_CONFIG: config }, encoding: "utf8" });
  const host = url.slice("ws://".length);
  run("context", "add", "file", "--url", host, "--token-file", token);
  run("context", "add", "command", "--url", url, "--token-command", `cat ${token}`);
  run("context", "add", "none", "--url", url);
  run("context", "add", "far", "--registry", "https://registry.test", "--environment-id", "e");
  run("context", "use", "file");
  const warnings: string[] = [];
  const options = { warn: (text: string) => void warnings.push(text) };
  const works = async (...args: Parameters<typeof connect>): Promise<void> => {
    await using agent = await connect(args[0], { ...patient, ...options, ...args[1] });
    assert.equal((await agent.run(["true"])).exitCode, 0);
  };
  await environment(env, async () => {
    await works();
    await works({ context: "file" });
    await works({ context: "command" });
    await works(url, { token: "t0p-s3cret" });
    await works(host, { token: async () => "t0p-s3cret" });
    await assert.rejects(connect({ context: "none" }, options), { code: "CONNECT", status: 401, final: true, message: /status 401: missing websocket bearer token/ });
    await assert.rejects(connect({ context: "no" }, options), { code: "USAGE", message: /context no is not in .*config.toml, which has command, far, file, none/ });
    await assert.rejects(connect({ context: "far" }, options), { code: "USAGE", message: /context far has no token/ });
    await environment({ AGENT_CONTEXT: "command" }, () => works());
    await environment({ AGENT_URL: url, AGENT_TOKEN_FILE: token }, () => works());
    await environment({ AGENT_URL: url }, () => assert.rejects(connect(undefined, options), { status: 401 }));
    await environment({ AGENT_CONFIG: "/dev/null" }, () => assert.rejects(connect(undefined, options), { code: "USAGE", message: /which agent\?/ }));
    assert.deepEqual(warnings, []);
    chmodSync(token, 0o644);
    await works();
    assert.match(warnings.join(), /token has mode 0644, so others can read it \(chmod 600 /);
    chmodSync(token, 0o602);
    await assert.rejects(connect(undefined, options), (error: AgentError) => /others can write it/.test(error.message) && !error.message.includes("s3cret"));
    chmodSync(token, 0o600);
    chmodSync(config, 0o666);
    await assert.rejects(connect(undefined, options), { message: /config.toml has mode 0666/ });
    chmodSync(config, 0o600);
    for (const [text, want] of [
      ['[contexts.a]\nurl = "x:1"\nregistry = "y"', /cannot be used together/], ["[contexts.a]\n", /url or registry is missing/], ['[contexts.a]\nurl = "x:1"\nuser = "b"', /unknown key user/],
      ['current = "b"', /current names the context b/], ['[contexts."-a"]\nurl = "x:1"', /its name is not/], ['[contexts.a]\nurl = "x:1"\ntoken = "s3cret"\ntoken_file = "y"', /together/],
      ['[exec]\ntimeout = "1m"\n[contexts.a]\nurl = 7', /url is not a string/],
    ] as [string, RegExp][]) {
      writeFileSync(config, text);
      await assert.rejects(connect({ context: "a" }, options), { code: "USAGE", message: want }, text);
    }
    const commanded = (words: string): void => writeFileSync(config, `[contexts.a]\nurl = "${url}"\ntoken_command = ${words}`);
    commanded('["sh", "-c", "echo s3cret; exit 3"]');
    await assert.rejects(connect({ context: "a" }, options), { message: /token_command of context a: sh: it ended with 3/ });
    commanded('["no-such-program"]');
    await assert.rejects(connect({ context: "a" }, options), { message: /no-such-program: ENOENT/ });
    commanded('["sh", "-c", "yes"]');
    await assert.rejects(connect({ context: "a" }, options), { message: /prints more than 65536 bytes/ });
  });
});

test("a token is sent only over TLS or to this machine, and a URL has no secret", async () => {
  for (const [url, want] of [["ws://h.test:1", /only over wss/], ["ws://user:s3cret@127.0.0.1:1", /holds credentials/], ["http://127.0.0.1:1", /of the kind http:/], ["s3cret", /cannot be understood/]] as [string, RegExp][]) {
    for (const way of [connect, connectPlain]) {
      await assert.rejects(way(url, { token: "s3cret" }), (error: AgentError) => error.code === "CONNECT" && want.test(error.message) && !error.message.includes("s3cret") && !error.retryable, url);
    }
  }
  await assert.rejects(connect("/run/agent.sock"), { message: /write unix:\/\/\/run/ });
  await assert.rejects(connect("ws://127.0.0.1:1"), { code: "CONNECT", final: false, retryable: true, message: /ECONNREFUSED/ });
  await assert.rejects(connect("ws://127.0.0.1:1", { headers: { "x y": "z" } }), { code: "CONNECT", final: true });
  await assert.rejects(connect("ws://127.0.0.1:1", { token: "a\nb" }), (error: AgentError) => error.code === "CONNECT" && !error.message.includes("a\nb"));
});

test("TLS with certificates of our own", { timeout: 120_000 }, async (t) => {
  const dir = folder(t);
  const openssl = (...args: string[]): void => void execFileSync("openssl", args, { cwd: dir, stdio: "ignore" });
  const make = (name: string, ca: string | undefined, extension: string): void => {
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", `${name}.key`, "-out", `${name}.csr`, "-subj", `/CN=${name}`);
    writeFileSync(join(dir, `${name}.ext`), extension);
    const signed = ca === undefined ? ["-signkey", `${name}.key`] : ["-CA", `${ca}.crt`, "-CAkey", `${ca}.key`, "-CAcreateserial"];
    openssl("x509", "-req", "-in", `${name}.csr`, "-out", `${name}.crt`, "-days", "2", "-extfile", `${name}.ext`, ...signed);
    chmodSync(join(dir, `${name}.key`), 0o600);
  };
  make("ca", undefined, "basicConstraints=critical,CA:TRUE\n");
  make("server", "ca", "subjectAltName=DNS:agent.test,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n");
  make("client", "ca", "extendedKeyUsage=clientAuth\n");
  const at = (name: string): string => join(dir, name);
  const { url: secure } = await serve(t, "wss", ["--tls-cert", at("server.crt"), "--tls-key", at("server.key"), "--tls-client-ca", at("ca.crt"), "--allow-unauthenticated"]);
  const tls = { ca: at("ca.crt"), cert: at("client.crt"), key: at("client.key") };
  const agent = await client(t, secure, { tls });
  assert.equal((await agent.run(["echo", "x"])).text, "x\n");
  await (await client(t, secure.slice("wss://".length), { tls: { ...tls, serverName: "agent.test" } })).status();
  await assert.rejects(connect(secure, { tls: { ...tls, serverName: "other.test" } }), { code: "CONNECT", final: true, message: /other.test|altnames/i });
  await assert.rejects(connect(secure, { tls: { cert: tls.cert, key: tls.key } }), { code: "CONNECT", final: true, message: /certificate/ });
  await assert.rejects(connect(secure, { tls: { ca: tls.ca } }), { code: "CONNECT" });
  await assert.rejects(connect(secure, { tls: { ...tls, ca: at("ca.key") } }), { message: /holds no certificate/ });
  await assert.rejects(connect(secure, { tls: { ...tls, key: at("none") } }), { message: /none cannot be read: ENOENT/ });
});

test("proxies", { timeout: 60_000 }, async (t) => {
  const { url } = await serve(t);
  const agentPort = Number(new URL(url).port);
  let asked = "";
  const proxy = createServer((here) => {
    here.on("error", () => here.destroy());
    here.once("data", (first: Buffer) => {
      const go = (): void => {
        const there = connectTCP(agentPort, "127.0.0.1", () => here.pipe(there).pipe(here));
        there.on("error", () => here.destroy());
        here.on("close", () => there.destroy());
      };
      if (first[0] === 5) {
        here.write(Buffer.of(5, 2));
        here.once("data", (auth: Buffer) => {
          asked = auth.toString("latin1", 2);
          here.write(Buffer.of(1, 0));
          here.once("data", (request: Buffer) => {
            asked += request.toString("latin1", 5);
            here.write(Buffer.of(5, 0, 0, 1, 127, 0, 0, 1, 0, 1));
            go();
          });
        });
        return;
      }
      asked = first.toString();
      here.write(asked.includes("refused") ? "HTTP/1.1 403 No way\u001b[2J\r\n\r\n" : "HTTP/1.1 200 OK\r\n\r\n");
      if (!asked.includes("refused")) go();
    });
  });
  await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  t.after(() => proxy.close());
  const place = `127.0.0.1:${(proxy.address() as AddressInfo).port}`;
  const through = (value: string, to: string): Promise<unknown> =>
    environment({ ALL_PROXY: value, HTTP_PROXY: undefined, http_proxy: undefined, HTTPS_PROXY: undefined, https_proxy: undefined, NO_PROXY: undefined, no_proxy: undefined }, async () => {
      await using agent = await connect(to, patient);
      return await agent.status();
    });
  assert.equal(await through(`http://me:p%40ss@${place}`, "ws://agent.test:7000"), "ready");
  assert.match(asked, /^CONNECT agent.test:7000 HTTP\/1.1\r\nHost: agent.test:7000\r\nProxy-Authorization: Basic bWU6cEBzcw==\r\n\r\n$/);
  assert.equal(await through(`socks5h://me:pass@${place}`, "ws://agent.test:7000"), "ready");
  assert.equal(asked, "me\u0004passagent.test\u001bX");
  await assert.rejects(through(`http://${place}`, "ws://refused.test"), { code: "CONNECT", message: /status 403 No way\\u001b/ });
});

test("a UNIX socket is believed only where nobody else can have put it", { timeout: 60_000 }, async (t) => {
  const { url, home } = await serve(t, "unix");
  const path = url.slice("unix://".length);
  await (await client(t, url)).status();
  const byPath = await connect({ unix: path }, patient);
  t.after(() => byPath.close());
  symlinkSync(path, join(home, "link"));
  await (await client(t, `unix://${join(home, "link")}`)).status();
  chmodSync(home, 0o777);
  await assert.rejects(connect(url), { code: "CONNECT", final: true, message: /others can write the folder/ });
  chmodSync(home, 0o700);
  for (const bad of ["unix://relative", "unix:///a/../b", `unix:///${"x".repeat(200)}`]) await assert.rejects(connect(bad), { code: "USAGE" }, bad);
  await assert.rejects(connect("unix:///no/such/socket"), { code: "CONNECT", message: /ENOENT/ });
  await assert.rejects(connect("unix:///etc/hostname"), { message: /is not a socket/ });
});

test("any WebSocket will do, with or without a pause", { timeout: 60_000 }, async (t) => {
  const { url } = await serve(t);
  const Global = (globalThis as { WebSocket?: new (url: string) => WebSocketLike }).WebSocket;
  if (Global === undefined) {
    await assert.rejects(connectPlain(url), { code: "CONNECT", message: /no global WebSocket here: use connect of @execagent\/client\/node/ });
    t.skip("this version of Node has no global WebSocket");
    return;
  }
  const proxy = await Proxy.start(t, url);
  await using agent = await connectPlain(proxy.url, { webSocket: (url) => new Global(url) });
  const p = await agent.spawn(["sh", "-c", "seq 100000; exit 3"]);
  proxy.cut();
  let text = "";
  for await (const event of p) if (event.type === "output") text += Buffer.from(event.data).toString();
  assert.equal(text.split("\n").length, 100_001);
  assert.equal((await p.wait()).exitCode, 3);
  assert.equal(agent.generation, 2);
  await assert.rejects(connectPlain("ws://127.0.0.1:1"), { code: "CONNECT", retryable: true });
});

test("sessions with a name outlive their clients", { timeout: 60_000 }, async (t) => {
  const { url } = await serve(t);
  const first = await client(t, url, { sessionName: "nightly", retainMs: 60_000 });
  assert.deepEqual(first.session, { name: "nightly", created: true, retainMs: 60_000 });
  const p = await first.spawn(["sh", "-c", "echo begun; read x; echo $x; exit 4"], { stdin: true, id: "job" });
  const reader = p.stdout.getReader();
  assert.equal(Buffer.from((await reader.read()).value ?? []).toString(), "begun\n");

  const other = await client(t, url);
  const [listed] = await other.sessions.list();
  assert.deepEqual([listed?.name, listed?.attached, listed?.running, listed?.ended], ["nightly", true, 1, 0]);
  const observer = other.sessions.observe(listed?.sessionId as string);
  assert.deepEqual((await observer.processes()).map(({ id, exited }) => [id, exited]), [["job", false]]);
  await assert.rejects(connect(url, { sessionName: "nightly" }), { code: "REFUSED", number: -32010, retryable: true });
  await assert.rejects(connect(url, { sessionName: "no", existing: true }), { code: "REFUSED", number: -32600 });

  const second = await client(t, url, { sessionName: "nightly", take: true, existing: true });
  const taken = await first.ended;
  assert.deepEqual([taken.code, taken.retryable], ["TAKEN", false]);
  await assert.rejects(p.wait(), { code: "TAKEN" });
  assert.equal(second.session?.created, false);
  const q = await second.attach("job");
  await assert.rejects(second.attach("job"), { code: "USAGE" });
  await q.write("more\n");
  let seen = "";
  for await (const event of q) seen += event.type === "output" ? Buffer.from(event.data).toString() : event.type === "exited" ? `<${event.exitCode}>` : "";
  assert.equal(seen, "begun\nmore\n<4>");
  assert.equal(await observer.wait("job"), 4);
  let observed = "";
  for await (const { data, atMs } of observer.output("job", { follow: true })) {
    observed += Buffer.from(data).toString();
    assert.ok((atMs as number) > 1e12);
  }
  assert.equal(observed, "begun\nmore\n");
  const late = await second.attach("job", { after: 1 });
  const events: number[] = [];
  for await (const event of late) events.push(event.seq);
  assert.equal(events[0], 2);
  await other.sessions.end(listed?.sessionId as string);
  assert.deepEqual(await other.sessions.list(), []);
  assert.equal((await second.ended).code, "DISCONNECTED");
});

test("a session without a name is resumed by its id", { timeout: 60_000 }, async (t) => {
  const { url } = await serve(t);
  const first = await connect(url, patient);
  const p = await first.spawn(["sleep", "60"]);
  await first.close();
  await assert.rejects(p.wait(), { code: "CLOSED" });
  const second = await client(t, url, { sessionId: first.sessionId });
  const q = await second.attach(p.id);
  await q.kill();
  q.discard();
  assert.equal((await q.wait()).signal, 9);
});

test("commands that somebody has to approve", { timeout: 60_000 }, async (t) => {
  const { url } = await serve(t);
  const asked: CommandQuestion[] = [];
  const decided: string[] = [];
  const agent = await client(t, url, {
    approveCommand: (question) => {
      asked.push(question);
      return question.argv.includes("yes") ? "accept" : "decline";
    },
    onCommandDecision: ({ argv, decision }) => void decided.push(`${argv.at(-1)}: ${decision}`),
  });
  const execPolicy = { rules: [{ name: "mine.rules", text: 'prefix_rule(pattern = ["echo"], decision = "prompt", justification = "it speaks")' }], enforce: "start" as const };
  const yes = await agent.run(["echo", "yes"], { execPolicy });
  assert.equal(yes.text, "yes\n");
  const no = await agent.run(["echo", "no"], { execPolicy });
  assert.deepEqual([no.exitCode, no.text], [126, ""]);
  assert.deepEqual(asked.map(({ argv, kind }) => [kind, ...argv]), [["start", "echo", "yes"], ["start", "echo", "no"]]);
  assert.match(asked[0]?.reason ?? "", /it speaks/);
  assert.deepEqual(decided.sort(), ["no: forbidden", "yes: allow"]);
  const nobody = await client(t, url);
  await assert.rejects(nobody.run(["echo", "x"], { execPolicy }), { code: "REFUSED", reason: "execPolicy" });
});

test("policies and questions about the network", { timeout: 60_000 }, async (t) => {
  const port = await web(t);
  const { url } = await serve(t);
  const asked: NetworkQuestion[] = [];
  const decided: string[] = [];
  const agent = await client(t, url, {
    refusals: true,
    approveNetwork: (question) => {
      asked.push(question);
      return question.host === "yes.test" ? "allow" : { deny: "nobody needs that" };
    },
    onNetworkDecision: ({ host, decision, reason }) => void decided.push(`${host}: ${decision}: ${reason}`),
  });
  const dir = folder(t);
  mkdirSync(join(dir, "w"));
  mkdirSync(join(dir, "vault"));
  writeFileSync(join(dir, "vault/key"), "key");
  const written = await agent.shell("echo x >w/new; cat w/new; cat vault/key; echo x >no", { cwd: dir, sandbox: { workspace: join(dir, "w"), deny: join(dir, "vault") } });
  assert.equal(written.text, "x\n", written.errorText);
  assert.match(written.errorText, /vault\/key/);
  // The folder of this test is a temporary one, which commands with a workspace can write.
  assert.ok(existsSync(join(dir, "w/new")));
  await agent.fs.under({ workspace: join(dir, "w") }).write(join(dir, "w/written"), "x");
  const files = agent.fs.under({ deny: join(dir, "vault") });
  await assert.rejects(files.read(join(dir, "vault/key")), (error: AgentError) => ["PERMISSION_DENIED", "NOT_FOUND"].includes(error.code));
  await assert.rejects(files.write(join(dir, "x"), ""), { errno: 30 });
  const off = await agent.run(["curl", "-sS", "-m", "5", `http://127.0.0.1:${port}/hello`], { sandbox: {} });
  assert.notEqual(off.exitCode, 0);
  const on = await agent.run(["curl", "-sS", "-m", "5", `http://127.0.0.1:${port}/hello`], { sandbox: { network: "on" } });
  assert.equal(on.text, "hello\n");
  const some = await agent.shell("curl -sS -m 20 http://yes.test/; curl -sS -m 20 http://no.test/; curl -sS -m 20 http://never.test/", { sandbox: { network: { ask: ["yes.test", "no.test"], deny: "never.test" } } });
  assert.deepEqual([...new Set(asked.map(({ host }) => host))].sort(), ["no.test", "yes.test"], some.errorText);
  assert.ok(decided.some((line) => line === "no.test: deny: nobody needs that"), decided.join());
  assert.ok(decided.some((line) => line.startsWith("yes.test: ") && !line.includes("nobody")), decided.join()); // it has no address
  assert.ok((some.refusals?.list ?? []).some(({ subject }) => subject.startsWith("no.test")), JSON.stringify(some.refusals));
});

test("time-outs, signals and what was read", { timeout: 60_000 }, async (t) => {
  const { url } = await serve(t);
  const agent = await client(t, url);
  const running = async (): Promise<number> => (await agent.processes()).filter(({ exited }) => !exited).length;
  await assert.rejects(agent.shell("echo first; sleep 60", { timeoutMs: 500 }), (error: AgentError & { stdout?: Uint8Array }) => error.code === "TIMEOUT" && Buffer.from(error.stdout ?? []).toString() === "first\n");
  await assert.rejects(agent.run(["sleep", "60"], { signal: AbortSignal.timeout(200) }), { name: "TimeoutError" });
  await assert.rejects(agent.run(["sleep", "60"], { signal: AbortSignal.abort(new Error("mine")) }), { message: "mine" });
  await assert.rejects(agent.shell("yes", { maxOutput: 1000, overflow: "error" }), { code: "OUTPUT_LIMIT", limit: 1000 });
  await assert.rejects(agent.shell("echo a b >&2; exit 2", { check: true }), { code: "COMMAND", exitCode: 2, message: /ended with 2: a b$/ });
  const nothingRuns = async (why: string): Promise<void> => {
    for (let i = 0; i < 100 && (await running()) > 0; i++) await new Promise((resolve) => setTimeout(resolve, 20));
    assert.equal(await running(), 0, why);
  };
  await nothingRuns("what nobody holds is killed");
  const p = await agent.spawn(["sleep", "60"], { killAfterMs: 100 });
  assert.deepEqual([(await p.exited).signal, (await p.exited).timedOut], [15, true]);
  {
    await using q = await agent.spawn(["sleep", "60"]);
    void q;
  }
  await nothingRuns("await using ends a process");
  const waiting = await agent.spawn(["sleep", "1"]);
  await assert.rejects(waiting.wait({ signal: AbortSignal.timeout(50) }), { name: "TimeoutError" });
  assert.equal((await waiting.wait()).exitCode, 0);
  for (const bad of [{ timeoutMs: -1 }, { killAfterMs: Number.NaN }, { maxOutput: 0.5 }, { memory: "much" }, { memory: 0 }, { cpus: 0 }, { pids: 1.5 }, { user: ":" }, { user: "a:" }, { cwd: "here" }, { env: { "a=b": "c" } }, { input: "x", tty: true }]) {
    await assert.rejects(agent.run(["true"], bad), { code: "USAGE" }, JSON.stringify(bad));
  }
  await assert.rejects(agent.run(["echo", "\ud800"]), { code: "USAGE", message: /half of a surrogate/ });
  await assert.rejects(agent.spawn("true" as never), { code: "USAGE" });
});

test("limits and users: what the agent's host can hold", { timeout: 60_000 }, async (t) => {
  const { url } = await serve(t);
  const agent = await client(t, url);
  // Whether there is a control group of ours, and whether we are root, is up to the machine.
  const limited = await agent.spawn(["sleep", "60"], { memory: "64m", cpus: 0.5, pids: 50, fileSize: "1m" }).catch((error: ServerError) => error);
  if (limited instanceof ServerError) {
    assert.deepEqual([limited.number, limited.kind], [-32602, "limitUnavailable"]);
    assert.deepEqual((await agent.spawn(["true"], { fileSize: "1m" })).started?.limits, { fileSize: "rlimit" });
  } else {
    assert.deepEqual(limited.started?.limits, { memory: "cgroup", cpus: "cgroup", pids: "cgroup", fileSize: "rlimit" });
    await limited.kill();
    const hungry = await agent.run(["head", "-c", "200m", "/dev/zero"], { memory: "32m" }).then(() => agent.run(["sh", "-c", "x=$(head -c 200m /dev/zero | tr '\\0' x)"], { memory: "32m" }));
    assert.equal(hungry.outOfMemory, true);
  }
  const other = await agent.run(["sh", "-c", "id -un; id -g"], { user: "nobody:0", cwd: "/" }).catch((error: ServerError) => error);
  if (process.getuid?.() === 0) assert.equal(other instanceof ServerError ? other.message : other.text, "nobody\n0\n");
  else assert.equal((other as ServerError).kind, "userUnavailable");
  await assert.rejects(agent.run(["true"], { user: "nobody-at-all" }), { number: -32602, kind: "userUnavailable" });
});

test("ports that open and close", { timeout: 60_000 }, async (t) => {
  const { url } = await serve(t);
  const proxy = await Proxy.start(t, url);
  const agent = await client(t, proxy.url);
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  assert.ok((await agent.ports()).ports.some((one) => one.port === port && one.address === "127.0.0.1" && one.pid === process.pid));
  assert.deepEqual((await agent.ports({ sandbox: {} })).ports, []);
  await using watch = await agent.watchPorts();
  const changed = async (list: "opened" | "closed"): Promise<void> => {
    for (;;) if ((await watch.next())[list].some((one) => one.port === port)) return;
  };
  await changed("opened");
  proxy.cut();
  server.close();
  await changed("closed");
});

test("streams of files", { timeout: 60_000 }, async (t) => {
  const { url } = await serve(t);
  const agent = await client(t, url);
  const dir = folder(t);
  const content = Buffer.alloc(5_000_000, "0123456789abcdef");
  writeFileSync(join(dir, "a"), content);
  await agent.fs.write(join(dir, "b"), await agent.fs.stream(join(dir, "a")));
  assert.ok(readFileSync(join(dir, "b")).equals(content));
  const stream = await agent.fs.stream(join(dir, "a"));
  await stream.cancel();
  await assert.rejects(agent.fs.stream(join(dir, "none")), { code: "NOT_FOUND" });
  const broken = new ReadableStream<Uint8Array>({ pull: (controller) => controller.error(new Error("mine")) });
  await assert.rejects(agent.fs.write(join(dir, "c"), broken), { message: "mine" });
  const odd = join(dir, "\udcff");
  await agent.fs.write(odd, "x");
  const { entries } = await agent.fs.walk(dir);
  assert.ok(entries.every(({ path }) => !path.includes("\udcff")), "a name that is not UTF-8 is an error of the walk");
  assert.equal(await agent.fs.readText(odd), "x");
  for (let i = 0; i < 200; i++) await (await agent.fs.open(join(dir, "a"))).close();
});

test("copies keep what files are, and name what they leave out", { timeout: 120_000 }, async (t) => {
  const { url } = await serve(t);
  const agent = await client(t, url);
  const [here, there] = [folder(t), folder(t)];
  execFileSync("sh", ["-c", `mkdir -p t/sub/hollow && echo x >t/f && ln t/f t/sub/same && ln -s ../f t/sub/link && chmod 640 t/f && head -c 3000000 /dev/urandom >t/big \
    && truncate -s 10M t/sparse && echo end >>t/sparse && touch -d 2001-02-03T04:05:06.789 t/f && printf y >"t/$(printf 'n\\377ame')" && chmod 1755 t/sub/hollow && mkfifo t/pipe`], { cwd: here });
  const listing = (dir: string): string => execFileSync("sh", ["-c", "find . ! -type p | sort | while read -r f; do if test -d \"$f\" -a ! -L \"$f\"; then stat -c '%n %A' \"$f\"; else stat -c '%n %A %s %h' \"$f\"; fi; done; find . -type f ! -name sparse | sort | xargs -d '\\n' cksum; stat -c %.6Y f; cksum sparse"], { cwd: dir, encoding: "latin1" });
  let progress = 0;
  await assert.rejects(agent.upload(join(here, "t"), there, { onProgress: (bytes) => (progress = bytes) }), (error: unknown) => error instanceof CopyError && error.incomplete && /t\/pipe: left out/.test(error.message));
  assert.ok(progress > 13_000_000);
  assert.equal(listing(join(there, "t")), listing(join(here, "t")));
  rmSync(join(here, "t/pipe"));
  await agent.download(join(there, "t"), join(here, "back"));
  assert.equal(listing(join(here, "back")), listing(join(here, "t")));
  await agent.download(`${there}/t/.`, join(here, "back"));
  await agent.upload(`${here}/t/.`, join(there, "again"));
  assert.equal(listing(join(there, "again")), listing(join(here, "t")));
  // What is there is replaced, and only when all of it has come.
  writeFileSync(join(here, "back/f"), "old");
  symlinkSync("/etc/hostname", join(here, "outside"));
  await agent.download(join(there, "t/f"), join(here, "back"));
  assert.equal(readFileSync(join(here, "back/f"), "utf8"), "x\n");
  await assert.rejects(agent.download(join(there, "none"), here), { code: "NOT_FOUND" });
  await assert.rejects(agent.download(join(there, "t"), join(here, "no/such/place")), { code: "NOT_FOUND" });
  await assert.rejects(agent.upload(join(here, "none"), there), { code: "NOT_FOUND" });
  await assert.rejects(agent.upload(here, join(there, "no/such/place")), { message: /no such file/i });
  const aborted = new AbortController();
  const copying = agent.upload(join(here, "t"), join(there, "aborted"), { signal: aborted.signal, onProgress: () => aborted.abort(new Error("enough")) });
  await assert.rejects(copying, { message: "enough" });
  assert.equal((await agent.run(["true"])).exitCode, 0);
});

test("terminals", { timeout: 60_000 }, async (t) => {
  const { url } = await serve(t);
  const agent = await client(t, url);
  const result = await agent.run(["sh", "-c", "stty size; test -t 1 && echo tty; echo err >&2"], { tty: true });
  assert.equal(result.text, "24 80\r\ntty\r\nerr\r\n");
});

