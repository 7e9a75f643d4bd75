import { printable } from "./text.js";

/** The words in {@link AgentError.code}, one for each cause. */
export type ErrorCode =
  | "CONNECT"
  | "HANDSHAKE_TIMEOUT"
  | "TIMEOUT"
  | "DISCONNECTED"
  | "CLOSED"
  | "TAKEN"
  | "RECOVERING"
  | "BUSY"
  | ServerErrorCode
  | "UNSUPPORTED"
  | "PROTOCOL"
  | "GAP"
  | "LOST_PROCESS"
  | "STDIN"
  | "SOCKET"
  | "OUTPUT_LIMIT"
  | "UNREAD"
  | "COMMAND"
  | "COPY"
  | "USAGE";

/** The codes of a {@link ServerError}. */
export type ServerErrorCode = "REFUSED" | "NOT_FOUND" | "PERMISSION_DENIED" | "ALREADY_EXISTS" | "NOT_A_DIRECTORY" | "IS_A_DIRECTORY";

/**
 * What this package throws. Each cause has a class and a `code`. The `cause` has the error below it.
 *
 * Only the reason of an AbortSignal is thrown as it is.
 */
export abstract class AgentError extends Error {
  abstract readonly code: ErrorCode;

  /** Whether the same call may be made again: it was not carried out, and may succeed. */
  get retryable(): boolean {
    return false;
  }

  constructor(message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = new.target.name;
  }
}

/** There is no connection. */
export class ConnectError extends AgentError {
  readonly code = "CONNECT";

  constructor(
    message: string,
    /** Whether another attempt would not help, because a URL, a token or a certificate is wrong. */
    readonly final: boolean = false,
    cause?: unknown,
    /** The HTTP status of a server that did not open a WebSocket. */
    readonly status?: number,
  ) {
    super(message, cause);
  }

  override get retryable(): boolean {
    return !this.final;
  }
}

/** A connection was opened, and the server did not finish the handshake. */
export class HandshakeTimeoutError extends AgentError {
  readonly code = "HANDSHAKE_TIMEOUT";

  constructor(readonly afterMs: number) {
    super(`the server did not answer initialize within ${afterMs} ms`);
  }

  override get retryable(): boolean {
    return true;
  }
}

/** Something took longer than a time limit of the caller, or of a call that has its own. */
export class TimeoutError extends AgentError {
  readonly code = "TIMEOUT";

  constructor(
    what: string,
    readonly afterMs: number,
    /** What a command had printed by then. */
    readonly stdout: Uint8Array = new Uint8Array(),
    readonly stderr: Uint8Array = new Uint8Array(),
    /** Whether the process was killed. */
    readonly killed: boolean = false,
  ) {
    super(`${what} within ${afterMs} ms`);
  }
}

/** The connection is gone. */
export class DisconnectedError extends AgentError {
  readonly code: "DISCONNECTED" | "CLOSED" | "TAKEN" = "DISCONNECTED";

  constructor(
    message: string,
    /** Whether the request was sent. Then it may have been carried out, or not. */
    readonly sent: boolean,
    cause?: unknown,
    /** Whether no later call can succeed, because the client has ended. */
    readonly final: boolean = false,
  ) {
    super(message, cause);
  }

  override get retryable(): boolean {
    return !this.sent && !this.final;
  }
}

/** The connection is lost and is being recovered, and the call was told not to wait. */
export class RecoveringError extends AgentError {
  readonly code = "RECOVERING";

  constructor() {
    super("the connection is being recovered");
  }

  override get retryable(): boolean {
    return true;
  }
}

/** Too many calls wait for their answers. */
export class BusyError extends AgentError {
  readonly code = "BUSY";

  override get retryable(): boolean {
    return true;
  }
}

/** An error as the server sent it. */
export interface ServerAnswer {
  /** The number of JSON-RPC. */
  readonly code: number;
  readonly message: string;
  readonly data?: unknown;
}

