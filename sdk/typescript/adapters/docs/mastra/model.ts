import { MockLanguageModelV4 } from "ai/test";

const usage = { inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 }, outputTokens: { total: 1, text: 1, reasoning: 0 } };

/** Stands for a model of a provider. It runs one command, and says what came. Mastra's types of a model are those of an earlier patch. */
export const model = new MockLanguageModelV4({
  doGenerate: async ({ prompt }) => {
    const last = prompt.at(-1);
    const output = last?.role === "tool" && last.content[0]?.type === "tool-result" ? last.content[0].output : undefined;
    if (output?.type === "text") {
      return { content: [{ type: "text", text: `It is ${output.value.trim()}.` }], finishReason: { unified: "stop", raw: undefined }, usage, warnings: [] };
    }
    const call = { type: "tool-call" as const, toolCallId: "c", toolName: "mastra_workspace_execute_command", input: JSON.stringify({ command: "uname -s" }) };
    return { content: [call], finishReason: { unified: "tool-calls", raw: undefined }, usage, warnings: [] };
  },
}) as never;
