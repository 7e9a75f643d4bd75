// Generated from protocol/contract/contract.txt by `go generate ./protocol/contract`. Do not edit.
// docs/contract/README.md has all of it with descriptions.

export const VERSION = 1;

/** The methods. */
export const Method = {
  initialize: "initialize",
  initialized: "initialized",
  environmentInfo: "environment/info",
  environmentStatus: "environment/status",
  environmentConfigRead: "environmentConfig/read",
  sessionList: "session/list",
  sessionEnd: "session/end",
  sessionTaken: "session/taken",
  processStart: "process/start",
  processWrite: "process/write",
  processCloseStdin: "process/closeStdin",
  processRead: "process/read",
  processSignal: "process/signal",
  processTerminate: "process/terminate",
  processResize: "process/resize",
  processList: "process/list",
  processOutput: "process/output",
  processExited: "process/exited",
  processClosed: "process/closed",
  processExecApproval: "process/execApproval",
  processExecApprovalClosed: "process/execApprovalClosed",
  processExecDecision: "process/execDecision",
  networkPolicyRequest: "network/policyRequest",
  networkPolicyDecision: "network/policyDecision",
  httpRequest: "http/request",
  httpRequestBodyDelta: "http/request/bodyDelta",
  fsWriteFile: "fs/writeFile",
  fsReadFile: "fs/readFile",
  fsCreateDirectory: "fs/createDirectory",
  fsGetMetadata: "fs/getMetadata",
  fsGetMetadataMany: "fs/getMetadataMany",
  fsCanonicalize: "fs/canonicalize",
  fsReadDirectory: "fs/readDirectory",
  fsWalk: "fs/walk",
  fsSearch: "fs/search",
  fsRemove: "fs/remove",
  fsCopy: "fs/copy",
  fsRename: "fs/rename",
  fsApplyPatch: "fs/applyPatch",
  fsOpen: "fs/open",
  fsWriteBlock: "fs/writeBlock",
  fsReadBlock: "fs/readBlock",
  fsClose: "fs/close",
  fsWatchMissing: "fs/watchMissing",
  fsMissingChanged: "fs/missingChanged",
  fsWatch: "fs/watch",
  fsUnwatch: "fs/unwatch",
  fsChanged: "fs/changed",
  portList: "port/list",
  portWatch: "port/watch",
  portUnwatch: "port/unwatch",
  portChanged: "port/changed",
  socketOpen: "socket/open",
  socketWrite: "socket/write",
  socketAck: "socket/ack",
  socketResume: "socket/resume",
  socketClose: "socket/close",
  socketData: "socket/data",
  capabilityRootsDiscoverV1: "capabilityRoots/discoverV1",
  capabilitiesDiscoverV2: "capabilities/discoverV2",
} as const;

/** The flag that a server with the method has. Every server has the others. */
export const FLAG_OF: { readonly [method: string]: keyof Capabilities } = {
  "environmentConfig/read": "environmentConfigRead",
  "session/list": "namedSessions",
  "session/end": "namedSessions",
  "session/taken": "namedSessions",
  "process/closeStdin": "processCloseStdin",
  "process/resize": "processResize",
  "process/list": "processList",
  "process/execApproval": "subcommandApprovals",
  "process/execApprovalClosed": "subcommandApprovals",
  "process/execDecision": "subcommandApprovals",
  "network/policyRequest": "networkProxyLaunch",
  "network/policyDecision": "networkProxyLaunch",
  "fs/getMetadataMany": "fsMetadata",
  "fs/search": "fsSearch",
  "fs/rename": "fsRename",
  "fs/applyPatch": "fsApplyPatch",
  "fs/writeBlock": "fileWriteStreaming",
  "fs/watchMissing": "fsWatchMissing",
  "fs/missingChanged": "fsWatchMissing",
  "fs/watch": "fsWatch",
  "fs/unwatch": "fsWatch",
  "fs/changed": "fsWatch",
  "port/list": "ports",
  "port/watch": "ports",
  "port/unwatch": "ports",
  "port/changed": "ports",
  "socket/open": "socketForward",
  "socket/write": "socketForward",
  "socket/ack": "socketForward",
  "socket/resume": "socketForward",
  "socket/close": "socketForward",
  "socket/data": "socketForward",
  "capabilities/discoverV2": "capabilityDiscoveryV2",
};

export type Repeat = "safe" | "same" | "never" | "reopen";

/** What a client does that has lost the connection before the answer. */
export const REPEAT_OF: { readonly [method: string]: Repeat } = {
  "initialize": "safe",
  "environment/info": "safe",
  "environment/status": "safe",
  "environmentConfig/read": "safe",
  "session/list": "safe",
  "session/end": "never",
  "process/start": "never",
  "process/write": "same",
  "process/closeStdin": "safe",
  "process/read": "safe",
  "process/signal": "never",
  "process/terminate": "safe",
  "process/resize": "safe",
  "process/list": "safe",
  "process/execApproval": "same",
  "network/policyRequest": "never",
  "http/request": "never",
  "fs/writeFile": "never",
  "fs/readFile": "safe",
  "fs/createDirectory": "never",
  "fs/getMetadata": "safe",
  "fs/getMetadataMany": "safe",
  "fs/canonicalize": "safe",
  "fs/readDirectory": "safe",
  "fs/walk": "safe",
  "fs/search": "safe",
  "fs/remove": "never",
  "fs/copy": "never",
  "fs/rename": "never",
  "fs/applyPatch": "never",
  "fs/open": "reopen",
  "fs/writeBlock": "reopen",
  "fs/readBlock": "reopen",
  "fs/close": "reopen",
  "fs/watchMissing": "reopen",
  "fs/watch": "reopen",
  "fs/unwatch": "reopen",
  "port/list": "safe",
  "port/watch": "reopen",
  "port/unwatch": "reopen",
  "socket/open": "never",
  "socket/write": "same",
  "socket/ack": "safe",
  "socket/resume": "safe",
  "socket/close": "safe",
  "capabilityRoots/discoverV1": "safe",
  "capabilities/discoverV2": "safe",
};

/** What a client sends. */
export interface ClientRequests {
  "initialize": { params: InitializeParams; result: InitializeResult };
  "environment/info": { params: EmptyParams; result: EnvironmentInfo };
  "environment/status": { params: EmptyParams; result: StatusResult };
  "environmentConfig/read": { params: ConfigReadParams; result: ConfigReadResult };
  "session/list": { params: SessionListParams; result: SessionListResult };
  "session/end": { params: SessionParams; result: Empty };
  "process/start": { params: StartParams; result: StartResult };
  "process/write": { params: WriteParams; result: WriteResult };
  "process/closeStdin": { params: ProcessParams; result: WriteResult };
  "process/read": { params: ReadParams; result: ReadResult };
  "process/signal": { params: SignalParams; result: Empty };
  "process/terminate": { params: TerminateParams; result: TerminateResult };
  "process/resize": { params: ResizeParams; result: Empty };
  "process/list": { params: ListParams; result: ListResult };
  "http/request": { params: HTTPRequestParams; result: HTTPResponse };
  "fs/writeFile": { params: WriteFileParams; result: Empty };
  "fs/readFile": { params: PathParams; result: ReadFileResult };
  "fs/createDirectory": { params: CreateDirectoryParams; result: Empty };
  "fs/getMetadata": { params: GetMetadataParams; result: FileMetadata };
  "fs/getMetadataMany": { params: GetMetadataManyParams; result: GetMetadataManyResult };
  "fs/canonicalize": { params: CanonicalizeParams; result: CanonicalizeResult };
  "fs/readDirectory": { params: ReadDirectoryParams; result: ReadDirectoryResult };
  "fs/walk": { params: WalkParams; result: WalkResult };
  "fs/search": { params: SearchParams; result: SearchResult };
  "fs/remove": { params: RemoveParams; result: Empty };
  "fs/copy": { params: CopyParams; result: Empty };
  "fs/rename": { params: RenameParams; result: Empty };
  "fs/applyPatch": { params: ApplyPatchParams; result: ApplyPatchResult };
  "fs/open": { params: OpenParams; result: HandleParams };
  "fs/writeBlock": { params: WriteBlockParams; result: Empty };
  "fs/readBlock": { params: ReadBlockParams; result: ReadBlockResult };
  "fs/close": { params: HandleParams; result: Empty };
  "fs/watchMissing": { params: WatchMissingParams; result: WatchMissingResult };
  "fs/watch": { params: WatchParams; result: WatchResult };
  "fs/unwatch": { params: UnwatchParams; result: Empty };
  "port/list": { params: PortListParams; result: PortListResult };
  "port/watch": { params: PortWatchParams; result: PortListResult };
  "port/unwatch": { params: UnwatchParams; result: Empty };
  "socket/open": { params: SocketOpenParams; result: Empty };
  "socket/write": { params: SocketWriteParams; result: SocketReceived };
  "socket/ack": { params: SocketReceivedParams; result: Empty };
  "socket/resume": { params: SocketReceivedParams; result: SocketReceived };
  "socket/close": { params: SocketParams; result: Empty };
  "capabilityRoots/discoverV1": { params: DiscoverRootsParams; result: DiscoverRootsResult };
  "capabilities/discoverV2": { params: DiscoverInstalledParams; result: DiscoverInstalledResult };
}

/** What a client sends. */
export interface ClientNotifications {
  "initialized": unknown;
}