/** The server refused a request. */
export class ServerError extends AgentError {
  readonly code: ServerErrorCode = "REFUSED";
  /** The number of the answer: -32600, -32602, -32603, -32004 or -32010. */
  readonly number: number;
  /** The text of the answer, at most 64 KiB of it. Text for a model is here. */
  readonly text: string;
  /** What the answer has for programs. */
  readonly data: unknown;
  /** The number of the error of the operating system, if the answer has one. */
  readonly errno: number | undefined;
  /** Its name, such as `ENOENT`. */
  readonly errnoName: string | undefined;
  /** What was wrong, if the answer says it: the `program` or `cwd` of a command, the `path` of a request, or an `address`. */
  readonly what: string | undefined;
  /** Why a command was not started, such as `spawnNotFound`, `limitUnavailable` or `userUnavailable`. */
  readonly kind: string | undefined;
  /** The reason that the answer gives to programs, such as `execPolicy`. */
  readonly reason: string | undefined;

  constructor(answer: ServerAnswer, path?: string) {
    super(`${path === undefined ? "" : printable(path) + ": "}${printable(answer.message, 1 << 16)} (${answer.code})`);
    this.number = answer.code;
    this.text = answer.message.slice(0, 1 << 16);
    this.data = answer.data;
    this.errno = errnoOf(answer);
    this.errnoName = wordOf(answer, "name") ?? (this.errno === undefined ? undefined : errnoNames[this.errno]);
    this.what = wordOf(answer, "what");
    this.kind = wordOf(answer, "kind");
    this.reason = wordOf(answer, "reason");
  }

  override get retryable(): boolean {
    return this.number === attachedCode || this.reason === "busy";
  }
}

/** Something does not exist. */
export class NotFoundError extends ServerError {
  override readonly code = "NOT_FOUND";
}

/** The operating system, or a sandbox, does not permit it. */
export class PermissionDeniedError extends ServerError {
  override readonly code = "PERMISSION_DENIED";
}

/** Something exists already. */
export class AlreadyExistsError extends ServerError {
  override readonly code = "ALREADY_EXISTS";
}

/** A part of a path, or a path to list, is no directory. */
export class NotADirectoryError extends ServerError {
  override readonly code = "NOT_A_DIRECTORY";
}

/** A path to read or write is a directory. */
export class IsADirectoryError extends ServerError {
  override readonly code = "IS_A_DIRECTORY";
}

/** The code of a session that still has a connection. */
export const attachedCode = -32010;

const notFoundCode = -32004;

/** Returns the error for an answer. */
export function serverError(answer: ServerAnswer, path?: string): ServerError {
  switch (errnoOf(answer)) {
    case 1:
    case 13:
      return new PermissionDeniedError(answer, path);
    case 2:
      return new NotFoundError(answer, path);
    case 17:
      return new AlreadyExistsError(answer, path);
    case 20:
      return new NotADirectoryError(answer, path);
    case 21:
      return new IsADirectoryError(answer, path);
  }
  return answer.code === notFoundCode ? new NotFoundError(answer, path) : new ServerError(answer, path);
}

/** Returns the same error with a path before its text. */
export function withPath(error: ServerError, path: string): ServerError {
  return serverError({ code: error.number, message: error.text, data: error.data }, path);
}

function memberOf(answer: ServerAnswer, name: string): unknown {
  const { data } = answer;
  return typeof data === "object" && data !== null && Object.hasOwn(data, name) ? (data as Record<string, unknown>)[name] : undefined;
}

function wordOf(answer: ServerAnswer, name: string): string | undefined {
  const word = memberOf(answer, name);
  return typeof word === "string" ? printable(word, 64) : undefined;
}

function errnoOf(answer: ServerAnswer): number | undefined {
  const errno = memberOf(answer, "errno");
  if (Number.isSafeInteger(errno) && (errno as number) > 0) return errno as number;
  const found = /\(os error (\d{1,4})\)/.exec(answer.message);
  return found === null ? undefined : Number(found[1]);
}

