import { AIMessage } from "@langchain/core/messages";
import { fakeModel } from "@langchain/core/testing";

/** Stands for a model of a provider. It runs one command, and says what came. */
export const model = fakeModel()
  .respond(new AIMessage({ content: "", tool_calls: [{ id: "c", name: "execute", args: { command: "uname -s" } }] }))
  .respond((messages) => new AIMessage(`It is ${messages.at(-1)?.text.split("\n")[0]}.`));
