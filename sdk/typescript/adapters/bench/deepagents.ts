/** node build/adapters/bench/deepagents.js [ROUNDS] */

import { LocalShellBackend } from "deepagents";
import { ExecagentBackend } from "@execagent/client/deepagents";
import { measure } from "./measure.js";

await measure({
  "LocalShellBackend": async (rootDir) => {
    const backend = await LocalShellBackend.create({ rootDir });
    return { run: async (command) => (await backend.execute(command)).output, end: async () => {} };
  },
  "execagent": async (cwd, connect) => {
    const backend = new ExecagentBackend(connect, { cwd });
    return { run: async (command) => (await backend.execute(command)).output, end: () => backend.end() };
  },
  "execagent, sandbox": async (cwd, connect) => {
    const backend = new ExecagentBackend(connect, { cwd, sandbox: { workspace: cwd } });
    return { run: async (command) => (await backend.execute(command)).output, end: () => backend.end() };
  },
});