const errnoNames: Readonly<Record<number, string>> = {
  1: "EPERM", 2: "ENOENT", 4: "EINTR", 5: "EIO", 6: "ENXIO", 7: "E2BIG", 8: "ENOEXEC", 9: "EBADF", 11: "EAGAIN", 12: "ENOMEM",
  13: "EACCES", 16: "EBUSY", 17: "EEXIST", 18: "EXDEV", 20: "ENOTDIR", 21: "EISDIR", 22: "EINVAL", 23: "ENFILE", 24: "EMFILE",
  26: "ETXTBSY", 27: "EFBIG", 28: "ENOSPC", 29: "ESPIPE", 30: "EROFS", 31: "EMLINK", 32: "EPIPE", 36: "ENAMETOOLONG",
  38: "ENOSYS", 39: "ENOTEMPTY", 40: "ELOOP", 95: "EOPNOTSUPP", 98: "EADDRINUSE", 99: "EADDRNOTAVAIL", 101: "ENETUNREACH",
  104: "ECONNRESET", 110: "ETIMEDOUT", 111: "ECONNREFUSED", 113: "EHOSTUNREACH", 122: "EDQUOT",
};

/** The server does not have a feature, so nothing was sent. */
export class UnsupportedError extends AgentError {
  readonly code = "UNSUPPORTED";

  constructor(
    feature: string,
    /** The capability flag that is missing. */
    readonly flag: string,
  ) {
    super(`the server does not support ${feature} (${flag})`);
  }
}

/** The server broke the rules of the protocol. */
export class ProtocolError extends AgentError {
  readonly code = "PROTOCOL";
}

/** The server no longer has some events of a process: those after `after`, up to `through`. */
export class GapError extends AgentError {
  readonly code = "GAP";

  constructor(
    readonly after: number,
    readonly through: number,
  ) {
    super(`events of the process are no longer kept: they are missing after ${after}, up to ${through}`);
  }
}

/** The connection was recovered, and one process could not be followed. That process was terminated. */
export class LostProcessError extends AgentError {
  readonly code = "LOST_PROCESS";

  constructor(
    readonly processId: string,
    cause: unknown,
  ) {
    super(`process ${printable(processId, 256)} could not be recovered: ${cause instanceof Error ? cause.message : String(cause)}`, cause);
  }
}

/** A process does not take input. */
export class StdinError extends AgentError {
  readonly code = "STDIN";

  constructor(readonly status: string) {
    super(`the process takes no input: ${printable(status, 64)}`);
  }
}

/** The other end of a forwarded socket cannot be read any more. */
export class SocketError extends AgentError {
  readonly code = "SOCKET";
}

/** A command printed more than its limit. It was killed. */
export class OutputLimitError extends AgentError {
  readonly code = "OUTPUT_LIMIT";

  constructor(
    readonly limit: number,
    readonly stdout: Uint8Array,
    readonly stderr: Uint8Array,
  ) {
    super(`the command printed more than ${limit} bytes to one stream; see maxOutput and overflow`);
  }
}

/** Output of a process waits that nobody reads, so that what was waited for cannot come; or too much of HTTP bodies does. */
export class UnreadError extends AgentError {
  readonly code = "UNREAD";
}

/** A command of `check: true` ended with another exit code than 0. */
export class CommandError extends AgentError {
  readonly code = "COMMAND";

  constructor(
    message: string,
    readonly exitCode: number,
    readonly stdout: Uint8Array,
    readonly stderr: Uint8Array,
  ) {
    super(message);
  }
}

/** An argument of a call is wrong, so nothing was sent. */
export class UsageError extends AgentError {
  readonly code = "USAGE";
}

/** The client, the handle or the stream was closed here. */
export class ClosedError extends DisconnectedError {
  override readonly code = "CLOSED";

  constructor(what: string) {
    super(`${what} was closed`, false, undefined, true);
  }
}

/** Another client has taken the session. */
export class TakenError extends DisconnectedError {
  override readonly code = "TAKEN";

  constructor(by: string) {
    super(`the session was taken by another client: ${printable(by, 128)}`, false, undefined, true);
  }
}

/** Returns the message of anything that was thrown. */
export function messageOf(thrown: unknown): string {
  return thrown instanceof Error ? thrown.message : String(thrown);
}