/** What a server sends. */
export interface ServerRequests {
  "process/execApproval": { params: ExecApprovalParams; result: ExecApprovalAnswer };
  "network/policyRequest": { params: PolicyRequestParams; result: PolicyAnswer };
}

/** What a server sends. */
export interface ServerNotifications {
  "session/taken": TakenNotification;
  "process/output": OutputNotification;
  "process/exited": ExitedNotification;
  "process/closed": ClosedNotification;
  "process/execApprovalClosed": ExecApprovalClosed;
  "process/execDecision": ExecDecision;
  "network/policyDecision": PolicyDecision;
  "http/request/bodyDelta": HTTPBodyDelta;
  "fs/missingChanged": MissingChangedNotification;
  "fs/changed": ChangedNotification;
  "port/changed": PortChangedNotification;
  "socket/data": SocketData;
}

/** A message with an id and a method. */
export interface RequestMessage {
  /** The answer has the same. */
  id: RequestId;
  /** One of the methods. */
  method: string;
  /** Those of the method. */
  params?: unknown;
  /** Accepted and not used. */
  trace?: Trace | null;
}

/** A message with a method and no id. */
export interface NotificationMessage {
  /** One of the methods. */
  method: string;
  /** Those of the method. */
  params?: unknown;
}

/** The answer to a request that succeeded. */
export interface ResultMessage {
  /** That of the request. */
  id: RequestId;
  /** That of the method. */
  result: unknown;
}

/** The answer to a request that failed, or to a message that could not be read. */
export interface ErrorMessage {
  /** That of the request; -1 if it could not be read. */
  id: RequestId;
  /** What went wrong. */
  error: ErrorObject;
}

/** W3C trace context. */
export interface Trace {
  /** As in W3C trace context. */
  traceparent?: string | null;
  /** As in W3C trace context. */
  tracestate?: string | null;
}

/**
 * The id of a request: a string of any length, or a signed integer of 64 bits. The answer has it as
 * it was sent. It is -1 in the answer to a message that could not be read.
 */
export type RequestId = string | number;

/** The member `error` of an answer. */
export interface ErrorObject {
  /**
   * What a client decides by. -32600: wrong state, unknown or used id, limit, or a path that may
   * not be used. -32601: unknown method. -32602: wrong params. -32603: another failure. -32004: no
   * such file or handle. -32010: the session has a connection.
   */
  code: number;
  /** One or several lines for people. */
  message: string;
  /** More about the error. */
  data?: ErrorData | null;
}

/** More about an error. Servers may add members. */
export interface ErrorData {
  /**
   * Why a process was not started. Known: spawnNotFound, spawnPermissionDenied, spawnFailed,
   * sandboxPreparation, sandboxUnavailable, limitUnavailable, userUnavailable.
   */
  kind?: "spawnNotFound" | "spawnPermissionDenied" | "spawnFailed" | "sandboxPreparation" | "sandboxUnavailable" | "limitUnavailable" | "userUnavailable" | (string & {});
  /**
   * execPolicy: rules do not allow the command. busy: too many requests wait; nothing was done, and
   * the request may be sent again. memory: the agent has too little memory for the answer.
   * forgotten: the start was done before, and its process is no longer kept. Known: execPolicy,
   * busy, memory, forgotten.
   */
  reason?: "execPolicy" | "busy" | "memory" | "forgotten" | (string & {});
  /** With execPolicy, the rules that matched, as in ExecApprovalParams. */
  matchedRules?: unknown;
  /**
   * The number that Linux has for the error, if the system of the agent is its cause. Sent to a
   * client that has asked in `initialize`. Only with errorData.
   */
  errno?: number;
  /**
   * The name of that number, such as `ENOENT`. Absent for a number that has none. Only with
   * errorData.
   */
  name?: string;
  /**
   * What was wrong. program, cwd: of the process. path: the path of the request, or one of them.
   * Absent if it is nothing that the request names. Known: program, cwd, path, address. Only with
   * errorData.
   */
  what?: "program" | "cwd" | "path" | "address" | (string & {});
}

/** Params of a method that has none. They may also be absent or null. No member is allowed. */
export type EmptyParams = Record<string, never>;

/** The result of a method that has none. */
export type Empty = Record<string, never>;

export interface InitializeParams {
  /** The client's name for itself. Other clients and the log of the agent see it. */
  clientName: string;
  /**
   * Resume this session. null or absent: a new one. A session is kept for a while after it has lost
   * its connection.
   */
  resumeSessionId?: string | null;
  /**
   * Open the caller's session of this name. If there is none, make it. Only with namedSessions.
   */
  sessionName?: SessionName | null;
  /** Make no session: an unknown name is an error. Absent: false. Only with namedSessions. */
  existing?: boolean | null;
  /**
   * Take a session with a name from the client that is attached to it. Absent: false. Only with
   * namedSessions.
   */
  take?: boolean | null;
  /**
   * For how many milliseconds the session is kept while nothing holds it: no connection and, with a
   * name, no process. The agent may cut it. Only with namedSessions.
   */
  retainMs?: number | null;
  /** The client answers `process/execApproval`. Absent: false. Only with subcommandApprovals. */
  subcommandApprovals?: boolean | null;
  /** The client wants `refusals` of its processes. Absent: false. Only with refusals. */
  refusals?: boolean | null;
  /**
   * The client wants `errno`, `name` and `what` in the data of errors. Absent: false. Only with
   * errorData.
   */
  errorData?: boolean | null;
}

/**
 * The name of a session: ASCII letters, digits, dots, underscores and dashes, the first a letter or
 * digit.
 */
export type SessionName = string;

export interface InitializeResult {
  /** The id to resume the session with. */
  sessionId: string;
  /** If it is absent, the client asks by `environment/info`. */
  environmentInfo?: EnvironmentInfo;
  /** Present if the session has a name, or `retainMs` was given. Only with namedSessions. */
  session?: OpenedSession;
}

/** The session of a client. */
export interface OpenedSession {
  /** Absent for a session without a name. */
  name?: string;
  /** Whether this initialize has made the session. */
  created: boolean;
  /** For how long the session is kept while nothing holds it. */
  retainMs: number;
}

/** The machine that the agent runs on. */
export interface EnvironmentInfo {
  /** The user's shell. */
  shell: Shell;
  /** The version of the agent. */
  executorVersion: string;
  /** Names the build of the agent, and nothing else. */
  providerId: string;
  /** The working directory of the agent. */
  cwd?: string;
  /** The home directory of the agent's user. */
  userHomeDir?: string;
  /** `linux`. */
  platformOs: string;
  /** Directories that the client should put first in PATH. */
  prependPathDirs: string[];
  /** The value of TMPDIR, if it is set. */
  temporaryDirectories: string[];
  /** Where temporary files belong. */
  tempDir: string;
  /** What this server knows. */
  capabilities: Capabilities;
}

export interface Shell {
  /** One of zsh, bash, powershell, sh and cmd. */
  name: string;
  /** A native path, not a URI. */
  path: string;
}

/**
 * What a server knows beyond the methods that every server has. A client asks for a flag before it
 * uses what the flag stands for. A missing flag is false.
 */
