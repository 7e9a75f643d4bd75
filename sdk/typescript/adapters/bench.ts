/**
 * Measures the adapters beside what their harnesses have for this machine: `npm run bench`. Cold is from nothing to the first
 * result, connecting included; small is one of 100 commands, one after the other. Compare figures of one run only.
 */

import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { sandbox } from "@execagent/client/ai-sdk";
import { spawnInside } from "@execagent/client/claude";
import { mastra } from "@execagent/client/mastra";
import { connect, type NodeOptions } from "@execagent/client/node";
import { LocalFilesystem, LocalSandbox } from "@mastra/core/workspace";
import { folder, serve } from "../test/rig.js";
import { claude, messages } from "./messages.js";

const ends: (() => unknown)[] = [];
const t = { after: (call: () => unknown) => void ends.push(call) };

/** Makes something, runs a command, and ends it. */
interface Kind {
  readonly name: string;
  readonly open: () => Promise<{ run: () => Promise<unknown>; read?: () => Promise<unknown>; close: () => Promise<unknown> }>;
}

async function times(count: number, work: () => Promise<unknown>): Promise<number[]> {
  const all: number[] = [];
  for (let i = 0; i < count; i++) {
    const begun = performance.now();
    await work();
    all.push(performance.now() - begun);
  }
  return all.sort((a, b) => a - b);
}

const shown = (sorted: number[]): string => `${(sorted[0] ?? 0).toFixed(1)} / ${(sorted[sorted.length >> 1] ?? 0).toFixed(1)}`;

async function measure(kinds: Kind[], colds: number, smalls: number): Promise<void> {
  for (const { name, open } of kinds) {
    const cold = await times(colds, async () => {
      const one = await open();
      await one.run();
      await one.close();
    });
    const one = await open();
    const [small, read] = [await times(smalls, one.run), one.read === undefined ? [] : await times(smalls, one.read)];
    await one.close();
    console.log(`| ${name} | ${shown(cold)} | ${smalls > 0 ? shown(small) : ""} | ${read.length > 0 ? shown(read) : ""} |`);
  }
}

const { url, home } = await serve(t);
const to = (session: NodeOptions): ReturnType<typeof connect> => connect(url, session);
console.log("| what | cold, min / median ms | small command | small file |\n|---|---|---|---|");
await measure([
  { name: "AI SDK, a child process", open: async () => ({ run: () => new Promise((done) => execFile("sh", ["-c", "echo x"], done)), close: async () => undefined }) },
  {
    name: "AI SDK, this adapter",
    open: async () => {
      const box = await sandbox(to);
      await box.writeTextFile({ path: "small", content: "x" });
      return { run: () => box.run({ command: "echo x" }), read: () => box.readTextFile({ path: "small" }), close: () => box.end() };
    },
  },
  {
    name: "Mastra, LocalSandbox",
    open: async () => {
      const [box, files] = [new LocalSandbox({ workingDirectory: home }), new LocalFilesystem({ basePath: home })];
      await box._start();
      await files.writeFile("small", "x");
      return { run: async () => box.executeCommand?.("echo x"), read: () => files.readFile("small"), close: () => box._destroy() };
    },
  },
  {
    name: "Mastra, this adapter",
    open: async () => {
      const { sandbox: box, filesystem: files } = mastra(to);
      await box._start();
      await files.writeFile("small", "x");
      return { run: async () => box.executeCommand?.("echo x"), read: () => files.readFile("small"), close: () => box._destroy() };
    },
  },
], 10, 100);

const sdk = join(claude, "@anthropic-ai/claude-agent-sdk/sdk.mjs");
if (existsSync(sdk)) {
  // One query of Claude Code, to which the model answers at once.
  const { query } = (await import(pathToFileURL(sdk).href)) as { query(call: object): AsyncIterable<unknown> };
  const api = await messages(t, Array.from({ length: 100 }, () => "done"));
  const config = folder(t);
  const ask = async (more: object): Promise<void> => {
    const env = { PATH: process.env["PATH"], HOME: config, CLAUDE_CONFIG_DIR: config, ANTHROPIC_BASE_URL: api, ANTHROPIC_API_KEY: "not-a-key", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1" };
    for await (const message of query({ prompt: "?", options: { cwd: home, settingSources: [], env, ...more } })) void message;
  };
  await measure([
    { name: "Claude Agent SDK, a child process", open: async () => ({ run: () => ask({}), close: async () => undefined }) },
    {
      name: "Claude Agent SDK, this adapter",
      open: async () => {
        const spawn = spawnInside(to);
        return { run: () => ask({ spawnClaudeCodeProcess: spawn }), close: () => spawn.end() };
      },
    },
  ], 5, 0);
}
for (const end of ends.reverse()) await end();
