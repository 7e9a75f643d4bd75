import { assistantMessage, functionCall, modelResponder, ScriptedModel } from "@openai/agents/testing";

/** Stands for a model of a provider. It runs one command, and says what came. */
export const model = new ScriptedModel([
  [functionCall("exec_command", { cmd: "uname -s", login: false }, { callId: "c" })],
  modelResponder(({ request }) => [assistantMessage(`It is ${/Output:\\n(\w+)/.exec(JSON.stringify(request.input))?.[1]}.`)]),
]);