export interface Capabilities {
  /** `networkProxy` in `process/start`, and the questions and reports about it. */
  networkProxyLaunch?: boolean;
  /** `reviewDomains` of a proxy. */
  networkProxyReviewDomains?: boolean;
  /** `transparentTcp` of a proxy. It depends on the host. */
  networkProxyTransparentTcp?: boolean;
  /** `credentialMasking` of a proxy. */
  credentialMasking?: boolean;
  /** `credentialProviders` of a proxy. */
  credentialMaskingCustomProviders?: boolean;
  /** `sandbox` in `capabilityRoots/discoverV1`. */
  capabilityDiscoverySandbox?: boolean;
  /** `fs/watchMissing`. */
  fsWatchMissing?: boolean;
  /** `capabilities/discoverV2`. */
  capabilityDiscoveryV2?: boolean;
  /** `environmentConfig/read`. */
  environmentConfigRead?: boolean;
  /** `valueEnvVar` of a header. */
  httpHeaderEnvVars?: boolean;
  /** `sandbox` in `fs/open`. */
  sandboxedFileStreaming?: boolean;
  /** `fs/open` with the mode `replace`, and `fs/writeBlock`. */
  fileWriteStreaming?: boolean;
  /** `shellSnapshot` in `process/start`. */
  shellSnapshotV2?: boolean;
  /** A sandbox of Windows; false on Linux. */
  windowsMxc?: boolean;
  /** A promise about sandboxes of the reference on Linux. */
  linuxRootWritePreservesDevices?: boolean;
  /** A promise about sandboxes of the reference on Linux. */
  linuxApprovedRootWritePreservesRestrictions?: boolean;
  /** `process/resize`, and `rows` and `cols` in `process/start`. */
  processResize?: boolean;
  /** `process/closeStdin`. */
  processCloseStdin?: boolean;
  /** `process/list`. */
  processList?: boolean;
  /** Signals besides `interrupt`. */
  processSignals?: boolean;
  /** `fs/rename`. */
  fsRename?: boolean;
  /** `fs/watch`, `fs/unwatch` and `fs/changed`. */
  fsWatch?: boolean;
  /** `fs/applyPatch`. */
  fsApplyPatch?: boolean;
  /** Sessions with a name, `session/list`, `session/end`, and processes of other sessions. */
  namedSessions?: boolean;
  /** `builtin` in `process/start`. */
  processBuiltins?: boolean;
  /** `socket/open` and the other methods of sockets. */
  socketForward?: boolean;
  /** `fs/search`. */
  fsSearch?: boolean;
  /**
   * `port/list`, `port/watch`, `port/unwatch` and `port/changed`. It is announced where the host
   * tells which ports listen, and the operator's ceiling has a network.
   */
  ports?: boolean;
  /** Questions about commands: `process/execApproval`. */
  subcommandApprovals?: boolean;
  /** Rules about HTTP requests in `domains` of a proxy. */
  networkRequestRules?: boolean;
  /** Entries of a sandbox that name UNIX sockets. */
  sandboxUnixSockets?: boolean;
  /** Entries of a sandbox that name devices. */
  sandboxDevices?: boolean;
  /** What was refused to a process. */
  refusals?: boolean;
  /** `opaque`, `forcedRm` and `enforce` in `execApproval`. */
  execApprovalEnforce?: boolean;
  /** `errorData` in `initialize`: the causes of errors. */
  errorData?: boolean;
  /** `entries` in `fs/readDirectory`. */
  fsReadDirectoryLstat?: boolean;
  /** `details` in `fs/getMetadata`, and `fs/getMetadataMany`. */
  fsMetadata?: boolean;
  /** `mode`, `parents`, `exclusive` and `atomic` in `fs/writeFile`. */
  fsWriteOptions?: boolean;
  /** `allowMissing` in `fs/canonicalize`. */
  fsCanonicalizeMissing?: boolean;
  /** `replaceable` in an entry of a sandbox. */
  sandboxReplaceable?: boolean;
  /** `timeoutMs` in `process/start`. */
  processTimeout?: boolean;
  /** `maxOutputBytes` in `process/start`. */
  processMaxOutput?: boolean;
  /** `limits` in `process/start`. */
  processLimits?: boolean;
  /**
   * `runAs` in `process/start`. It is announced where some request can have it: by an agent of
   * root's that may change its user, and whose operator neither confines nor judges all processes.
   */
  processRunAs?: boolean;
  /** `startId` in `process/start`. */
  processStartId?: boolean;
  /** The operator gives requests without a sandbox a default one. */
  sandboxDefault?: boolean;
  /** The operator lets no request exceed a ceiling. */
  sandboxCeiling?: boolean;
  /** The operator refuses requests that would not be confined. */
  sandboxRequired?: boolean;
}

export interface StatusResult {
  /** `ready` is the only status. Known: ready. */
  status: "ready" | (string & {});
}

export interface ConfigReadParams {
  /** The directory whose configuration counts. */
  cwd: string;
  /** Each path is a list of TOML keys. */
  configPaths: string[][];
  /** The same, in the files of requirements. */
  requirementsPaths: string[][];
}

export interface ConfigReadResult {
  /** The home directory of the agent's user. */
  userHomeDir: string;
  /** The folder of the user's configuration. */
  codexHomeDir: string;
  /** The name of the machine. */
  hostname: string;
  /** What was found for configPaths. */
  config: ConfigLayers;
  /** What was found for requirementsPaths. */
  requirements: ConfigLayers;
}

/** Configuration files in order of precedence, lowest first. */
export interface ConfigLayers {
  /** One for each file that has a selected key. */
  layers: ConfigLayer[];
  /** Where a client puts layers that it has from elsewhere. */
  cloudInsertionIndex: number;
}

/** The values of one file for the selected keys. */
export interface ConfigLayer {
  /** Names the file, for people. */
  source: string;
  /** What relative paths in it are relative to. */
  baseDir: string;
  /** The selected keys, as TOML. */
  toml: string;
}

export type SessionListParams = Record<string, never>;

export interface SessionListResult {
  /** The caller's sessions. */
  sessions: ListedSession[];
}

/** A session that has a name. */
export interface ListedSession {
  /** The id of the session. */
  sessionId: string;
  /** Its name. */
  name: string;
  /** Whether a client is attached. */
  attached: boolean;
  /** The name of the client that is attached, or of the last one. */
  clientName: string;
  /** Milliseconds since 1970. */
  createdAtMs: number;
  /** For how many milliseconds the session is kept while nothing holds it. */
  retainMs: number;
  /** When the session ends, in milliseconds since 1970. Absent while something holds it. */
  expiresAtMs?: number;
  /** How many processes of it run, or still have output. */
  running: number;
  /** How many processes of it have closed. */
  ended: number;
}

export interface SessionParams {
  /** The id of the session. */
  sessionId: string;
}

export interface TakenNotification {
  /** The name of the other client. */
  clientName: string;
}

export interface StartParams {
  /** The client's choice, unique in the session. */
  processId: string;
  /** For telemetry only. */
  metadata?: StartMetadata | null;
  /**
   * The program and its arguments. A program without a slash is looked up in the PATH of `env`.
   */
  argv: string[];
  /** The working directory. */
  cwd: string;
  /** What the process inherits from the agent's environment. Absent: nothing, `env` is all. */
  envPolicy?: EnvPolicy | null;
  /** Lets a login shell skip its startup files. Only with shellSnapshotV2. */
  shellSnapshot?: ShellSnapshot | null;
  /** The environment, on top of what is inherited. */
  env: { [key: string]: string };
  /** Run in a terminal: all output has the stream `pty`. */
  tty: boolean;
  /** The size of the terminal. Absent: 24. Only with processResize. */
  rows?: number | null;
  /** Absent: 80. Only with processResize. */
  cols?: number | null;
  /**
   * Give the process a pipe as stdin. Without it and without `tty`, stdin is /dev/null. Absent:
   * false.
   */
  pipeStdin?: boolean;
  /**
   * Rules of the client about commands. The stricter decision of these and of the operator's rules
   * holds. Only with subcommandApprovals.
   */
  execApproval?: ExecApproval | null;
  /** The argv[0] that the program sees. */
  arg0?: string | null;
  /** Confines the process. */
  sandbox?: Sandbox | null;
  /** Leave the process no network but the proxy. Absent: false. */
  enforceManagedNetwork?: boolean;
  /**
   * argv[0] names a tool of the agent's own, such as `copy`. Absent: false. Only with
   * processBuiltins.
   */
  builtin?: boolean;
  /** Checked, but without effect on Linux. */
  managedNetwork?: ManagedNetwork | null;
  /** Gives the process a proxy of its own. Only with networkProxyLaunch. */
  networkProxy?: NetworkProxy | null;
  /**
   * How long the process may run. Then the agent ends it with all that it has started, also without
   * a client. Only with processTimeout.
   */
  timeoutMs?: number | null;
  /**
   * Bounds the output of each stream. The head is sent at once and the tail at the end; what lies
   * between is left out and counted. Only with processMaxOutput.
   */
  maxOutputBytes?: number | null;
  /**
   * Bound the process with its children. What the agent cannot hold is refused. Only with
   * processLimits.
   */
  limits?: ProcessLimits | null;
  /** Who the process runs as. Absent: the user of the agent. Only with processRunAs. */
  runAs?: RunAs | null;
  /**
   * The client's choice, another one for each start. A start with the same id is done once, so a
   * client that has lost the answer sends the whole request again. Only with processStartId.
   */
  startId?: string | null;
}

/** Limits of a process with all its children. */
export interface ProcessLimits {
  /** Memory of all its processes together. */
  memoryBytes?: number | null;
  /** Time of processors, in thousandths of one. */
  milliCpus?: number | null;
  /** Processes and threads at once. */
  processes?: number | null;
  /** The size of each file that it writes. */
  fileSizeBytes?: number | null;
}

/** A user and a group, each by name or number. */
export interface RunAs {
  /** A number is a number, also where a user has it as a name. */
  user: string;
  /** Absent: the group of the user. */
  group?: string | null;
}

export interface StartMetadata {
  /** A UUID. */
  threadId?: string | null;
  /** Any text. */
  toolCallId?: string | null;
}

/**
 * Which variables a process inherits from the agent. Patterns have `*` and `?` and ignore case.
 */
export interface EnvPolicy {
  /** What to begin with: a few well-known names, everything, or nothing. */
  inherit: "core" | "all" | "none";
  /** Keep names that contain KEY, SECRET or TOKEN. */
  ignoreDefaultExcludes: boolean;
  /** Patterns of names to drop. */
  exclude: string[];
  /** Variables to add. */
  set: { [key: string]: string };
  /** If it is not empty, keep only names that match one of these patterns. */
  includeOnly: string[];
}

/** Runs the startup files of a login shell once, and not for each command. */
export interface ShellSnapshot {
  /** Requests share a snapshot only with the same scope. */
  scopeId: string;
  /** The shell that argv[0] is. */
  shell: Shell;
}

/** Rules of the client about commands. */
export interface ExecApproval {
  /** Files of rules. */
  rules?: RuleFile[] | null;
  /** The decision about commands that no rule matches. Absent: "allow". */
  unmatched?: CommandDecision | null;
  /**
   * The decision about scripts that cannot be taken apart. Absent: as `unmatched`. Only with
   * execApprovalEnforce.
   */
  opaque?: CommandDecision | null;
  /**
   * The decision about `rm -f` that no rule matches. Absent: "allow". Only with
   * execApprovalEnforce.
   */
  forcedRm?: CommandDecision | null;
  /**
   * Judge only the command, or each program that it executes. Absent: `tree` if the agent can. Only
   * with execApprovalEnforce.
   */
  enforce?: "start" | "tree" | null;
  /** How long a question waits for its answer. Absent: 120000. */
  timeoutMs?: number | null;
  /** Which decisions are told by `process/execDecision`. Absent: "asked". */
  report?: "refused" | "asked" | "all" | null;
}

