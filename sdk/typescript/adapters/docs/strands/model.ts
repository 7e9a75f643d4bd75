import { Model, type BaseModelConfig, type Message, type ModelStreamEvent } from "@strands-agents/sdk";

/** Stands for a model of a provider. It runs one command, and says what came. */
class Scripted extends Model<BaseModelConfig> {
  updateConfig(): void {}

  getConfig(): BaseModelConfig {
    return { modelId: "scripted", contextWindowLimit: 100_000 };
  }

  async *stream(messages: Message[]): AsyncIterable<ModelStreamEvent> {
    const result = messages.at(-1)?.content.find((block) => block.type === "toolResultBlock");
    yield { type: "modelMessageStartEvent", role: "assistant" };
    if (result === undefined) {
      yield { type: "modelContentBlockStartEvent", start: { type: "toolUseStart", name: "sandbox_shell", toolUseId: "c" } };
      yield { type: "modelContentBlockDeltaEvent", delta: { type: "toolUseInputDelta", input: '{"command":"uname -s"}' } };
    } else {
      const system = /"output":"(\w+)/.exec(JSON.stringify(result))?.[1];
      yield { type: "modelContentBlockStartEvent" };
      yield { type: "modelContentBlockDeltaEvent", delta: { type: "textDelta", text: `It is ${system}.` } };
    }
    yield { type: "modelContentBlockStopEvent" };
    yield { type: "modelMessageStopEvent", stopReason: result === undefined ? "toolUse" : "endTurn" };
  }
}

export const model = new Scripted();
