/** node build/adapters/bench/openai-agents.js [ROUNDS] */

import { UnixLocalSandboxClient } from "@openai/agents/sandbox/local";
import { ExecagentSandboxClient } from "@execagent/client/openai-agents";
import { measure } from "./measure.js";

const args = { login: false, yieldTimeMs: 30_000 };
await measure({
  "unix_local": async () => {
    const session = await new UnixLocalSandboxClient().create();
    return { run: (cmd) => session.execCommand({ cmd, ...args }), end: () => session.close() };
  },
  "execagent": async (cwd, connect) => {
    const session = await new ExecagentSandboxClient(connect, { cwd }).create();
    return { run: (cmd) => session.execCommand({ cmd, ...args }), end: () => session.close() };
  },
  "execagent, sandbox": async (cwd, connect) => {
    const session = await new ExecagentSandboxClient(connect, { cwd, sandbox: { workspace: "." } }).create();
    return { run: (cmd) => session.execCommand({ cmd, ...args }), end: () => session.close() };
  },
});