export type CommandDecision = "allow" | "prompt" | "forbidden";

export interface RuleFile {
  /** For messages. */
  name: string;
  /** The rules, in the language of rule files. */
  text: string;
}

export interface StartResult {
  /** The process, by the id that the client has chosen. */
  processId: string;
  /** `none` without a sandbox, `linuxSeccomp` with one. Known: none, linuxSeccomp. */
  sandboxType: "none" | "linuxSeccomp" | (string & {});
  /** What confines the process. Present if the request had a sandbox. */
  sandboxLayers?: string[];
  /** `advisory`: the process has a proxy, but could go past it. Known: advisory. */
  network?: "advisory" | (string & {});
  /**
   * `pending`: the client is asked first, and the process starts after its answer. Known: pending.
   */
  approval?: "pending" | (string & {});
  /** What holds each limit of the request. Only with processLimits. */
  limits?: HeldLimits;
}

/**
 * What holds a limit: a control group of the process, or a limit that each of its processes
 * inherits.
 */
export interface HeldLimits {
  /** What holds `memoryBytes`. Known: cgroup, rlimit. */
  memoryBytes?: "cgroup" | "rlimit" | (string & {});
  /** What holds `milliCpus`. Known: cgroup, rlimit. */
  milliCpus?: "cgroup" | "rlimit" | (string & {});
  /** What holds `processes`. Known: cgroup, rlimit. */
  processes?: "cgroup" | "rlimit" | (string & {});
  /** What holds `fileSizeBytes`. Known: cgroup, rlimit. */
  fileSizeBytes?: "cgroup" | "rlimit" | (string & {});
}

export interface WriteParams {
  /** The process, by the id that the client has chosen. */
  processId: string;
  /** The bytes. */
  chunk: string;
  /** The client's choice. A write with the same id is done once. */
  writeId: string;
}

export interface WriteResult {
  /**
   * accepted: taken, now or by an earlier write with the same id. unknownProcess: there is none.
   * stdinClosed: it has no stdin. starting: try again later.
   */
  status: "accepted" | "unknownProcess" | "stdinClosed" | "starting";
}

export interface ProcessParams {
  /** The process, by the id that the client has chosen. */
  processId: string;
}

export interface ReadParams {
  /** The process, by the id that the client has chosen. */
  processId: string;
  /** Only what has a greater number. Absent: everything that is kept. Absent: 0. */
  afterSeq?: number | null;
  /** A budget: the first chunk always comes, another one only if all fit. */
  maxBytes?: number | null;
  /** For how long to wait if there is nothing to tell. Absent: no wait. */
  waitMs?: number | null;
  /** Another session of the caller's. Only with namedSessions. */
  sessionId?: string | null;
  /** Say when each chunk was read. Absent: false. Only with namedSessions. */
  timestamps?: boolean | null;
  /** Send no chunks, and wait only for the exit. Absent: false. Only with namedSessions. */
  exitOnly?: boolean | null;
}

export interface ReadResult {
  /** Output that is kept, oldest first. */
  chunks: OutputChunk[];
  /** The next read asks for what comes after nextSeq - 1. */
  nextSeq: number;
  /** Whether the process has exited. */
  exited: boolean;
  /** 128 + n after signal n. null: it still runs. */
  exitCode: number | null;
  /** Nothing more comes. */
  closed: boolean;
  /** Not used: null. */
  failure: string | null;
  /** The process may have failed because of its sandbox. */
  sandboxDenied: boolean;
  /**
   * What was refused to the process. Present if something is known, and the client wants it. Only
   * with refusals.
   */
  refusals?: Refusals;
  /**
   * The process was ended because the time of its timeoutMs was up. Only with processTimeout.
   */
  timedOut?: boolean;
  /**
   * The kernel has ended one of its processes, because the limit of memory was reached. Only with
   * processLimits.
   */
  outOfMemory?: boolean;
}

/** A piece of output, as it was read from the process. */
export interface OutputChunk {
  /** One counter counts output, exit and close, from 1 and without a gap. */
  seq: number;
  /** What the bytes were written to. */
  stream: OutputStream;
  /** The bytes. */
  chunk: string;
  /**
   * When it was read, in milliseconds since 1970, if `timestamps` was set. Only with namedSessions.
   */
  atMs?: number;
  /**
   * How many bytes of the stream were left out before chunk, by a maxOutputBytes. Only with
   * processMaxOutput.
   */
  omitted?: number;
}

export type OutputStream = "stdout" | "stderr" | "pty";

/** What was refused to a process, as far as that is known. */
export interface Refusals {
  /** One for each kind of attempt. */
  list: Refusal[];
  /** How many are not in the list. */
  more?: number | null;
  /**
   * What the sandbox allows, if nothing is known of a refusal and the process has failed. For a
   * model.
   */
  note?: string | null;
}

export interface Refusal {
  /** What has refused it. Known: file, socket, network, program, limit, ceiling. */
  layer: "file" | "socket" | "network" | "program" | "limit" | "ceiling" | (string & {});
  /** Such as read, write, create, connect to, execute. */
  operation: string;
  /** The path, the host with its port, or the program. */
  subject: string;
  /** The rule that has refused it, or its justification. */
  reason: string;
  /** What would have to be allowed. Absent: nothing would help. */
  needs?: string | null;
  /** The path, host or request of `needs`. */
  at?: string | null;
  /** How often. */
  times?: number | null;
  /** All of it in one line, for a model. */
  text: string;
}

export interface SignalParams {
  /** Another session of the caller's. Only with namedSessions. */
  sessionId?: string | null;
  /** The process, by the id that the client has chosen. */
  processId: string;
  /** The signal. */
  signal: Signal;
}

/** Servers without processSignals know `interrupt` only. */
export type Signal = "interrupt" | "hangup" | "quit" | "terminate" | "kill" | "user1" | "user2" | "stop" | "continue" | "windowChange";

export interface TerminateParams {
  /** Another session of the caller's. Only with namedSessions. */
  sessionId?: string | null;
  /** The process, by the id that the client has chosen. */
  processId: string;
}

export interface TerminateResult {
  /** Whether the process had not exited. false for an unknown one. */
  running: boolean;
}

export interface ResizeParams {
  /** The process, by the id that the client has chosen. */
  processId: string;
  /** Lines of the terminal. */
  rows: number;
  /** Columns of the terminal. */
  cols: number;
}

export interface ListParams {
  /** Another session of the caller's. Only with namedSessions. */
  sessionId?: string | null;
}

export interface ListResult {
  /** Those that run, and those that are kept. */
  processes: ListedProcess[];
}

/** A process that runs, or is kept. */
export interface ListedProcess {
  /** The process, by the id that the client has chosen. */
  processId: string;
  /** The program and its arguments. */
  argv: string[];
  /** The number of the process on the agent's machine. */
  pid: number;
  /** Whether it runs in a terminal. */
  tty: boolean;
  /** Milliseconds since 1970. */
  startedAtMs: number;
  /** Whether the process has exited. */
  exited: boolean;
  /** 128 + n after signal n. null: it still runs. */
  exitCode: number | null;
  /** Milliseconds since 1970. */
  exitedAtMs?: number;
  /** Whether its output has ended, too. */
  closed: boolean;
  /** The number of its next event. */
  nextSeq: number;
  /** What confines the process. */
  sandboxLayers?: string[];
}

export interface OutputNotification {
  /** The process, by the id that the client has chosen. */
  processId: string;
  /** The number of the event among those of the process. */
  seq: number;
  /** What the bytes were written to. */
  stream: OutputStream;
  /** The bytes. */
  chunk: string;
  /**
   * How many bytes of the stream were left out before chunk, by a maxOutputBytes. Absent: 0. Only
   * with processMaxOutput.
   */
  omitted?: number | null;
}

export interface ExitedNotification {
  /** The process, by the id that the client has chosen. */
  processId: string;
  /** The number of the event among those of the process. */
  seq: number;
  /** 128 + n after signal n. */
  exitCode: number;
  /** The process may have failed because of its sandbox. Absent: false. */
  sandboxDenied?: boolean | null;
  /**
   * What was refused to the process. Present if something is known, and the client wants it. Only
   * with refusals.
   */
  refusals?: Refusals | null;
  /**
   * The process was ended because the time of its timeoutMs was up. Absent: false. Only with
   * processTimeout.
   */
  timedOut?: boolean | null;
  /**
   * The kernel has ended one of its processes, because the limit of memory was reached. Absent:
   * false. Only with processLimits.
   */
  outOfMemory?: boolean | null;
}

export interface ClosedNotification {
  /** The process, by the id that the client has chosen. */
  processId: string;
  /** The number of the event among those of the process. */
  seq: number;
}

