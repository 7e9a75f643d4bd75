/** The module for relays in a browser: the block of docs/sdk/typescript.md runs in a page. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { delimiter, join } from "node:path";
import { test } from "node:test";
import { build } from "esbuild";
import { folder, home, patient, registryProgram, repository, site } from "./rig.js";

/** Returns the path of a Chromium. */
function chromium(): string | undefined {
  const places = (process.env["PATH"] ?? "").split(delimiter);
  return ["chromium", "chromium-browser", "google-chrome"].flatMap((name) => places.map((place) => join(place, name))).find(existsSync);
}

const browser = chromium();
const lacking = browser === undefined ? "there is no Chromium" : !existsSync(registryProgram) && "there is no program registry";

async function bodyOf(request: IncomingMessage): Promise<string> {
  let text = "";
  for await (const piece of request) text += String(piece);
  return text;
}

/** Tells the server of the page what the page shows, and what goes wrong in it. */
const teller = `
  const tell = (path, text) => fetch(path, { method: "POST", body: text });
  addEventListener("error", (event) => tell("/failed", String(event.message)));
  addEventListener("unhandledrejection", (event) => tell("/failed", String(event.reason?.stack ?? event.reason)));
  new MutationObserver(() => tell("/shown", document.body.textContent)).observe(document.body, { childList: true });`;

test("a page runs a command through the relay", { timeout: 120_000, skip: lacking }, async (t) => {
  const [, block] = /^```ts browser\n([\s\S]*?)^```$/m.exec(readFileSync(join(repository, "docs/sdk/typescript.md"), "utf8")) ?? [];
  assert.ok(block !== undefined);
  const dir = join(home, "build/browser");
  mkdirSync(dir, { recursive: true });
  const asked = 'environmentId: "build-1" }, {';
  assert.ok(block.includes(asked));
  writeFileSync(join(dir, "page.ts"), block.replace(asked, `${asked} ...${JSON.stringify(patient)},`));
  // As the package will be published, and for a browser: nothing of Node can be in it.
  const { outputFiles } = await build({ entryPoints: [join(dir, "page.ts")], bundle: true, minify: true, format: "esm", platform: "browser", target: "es2022", write: false });

  const { registry, harness } = await site(t);
  let shown!: (text: string) => void;
  let failed!: (error: Error) => void;
  const seen = new Promise<string>((resolve, reject) => ([shown, failed] = [resolve, reject]));
  const server = createServer((request, response) => {
    void (async () => {
      switch (request.url) {
        case "/":
          response.setHeader("content-type", "text/html").end(`<!doctype html><title>page</title><script type="module">${teller}</script><script type="module" src="/page.js"></script><body>`);
          return;
        case "/page.js":
          response.setHeader("content-type", "text/javascript").end(outputFiles[0]?.text);
          return;
        case "/connect": {
          const headers = { authorization: `Bearer ${harness}`, "content-type": "application/json" };
          const answer = await fetch(`${registry}/cloud/environment/build-1/connect`, { method: "POST", headers, body: await bodyOf(request) });
          response.writeHead(answer.status).end(await answer.text());
          return;
        }
        case "/shown":
          shown(await bodyOf(request));
          break;
        case "/failed":
          failed(new Error(await bodyOf(request)));
      }
      response.end();
    })();
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  const flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", `--user-data-dir=${folder(t)}`];
  const child = spawn(browser as string, [...flags, `http://127.0.0.1:${(server.address() as AddressInfo).port}/`], { stdio: ["ignore", "ignore", "pipe"], detached: true });
  let said = "";
  child.stderr.on("data", (text: Buffer) => (said = (said + text.toString()).slice(-4096)));
  const gone = new Promise<void>((resolve) => child.on("close", () => resolve()));
  child.on("exit", () => failed(new Error(`the browser has ended: ${said}`)));
  t.after(async () => {
    process.kill(-(child.pid as number), "SIGKILL"); // with all that it has started
    await gone;
    server.closeAllConnections();
  });
  assert.equal(await seen, "hello from a page\n");
});
