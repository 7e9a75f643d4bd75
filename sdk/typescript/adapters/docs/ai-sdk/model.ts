import { MockLanguageModelV4 } from "ai/test";

const usage = { inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 }, outputTokens: { total: 1, text: 1, reasoning: 0 } };

/** Stands for a model of a provider. It runs one command, and says what came. */
export const model = new MockLanguageModelV4({
  doGenerate: async ({ prompt }) => {
    const last = prompt.at(-1);
    const result = last?.role === "tool" && last.content[0]?.type === "tool-result" ? last.content[0].output : undefined;
    if (result?.type === "json") {
      return { content: [{ type: "text", text: `It is ${(result.value as { stdout: string }).stdout.trim()}.` }], finishReason: { unified: "stop", raw: undefined }, usage, warnings: [] };
    }
    const input = JSON.stringify({ command: "uname -s" });
    return { content: [{ type: "tool-call", toolCallId: "c", toolName: "exec", input }], finishReason: { unified: "tool-calls", raw: undefined }, usage, warnings: [] };
  },
});