export interface ExecApprovalParams {
  /** The process, by the id that the client has chosen. */
  processId: string;
  /**
   * Of this question alone. A question that is asked again, after the client has come back, keeps
   * it.
   */
  approvalId: string;
  /** The command of `process/start`, or a program that it executes. Known: start, exec. */
  kind: "start" | "exec" | (string & {});
  /** The program and its arguments. */
  argv: string[];
  /** argv is only the beginning of the command. Absent: false. */
  truncated?: boolean;
  /** The program; empty if there is none. */
  exe: string;
  /** The working directory, a native path. */
  cwd: string;
  /** Absent for a process that was not started yet. */
  pid?: number | null;
  /** The number of its parent. */
  ppid?: number | null;
  /** Why it is asked, for people. */
  reason: string;
  /**
   * A list of {"prefixRuleMatch":{matchedPrefix, decision, resolvedProgram?, justification?}} and
   * {"heuristicsRuleMatch":{command, decision}}.
   */
  matchedRules: unknown;
  /** The beginning of a command that a rule could allow. */
  proposedPrefix?: string[] | null;
  /** The number of the last event of the process before the question. */
  afterSeq: number;
  /** For how long the agent waits for the answer. */
  timeoutMs: number;
}

export interface ExecApprovalAnswer {
  /**
   * acceptForProcess: also the same command again, of this process. decline: refuse it. cancel:
   * refuse it, and end the process. Any other word declines. Known: accept, acceptForProcess,
   * decline, cancel.
   */
  decision: "accept" | "acceptForProcess" | "decline" | "cancel" | (string & {}) | AcceptWithRule;
}

/** Accepts the command, and all commands of this process with the prefix. */
export interface AcceptWithRule {
  /** What is accepted. */
  acceptWithRule: CommandPrefix;
}

export interface CommandPrefix {
  /** The beginning of an argv. */
  prefix: string[];
}

export interface ExecApprovalClosed {
  /** The process, by the id that the client has chosen. */
  processId: string;
  /** The question. */
  approvalId: string;
  /** Why. Known: timeout, terminated, exited, disconnected, policyChanged. */
  reason: "timeout" | "terminated" | "exited" | "disconnected" | "policyChanged" | (string & {});
}

export interface ExecDecision {
  /** The process, by the id that the client has chosen. */
  processId: string;
  /** The question that was asked. */
  approvalId?: string | null;
  /** The number of the process on the agent's machine. */
  pid?: number | null;
  /** The number of its parent. */
  ppid?: number | null;
  /** The program. */
  exe: string;
  /** The program and its arguments. */
  argv: string[];
  /** What was decided. Known: allow, forbidden. */
  decision: "allow" | "forbidden" | (string & {});
  /** What has decided it. Known: rule, heuristic, approval, memo. */
  source: "rule" | "heuristic" | "approval" | "memo" | (string & {});
  /** FILE:LINE:COLUMN of the rule, or `client` for a rule of the client. */
  rule?: string | null;
  /** How many decisions before this one are not reported, because there were too many. */
  dropped?: number | null;
}

/** What a request may do, whatever the agent may do. Without it the request is not confined. */
export interface Sandbox {
  /** What may be read, written and reached. */
  permissions: Permissions;
  /** What relative places are relative to. A process has its own `cwd` if this is absent. */
  cwd?: string | null;
  /** The folders that the place `project_roots` stands for. Absent: []. */
  workspaceRoots?: string[];
  /** Replaces `cwd` and `workspaceRoots`. */
  policyContext?: PolicyContext | null;
  /** Without effect on Linux. */
  userHomeDir?: string | null;
  /** Without effect on Linux. */
  temporaryDirectories?: string[] | null;
  /** Always needed; Linux clients send `disabled`. */
  windowsSandboxLevel: "disabled" | "restricted-token" | "elevated" | "mxc";
  /** Without effect on Linux. */
  windowsSandboxProxySettingsMode?: "reconcile" | "preserve" | null;
  /** Without effect. Absent: false. */
  useLegacyLandlock?: boolean;
  /** Without effect on Linux. */
  windowsSandboxPrivateDesktop?: boolean | null;
}

/** What the places of a policy are relative to. */
export interface PolicyContext {
  /** Absent: that of the sandbox. */
  cwd?: string | null;
  /** The folders that project_roots stands for. Absent: []. */
  workspaceRoots?: string[];
}

/** A permission profile. Its members have snake case. */
export type Permissions = ManagedPermissions | ExternalPermissions | DisabledPermissions;

/** The agent enforces the rules. */
export interface ManagedPermissions {
  /** Says which of the records this is. */
  type: "managed";
  /** What may be read and written. */
  file_system: FileSystemRules;
  /** Whether processes have a network. */
  network: NetworkAccess;
}

/** Somebody else confines the files. */
export interface ExternalPermissions {
  /** Says which of the records this is. */
  type: "external";
  /** Whether processes have a network. */
  network: NetworkAccess;
}

/** No limits. */
export interface DisabledPermissions {
  /** Says which of the records this is. */
  type: "disabled";
}

export type NetworkAccess = "restricted" | "enabled";

export type FileSystemRules = RestrictedFiles | UnrestrictedFiles;

/** Only what an entry allows. The entry with the longest path decides. */
export interface RestrictedFiles {
  /** Says which of the records this is. */
  type: "restricted";
  /** Places and their access. What no entry covers is hidden. */
  entries: SandboxEntry[];
  /** How many levels deep patterns are looked for. */
  glob_scan_max_depth?: number | null;
}

export interface UnrestrictedFiles {
  /** Says which of the records this is. */
  type: "unrestricted";
}

export type SandboxEntry = PlaceEntry | NamedEntry;

/** Gives a place an access. */
export interface PlaceEntry {
  /** The place. */
  path: SandboxPath;
  /** deny and none are the same. */
  access: "read" | "write" | "deny" | "none";
  /** skip: an entry whose path does not exist adds nothing. */
  missing_path_behavior?: "skip" | null;
  /**
   * Only for a denied path that is no pattern. true: a process goes on after somebody outside has
   * replaced the file, and may see the new one. Absent: false. Only with sandboxReplaceable.
   */
  replaceable?: boolean;
}

/** Lets a UNIX socket be connected to, or a device be used. */
export interface NamedEntry {
  /** The socket or device. */
  path: NamedObject;
  /** Only write. */
  access: "write";
  /** skip: an entry whose path does not exist adds nothing. */
  missing_path_behavior?: "skip" | null;
}

export type SandboxPath = PathPlace | PatternPlace | SpecialPath;

export interface PathPlace {
  /** Says which of the records this is. */
  type: "path";
  /** With everything below it. */
  path: string;
}

export interface PatternPlace {
  /** Says which of the records this is. */
  type: "glob_pattern";
  /** Such as **\/*.env. Patterns are only for deny. */
  pattern: string;
}

export interface SpecialPath {
  /** Says which of the records this is. */
  type: "special";
  /** Which place. */
  value: SpecialPlace;
}

export type SpecialPlace = PlainPlace | ProjectRoots | UnknownPlace;

/** A place that depends on the request. */
export interface PlainPlace {
  /**
   * root is everything, minimal what most programs need, tmpdir the folder in TMPDIR, slash_tmp
   * /tmp.
   */
  kind: "root" | "minimal" | "current_working_directory" | "tmpdir" | "slash_tmp";
}

export interface ProjectRoots {
  /** Says which of the records this is. */
  kind: "project_roots";
  /** A path below each root. */
  subpath?: string | null;
}

/** A place that the agent does not know adds nothing. */
export interface UnknownPlace {
  /** Says which of the records this is. */
  kind: "unknown";
  /** Its name. */
  path: string;
  /** A path below it. */
  subpath?: string | null;
}

export interface NamedObject {
  /** Only with the flags sandboxUnixSockets and sandboxDevices. */
  type: "unix_socket" | "device";
  /** Where it is. */
  path: string;
}

/** A proxy for one process. */
export interface NetworkProxy {
  /** What it lets through. */
  proxy: ProxyParams;
  /** For telemetry only. Absent: {}. */
  auditMetadata?: AuditMetadata;
  /** Goes into the placeholders of credentials. */
  environmentId?: string | null;
  /** For telemetry only. */
  executionId?: string | null;
  /**
   * Ask the client about hosts that `domains` does not decide, and wait that long. Absent: refuse
   * them. 0 is refused.
   */
  policyDecisionTimeoutMs?: number | null;
}

/** What the proxy lets through. */
export interface ProxyParams {
  /** Has to be true. */
  enabled: boolean;
  /** Offer SOCKS5, too. */
  enableSocks5: boolean;
  /**
   * Send direct TCP connections through the proxy. It needs a sandbox. Absent: false. Only with
   * networkProxyTransparentTcp.
   */
  transparentTcp?: boolean;
  /** Accepted, but UDP does not work. */
  enableSocks5Udp: boolean;
  /** Let the proxy go through a proxy of the agent's environment. */
  allowUpstreamProxy: boolean;
  /** Allow UNIX sockets in the sandbox. */
  dangerouslyAllowAllUnixSockets: boolean;
  /** limited: only GET, HEAD and OPTIONS. */
  mode: "limited" | "full";
  /**
   * Patterns of hosts, or with networkRequestRules of requests, and what is decided about them.
   */
  domains?: { [key: string]: "none" | "allow" | "deny" } | null;
  /** Paths of UNIX sockets. They count only where the operator of the agent says so. */
  unixSockets?: { [key: string]: "allow" | "deny" } | null;
  /** Treat local and private addresses as any other. */
  allowLocalBinding: boolean;
  /**
   * Patterns of hosts about which the client is asked, although `domains` allows them. Absent: [].
   * Only with networkProxyReviewDomains.
   */
  reviewDomains?: string[];
  /**
   * Give the process placeholders instead of credentials. The proxy puts the credentials back.
   * Absent: false. Only with credentialMasking.
   */
  credentialMasking?: boolean;
  /**
   * More credentials to mask, by a name of yours. Absent: {}. Only with
   * credentialMaskingCustomProviders.
   */
  credentialProviders?: { [key: string]: CredentialProvider };
}

