/** Every block of docs/sdk/typescript.md runs, and prints what the page says. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { before, describe, test } from "node:test";
import { folder, home, registryProgram, repository, serve, site } from "./rig.js";

const run = promisify(execFile);
const page = readFileSync(join(repository, "docs/sdk/typescript.md"), "utf8");
const dir = join(home, "build/docs");

/** A block, and the heading above it. */
interface Block {
  readonly name: string;
  readonly source: string;
  readonly output: string | undefined;
  /** Whether test/browser.test.ts runs it. */
  readonly browser: boolean;
}

const blocks: Block[] = [];
let heading = "";
for (const [, title, kind, text] of page.matchAll(/^## (.+)$|^```(.*)\n([\s\S]*?)^```$/gm)) {
  if (title !== undefined) heading = title;
  else if (kind === "ts run" || kind === "ts browser") blocks.push({ name: heading, source: text as string, output: undefined, browser: kind === "ts browser" });
  else if (kind === "text output") blocks.push({ ...(blocks.pop() as Block), output: text as string });
  else assert.match(kind as string, /^sh untested: /, "a block that nothing runs");
}

/** Stands for the package ws, which this package does not depend on. */
const webSocket = `
export const WebSocket = globalThis.WebSocket as unknown as new (url: string, options: object) => WebSocketLike;
import type { WebSocketLike } from "@execagent/client";
`;

describe("docs/sdk/typescript.md", { concurrency: 4 }, () => {
  before(async () => {
    rmSync(dir, { recursive: true, force: true });
    mkdirSync(dir, { recursive: true });
    writeFileSync(join(dir, "websocket.ts"), webSocket);
    blocks.forEach(({ source }, i) => writeFileSync(join(dir, `block${i}.ts`), source));
    const compilerOptions = { rootDir: ".", outDir: "out", declaration: false, noUnusedParameters: false };
    writeFileSync(join(dir, "tsconfig.json"), JSON.stringify({ extends: "../../tsconfig.json", compilerOptions, include: ["."] }));
    const tsc = join(home, "node_modules/.bin/tsc");
    // The blocks use the package by its name, so as it will be published. npm test has built it.
    await run(tsc, ["-p", dir]).catch(said);
  });

  assert.ok(blocks.length >= 12);
  for (const [i, { name, output, browser }] of blocks.entries()) {
    if (browser) continue; // it only has to compile here
    test(`${name}, block ${i}`, { timeout: 120_000 }, async (t) => {
      if (name === "Ways to an agent" && !("WebSocket" in globalThis)) {
        t.skip("this version of Node has no global WebSocket");
        return;
      }
      const far = name === "Behind a registry";
      if (far && !existsSync(registryProgram)) {
        t.skip("there is no program registry");
        return;
      }
      const behind = far ? await site(t) : undefined;
      const url = behind === undefined ? (await serve(t)).url : "";
      const config = join(folder(t), "config.toml");
      const registry = behind === undefined ? {} : { REGISTRY: behind.registry, HARNESS_KEY: behind.harness };
      const env = { ...process.env, AGENT_URL: url, AGENT_CONFIG: config, NO_COLOR: "1", ...registry };
      const { stdout } = await run(process.execPath, [join(dir, "out", `block${i}.js`)], { env, timeout: 100_000 }).catch(said);
      assert.equal(stdout, output);
      assert.equal(existsSync(config), false);
    });
  }
});

/** Shows what a program has said that failed. */
function said(error: { stdout?: string; stderr?: string } & Error): never {
  throw new Error(`${error.message}\n${error.stdout ?? ""}\n${error.stderr ?? ""}`);
}
