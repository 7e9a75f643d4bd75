/** The package as it is published: installed into an empty folder, without a network. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cpSync, existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";
import { folder, home, repository, serve } from "./rig.js";

const run = promisify(execFile);

test("an empty folder, without a network", { timeout: 240_000 }, async (t) => {
  const [dir, source, packed, again] = [folder(t), folder(t), folder(t), folder(t)];
  // Not here, because npm pack builds the package, which other tests use meanwhile. npm test has built it.
  for (const name of ["dist", "package.json", "README.md"]) cpSync(join(home, name), join(source, name), { recursive: true });
  cpSync(join(repository, "LICENSE"), join(source, "LICENSE"));
  const pack = async (to: string): Promise<{ filename: string; shasum: string; files: { path: string }[] }> => {
    const { stdout } = await run("npm", ["pack", "--json", "--ignore-scripts", "--pack-destination", to], { cwd: source });
    return (JSON.parse(stdout) as [{ filename: string; shasum: string; files: { path: string }[] }])[0];
  };
  const one = await pack(packed);
  assert.equal(one.shasum, (await pack(again)).shasum, "two packages of the same files differ");
  assert.ok(one.files.some(({ path }) => path === "LICENSE"));
  assert.deepEqual(one.files.map(({ path }) => path).filter((path) => !/^(dist\/.+\.(js|d\.ts)|package\.json|README\.md|LICENSE)$/.test(path)), []);
  const manifest = JSON.parse(readFileSync(join(home, "package.json"), "utf8")) as { exports: Record<string, Record<string, string>>; dependencies?: object };
  assert.equal(manifest.dependencies, undefined);
  for (const entry of Object.values(manifest.exports)) if (typeof entry === "object") assert.equal(Object.keys(entry)[0], "types", "types come first");

  await run("npm", ["install", "--offline", "--no-audit", "--no-fund", join(packed, one.filename)], { cwd: dir });
  const { url } = await serve(t);
  writeFileSync(join(dir, "first.mjs"), `
    import { connect } from "@execagent/client/node";
    import * as core from "@execagent/client";
    const agent = await connect("${url}");
    console.log((await agent.run(["echo", "hello"])).text.trim(), agent instanceof core.Agent);
    await agent.close();
  `);
  const { stdout } = await run(process.execPath, [join(dir, "first.mjs")], { cwd: dir });
  assert.equal(stdout, "hello true\n");

  // The types of every entry are found, and are right alone unless they extend classes of a harness, which is not there.
  const entries = Object.keys(manifest.exports).filter((entry) => entry !== "./package.json").map((entry) => entry.slice(1));
  const extending = ["/openai-agents", "/strands", "/mastra"];
  const imports = (some: readonly string[]): string => some.map((entry, i) => `import * as all${i} from "@execagent/client${entry}";\nvoid all${i};\n`).join("");
  writeFileSync(join(dir, "alone.mts"), imports(entries.filter((entry) => !extending.includes(entry))));
  writeFileSync(join(dir, "all.mts"), imports(entries));
  mkdirSync(join(dir, "node_modules/@types"));
  for (const name of ["@types/node", "undici-types"]) symlinkSync(join(home, "node_modules", name), join(dir, "node_modules", name));
  for (const [module, resolution] of [["node16", "node16"], ["nodenext", "nodenext"], ["esnext", "bundler"]] as const) {
    for (const words of [["alone.mts"], ["all.mts", "--skipLibCheck"]]) {
      const flags = ["--noEmit", "--strict", "--target", "es2022", "--types", "node", "--module", module, "--moduleResolution", resolution, ...words];
      await run(join(home, "node_modules/.bin/tsc"), flags, { cwd: dir }).catch((error: Error & { stdout: string }) => assert.fail(`${resolution}: ${error.stdout}`));
    }
  }
});

test("the core imports nothing of Node", () => {
  const seen = new Set<string>();
  const visit = (name: string): void => {
    if (seen.has(name)) return;
    seen.add(name);
    const source = readFileSync(join(home, "dist", name), "utf8");
    for (const [, from] of source.matchAll(/(?:from|import) "([^"]+)"/g)) {
      assert.match(from as string, /^\.\//, `${name} imports ${from}`);
      visit((from as string).slice(2));
    }
    assert.doesNotMatch(source, /createRequire|\bprocess\.(env|on|platform|version|std)|\bBuffer\./, name);
  };
  visit("index.js");
  assert.ok(seen.size > 15);
});

test("the core is small", async () => {
  const { outputFiles } = await build({ entryPoints: [join(home, "dist/index.js")], bundle: true, minify: true, format: "esm", write: false });
  const size = gzipSync(outputFiles[0]?.contents as Uint8Array, { level: 9 }).length;
  assert.ok(size <= 40_000, `${size} bytes, minified and compressed`);
});

const typedoc = join(home, "reference/node_modules/.bin/typedoc");

test("the reference of the API can be made without a warning", { timeout: 240_000, skip: !existsSync(typedoc) && "typedoc is not installed" }, async () => {
  await run(typedoc, ["--emit", "none"], { cwd: join(home, "reference") }).catch((error: Error & { stdout: string }) => assert.fail(error.stdout));
});