/** Which variables hold a credential, and where it may go. Its members have snake case. */
export interface CredentialProvider {
  /** Names of variables. */
  env?: string[];
  /** Regular expressions of the value. */
  patterns?: string[];
  /** Where the credential may go. */
  url_prefixes?: string[];
  /** A variable that holds a URL prefix. */
  url_prefix_from_env?: string | null;
  /** How it is sent. Absent or empty: bearer. */
  auth?: ("bearer" | "token" | "basic" | "header")[];
  /** The header that has it, for auth header. */
  header?: string | null;
  /** What stands before it in the header. */
  prefix?: string | null;
}

export interface AuditMetadata {
  /** Any text. */
  conversationId?: string | null;
  /** Any text. */
  appVersion?: string | null;
  /** Any text. */
  userAccountId?: string | null;
  /** Any text. */
  authMode?: string | null;
  /** Any text. */
  originator?: string | null;
  /** Any text. */
  userEmail?: string | null;
  /** Any text. */
  terminalType?: string | null;
  /** Any text. */
  model?: string | null;
  /** Any text. */
  slug?: string | null;
}

/** For the sandbox of another system. Checked, but without effect on Linux. */
export interface ManagedNetwork {
  /** Ports that may be reached. */
  loopbackPorts?: number[];
  /** Listeners are allowed. Absent: false. */
  allowLocalBinding?: boolean;
  /** Paths of sockets. */
  allowUnixSockets?: string[];
  /** All sockets are allowed. Absent: false. */
  dangerouslyAllowAllUnixSockets?: boolean;
  /** Needs the same in `networkProxy.proxy`. Absent: false. */
  transparentTcp?: boolean;
}

export interface PolicyRequestParams {
  /** The process, by the id that the client has chosen. */
  processId: string;
  /** Where the process wants to go. */
  request: PolicyRequest;
}

export interface PolicyRequest {
  /**
   * How the process reaches for the host. Known: http, https_connect, socks5_tcp, socks5_udp.
   */
  protocol: "http" | "https_connect" | "socks5_tcp" | "socks5_udp" | (string & {});
  /** A name or an address, never a URL. */
  host: string;
  /** The port. */
  port: number;
  /**
   * Of an HTTP request, if the start of the process had a rule about requests. Only with
   * networkRequestRules.
   */
  method?: string | null;
  /** Without a query. One that was cut ends in "...". Only with networkRequestRules. */
  path?: string | null;
}

export interface PolicyAnswer {
  /** The answer. */
  decision: PolicyChoice;
}

export type PolicyChoice = AllowChoice | RefuseChoice;

export interface AllowChoice {
  /** Says which of the records this is. */
  type: "allow";
}

export interface RefuseChoice {
  /** ask: refused, because somebody must be asked first. */
  type: "deny" | "ask";
  /** The command reads it. */
  reason: string;
}

export interface PolicyDecision {
  /** The process, by the id that the client has chosen. */
  processId: string;
  /** UTC, with milliseconds. */
  timestamp: string;
  /** What was judged. Known: domain, non_domain. */
  scope: "domain" | "non_domain" | (string & {});
  /** The outcome. Known: allow, deny, ask. */
  decision: "allow" | "deny" | "ask" | (string & {});
  /** What has decided. Known: baseline_policy, decider, mode_guard, proxy_state. */
  source: "baseline_policy" | "decider" | "mode_guard" | "proxy_state" | (string & {});
  /** A word for why, or the text of the client. */
  reason: string;
  /**
   * How the process reaches for the host. Known: http, https_connect, socks5_tcp, socks5_udp.
   */
  protocol: "http" | "https_connect" | "socks5_tcp" | "socks5_udp" | (string & {});
  /** A name or an address. */
  host: string;
  /** The port. */
  port: number;
  /** The HTTP method, CONNECT for a tunnel. Absent for SOCKS. */
  method?: string | null;
  /** Of an HTTP request, without its query. Only with networkRequestRules. */
  path?: string | null;
  /** The process's end of its connection to the proxy. */
  client: string;
  /** The client allowed a host that the list does not allow. */
  policyOverride: boolean;
}

export interface HTTPRequestParams {
  /** Any token, such as GET. */
  method: string;
  /** An absolute http or https URL. */
  url: string;
  /** In this order. Absent: []. */
  headers?: HTTPHeader[];
  /** The body. */
  bodyBase64?: string | null;
  /** For headers and body. Absent: no limit. */
  timeoutMs?: number | null;
  /** follow: up to 10 redirects. stop: the redirect is the result. Absent: "follow". */
  redirectPolicy?: "follow" | "stop";
  /** The client's choice. The pieces of a stream have it. */
  requestId: string;
  /** Send the body in `http/request/bodyDelta`. Absent: false. */
  streamResponse?: boolean;
}

export interface HTTPResponse {
  /** The HTTP status. */
  status: number;
  /** Names are in lower case. */
  headers: HTTPHeader[];
  /** Empty if the body is streamed. */
  bodyBase64: string;
}

export interface HTTPHeader {
  /** The name. */
  name: string;
  /** The value. */
  value: string;
  /**
   * Only in a request: a variable of the agent's whose content is put behind `value`. Only with
   * httpHeaderEnvVars.
   */
  valueEnvVar?: string | null;
}

export interface HTTPBodyDelta {
  /** The id that the client has chosen. */
  requestId: string;
  /** From 1. */
  seq: number;
  /** The bytes. */
  deltaBase64: string;
  /** It is the last piece. */
  done: boolean;
  /** Why the body has ended early. */
  error?: string | null;
}

export interface WriteFileParams {
  /** The file. */
  path: string;
  /** The new content. */
  dataBase64: string;
  /** false: refuse links anywhere in the path. Absent: true. */
  followSymlinks?: boolean | null;
  /**
   * The permissions of the file afterwards, whatever the umask is: 0 to 511 (octal 777). null:
   * those that it has, or those of every new file. Only with fsWriteOptions.
   */
  mode?: number | null;
  /**
   * Make the directories of the path that are missing. Absent: false. Only with fsWriteOptions.
   */
  parents?: boolean | null;
  /**
   * Make a new file: a name that exists, also a link, is an error. Absent: false. Only with
   * fsWriteOptions.
   */
  exclusive?: boolean | null;
  /**
   * Write a new file beside the old one, and rename it. Others see the whole old content or the
   * whole new one. Permissions, owner and ACL stay, or nothing is changed. Absent: false. Only with
   * fsWriteOptions.
   */
  atomic?: boolean | null;
  /** What the request may do. Without it the request is not confined. */
  sandbox?: Sandbox | null;
}

/** The path of a request. */
export interface PathParams {
  /** A file or directory on the agent's machine. */
  path: string;
  /** false: refuse links anywhere in the path. Absent: true. */
  followSymlinks?: boolean | null;
  /** What the request may do. Without it the request is not confined. */
  sandbox?: Sandbox | null;
}

export interface ReadFileResult {
  /** The content. */
  dataBase64: string;
}

export interface CreateDirectoryParams {
  /** The directory. */
  path: string;
  /** Make its parents too. What exists is no error then. Absent: true. */
  recursive?: boolean | null;
  /** false: refuse links anywhere in the path. Absent: true. */
  followSymlinks?: boolean | null;
  /** What the request may do. Without it the request is not confined. */
  sandbox?: Sandbox | null;
}

export interface GetMetadataParams {
  /** A file or directory on the agent's machine. */
  path: string;
  /** false: refuse links anywhere in the path; with `lstat` before its end. Absent: true. */
  followSymlinks?: boolean | null;
  /**
   * stat: the members of FileMetadata that have a flag are wanted, too. lstat: the same, and all is
   * about the path itself, although it is a link. Only with fsMetadata.
   */
  details?: "stat" | "lstat" | null;
  /** What the request may do. Without it the request is not confined. */
  sandbox?: Sandbox | null;
}

export interface GetMetadataManyParams {
  /** Files and directories. */
  paths: string[];
  /** false: refuse links anywhere in the path. Absent: true. */
  followSymlinks?: boolean | null;
  /** As in GetMetadataParams. */
  details?: "stat" | "lstat" | null;
  /** What the request may do. Without it the request is not confined. */
  sandbox?: Sandbox | null;
}

export interface GetMetadataManyResult {
  /** One for each path, in the order of the request. */
  files: FileOrError[];
}

/** One of the two members is there. */
export interface FileOrError {
  /** The file. */
  metadata?: FileMetadata;
  /** Why there is none, as `fs/getMetadata` would answer. */
  error?: ErrorObject;
}

