/** node build/adapters/bench/strands.js [ROUNDS] */

import { Agent, type Sandbox } from "@strands-agents/sdk";
import { ExecagentSandbox } from "@execagent/client/strands";
import { measure } from "./measure.js";

await measure({
  // The harness has no name for its own environment but as the default of an agent.
  "local environment": async (cwd) => {
    const { sandbox } = new Agent({ model: {} as never }) as unknown as { sandbox: Sandbox };
    return { run: async (command) => (await sandbox.execute(command, { cwd })).stdout, end: async () => {} };
  },
  "execagent": async (cwd, connect) => {
    const sandbox = new ExecagentSandbox(connect, { cwd });
    return { run: async (command) => (await sandbox.execute(command)).stdout, end: () => sandbox.end() };
  },
  "execagent, sandbox": async (cwd, connect) => {
    const sandbox = new ExecagentSandbox(connect, { cwd, sandbox: { workspace: cwd } });
    return { run: async (command) => (await sandbox.execute(command)).stdout, end: () => sandbox.end() };
  },
});
