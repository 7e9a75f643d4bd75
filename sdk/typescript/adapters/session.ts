/** The session that each harness is driven through, and its transcript. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { open } from "node:fs/promises";
import { join } from "node:path";
import { connect, type NodeAgent, type NodeOptions, type Policy } from "@execagent/client/node";
import { folder, Proxy, serve, type Ends } from "../test/rig.js";

// From the build.
const here = join(import.meta.dirname, "../..");

/** An agent with a project whose test fails, behind a proxy that can cut. */
export interface Site {
  /** The directory of the project, at the agent. */
  readonly dir: string;
  readonly token: string;
  readonly proxy: Proxy;
  /** What {@link connect} has returned. */
  readonly agents: readonly NodeAgent[];
  /** Connects through the proxy, in the session that an adapter asks for. */
  readonly connect: (session?: NodeOptions) => Promise<NodeAgent>;
}

/** A policy that lets a command write nothing. */
export const readOnly: Policy = { readOnly: true };

/** A command whose connection {@link cutOnce} cuts, while it waits. */
export const cutCommand = "echo begun; read word <gate; echo $word";

/** Waits for {@link cutCommand}, cuts its connection, and lets it go on. */
export async function cutOnce({ proxy, dir }: Site): Promise<void> {
  const gate = await open(join(dir, "gate"), "w"); // once the command reads
  proxy.cut();
  await gate.write("and ended\n");
  await gate.close();
}

/** Starts an agent that wants a token, and writes the project. */
export async function site(t: Ends): Promise<Site> {
  const token = "secret-of-the-test";
  const file = join(folder(t), "token");
  writeFileSync(file, token, { mode: 0o600 });
  const { url, home } = await serve(t, "ws", ["--ws-auth", "capability-token", "--ws-token-file", file]);
  const proxy = await Proxy.start(t, url);
  const dir = join(home, "project");
  mkdirSync(dir);
  writeFileSync(join(dir, "sum.sh"), 'echo $(($1 - $2))\n');
  writeFileSync(join(dir, "test.sh"), 'got=$(sh sum.sh 1 2)\n[ "$got" = 3 ] && echo ok || { echo "sum.sh 1 2 gave $got"; exit 1; }\n');
  execFileSync("mkfifo", [join(dir, "gate")]);
  const agents: NodeAgent[] = [];
  return {
    dir, token, proxy, agents,
    connect: async (session) => {
      const agent = await connect(proxy.url, { token, ...session });
      agents.push(agent);
      return agent;
    },
  };
}

/** What a model and its tools have said, one paragraph each. */
export class Transcript {
  readonly #said: string[] = [];

  constructor(private readonly site: Site) {}

  add(who: string, what: unknown): void {
    const text = typeof what === "string" ? what : JSON.stringify(what, null, 1).replaceAll(/\n */g, " ");
    const same = text.replaceAll(this.site.dir, "/project").replaceAll(/Read-only file system|Permission denied/g, "Permission denied").replaceAll(/os error (13|30)/g, "os error 13");
    this.#said.push(`${who}: ${same.trimEnd()}`);
  }

  /** Compares it with the one that is kept in transcripts. With UPDATE=1 it is written. */
  is(name: string): void {
    const kept = join(here, "transcripts", `${name}.txt`);
    const said = this.#said.join("\n\n") + "\n";
    assert.ok(!said.includes(this.site.token), "the transcript has the token");
    if (process.env["UPDATE"] === "1") writeFileSync(kept, said);
    assert.equal(said, readFileSync(kept, "utf8"));
  }
}
