/** Measures a harness with an agent, beside the harness's own provider for this machine, in one run. */

import assert from "node:assert/strict";
import { connect, type NodeAgent, type NodeOptions } from "@execagent/client/node";
import { folder, serve, type Ends } from "../../test/rig.js";

/** What a provider does: it runs a command and returns its output, and ends. */
export interface Running {
  run(command: string): Promise<string>;
  end(): Promise<unknown>;
}

/** A way to a provider that works in a directory. The way has `connect` for the one with an agent. */
export type Way = (dir: string, connect: (session?: NodeOptions) => Promise<NodeAgent>) => Promise<Running>;

const commands = 100;

/**
 * Prints, in milliseconds, the time from the making of a provider to the first result, and that of each of 100 small
 * commands after it. The ways take turns, so that a busy machine slows all of them down.
 */
export async function measure(ways: Readonly<Record<string, Way>>): Promise<void> {
  const ends: (() => unknown)[] = [];
  const t: Ends = { after: (call) => ends.push(call) };
  const { url } = await serve(t);
  const rounds = Number(process.argv[2] ?? 5);
  const figures = new Map(Object.keys(ways).map((name): [string, { cold: number[]; small: number[] }] => [name, { cold: [], small: [] }]));
  for (let round = 0; round < rounds; round++) {
    for (const [name, way] of Object.entries(ways)) {
      const { cold, small } = figures.get(name) as { cold: number[]; small: number[] };
      const dir = folder(t);
      const time = async (call: () => Promise<unknown>): Promise<number> => {
        const began = performance.now();
        await call();
        return performance.now() - began;
      };
      let running!: Running;
      const echo = async (): Promise<void> => assert.match(await running.run("echo hi"), /hi/);
      cold.push(await time(async () => {
        running = await way(dir, (session) => connect(url, session));
        await echo();
      }));
      for (let i = 0; i < commands; i++) small.push(await time(echo));
      await running.end();
    }
  }
  for (const [name, { cold, small }] of figures) {
    for (const [what, all] of [["cold start", cold], ["small command", small]] as const) {
      const sorted = all.sort((a, b) => a - b);
      console.log(`${name.padEnd(24)} ${what.padEnd(14)} min ${(sorted[0] as number).toFixed(2).padStart(8)}  median ${(sorted[sorted.length >> 1] as number).toFixed(2).padStart(8)}`);
    }
  }
  for (const end of ends) await end();
}
