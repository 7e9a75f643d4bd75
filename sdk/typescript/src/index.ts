/**
 * Runs commands and works on files on an execagent agent, or on any other server that speaks the protocol of
 * `codex exec-server`.
 *
 * @packageDocumentation
 */

export { Agent, Observer, Result, Sessions } from "./agent.js";
export type { Chunk, CommandOptions, ListedSession, RunOptions, SpawnOptions } from "./agent.js";
export type { CallOptions, Info, OpenedSession, SessionOptions, State } from "./client.js";
export type { Bounds, HeldLimits } from "./bounds.js";
export { connect } from "./connect.js";
export type { ConnectOptions, WebSocketFactory, WebSocketLike } from "./connect.js";
export {
  AgentError, AlreadyExistsError, BusyError, ClosedError, CommandError, ConnectError, DisconnectedError, GapError, HandshakeTimeoutError, IsADirectoryError,
  LostProcessError, NotADirectoryError, NotFoundError, OutputLimitError, PermissionDeniedError, ProtocolError, RecoveringError, ServerError, SocketError,
  StdinError, TakenError, TimeoutError, UnreadError, UnsupportedError, UsageError,
} from "./errors.js";
export type { ErrorCode, ServerAnswer, ServerErrorCode } from "./errors.js";
export { Files, OpenFile } from "./files.js";
export type {
  Entry, FileType, Patched, Search, SearchedFile, SearchMatch, SearchOptions, Stat, StatOptions, Walk, WalkOptions, WriteOptions,
} from "./files.js";
export { BodyError, Http, HttpResponse } from "./http.js";
export type { Header, HttpOptions } from "./http.js";
export type { ClosedEvent, ExitedEvent, OutputEvent, ProcessEvent } from "./order.js";
export { Process } from "./process.js";
export type { Exit, ListedProcess, Signal, Started, WaitOptions } from "./process.js";
export type { Approvals, CommandAnswer, CommandDecision, CommandQuestion, NetworkAnswer, NetworkDecision, NetworkQuestion } from "./questions.js";
export type { NetworkPolicy, Policy } from "./sandbox.js";
export { Socket } from "./socket.js";
export { PortWatch, Watch } from "./watch.js";
export type { Change, Changes, Port, PortChanges, Ports, Watching } from "./watch.js";
export type { CommandDecision as RuleDecision, EnvPolicy, ExecApproval, Refusal, Refusals, RuleFile } from "./wire.js";
