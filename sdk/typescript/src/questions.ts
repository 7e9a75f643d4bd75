import { anything, count, flag, list, optional, otherwise, record, text, type Check } from "./check.js";
import { messageOf } from "./errors.js";

/** A question of the server: may a process reach this address? */
export interface NetworkQuestion {
  readonly processId: string;
  /** `http`, `https_connect`, `socks5_tcp` or `socks5_udp`. */
  readonly protocol: string;
  readonly host: string;
  readonly port: number;
  /** Of an HTTP request, if the network of the process has a rule about requests. */
  readonly method: string | undefined;
  readonly path: string | undefined;
}

/** The answer: a refusal may say why. */
export type NetworkAnswer = "allow" | "deny" | { readonly deny: string };

/** A question of the server: may this command run? */
export interface CommandQuestion {
  readonly processId: string;
  /** Belongs to this question alone. A question that is asked again after a lost connection keeps it. */
  readonly approvalId: string;
  /** `start`: the command of a spawn. `exec`: a program that it executes. */
  readonly kind: string;
  readonly argv: readonly string[];
  /** Whether argv is only the beginning. */
  readonly truncated: boolean;
  readonly exe: string;
  readonly cwd: string;
  readonly reason: string;
  readonly matchedRules: unknown;
  /** The beginning of a command that a rule could allow. */
  readonly proposedPrefix: readonly string[] | undefined;
  readonly timeoutMs: number;
}

/** The answer. `cancel` also ends the process; `acceptForProcess` is for the same command again, of this process. */
export type CommandAnswer = "accept" | "acceptForProcess" | "decline" | "cancel" | { readonly acceptWithRule: readonly string[] };

/** What a policy has decided about a command. */
export interface CommandDecision {
  readonly processId: string;
  readonly argv: readonly string[];
  readonly exe: string;
  readonly decision: string;
  readonly source: string;
  readonly rule: string;
}

/** What was decided about an address. */
export interface NetworkDecision {
  readonly processId: string;
  readonly decision: string;
  readonly source: string;
  readonly reason: string;
  readonly protocol: string;
  readonly host: string;
  readonly port: number;
}

/**
 * Answers to questions of the server. Without an answer the answer is no, and so it is where a function throws.
 *
 * The signal aborts when the question needs no answer any more.
 */
export interface Approvals {
  /** May this command run? Without this function the server refuses commands that need an approval. */
  approveCommand?: (question: CommandQuestion, signal: AbortSignal) => CommandAnswer | Promise<CommandAnswer>;
  /** May a process reach this address? */
  approveNetwork?: (question: NetworkQuestion, signal: AbortSignal) => NetworkAnswer | Promise<NetworkAnswer>;
  /** Called with decisions about commands. */
  onCommandDecision?: (decision: CommandDecision) => void;
  /** Called with decisions about addresses. Those that a server had to drop never come. */
  onNetworkDecision?: (decision: NetworkDecision) => void;
}

const networkQuestion = record({
  processId: text, request: record({ protocol: text, host: text, port: count, method: optional(text), path: optional(text) }),
});

const commandQuestion: Check<CommandQuestion> = record({
  processId: text, approvalId: text, kind: text, argv: list(text), truncated: otherwise(flag, false), exe: text, cwd: text, reason: text,
  matchedRules: anything, proposedPrefix: optional(list(text)), timeoutMs: count,
});

const commandClosed = record({ processId: text, approvalId: text });

const commandDecision: Check<CommandDecision> = record({
  processId: text, argv: list(text), exe: text, decision: text, source: text, rule: otherwise(text, ""),
});

const networkDecision: Check<NetworkDecision> = record({
  processId: text, decision: text, source: text, reason: text, protocol: text, host: text, port: count,
});

/** The questions of a server. */
export class Questions {
  readonly #approvals: Approvals;
  readonly #open = new Map<string, AbortController>();

  constructor(approvals: Approvals) {
    this.#approvals = approvals;
  }

  /** Whether questions about commands are answered. */
  get approves(): boolean {
    return this.#approvals.approveCommand !== undefined;
  }

  /** Answers a request of the server; undefined: the method is unknown. */
  asked(over: AbortSignal, method: string, params: unknown): Promise<unknown> | undefined {
    switch (method) {
      case "network/policyRequest":
        return this.#network(over, params);
      case "process/execApproval":
        return this.#command(over, params);
    }
    return undefined;
  }

  async #network(over: AbortSignal, params: unknown): Promise<unknown> {
    const { processId, request } = networkQuestion(params, "network/policyRequest");
    let answer: NetworkAnswer;
    try {
      answer = (await this.#approvals.approveNetwork?.({ processId, ...request }, over)) ?? { deny: "this client decides nothing" };
    } catch (error) {
      answer = { deny: `the client failed to decide: ${messageOf(error)}` };
    }
    if (answer === "allow") return { decision: { type: "allow" } };
    const reason = typeof answer === "object" && typeof answer.deny === "string" ? answer.deny : "";
    return { decision: { type: "deny", reason: cutBytes(reason, 1024) } };
  }

  async #command(over: AbortSignal, params: unknown): Promise<unknown> {
    const question = commandQuestion(params, "process/execApproval");
    const ask = this.#approvals.approveCommand;
    if (ask === undefined) return { decision: "decline" };
    const open = new AbortController();
    const end = (): void => open.abort(over.reason);
    over.addEventListener("abort", end, { once: true });
    this.#open.set(question.approvalId, open);
    try {
      return { decision: decisionOf(await ask(question, open.signal)) };
    } catch {
      return { decision: "decline" };
    } finally {
      over.removeEventListener("abort", end);
      if (this.#open.get(question.approvalId) === open) this.#open.delete(question.approvalId);
    }
  }

  /** Takes a notification about questions and decisions. */
  notified(method: string, params: unknown): void {
    switch (method) {
      case "process/execApprovalClosed":
        this.#open.get(commandClosed(params, method).approvalId)?.abort(new Error("the question is closed"));
        return;
      case "process/execDecision":
        tell(this.#approvals.onCommandDecision, commandDecision(params, method));
        return;
      case "network/policyDecision":
        // A malformed one is dropped, because it is only news.
        if (this.#approvals.onNetworkDecision !== undefined) {
          try {
            tell(this.#approvals.onNetworkDecision, networkDecision(params, method));
          } catch {
            return;
          }
        }
        return;
    }
  }
}

/** Calls a function of the user. What it throws is not the fault of the connection: it is thrown where the user sees it. */
function tell<T>(call: ((value: T) => void) | undefined, value: T): void {
  try {
    call?.(value);
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}

function decisionOf(answer: CommandAnswer): unknown {
  if (typeof answer === "object" && answer !== null && Array.isArray(answer.acceptWithRule)) {
    return { acceptWithRule: { prefix: answer.acceptWithRule } };
  }
  return answer === "accept" || answer === "acceptForProcess" || answer === "cancel" ? answer : "decline";
}

function cutBytes(text: string, most: number): string {
  const bytes = new TextEncoder().encode(text);
  if (bytes.length <= most) return text;
  return new TextDecoder().decode(bytes.subarray(0, most - 2)).replace(/\ufffd$/, "");
}
