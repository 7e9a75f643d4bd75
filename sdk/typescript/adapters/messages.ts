/** The Claude Agent SDK, and what stands for the Messages API on this machine. It answers what a script says. */

import { existsSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import type { Ends } from "../test/rig.js";

/** Where the SDK is installed, if it is. It has 400 MB and a licence of its own, so it is not in the lock of this package. */
export const claude = join(process.env["EXECAGENT_CLAUDE"] ?? join(import.meta.dirname, "../../../../../bin/claude"), "node_modules");
export const noClaude = !existsSync(join(claude, "@anthropic-ai")) && "the SDK is not installed: npm install --prefix bin/claude @anthropic-ai/claude-agent-sdk@0.3.332 zod@4";

/** A call of a tool, or what the model says at last. */
export type Step = readonly [tool: string, input: object] | string;

/** Serves the API until the test ends. Each conversation with tools takes the next step of `steps`. */
export async function messages(t: Ends, steps: Step[]): Promise<string> {
  let calls = 0;
  const server = createServer((request, response) => {
    void (async () => {
      let body = "";
      for await (const piece of request) body += String(piece);
      if (request.method !== "POST" || !request.url?.startsWith("/v1/messages?")) {
        response.writeHead(404, { "content-type": "application/json" }).end('{"type":"error","error":{"type":"not_found_error","message":"not here"}}');
        return;
      }
      const { model, tools, stream } = JSON.parse(body) as { model: string; tools?: unknown[]; stream?: boolean };
      const step = (tools ?? []).length > 0 ? (steps.shift() ?? "the script is at its end") : "a title";
      const id = `call_${++calls}`;
      const content = typeof step === "string" ? { type: "text", text: step } : { type: "tool_use", id, name: step[0], input: step[1] };
      const reason = typeof step === "string" ? "end_turn" : "tool_use";
      const message = { id: `message_${calls}`, type: "message", role: "assistant", model, content: [], stop_reason: null, stop_sequence: null, usage: { input_tokens: 1, output_tokens: 1 } };
      if (stream !== true) {
        response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify({ ...message, content: [content], stop_reason: reason }));
        return;
      }
      const delta = typeof step === "string" ? { type: "text_delta", text: step } : { type: "input_json_delta", partial_json: JSON.stringify(step[1]) };
      response.writeHead(200, { "content-type": "text/event-stream" });
      for (const event of [
        { type: "message_start", message },
        { type: "content_block_start", index: 0, content_block: typeof step === "string" ? { type: "text", text: "" } : { ...content, input: {} } },
        { type: "content_block_delta", index: 0, delta },
        { type: "content_block_stop", index: 0 },
        { type: "message_delta", delta: { stop_reason: reason, stop_sequence: null }, usage: { output_tokens: 1 } },
        { type: "message_stop" },
      ]) response.write(`event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`);
      response.end();
    })();
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}
