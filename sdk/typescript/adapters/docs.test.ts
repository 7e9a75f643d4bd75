/** Every TypeScript block of docs/integrations runs, and prints what its page says. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { folder, serve } from "../test/rig.js";
import { claude, messages, noClaude } from "./messages.js";

const run = promisify(execFile);
const here = join(import.meta.dirname, "../..");
const pages = join(here, "../../../docs/integrations");

/** Shows what a program has said that failed. */
function said(error: { stdout?: string; stderr?: string } & Error): never {
  throw new Error(`${error.message}\n${error.stdout ?? ""}\n${error.stderr ?? ""}`);
}

for (const page of readdirSync(pages)) {
  const name = page.replace(/\.md$/, "");
  const blocks = [...readFileSync(join(pages, page), "utf8").matchAll(/^```ts run\n([\s\S]*?)^```\n(?:\n```text output\n([\s\S]*?)^```$)?/gm)];
  if (blocks.length === 0) continue;
  const skip = name === "claude" && noClaude;
  test(`docs/integrations/${page}`, { timeout: 240_000, skip }, async (t) => {
    // What the blocks import beside packages is in docs.
    const dir = join(here, "build/docs", name);
    rmSync(dir, { recursive: true, force: true });
    mkdirSync(dir, { recursive: true });
    if (existsSync(join(here, "docs", name))) cpSync(join(here, "docs", name), dir, { recursive: true });
    const env: Record<string, string> = { NO_COLOR: "1" };
    if (name === "claude") {
      symlinkSync(claude, join(dir, "node_modules"));
      env["ANTHROPIC_BASE_URL"] = await messages(t, [["Bash", { command: "uname -s" }], "It is Linux."]);
      Object.assign(env, { ANTHROPIC_API_KEY: "not-a-key", CLAUDE_CONFIG_DIR: folder(t), CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1" });
    }
    blocks.forEach(([, source], i) => writeFileSync(join(dir, `block${i}.ts`), source as string));
    const compilerOptions = { rootDir: ".", outDir: "out", declaration: false, skipLibCheck: true };
    writeFileSync(join(dir, "tsconfig.json"), JSON.stringify({ extends: "../../../../tsconfig.json", compilerOptions, include: ["."] }));
    await run(join(here, "node_modules/.bin/tsc"), ["-p", dir]).catch(said);
    for (const [i, [, , output]] of blocks.entries()) {
      const { url } = await serve(t);
      const { stdout } = await run(process.execPath, [join(dir, "out", `block${i}.js`)], { env: { ...process.env, ...env, AGENT_URL: url }, timeout: 200_000 }).catch(said);
      assert.equal(stdout, output ?? "", `block ${i}`);
    }
  });
}
