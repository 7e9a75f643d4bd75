/** Every TypeScript block of docs/integrations runs, and prints what its page says. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { serve } from "../test/rig.js";

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
  test(`docs/integrations/${page}`, { timeout: 240_000 }, async (t) => {
    // What the blocks import beside packages is in docs.
    const dir = join(here, "build/docs", name);
    rmSync(dir, { recursive: true, force: true });
    mkdirSync(dir, { recursive: true });
    if (existsSync(join(here, "docs", name))) cpSync(join(here, "docs", name), dir, { recursive: true });
    blocks.forEach(([, source], i) => writeFileSync(join(dir, `block${i}.ts`), source as string));
    const compilerOptions = { rootDir: ".", outDir: "out", declaration: false, skipLibCheck: true };
    writeFileSync(join(dir, "tsconfig.json"), JSON.stringify({ extends: "../../../../tsconfig.json", compilerOptions, include: ["."] }));
    await run(join(here, "node_modules/.bin/tsc"), ["-p", dir]).catch(said);
    for (const [i, [, , output]] of blocks.entries()) {
      const { url } = await serve(t);
      const { stdout } = await run(process.execPath, [join(dir, "out", `block${i}.js`)], { env: { ...process.env, AGENT_URL: url, NO_COLOR: "1" }, timeout: 200_000 }).catch(said);
      assert.equal(stdout, output ?? "", `block ${i}`);
    }
  });
}