export interface FileMetadata {
  /** It is a directory. */
  isDirectory: boolean;
  /** It is a regular file. */
  isFile: boolean;
  /** About the path itself. */
  isSymlink: boolean;
  /** Bytes. */
  size: number;
  /** Milliseconds since 1970. 0: not known. */
  createdAtMs: number;
  /** Milliseconds since 1970. */
  modifiedAtMs: number;
  /**
   * With `details`. The others are absent where a sandbox shows no more than this. Only with
   * fsMetadata.
   */
  type?: FileType;
  /** Permissions, set-ID bits and the sticky bit. Only with fsMetadata. */
  mode?: number;
  /** The number of the owner. Only with fsMetadata. */
  uid?: number;
  /** The number of the group. Only with fsMetadata. */
  gid?: number;
  /** The name of the owner, if `/etc/passwd` has it and may be read. Only with fsMetadata. */
  owner?: string;
  /** The name of the group, if `/etc/group` has it and may be read. Only with fsMetadata. */
  group?: string;
  /**
   * What a link leads to, with `lstat`: any text. Bytes that are not UTF-8 become U+FFFD. Only with
   * fsMetadata.
   */
  linkTarget?: string;
}

/** The type of a file. */
export type FileType = "file" | "directory" | "symlink" | "fifo" | "socket" | "blockDevice" | "characterDevice" | (string & {});

export interface CanonicalizeParams {
  /** A file or directory on the agent's machine. */
  path: string;
  /** It has no effect: links are resolved. Absent: true. */
  followSymlinks?: boolean | null;
  /**
   * Names at the end may be missing, also behind a link. What a sandbox hides is missing. Absent:
   * false. Only with fsCanonicalizeMissing.
   */
  allowMissing?: boolean | null;
  /** What the request may do. Without it the request is not confined. */
  sandbox?: Sandbox | null;
}

export interface CanonicalizeResult {
  /** Without links and dots. */
  path: string;
}

export interface ReadDirectoryParams {
  /** A file or directory on the agent's machine. */
  path: string;
  /** It has no effect: a link at the end is followed. Absent: true. */
  followSymlinks?: boolean | null;
  /**
   * lstat: the entries are described themselves, and have the members with a flag. Only with
   * fsReadDirectoryLstat.
   */
  entries?: "lstat" | null;
  /** What the request may do. Without it the request is not confined. */
  sandbox?: Sandbox | null;
}

export interface ReadDirectoryResult {
  /** The names in the directory. */
  entries: DirectoryEntry[];
}

export interface DirectoryEntry {
  /** Bytes that are not UTF-8 become U+FFFD. */
  fileName: string;
  /** Of a link's target; with `lstat` of the name itself. */
  isDirectory: boolean;
  /** The same: a regular file. */
  isFile: boolean;
  /** Absent if the system does not tell it. Only with fsReadDirectoryLstat. */
  type?: FileType;
  /**
   * Bytes. Absent, as the next two, where no more than the type is known: a sandbox denies the
   * file, or the directory may not be searched. Only with fsReadDirectoryLstat.
   */
  size?: number;
  /** Milliseconds since 1970. Only with fsReadDirectoryLstat. */
  modifiedAtMs?: number;
  /** Permissions, set-ID bits and the sticky bit. Only with fsReadDirectoryLstat. */
  mode?: number;
}

export interface WalkParams {
  /** A file or directory on the agent's machine. */
  path: string;
  /** Bounds of the walk. */
  options: WalkOptions;
  /** What the request may do. Without it the request is not confined. */
  sandbox?: Sandbox | null;
}

export interface WalkOptions {
  /** 0 lists what is in the directory. At most 64. */
  maxDepth: number;
  /** 1 to 10,000. */
  maxDirectories: number;
  /** 1 to 50,000. */
  maxEntries: number;
  /** Enter directories behind links, each once. */
  followDirectorySymlinks: boolean;
  /** List directories whose name begins with a dot, but do not enter them. Absent: false. */
  pruneHiddenDirectories?: boolean;
}

export interface WalkResult {
  /** Files and directories, without the root. */
  entries: WalkEntry[];
  /** What could not be read. */
  errors: WalkError[];
  /** A limit was reached: there is more. */
  truncated: boolean;
}

export interface WalkEntry {
  /** A file or directory on the agent's machine. */
  path: string;
  /** What it is. */
  kind: "file" | "directory";
}

export interface WalkError {
  /** A file or directory on the agent's machine. */
  path: string;
  /** Why it could not be read. */
  message: string;
}

export interface SearchParams {
  /** A file or directory on the agent's machine. */
  path: string;
  /**
   * Which names are looked at, each as a line of a .gitignore, with braces for alternatives. A glob
   * without a slash is about names at every depth, one with a slash about paths below `path`. The
   * last that matches decides; one that begins with `!` leaves names out. None, or null: all names.
   */
  globs?: string[] | null;
  /**
   * What is looked for in lines: a regular expression of RE2. null: only names are looked for.
   */
  pattern?: string | null;
  /** The pattern is text, and no expression. Absent: false. */
  literal?: boolean | null;
  /** Upper and lower case are the same in lines. Absent: false. */
  ignoreCase?: boolean | null;
  /** Also names that begin with a dot. Absent: false. */
  hidden?: boolean | null;
  /** Also what a .gitignore names. Absent: false. */
  noIgnore?: boolean | null;
  /** The only kind that is listed without a pattern. null: all. */
  kind?: FileKind | null;
  /** How many lines before a match are given. Absent: 0. */
  before?: number | null;
  /** How many lines after a match are given. Absent: 0. */
  after?: number | null;
  /** Of lines, or of files without a pattern. Absent: 1000. */
  maxMatches?: number | null;
  /** Lines of one file. null: as many as `maxMatches` allows. */
  maxFileMatches?: number | null;
  /** Names that are looked at, directories among them. Absent: 100000. */
  maxFiles?: number | null;
  /** 0 looks only at what is in the directory. Absent: 256. */
  maxDepth?: number | null;
  /** How many bytes of a line are given: those around the match. Absent: 512. */
  maxLineBytes?: number | null;
  /** How long the search may take. Absent: 10000. */
  timeoutMs?: number | null;
  /** What the request may do. Without it the request is not confined. */
  sandbox?: Sandbox | null;
}

/** What a file is. Links are not followed. */
export type FileKind = "file" | "directory" | "symlink" | "other";

export interface SearchResult {
  /** What was found, sorted by path. */
  files: SearchedFile[];
  /** What could not be read. */
  errors: WalkError[];
  /**
   * The bound that was reached, so that something is missing. size: the answer is full. line: of a
   * line of more than 1 MiB only the first was searched. Absent: nothing is missing.
   */
  truncated?: "matches" | "files" | "depth" | "time" | "size" | "line";
  /** How many files were searched. */
  filesRead: number;
  /** How many files were skipped, because their beginning has a zero byte. */
  binaryFiles: number;
}

export interface SearchedFile {
  /** A file or directory on the agent's machine. */
  path: string;
  /** What it is. */
  kind: FileKind;
  /** The lines that match, if there is a pattern. */
  matches?: SearchMatch[];
}

export interface SearchMatch {
  /** The number of the line, from 1. */
  line: number;
  /** The byte of the line where the first match begins, from 1. */
  column: number;
  /** How many bytes the match has. */
  length: number;
  /** The line, or of a long line a part with the match. What is not UTF-8 is U+FFFD. */
  text: string;
  /** The byte of the line where `text` begins, from 1. */
  textColumn: number;
  /** The line goes on after `text`. */
  cut: boolean;
  /** The lines before, without those that another match has. */
  before?: string[];
  /** The lines after, without those that are matches themselves. */
  after?: string[];
}

export interface RemoveParams {
  /** A file or directory on the agent's machine. */
  path: string;
  /** Remove a directory with all below it. Absent: true. */
  recursive?: boolean | null;
  /** A path that does not exist is no error. Absent: true. */
  force?: boolean | null;
  /** false: refuse links anywhere in the path. Absent: true. */
  followSymlinks?: boolean | null;
  /** What the request may do. Without it the request is not confined. */
  sandbox?: Sandbox | null;
}

export interface CopyParams {
  /** What is copied. */
  sourcePath: string;
  /** What is made of it. */
  destinationPath: string;
  /** Copy a directory with all below it. */
  recursive: boolean;
  /** What the request may do. Without it the request is not confined. */
  sandbox?: Sandbox | null;
}

export interface RenameParams {
  /** What is moved. */
  sourcePath: string;
  /** Where it is then. */
  destinationPath: string;
  /** Replace what is at the destination. Absent: true. */
  replace?: boolean;
  /** What the request may do. Without it the request is not confined. */
  sandbox?: Sandbox | null;
}

export interface ApplyPatchParams {
  /** Up to 16 MiB that name up to 1,024 files. */
  patch: string;
  /** The folder of relative paths in the patch. */
  cwd: string;
  /** Change nothing, and answer with a diff. Absent: false. */
  dryRun?: boolean | null;
  /** What the request may do. Without it the request is not confined. */
  sandbox?: Sandbox | null;
}

export interface ApplyPatchResult {
  /** What the tool would print. */
  output: string;
  /** In the order of the patch. */
  changes: PatchedFile[];
  /** A unified diff, after a dry run. */
  diff?: string;
}

export interface PatchedFile {
  /** What happened to it. */
  kind: "added" | "updated" | "deleted";
  /** A file or directory on the agent's machine. */
  path: string;
  /** The old path of a file that was moved. */
  from?: string;
}

export interface OpenParams {
  /** Up to 32 bytes. */
  handleId: string;
  /** A file or directory on the agent's machine. */
  path: string;
  /**
   * replace: make the file, or empty it. Only servers with fileWriteStreaming know it. Absent:
   * "read".
   */
  mode?: "read" | "replace";
  /**
   * What the request may do. Without it the request is not confined. Only with
   * sandboxedFileStreaming.
   */
  sandbox?: Sandbox | null;
}

