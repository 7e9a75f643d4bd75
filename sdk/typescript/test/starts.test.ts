/**
 * Starts whose answer is lost: the command runs once, or the caller learns that nobody knows. The scenarios of sdk/scenarios/recovery.json
 * have the rest: each place of the cut, input, output that is gone, refusals.
 */

import assert from "node:assert/strict";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import type { NodeAgent } from "../src/node/index.js";
import { client, folder, Proxy, serve } from "./rig.js";
import { info, Refusal, Scripted } from "./scripted.js";

const time = { timeout: 120_000 };
const lost = { code: "DISCONNECTED", sent: true, retryable: false };

/** Waits until something is so. */
async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await condition())) await new Promise((resolve) => setTimeout(resolve, 5));
}

/** Waits until the one process of the session was killed. */
async function killed(agent: NodeAgent): Promise<void> {
  await until(async () => {
    const all = await agent.processes();
    return all.length === 1 && all[0]?.exited === true && all[0].exitCode === 137;
  });
}

/** Returns a command that leaves a trace each time that it runs. */
function once(dir: string): string[] {
  return ["sh", "-c", 'echo once >> "$1/ran"; echo out; [ -e "$1/short" ] || exec sleep 600', "sh", dir];
}

test("a start that is given up during the recovery", time, async (t) => {
  const [dir, proxy] = [folder(t), await Proxy.start(t, (await serve(t)).url)];
  const agent = await client(t, proxy.url);
  proxy.cutAt("answer", join(dir, "gate"));
  const enough = new AbortController();
  const run = agent.run(once(dir), { signal: enough.signal });
  await until(() => existsSync(join(dir, "ran")) && agent.state === "recovering");
  const reason = new Error("not any more");
  enough.abort(reason);
  await assert.rejects(run, reason);
  writeFileSync(join(dir, "gate"), "");
  await killed(agent);
  assert.equal(readFileSync(join(dir, "ran"), "utf8"), "once\n");
});

test("a start that does not wait for the recovery", time, async (t) => {
  const [dir, proxy] = [folder(t), await Proxy.start(t, (await serve(t)).url)];
  const agent = await client(t, proxy.url);
  proxy.cutAt("answer", join(dir, "ran"));
  await assert.rejects(agent.spawn(once(dir), { failFast: true }), lost);
  await killed(agent);
});

for (const decision of ["accept", "decline"] as const) {
  test(`a start that waits for approval: ${decision}`, time, async (t) => {
    const [dir, proxy] = [folder(t), await Proxy.start(t, (await serve(t)).url)];
    writeFileSync(join(dir, "short"), "");
    const asked: string[] = [];
    const agent = await client(t, proxy.url, {
      approveCommand: ({ kind }) => {
        asked.push(kind);
        return decision;
      },
    });
    proxy.cutAt("answer", undefined);
    const execPolicy = { rules: [{ name: "mine.rules", text: 'prefix_rule(pattern = ["sh"], decision = "prompt")' }] };
    const result = await agent.run(once(dir), { execPolicy });
    assert.deepEqual([result.exitCode, result.text], decision === "accept" ? [0, "out\n"] : [126, ""]);
    assert.deepEqual(asked, ["start"]);
    assert.equal(existsSync(join(dir, "ran")) ? readFileSync(join(dir, "ran"), "utf8") : "", decision === "accept" ? "once\n" : "");
  });
}

test("the session is gone: the command is not started in another one", time, async (t) => {
  const [dir, { url }] = [folder(t), await serve(t, "ws")];
  const proxy = await Proxy.start(t, url);
  const agent = await client(t, proxy.url, { sessionName: "gone" });
  proxy.cutAt("answer", join(dir, "gate"));
  const run = agent.run(["sh", "-c", 'echo once >> "$1/ran"; echo $$ > "$1/pid"; exec sleep 600', "sh", dir]);
  const failed = assert.rejects(run, { ...lost, final: true, message: /not resumed: unknown session id/ });
  const pid = (): string => (existsSync(join(dir, "pid")) ? readFileSync(join(dir, "pid"), "utf8") : "");
  await until(() => pid().endsWith("\n"));
  await (await client(t, url)).sessions.end(agent.sessionId);
  await until(() => !existsSync(`/proc/${pid().trim()}`)); // it ends with its session
  writeFileSync(join(dir, "gate"), "");
  await failed;
  assert.equal(readFileSync(join(dir, "ran"), "utf8"), "once\n");
});

for (const flag of [false, true]) {
  test(`nobody knows: ${flag ? "the process is forgotten" : "the agent lacks startId"}`, time, async (t) => {
    const starts: Record<string, unknown>[] = [];
    const ends: unknown[] = [];
    const server = await Scripted.start(t, {
      initialize: () => ({ sessionId: "s", environmentInfo: { ...info, capabilities: { ...info.capabilities, processStartId: flag } } }),
      "process/start": ({ params }, link) => {
        if (starts.push(params) === 1) link.socket.destroy();
        return new Refusal(-32600, "gone", { reason: "forgotten" });
      },
      "process/terminate": ({ params }) => {
        ends.push(params["processId"]);
        return { running: true };
      },
    });
    const agent = await client(t, server.url);
    await assert.rejects(agent.run(["x"]), lost);
    if (flag) {
      assert.equal(typeof starts[0]?.["startId"], "string");
      assert.deepEqual(starts, [starts[0], starts[0]]);
      return;
    }
    await until(() => ends.length > 0);
    assert.deepEqual(ends, [starts[0]?.["processId"]]);
    assert.deepEqual([starts.length, "startId" in (starts[0] ?? {})], [1, false]);
  });
}