export interface HandleParams {
  /** The handle, by the id that the client has chosen. */
  handleId: string;
}

export interface WriteBlockParams {
  /** The handle, by the id that the client has chosen. */
  handleId: string;
  /** Where it begins in the file. */
  offset: number;
  /** 1 to 1,048,576 bytes (-32600). */
  chunk: string;
}

export interface ReadBlockParams {
  /** The handle, by the id that the client has chosen. */
  handleId: string;
  /** Where it begins in the file. */
  offset: number;
  /** 1 to 1,048,576 (-32600). */
  len: number;
}

export interface ReadBlockResult {
  /** The bytes. */
  chunk: string;
  /** The chunk is shorter than was asked for. */
  eof: boolean;
}

export interface WatchMissingParams {
  /** Greater than all before on this connection, from 1. */
  watchId: number;
  /** Up to 64 paths. */
  missing: string[];
  /** A path that exists: the watch also fires when it changes. */
  present?: string | null;
  /** What the request may do. Without it the request is not confined. */
  sandbox?: Sandbox | null;
}

export interface WatchMissingResult {
  /** false: there is no watch, for example because a path exists. */
  watching: boolean;
}

export interface MissingChangedNotification {
  /** The watch, by the id that the client has chosen. */
  watchId: number;
}

export interface WatchParams {
  /** The client's choice, unique among the watches of the connection. */
  watchId: string;
  /** A file or directory on the agent's machine. */
  path: string;
  /** With all directories below. Absent: false. */
  recursive?: boolean | null;
  /** What the request may do. Without it the request is not confined. */
  sandbox?: Sandbox | null;
}

export interface WatchResult {
  /** What is watched, without links. */
  path: string;
}

export interface UnwatchParams {
  /** The watch, by the id that the client has chosen. */
  watchId: string;
}

export interface ChangedNotification {
  /** The watch, by the id that the client has chosen. */
  watchId: string;
  /** In the order in which it happened. */
  changes: FileChange[];
  /** More has changed: look at all of the tree. Absent: false. */
  overflow?: boolean | null;
}

export type FileChange = PathChange | PathRenamed;

export interface PathChange {
  /** A file or directory on the agent's machine. */
  path: string;
  /**
   * created: what was there is gone, with all below it. modified: content, mode, owner or times.
   */
  kind: "created" | "modified" | "removed";
}

export interface PathRenamed {
  /** Where it is now. */
  path: string;
  /** Says which of the records this is. */
  kind: "renamed";
  /** Where it was, with all below it. */
  from: string;
}

export interface PortListParams {
  /**
   * With it, only ports that a process in the sandbox can connect to are listed, without `pid` and
   * `program`.
   */
  sandbox?: Sandbox | null;
}

export interface PortListResult {
  /** At most 4096. */
  ports: Port[];
  /** There are more. Absent: false. */
  truncated?: boolean;
}

export interface Port {
  /** The port. */
  port: number;
  /** The IP address where it listens. 0.0.0.0 and :: are all addresses. */
  address: string;
  /** The user who has opened it. Absent: the agent does not see that. */
  uid?: number;
  /**
   * The process, the one with the lowest number if several have it. Absent: the agent does not see
   * that.
   */
  pid?: number;
  /** The name of the program of that process. */
  program?: string;
}

export interface PortWatchParams {
  /** The client's choice, unique among the watches of ports of the connection. */
  watchId: string;
  /** As for `port/list`. */
  sandbox?: Sandbox | null;
}

export interface PortChangedNotification {
  /** The watch, by the id that the client has chosen. */
  watchId: string;
  /** Those that have opened. */
  opened: Port[];
  /** Those that have closed. */
  closed: Port[];
}

export interface SocketOpenParams {
  /** The client's choice, unique among the sockets of the session. */
  socketId: SocketId;
  /** tcp://HOST:PORT or unix:///PATH. */
  address: string;
  /**
   * How many bytes the agent sends before the client acknowledges the first of them. Absent:
   * 1048576.
   */
  window?: number | null;
  /** Connect as a command with this sandbox would. */
  sandbox?: Sandbox | null;
}

export type SocketId = string;

export interface SocketWriteParams {
  /** The socket, by the id that the client has chosen. */
  socketId: SocketId;
  /** How many bytes were sent before. The agent takes no byte twice. */
  offset: number;
  /** The bytes. */
  chunk: string;
  /** Nothing follows. Absent: false. */
  eof?: boolean | null;
}

export interface SocketReceived {
  /** How many bytes the agent has passed on in all. */
  received: number;
}

export interface SocketReceivedParams {
  /** The socket, by the id that the client has chosen. */
  socketId: SocketId;
  /** How many bytes the client has in all. */
  received: number;
}

export interface SocketParams {
  /** The socket, by the id that the client has chosen. */
  socketId: SocketId;
}

export interface SocketData {
  /** The socket, by the id that the client has chosen. */
  socketId: string;
  /** How many bytes came before. */
  offset: number;
  /** The bytes. */
  chunk: string;
  /** Nothing more comes. Absent: false. */
  eof?: boolean | null;
  /** Why nothing more can be read. */
  error?: string | null;
}

export interface DiscoverRootsParams {
  /** Up to 128. */
  roots: CapabilityRoot[];
}

export interface CapabilityRoot {
  /** The client's choice. The answer repeats it. */
  id: string;
  /** The folder. */
  path: string;
  /**
   * What the request may do. Without it the request is not confined. Only with
   * capabilityDiscoverySandbox.
   */
  sandbox?: Sandbox | null;
}

/** In the order of the request. */
export interface DiscoverRootsResult {
  /** One for each root. */
  roots: DiscoveredRoot[];
}

/** The files of one folder, as they are. With an error there is nothing else. */
export interface DiscoveredRoot {
  /** That of the request. */
  id: string;
  /** As it was sent. */
  path: string;
  /** null: the folder is no plugin. */
  plugin: PluginFiles | null;
  /** The skills below it. */
  skills: SkillFiles[];
  /** Manifests that give skills a namespace. */
  namespaceManifests: DiscoveredFile[];
  /** What could not be read, and why. */
  warnings: string[];
  /** Why nothing could be read. */
  error: string | null;
}

export interface DiscoveredFile {
  /** Where it is. */
  path: string;
  /** Its text. */
  contents: string;
}

/** The manifest of a plugin, and the files that it names. */
export interface PluginFiles {
  /** plugin.json. */
  manifest: DiscoveredFile;
  /** The MCP servers that it names. */
  mcpConfig: DiscoveredFile | null;
  /** The apps that it names. */
  appsConfig: DiscoveredFile | null;
}

/** A SKILL.md and its openai.yaml. */
export interface SkillFiles {
  /** SKILL.md. */
  instructions: DiscoveredFile;
  /** openai.yaml. */
  metadata: DiscoveredFile | null;
}

export interface DiscoverInstalledParams {
  /** Needed, but without effect. */
  cwd: string;
  /** Unlike elsewhere, it needs a `cwd`. */
  sandbox?: Sandbox | null;
  /**
   * Tell what is passed over, too. Without effect if there is a sandbox. Other servers ignore it.
   * Absent: false.
   */
  details?: boolean;
}

export interface DiscoverInstalledResult {
  /** Plugins with their skills. */
  plugins: InstalledPlugin[];
  /** Of no plugin. */
  skills: InstalledSkill[];
  /** What could not be read, and why. */
  warnings: string[];
  /** PATH: CAUSE of what is passed over. */
  details?: string[];
}

export interface InstalledPlugin {
  /** NAME@MARKETPLACE. */
  id: string;
  /** For people. */
  displayName: string;
  /** Its id where it comes from. */
  remotePluginId: string | null;
  /** Its version. */
  version: string;
  /** Its folder. */
  root: string;
  /** Its files. */
  files: PluginFiles;
  /** Its skills. */
  skills: InstalledSkill[];
}

/** The front matter of a SKILL.md, and its openai.yaml. */
export interface InstalledSkill {
  /** NAMESPACE:NAME where there is a namespace. */
  name: string;
  /** What the skill is for. */
  description: string;
  /** The same for people, if there is one. */
  shortDescription: string | null;
  /** Its SKILL.md. */
  path: string;
  /** Where a skill of no plugin was found. */
  discoveryRoot?: DiscoveryRoot;
  /** What it needs. */
  dependencies: SkillDependencies | null;
  /** Where it may be used. */
  policy: SkillPolicy | null;
}

export interface DiscoveryRoot {
  /** Which of the places. */
  id: string;
  /** The folder. */
  path: string;
}

export interface SkillDependencies {
  /** Tools that the skill needs. */
  tools: SkillTool[];
}

export interface SkillTool {
  /** The kind of tool, such as mcp. */
  type: string;
  /** Its name. */
  value: string;
  /** What it is for. */
  description: string | null;
  /** How an MCP server is reached. */
  transport: string | null;
  /** The command that starts it. */
  command: string | null;
  /** Where it is. */
  url: string | null;
  /** The port for the answer of a sign-in. */
  oauthCallbackPort: number | null;
}

export interface SkillPolicy {
  /** Whether a model may use it without being asked. */
  allowImplicitInvocation: boolean | null;
  /** Products that may use it. */
  products: string[];
}
