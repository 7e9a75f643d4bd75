# Generated from protocol/contract/contract.txt by `go generate ./protocol/contract`. Do not edit.
# docs/contract/README.md has all of it with descriptions.
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

VERSION: Final = 1

# Methods.
INITIALIZE: Final = "initialize"
INITIALIZED: Final = "initialized"
ENVIRONMENT_INFO: Final = "environment/info"
ENVIRONMENT_STATUS: Final = "environment/status"
ENVIRONMENT_CONFIG_READ: Final = "environmentConfig/read"
SESSION_LIST: Final = "session/list"
SESSION_END: Final = "session/end"
SESSION_TAKEN: Final = "session/taken"
PROCESS_START: Final = "process/start"
PROCESS_WRITE: Final = "process/write"
PROCESS_CLOSE_STDIN: Final = "process/closeStdin"
PROCESS_READ: Final = "process/read"
PROCESS_SIGNAL: Final = "process/signal"
PROCESS_TERMINATE: Final = "process/terminate"
PROCESS_RESIZE: Final = "process/resize"
PROCESS_LIST: Final = "process/list"
PROCESS_OUTPUT: Final = "process/output"
PROCESS_EXITED: Final = "process/exited"
PROCESS_CLOSED: Final = "process/closed"
PROCESS_EXEC_APPROVAL: Final = "process/execApproval"
PROCESS_EXEC_APPROVAL_CLOSED: Final = "process/execApprovalClosed"
PROCESS_EXEC_DECISION: Final = "process/execDecision"
NETWORK_POLICY_REQUEST: Final = "network/policyRequest"
NETWORK_POLICY_DECISION: Final = "network/policyDecision"
HTTP_REQUEST: Final = "http/request"
HTTP_REQUEST_BODY_DELTA: Final = "http/request/bodyDelta"
FS_WRITE_FILE: Final = "fs/writeFile"
FS_READ_FILE: Final = "fs/readFile"
FS_CREATE_DIRECTORY: Final = "fs/createDirectory"
FS_GET_METADATA: Final = "fs/getMetadata"
FS_GET_METADATA_MANY: Final = "fs/getMetadataMany"
FS_CANONICALIZE: Final = "fs/canonicalize"
FS_READ_DIRECTORY: Final = "fs/readDirectory"
FS_WALK: Final = "fs/walk"
FS_SEARCH: Final = "fs/search"
FS_REMOVE: Final = "fs/remove"
FS_COPY: Final = "fs/copy"
FS_RENAME: Final = "fs/rename"
FS_APPLY_PATCH: Final = "fs/applyPatch"
FS_OPEN: Final = "fs/open"
FS_WRITE_BLOCK: Final = "fs/writeBlock"
FS_READ_BLOCK: Final = "fs/readBlock"
FS_CLOSE: Final = "fs/close"
FS_WATCH_MISSING: Final = "fs/watchMissing"
FS_MISSING_CHANGED: Final = "fs/missingChanged"
FS_WATCH: Final = "fs/watch"
FS_UNWATCH: Final = "fs/unwatch"
FS_CHANGED: Final = "fs/changed"
PORT_LIST: Final = "port/list"
PORT_WATCH: Final = "port/watch"
PORT_UNWATCH: Final = "port/unwatch"
PORT_CHANGED: Final = "port/changed"
SOCKET_OPEN: Final = "socket/open"
SOCKET_WRITE: Final = "socket/write"
SOCKET_ACK: Final = "socket/ack"
SOCKET_RESUME: Final = "socket/resume"
SOCKET_CLOSE: Final = "socket/close"
SOCKET_DATA: Final = "socket/data"
CAPABILITY_ROOTS_DISCOVER_V1: Final = "capabilityRoots/discoverV1"
CAPABILITIES_DISCOVER_V2: Final = "capabilities/discoverV2"

# Flags in Capabilities.
HAS_NETWORK_PROXY_LAUNCH: Final = "networkProxyLaunch"
HAS_NETWORK_PROXY_REVIEW_DOMAINS: Final = "networkProxyReviewDomains"
HAS_NETWORK_PROXY_TRANSPARENT_TCP: Final = "networkProxyTransparentTcp"
HAS_CREDENTIAL_MASKING: Final = "credentialMasking"
HAS_CREDENTIAL_MASKING_CUSTOM_PROVIDERS: Final = "credentialMaskingCustomProviders"
HAS_CAPABILITY_DISCOVERY_SANDBOX: Final = "capabilityDiscoverySandbox"
HAS_FS_WATCH_MISSING: Final = "fsWatchMissing"
HAS_CAPABILITY_DISCOVERY_V2: Final = "capabilityDiscoveryV2"
HAS_ENVIRONMENT_CONFIG_READ: Final = "environmentConfigRead"
HAS_HTTP_HEADER_ENV_VARS: Final = "httpHeaderEnvVars"
HAS_SANDBOXED_FILE_STREAMING: Final = "sandboxedFileStreaming"
HAS_FILE_WRITE_STREAMING: Final = "fileWriteStreaming"
HAS_SHELL_SNAPSHOT_V2: Final = "shellSnapshotV2"
HAS_WINDOWS_MXC: Final = "windowsMxc"
HAS_LINUX_ROOT_WRITE_PRESERVES_DEVICES: Final = "linuxRootWritePreservesDevices"
HAS_LINUX_APPROVED_ROOT_WRITE_PRESERVES_RESTRICTIONS: Final = "linuxApprovedRootWritePreservesRestrictions"
HAS_PROCESS_RESIZE: Final = "processResize"
HAS_PROCESS_CLOSE_STDIN: Final = "processCloseStdin"
HAS_PROCESS_LIST: Final = "processList"
HAS_PROCESS_SIGNALS: Final = "processSignals"
HAS_FS_RENAME: Final = "fsRename"
HAS_FS_WATCH: Final = "fsWatch"
HAS_FS_APPLY_PATCH: Final = "fsApplyPatch"
HAS_NAMED_SESSIONS: Final = "namedSessions"
HAS_PROCESS_BUILTINS: Final = "processBuiltins"
HAS_SOCKET_FORWARD: Final = "socketForward"
HAS_FS_SEARCH: Final = "fsSearch"
HAS_PORTS: Final = "ports"
HAS_SUBCOMMAND_APPROVALS: Final = "subcommandApprovals"
HAS_NETWORK_REQUEST_RULES: Final = "networkRequestRules"
HAS_SANDBOX_UNIX_SOCKETS: Final = "sandboxUnixSockets"
HAS_SANDBOX_DEVICES: Final = "sandboxDevices"
HAS_REFUSALS: Final = "refusals"
HAS_EXEC_APPROVAL_ENFORCE: Final = "execApprovalEnforce"
HAS_ERROR_DATA: Final = "errorData"
HAS_FS_READ_DIRECTORY_LSTAT: Final = "fsReadDirectoryLstat"
HAS_FS_METADATA: Final = "fsMetadata"
HAS_FS_WRITE_OPTIONS: Final = "fsWriteOptions"
HAS_FS_CANONICALIZE_MISSING: Final = "fsCanonicalizeMissing"
HAS_SANDBOX_REPLACEABLE: Final = "sandboxReplaceable"
HAS_PROCESS_TIMEOUT: Final = "processTimeout"
HAS_PROCESS_MAX_OUTPUT: Final = "processMaxOutput"
HAS_PROCESS_LIMITS: Final = "processLimits"
HAS_PROCESS_RUN_AS: Final = "processRunAs"
HAS_PROCESS_START_ID: Final = "processStartId"
HAS_SANDBOX_DEFAULT: Final = "sandboxDefault"
HAS_SANDBOX_CEILING: Final = "sandboxCeiling"
HAS_SANDBOX_REQUIRED: Final = "sandboxRequired"

# The flag that a server with the method has. Every server has the others.
FLAG_OF: Final[dict[str, str]] = {
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
}

# What a client does that has lost the connection before the answer.
REPEAT_OF: Final[dict[str, Literal["safe", "same", "never", "reopen"]]] = {
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
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> type:
        if name.startswith("_"):
            raise AttributeError(name)
        return dict


if TYPE_CHECKING:
    from typing import NotRequired, TypeAlias, TypedDict

    # A message with an id and a method.
    class RequestMessage(TypedDict):
        # The answer has the same.
        id: RequestId
        # One of the methods.
        method: str
        # Those of the method.
        params: NotRequired[Any]
        # Accepted and not used.
        trace: NotRequired[Trace | None]

    # A message with a method and no id.
    class NotificationMessage(TypedDict):
        # One of the methods.
        method: str
        # Those of the method.
        params: NotRequired[Any]

    # The answer to a request that succeeded.
    class ResultMessage(TypedDict):
        # That of the request.
        id: RequestId
        # That of the method.
        result: Any

    # The answer to a request that failed, or to a message that could not be read.
    class ErrorMessage(TypedDict):
        # That of the request; -1 if it could not be read.
        id: RequestId
        # What went wrong.
        error: ErrorObject

    # W3C trace context.
    class Trace(TypedDict):
        # As in W3C trace context.
        traceparent: NotRequired[str | None]
        # As in W3C trace context.
        tracestate: NotRequired[str | None]

    # The id of a request: a string of any length, or a signed integer of 64 bits. The answer has it
    # as it was sent. It is -1 in the answer to a message that could not be read.
    RequestId: TypeAlias = str | int

    # The member `error` of an answer.
    class ErrorObject(TypedDict):
        # What a client decides by. -32600: wrong state, unknown or used id, limit, or a path that
        # may not be used. -32601: unknown method. -32602: wrong params. -32603: another failure.
        # -32004: no such file or handle. -32010: the session has a connection.
        code: int
        # One or several lines for people.
        message: str
        # More about the error.
        data: NotRequired[ErrorData | None]

    # More about an error. Servers may add members.
    class ErrorData(TypedDict):
        # Why a process was not started. Known: spawnNotFound, spawnPermissionDenied, spawnFailed,
        # sandboxPreparation, sandboxUnavailable, limitUnavailable, userUnavailable.
        kind: NotRequired[str]
        # execPolicy: rules do not allow the command. busy: too many requests wait; nothing was
        # done, and the request may be sent again. memory: the agent has too little memory for the
        # answer. forgotten: the start was done before, and its process is no longer kept. Known:
        # execPolicy, busy, memory, forgotten.
        reason: NotRequired[str]
        # With execPolicy, the rules that matched, as in ExecApprovalParams.
        matchedRules: NotRequired[Any]
        # The number that Linux has for the error, if the system of the agent is its cause. Sent to
        # a client that has asked in `initialize`. Only with errorData.
        errno: NotRequired[int]
        # The name of that number, such as `ENOENT`. Absent for a number that has none. Only with
        # errorData.
        name: NotRequired[str]
        # What was wrong. program, cwd: of the process. path: the path of the request, or one of
        # them. Absent if it is nothing that the request names. Known: program, cwd, path, address.
        # Only with errorData.
        what: NotRequired[str]

    # Params of a method that has none. They may also be absent or null. No member is allowed.
    class EmptyParams(TypedDict):
        pass

    # The result of a method that has none.
    class Empty(TypedDict):
        pass

    class InitializeParams(TypedDict):
        # The client's name for itself. Other clients and the log of the agent see it.
        clientName: str
        # Resume this session. null or absent: a new one. A session is kept for a while after it has
        # lost its connection.
        resumeSessionId: NotRequired[str | None]
        # Open the caller's session of this name. If there is none, make it. Only with
        # namedSessions.
        sessionName: NotRequired[SessionName | None]
        # Make no session: an unknown name is an error. Absent: false. Only with namedSessions.
        existing: NotRequired[bool | None]
        # Take a session with a name from the client that is attached to it. Absent: false. Only
        # with namedSessions.
        take: NotRequired[bool | None]
        # For how many milliseconds the session is kept while nothing holds it: no connection and,
        # with a name, no process. The agent may cut it. Only with namedSessions.
        retainMs: NotRequired[int | None]
        # The client answers `process/execApproval`. Absent: false. Only with subcommandApprovals.
        subcommandApprovals: NotRequired[bool | None]
        # The client wants `refusals` of its processes. Absent: false. Only with refusals.
        refusals: NotRequired[bool | None]
        # The client wants `errno`, `name` and `what` in the data of errors. Absent: false. Only
        # with errorData.
        errorData: NotRequired[bool | None]

    # The name of a session: ASCII letters, digits, dots, underscores and dashes, the first a letter
    # or digit.
    SessionName: TypeAlias = str

    class InitializeResult(TypedDict):
        # The id to resume the session with.
        sessionId: str
        # If it is absent, the client asks by `environment/info`.
        environmentInfo: NotRequired[EnvironmentInfo]
        # Present if the session has a name, or `retainMs` was given. Only with namedSessions.
        session: NotRequired[OpenedSession]

    # The session of a client.
    class OpenedSession(TypedDict):
        # Absent for a session without a name.
        name: NotRequired[str]
        # Whether this initialize has made the session.
        created: bool
        # For how long the session is kept while nothing holds it.
        retainMs: int

    # The machine that the agent runs on.
    class EnvironmentInfo(TypedDict):
        # The user's shell.
        shell: Shell
        # The version of the agent.
        executorVersion: str
        # Names the build of the agent, and nothing else.
        providerId: str
        # The working directory of the agent.
        cwd: NotRequired[str]
        # The home directory of the agent's user.
        userHomeDir: NotRequired[str]
        # `linux`.
        platformOs: str
        # Directories that the client should put first in PATH.
        prependPathDirs: list[str]
        # The value of TMPDIR, if it is set.
        temporaryDirectories: list[str]
        # Where temporary files belong.
        tempDir: str
        # What this server knows.
        capabilities: Capabilities

    class Shell(TypedDict):
        # One of zsh, bash, powershell, sh and cmd.
        name: str
        # A native path, not a URI.
        path: str

    # What a server knows beyond the methods that every server has. A client asks for a flag before
    # it uses what the flag stands for. A missing flag is false.
    class Capabilities(TypedDict):
        # `networkProxy` in `process/start`, and the questions and reports about it.
        networkProxyLaunch: NotRequired[bool]
        # `reviewDomains` of a proxy.
        networkProxyReviewDomains: NotRequired[bool]
        # `transparentTcp` of a proxy. It depends on the host.
        networkProxyTransparentTcp: NotRequired[bool]
        # `credentialMasking` of a proxy.
        credentialMasking: NotRequired[bool]
        # `credentialProviders` of a proxy.
        credentialMaskingCustomProviders: NotRequired[bool]
        # `sandbox` in `capabilityRoots/discoverV1`.
        capabilityDiscoverySandbox: NotRequired[bool]
        # `fs/watchMissing`.
        fsWatchMissing: NotRequired[bool]
        # `capabilities/discoverV2`.
        capabilityDiscoveryV2: NotRequired[bool]
        # `environmentConfig/read`.
        environmentConfigRead: NotRequired[bool]
        # `valueEnvVar` of a header.
        httpHeaderEnvVars: NotRequired[bool]
        # `sandbox` in `fs/open`.
        sandboxedFileStreaming: NotRequired[bool]
        # `fs/open` with the mode `replace`, and `fs/writeBlock`.
        fileWriteStreaming: NotRequired[bool]
        # `shellSnapshot` in `process/start`.
        shellSnapshotV2: NotRequired[bool]
        # A sandbox of Windows; false on Linux.
        windowsMxc: NotRequired[bool]
        # A promise about sandboxes of the reference on Linux.
        linuxRootWritePreservesDevices: NotRequired[bool]
        # A promise about sandboxes of the reference on Linux.
        linuxApprovedRootWritePreservesRestrictions: NotRequired[bool]
        # `process/resize`, and `rows` and `cols` in `process/start`.
        processResize: NotRequired[bool]
        # `process/closeStdin`.
        processCloseStdin: NotRequired[bool]
        # `process/list`.
        processList: NotRequired[bool]
        # Signals besides `interrupt`.
        processSignals: NotRequired[bool]
        # `fs/rename`.
        fsRename: NotRequired[bool]
        # `fs/watch`, `fs/unwatch` and `fs/changed`.
        fsWatch: NotRequired[bool]
        # `fs/applyPatch`.
        fsApplyPatch: NotRequired[bool]
        # Sessions with a name, `session/list`, `session/end`, and processes of other sessions.
        namedSessions: NotRequired[bool]
        # `builtin` in `process/start`.
        processBuiltins: NotRequired[bool]
        # `socket/open` and the other methods of sockets.
        socketForward: NotRequired[bool]
        # `fs/search`.
        fsSearch: NotRequired[bool]
        # `port/list`, `port/watch`, `port/unwatch` and `port/changed`. It is announced where the
        # host tells which ports listen, and the operator's ceiling has a network.
        ports: NotRequired[bool]
        # Questions about commands: `process/execApproval`.
        subcommandApprovals: NotRequired[bool]
        # Rules about HTTP requests in `domains` of a proxy.
        networkRequestRules: NotRequired[bool]
        # Entries of a sandbox that name UNIX sockets.
        sandboxUnixSockets: NotRequired[bool]
        # Entries of a sandbox that name devices.
        sandboxDevices: NotRequired[bool]
        # What was refused to a process.
        refusals: NotRequired[bool]
        # `opaque`, `forcedRm` and `enforce` in `execApproval`.
        execApprovalEnforce: NotRequired[bool]
        # `errorData` in `initialize`: the causes of errors.
        errorData: NotRequired[bool]
        # `entries` in `fs/readDirectory`.
        fsReadDirectoryLstat: NotRequired[bool]
        # `details` in `fs/getMetadata`, and `fs/getMetadataMany`.
        fsMetadata: NotRequired[bool]
        # `mode`, `parents`, `exclusive` and `atomic` in `fs/writeFile`.
        fsWriteOptions: NotRequired[bool]
        # `allowMissing` in `fs/canonicalize`.
        fsCanonicalizeMissing: NotRequired[bool]
        # `replaceable` in an entry of a sandbox.
        sandboxReplaceable: NotRequired[bool]
        # `timeoutMs` in `process/start`.
        processTimeout: NotRequired[bool]
        # `maxOutputBytes` in `process/start`.
        processMaxOutput: NotRequired[bool]
        # `limits` in `process/start`.
        processLimits: NotRequired[bool]
        # `runAs` in `process/start`. It is announced where some request can have it: by an agent of
        # root's that may change its user, and whose operator neither confines nor judges all
        # processes.
        processRunAs: NotRequired[bool]
        # `startId` in `process/start`.
        processStartId: NotRequired[bool]
        # The operator gives requests without a sandbox a default one.
        sandboxDefault: NotRequired[bool]
        # The operator lets no request exceed a ceiling.
        sandboxCeiling: NotRequired[bool]
        # The operator refuses requests that would not be confined.
        sandboxRequired: NotRequired[bool]

    class StatusResult(TypedDict):
        # `ready` is the only status. Known: ready.
        status: str

    class ConfigReadParams(TypedDict):
        # The directory whose configuration counts.
        cwd: str
        # Each path is a list of TOML keys.
        configPaths: list[list[str]]
        # The same, in the files of requirements.
        requirementsPaths: list[list[str]]

    class ConfigReadResult(TypedDict):
        # The home directory of the agent's user.
        userHomeDir: str
        # The folder of the user's configuration.
        codexHomeDir: str
        # The name of the machine.
        hostname: str
        # What was found for configPaths.
        config: ConfigLayers
        # What was found for requirementsPaths.
        requirements: ConfigLayers

    # Configuration files in order of precedence, lowest first.
    class ConfigLayers(TypedDict):
        # One for each file that has a selected key.
        layers: list[ConfigLayer]
        # Where a client puts layers that it has from elsewhere.
        cloudInsertionIndex: int

    # The values of one file for the selected keys.
    class ConfigLayer(TypedDict):
        # Names the file, for people.
        source: str
        # What relative paths in it are relative to.
        baseDir: str
        # The selected keys, as TOML.
        toml: str

    class SessionListParams(TypedDict):
        pass

    class SessionListResult(TypedDict):
        # The caller's sessions.
        sessions: list[ListedSession]

    # A session that has a name.
    class ListedSession(TypedDict):
        # The id of the session.
        sessionId: str
        # Its name.
        name: str
        # Whether a client is attached.
        attached: bool
        # The name of the client that is attached, or of the last one.
        clientName: str
        # Milliseconds since 1970.
        createdAtMs: int
        # For how many milliseconds the session is kept while nothing holds it.
        retainMs: int
        # When the session ends, in milliseconds since 1970. Absent while something holds it.
        expiresAtMs: NotRequired[int]
        # How many processes of it run, or still have output.
        running: int
        # How many processes of it have closed.
        ended: int

    class SessionParams(TypedDict):
        # The id of the session.
        sessionId: str

    class TakenNotification(TypedDict):
        # The name of the other client.
        clientName: str

    class StartParams(TypedDict):
        # The client's choice, unique in the session.
        processId: str
        # For telemetry only.
        metadata: NotRequired[StartMetadata | None]
        # The program and its arguments. A program without a slash is looked up in the PATH of
        # `env`.
        argv: list[str]
        # The working directory.
        cwd: str
        # What the process inherits from the agent's environment. Absent: nothing, `env` is all.
        envPolicy: NotRequired[EnvPolicy | None]
        # Lets a login shell skip its startup files. Only with shellSnapshotV2.
        shellSnapshot: NotRequired[ShellSnapshot | None]
        # The environment, on top of what is inherited.
        env: dict[str, str]
        # Run in a terminal: all output has the stream `pty`.
        tty: bool
        # The size of the terminal. Absent: 24. Only with processResize.
        rows: NotRequired[int | None]
        # Absent: 80. Only with processResize.
        cols: NotRequired[int | None]
        # Give the process a pipe as stdin. Without it and without `tty`, stdin is /dev/null.
        # Absent: false.
        pipeStdin: NotRequired[bool]
        # Rules of the client about commands. The stricter decision of these and of the operator's
        # rules holds. Only with subcommandApprovals.
        execApproval: NotRequired[ExecApproval | None]
        # The argv[0] that the program sees.
        arg0: NotRequired[str | None]
        # Confines the process.
        sandbox: NotRequired[Sandbox | None]
        # Leave the process no network but the proxy. Absent: false.
        enforceManagedNetwork: NotRequired[bool]
        # argv[0] names a tool of the agent's own, such as `copy`. Absent: false. Only with
        # processBuiltins.
        builtin: NotRequired[bool]
        # Checked, but without effect on Linux.
        managedNetwork: NotRequired[ManagedNetwork | None]
        # Gives the process a proxy of its own. Only with networkProxyLaunch.
        networkProxy: NotRequired[NetworkProxy | None]
        # How long the process may run. Then the agent ends it with all that it has started, also
        # without a client. Only with processTimeout.
        timeoutMs: NotRequired[int | None]
        # Bounds the output of each stream. The head is sent at once and the tail at the end; what
        # lies between is left out and counted. Only with processMaxOutput.
        maxOutputBytes: NotRequired[int | None]
        # Bound the process with its children. What the agent cannot hold is refused. Only with
        # processLimits.
        limits: NotRequired[ProcessLimits | None]
        # Who the process runs as. Absent: the user of the agent. Only with processRunAs.
        runAs: NotRequired[RunAs | None]
        # The client's choice, another one for each start. A start with the same id is done once, so
        # a client that has lost the answer sends the whole request again. Only with processStartId.
        startId: NotRequired[str | None]

    # Limits of a process with all its children.
    class ProcessLimits(TypedDict):
        # Memory of all its processes together.
        memoryBytes: NotRequired[int | None]
        # Time of processors, in thousandths of one.
        milliCpus: NotRequired[int | None]
        # Processes and threads at once.
        processes: NotRequired[int | None]
        # The size of each file that it writes.
        fileSizeBytes: NotRequired[int | None]

    # A user and a group, each by name or number.
    class RunAs(TypedDict):
        # A number is a number, also where a user has it as a name.
        user: str
        # Absent: the group of the user.
        group: NotRequired[str | None]

    class StartMetadata(TypedDict):
        # A UUID.
        threadId: NotRequired[str | None]
        # Any text.
        toolCallId: NotRequired[str | None]

    # Which variables a process inherits from the agent. Patterns have `*` and `?` and ignore case.
    class EnvPolicy(TypedDict):
        # What to begin with: a few well-known names, everything, or nothing.
        inherit: Literal["core", "all", "none"]
        # Keep names that contain KEY, SECRET or TOKEN.
        ignoreDefaultExcludes: bool
        # Patterns of names to drop.
        exclude: list[str]
        # Variables to add.
        set: dict[str, str]
        # If it is not empty, keep only names that match one of these patterns.
        includeOnly: list[str]

    # Runs the startup files of a login shell once, and not for each command.
    class ShellSnapshot(TypedDict):
        # Requests share a snapshot only with the same scope.
        scopeId: str
        # The shell that argv[0] is.
        shell: Shell

    # Rules of the client about commands.
    class ExecApproval(TypedDict):
        # Files of rules.
        rules: NotRequired[list[RuleFile] | None]
        # The decision about commands that no rule matches. Absent: "allow".
        unmatched: NotRequired[CommandDecision | None]
        # The decision about scripts that cannot be taken apart. Absent: as `unmatched`. Only with
        # execApprovalEnforce.
        opaque: NotRequired[CommandDecision | None]
        # The decision about `rm -f` that no rule matches. Absent: "allow". Only with
        # execApprovalEnforce.
        forcedRm: NotRequired[CommandDecision | None]
        # Judge only the command, or each program that it executes. Absent: `tree` if the agent can.
        # Only with execApprovalEnforce.
        enforce: NotRequired[Literal["start", "tree"] | None]
        # How long a question waits for its answer. Absent: 120000.
        timeoutMs: NotRequired[int | None]
        # Which decisions are told by `process/execDecision`. Absent: "asked".
        report: NotRequired[Literal["refused", "asked", "all"] | None]

    CommandDecision: TypeAlias = Literal["allow", "prompt", "forbidden"]

    class RuleFile(TypedDict):
        # For messages.
        name: str
        # The rules, in the language of rule files.
        text: str

    class StartResult(TypedDict):
        # The process, by the id that the client has chosen.
        processId: str
        # `none` without a sandbox, `linuxSeccomp` with one. Known: none, linuxSeccomp.
        sandboxType: str
        # What confines the process. Present if the request had a sandbox.
        sandboxLayers: NotRequired[list[str]]
        # `advisory`: the process has a proxy, but could go past it. Known: advisory.
        network: NotRequired[str]
        # `pending`: the client is asked first, and the process starts after its answer. Known:
        # pending.
        approval: NotRequired[str]
        # What holds each limit of the request. Only with processLimits.
        limits: NotRequired[HeldLimits]

    # What holds a limit: a control group of the process, or a limit that each of its processes
    # inherits.
    class HeldLimits(TypedDict):
        # What holds `memoryBytes`. Known: cgroup, rlimit.
        memoryBytes: NotRequired[str]
        # What holds `milliCpus`. Known: cgroup, rlimit.
        milliCpus: NotRequired[str]
        # What holds `processes`. Known: cgroup, rlimit.
        processes: NotRequired[str]
        # What holds `fileSizeBytes`. Known: cgroup, rlimit.
        fileSizeBytes: NotRequired[str]

    class WriteParams(TypedDict):
        # The process, by the id that the client has chosen.
        processId: str
        # The bytes.
        chunk: str
        # The client's choice. A write with the same id is done once.
        writeId: str

    class WriteResult(TypedDict):
        # accepted: taken, now or by an earlier write with the same id. unknownProcess: there is
        # none. stdinClosed: it has no stdin. starting: try again later.
        status: Literal["accepted", "unknownProcess", "stdinClosed", "starting"]

    class ProcessParams(TypedDict):
        # The process, by the id that the client has chosen.
        processId: str

    class ReadParams(TypedDict):
        # The process, by the id that the client has chosen.
        processId: str
        # Only what has a greater number. Absent: everything that is kept. Absent: 0.
        afterSeq: NotRequired[int | None]
        # A budget: the first chunk always comes, another one only if all fit.
        maxBytes: NotRequired[int | None]
        # For how long to wait if there is nothing to tell. Absent: no wait.
        waitMs: NotRequired[int | None]
        # Another session of the caller's. Only with namedSessions.
        sessionId: NotRequired[str | None]
        # Say when each chunk was read. Absent: false. Only with namedSessions.
        timestamps: NotRequired[bool | None]
        # Send no chunks, and wait only for the exit. Absent: false. Only with namedSessions.
        exitOnly: NotRequired[bool | None]

    class ReadResult(TypedDict):
        # Output that is kept, oldest first.
        chunks: list[OutputChunk]
        # The next read asks for what comes after nextSeq - 1.
        nextSeq: int
        # Whether the process has exited.
        exited: bool
        # 128 + n after signal n. null: it still runs.
        exitCode: int | None
        # Nothing more comes.
        closed: bool
        # Not used: null.
        failure: str | None
        # The process may have failed because of its sandbox.
        sandboxDenied: bool
        # What was refused to the process. Present if something is known, and the client wants it.
        # Only with refusals.
        refusals: NotRequired[Refusals]
        # The process was ended because the time of its timeoutMs was up. Only with processTimeout.
        timedOut: NotRequired[bool]
        # The kernel has ended one of its processes, because the limit of memory was reached. Only
        # with processLimits.
        outOfMemory: NotRequired[bool]

    # A piece of output, as it was read from the process.
    class OutputChunk(TypedDict):
        # One counter counts output, exit and close, from 1 and without a gap.
        seq: int
        # What the bytes were written to.
        stream: OutputStream
        # The bytes.
        chunk: str
        # When it was read, in milliseconds since 1970, if `timestamps` was set. Only with
        # namedSessions.
        atMs: NotRequired[int]
        # How many bytes of the stream were left out before chunk, by a maxOutputBytes. Only with
        # processMaxOutput.
        omitted: NotRequired[int]

    OutputStream: TypeAlias = Literal["stdout", "stderr", "pty"]

    # What was refused to a process, as far as that is known.
    class Refusals(TypedDict):
        # One for each kind of attempt.
        list: list[Refusal]
        # How many are not in the list.
        more: NotRequired[int | None]
        # What the sandbox allows, if nothing is known of a refusal and the process has failed. For
        # a model.
        note: NotRequired[str | None]

    class Refusal(TypedDict):
        # What has refused it. Known: file, socket, network, program, limit, ceiling.
        layer: str
        # Such as read, write, create, connect to, execute.
        operation: str
        # The path, the host with its port, or the program.
        subject: str
        # The rule that has refused it, or its justification.
        reason: str
        # What would have to be allowed. Absent: nothing would help.
        needs: NotRequired[str | None]
        # The path, host or request of `needs`.
        at: NotRequired[str | None]
        # How often.
        times: NotRequired[int | None]
        # All of it in one line, for a model.
        text: str

    class SignalParams(TypedDict):
        # Another session of the caller's. Only with namedSessions.
        sessionId: NotRequired[str | None]
        # The process, by the id that the client has chosen.
        processId: str
        # The signal.
        signal: Signal

    # Servers without processSignals know `interrupt` only.
    Signal: TypeAlias = Literal["interrupt", "hangup", "quit", "terminate", "kill", "user1", "user2", "stop", "continue", "windowChange"]

    class TerminateParams(TypedDict):
        # Another session of the caller's. Only with namedSessions.
        sessionId: NotRequired[str | None]
        # The process, by the id that the client has chosen.
        processId: str

    class TerminateResult(TypedDict):
        # Whether the process had not exited. false for an unknown one.
        running: bool

    class ResizeParams(TypedDict):
        # The process, by the id that the client has chosen.
        processId: str
        # Lines of the terminal.
        rows: int
        # Columns of the terminal.
        cols: int

    class ListParams(TypedDict):
        # Another session of the caller's. Only with namedSessions.
        sessionId: NotRequired[str | None]

    class ListResult(TypedDict):
        # Those that run, and those that are kept.
        processes: list[ListedProcess]

    # A process that runs, or is kept.
    class ListedProcess(TypedDict):
        # The process, by the id that the client has chosen.
        processId: str
        # The program and its arguments.
        argv: list[str]
        # The number of the process on the agent's machine.
        pid: int
        # Whether it runs in a terminal.
        tty: bool
        # Milliseconds since 1970.
        startedAtMs: int
        # Whether the process has exited.
        exited: bool
        # 128 + n after signal n. null: it still runs.
        exitCode: int | None
        # Milliseconds since 1970.
        exitedAtMs: NotRequired[int]
        # Whether its output has ended, too.
        closed: bool
        # The number of its next event.
        nextSeq: int
        # What confines the process.
        sandboxLayers: NotRequired[list[str]]

    class OutputNotification(TypedDict):
        # The process, by the id that the client has chosen.
        processId: str
        # The number of the event among those of the process.
        seq: int
        # What the bytes were written to.
        stream: OutputStream
        # The bytes.
        chunk: str
        # How many bytes of the stream were left out before chunk, by a maxOutputBytes. Absent: 0.
        # Only with processMaxOutput.
        omitted: NotRequired[int | None]

    class ExitedNotification(TypedDict):
        # The process, by the id that the client has chosen.
        processId: str
        # The number of the event among those of the process.
        seq: int
        # 128 + n after signal n.
        exitCode: int
        # The process may have failed because of its sandbox. Absent: false.
        sandboxDenied: NotRequired[bool | None]
        # What was refused to the process. Present if something is known, and the client wants it.
        # Only with refusals.
        refusals: NotRequired[Refusals | None]
        # The process was ended because the time of its timeoutMs was up. Absent: false. Only with
        # processTimeout.
        timedOut: NotRequired[bool | None]
        # The kernel has ended one of its processes, because the limit of memory was reached.
        # Absent: false. Only with processLimits.
        outOfMemory: NotRequired[bool | None]

    class ClosedNotification(TypedDict):
        # The process, by the id that the client has chosen.
        processId: str
        # The number of the event among those of the process.
        seq: int

    class ExecApprovalParams(TypedDict):
        # The process, by the id that the client has chosen.
        processId: str
        # Of this question alone. A question that is asked again, after the client has come back,
        # keeps it.
        approvalId: str
        # The command of `process/start`, or a program that it executes. Known: start, exec.
        kind: str
        # The program and its arguments.
        argv: list[str]
        # argv is only the beginning of the command. Absent: false.
        truncated: NotRequired[bool]
        # The program; empty if there is none.
        exe: str
        # The working directory, a native path.
        cwd: str
        # Absent for a process that was not started yet.
        pid: NotRequired[int | None]
        # The number of its parent.
        ppid: NotRequired[int | None]
        # Why it is asked, for people.
        reason: str
        # A list of {"prefixRuleMatch":{matchedPrefix, decision, resolvedProgram?, justification?}}
        # and {"heuristicsRuleMatch":{command, decision}}.
        matchedRules: Any
        # The beginning of a command that a rule could allow.
        proposedPrefix: NotRequired[list[str] | None]
        # The number of the last event of the process before the question.
        afterSeq: int
        # For how long the agent waits for the answer.
        timeoutMs: int

    class ExecApprovalAnswer(TypedDict):
        # acceptForProcess: also the same command again, of this process. decline: refuse it.
        # cancel: refuse it, and end the process. Any other word declines. Known: accept,
        # acceptForProcess, decline, cancel.
        decision: str | AcceptWithRule

    # Accepts the command, and all commands of this process with the prefix.
    class AcceptWithRule(TypedDict):
        # What is accepted.
        acceptWithRule: CommandPrefix

    class CommandPrefix(TypedDict):
        # The beginning of an argv.
        prefix: list[str]

    class ExecApprovalClosed(TypedDict):
        # The process, by the id that the client has chosen.
        processId: str
        # The question.
        approvalId: str
        # Why. Known: timeout, terminated, exited, disconnected, policyChanged.
        reason: str

    class ExecDecision(TypedDict):
        # The process, by the id that the client has chosen.
        processId: str
        # The question that was asked.
        approvalId: NotRequired[str | None]
        # The number of the process on the agent's machine.
        pid: NotRequired[int | None]
        # The number of its parent.
        ppid: NotRequired[int | None]
        # The program.
        exe: str
        # The program and its arguments.
        argv: list[str]
        # What was decided. Known: allow, forbidden.
        decision: str
        # What has decided it. Known: rule, heuristic, approval, memo.
        source: str
        # FILE:LINE:COLUMN of the rule, or `client` for a rule of the client.
        rule: NotRequired[str | None]
        # How many decisions before this one are not reported, because there were too many.
        dropped: NotRequired[int | None]

    # What a request may do, whatever the agent may do. Without it the request is not confined.
    class Sandbox(TypedDict):
        # What may be read, written and reached.
        permissions: Permissions
        # What relative places are relative to. A process has its own `cwd` if this is absent.
        cwd: NotRequired[str | None]
        # The folders that the place `project_roots` stands for. Absent: [].
        workspaceRoots: NotRequired[list[str]]
        # Replaces `cwd` and `workspaceRoots`.
        policyContext: NotRequired[PolicyContext | None]
        # Without effect on Linux.
        userHomeDir: NotRequired[str | None]
        # Without effect on Linux.
        temporaryDirectories: NotRequired[list[str] | None]
        # Always needed; Linux clients send `disabled`.
        windowsSandboxLevel: Literal["disabled", "restricted-token", "elevated", "mxc"]
        # Without effect on Linux.
        windowsSandboxProxySettingsMode: NotRequired[Literal["reconcile", "preserve"] | None]
        # Without effect. Absent: false.
        useLegacyLandlock: NotRequired[bool]
        # Without effect on Linux.
        windowsSandboxPrivateDesktop: NotRequired[bool | None]

    # What the places of a policy are relative to.
    class PolicyContext(TypedDict):
        # Absent: that of the sandbox.
        cwd: NotRequired[str | None]
        # The folders that project_roots stands for. Absent: [].
        workspaceRoots: NotRequired[list[str]]

    # A permission profile. Its members have snake case.
    Permissions: TypeAlias = 'ManagedPermissions | ExternalPermissions | DisabledPermissions'

    # The agent enforces the rules.
    class ManagedPermissions(TypedDict):
        # Says which of the records this is.
        type: Literal["managed"]
        # What may be read and written.
        file_system: FileSystemRules
        # Whether processes have a network.
        network: NetworkAccess

    # Somebody else confines the files.
    class ExternalPermissions(TypedDict):
        # Says which of the records this is.
        type: Literal["external"]
        # Whether processes have a network.
        network: NetworkAccess

    # No limits.
    class DisabledPermissions(TypedDict):
        # Says which of the records this is.
        type: Literal["disabled"]

    NetworkAccess: TypeAlias = Literal["restricted", "enabled"]

    FileSystemRules: TypeAlias = 'RestrictedFiles | UnrestrictedFiles'

    # Only what an entry allows. The entry with the longest path decides.
    class RestrictedFiles(TypedDict):
        # Says which of the records this is.
        type: Literal["restricted"]
        # Places and their access. What no entry covers is hidden.
        entries: list[SandboxEntry]
        # How many levels deep patterns are looked for.
        glob_scan_max_depth: NotRequired[int | None]

    class UnrestrictedFiles(TypedDict):
        # Says which of the records this is.
        type: Literal["unrestricted"]

    SandboxEntry: TypeAlias = 'PlaceEntry | NamedEntry'

    # Gives a place an access.
    class PlaceEntry(TypedDict):
        # The place.
        path: SandboxPath
        # deny and none are the same.
        access: Literal["read", "write", "deny", "none"]
        # skip: an entry whose path does not exist adds nothing.
        missing_path_behavior: NotRequired[Literal["skip"] | None]
        # Only for a denied path that is no pattern. true: a process goes on after somebody outside
        # has replaced the file, and may see the new one. Absent: false. Only with
        # sandboxReplaceable.
        replaceable: NotRequired[bool]

    # Lets a UNIX socket be connected to, or a device be used.
    class NamedEntry(TypedDict):
        # The socket or device.
        path: NamedObject
        # Only write.
        access: Literal["write"]
        # skip: an entry whose path does not exist adds nothing.
        missing_path_behavior: NotRequired[Literal["skip"] | None]

    SandboxPath: TypeAlias = 'PathPlace | PatternPlace | SpecialPath'

    class PathPlace(TypedDict):
        # Says which of the records this is.
        type: Literal["path"]
        # With everything below it.
        path: str

    class PatternPlace(TypedDict):
        # Says which of the records this is.
        type: Literal["glob_pattern"]
        # Such as **/*.env. Patterns are only for deny.
        pattern: str

    class SpecialPath(TypedDict):
        # Says which of the records this is.
        type: Literal["special"]
        # Which place.
        value: SpecialPlace

    SpecialPlace: TypeAlias = 'PlainPlace | ProjectRoots | UnknownPlace'

    # A place that depends on the request.
    class PlainPlace(TypedDict):
        # root is everything, minimal what most programs need, tmpdir the folder in TMPDIR,
        # slash_tmp /tmp.
        kind: Literal["root", "minimal", "current_working_directory", "tmpdir", "slash_tmp"]

    class ProjectRoots(TypedDict):
        # Says which of the records this is.
        kind: Literal["project_roots"]
        # A path below each root.
        subpath: NotRequired[str | None]

    # A place that the agent does not know adds nothing.
    class UnknownPlace(TypedDict):
        # Says which of the records this is.
        kind: Literal["unknown"]
        # Its name.
        path: str
        # A path below it.
        subpath: NotRequired[str | None]

    class NamedObject(TypedDict):
        # Only with the flags sandboxUnixSockets and sandboxDevices.
        type: Literal["unix_socket", "device"]
        # Where it is.
        path: str

    # A proxy for one process.
    class NetworkProxy(TypedDict):
        # What it lets through.
        proxy: ProxyParams
        # For telemetry only. Absent: {}.
        auditMetadata: NotRequired[AuditMetadata]
        # Goes into the placeholders of credentials.
        environmentId: NotRequired[str | None]
        # For telemetry only.
        executionId: NotRequired[str | None]
        # Ask the client about hosts that `domains` does not decide, and wait that long. Absent:
        # refuse them. 0 is refused.
        policyDecisionTimeoutMs: NotRequired[int | None]

    # What the proxy lets through.
    class ProxyParams(TypedDict):
        # Has to be true.
        enabled: bool
        # Offer SOCKS5, too.
        enableSocks5: bool
        # Send direct TCP connections through the proxy. It needs a sandbox. Absent: false. Only
        # with networkProxyTransparentTcp.
        transparentTcp: NotRequired[bool]
        # Accepted, but UDP does not work.
        enableSocks5Udp: bool
        # Let the proxy go through a proxy of the agent's environment.
        allowUpstreamProxy: bool
        # Allow UNIX sockets in the sandbox.
        dangerouslyAllowAllUnixSockets: bool
        # limited: only GET, HEAD and OPTIONS.
        mode: Literal["limited", "full"]
        # Patterns of hosts, or with networkRequestRules of requests, and what is decided about
        # them.
        domains: NotRequired[dict[str, Literal["none", "allow", "deny"]] | None]
        # Paths of UNIX sockets. They count only where the operator of the agent says so.
        unixSockets: NotRequired[dict[str, Literal["allow", "deny"]] | None]
        # Treat local and private addresses as any other.
        allowLocalBinding: bool
        # Patterns of hosts about which the client is asked, although `domains` allows them. Absent:
        # []. Only with networkProxyReviewDomains.
        reviewDomains: NotRequired[list[str]]
        # Give the process placeholders instead of credentials. The proxy puts the credentials back.
        # Absent: false. Only with credentialMasking.
        credentialMasking: NotRequired[bool]
        # More credentials to mask, by a name of yours. Absent: {}. Only with
        # credentialMaskingCustomProviders.
        credentialProviders: NotRequired[dict[str, CredentialProvider]]

    # Which variables hold a credential, and where it may go. Its members have snake case.
    class CredentialProvider(TypedDict):
        # Names of variables.
        env: NotRequired[list[str]]
        # Regular expressions of the value.
        patterns: NotRequired[list[str]]
        # Where the credential may go.
        url_prefixes: NotRequired[list[str]]
        # A variable that holds a URL prefix.
        url_prefix_from_env: NotRequired[str | None]
        # How it is sent. Absent or empty: bearer.
        auth: NotRequired[list[Literal["bearer", "token", "basic", "header"]]]
        # The header that has it, for auth header.
        header: NotRequired[str | None]
        # What stands before it in the header.
        prefix: NotRequired[str | None]

    class AuditMetadata(TypedDict):
        # Any text.
        conversationId: NotRequired[str | None]
        # Any text.
        appVersion: NotRequired[str | None]
        # Any text.
        userAccountId: NotRequired[str | None]
        # Any text.
        authMode: NotRequired[str | None]
        # Any text.
        originator: NotRequired[str | None]
        # Any text.
        userEmail: NotRequired[str | None]
        # Any text.
        terminalType: NotRequired[str | None]
        # Any text.
        model: NotRequired[str | None]
        # Any text.
        slug: NotRequired[str | None]

    # For the sandbox of another system. Checked, but without effect on Linux.
    class ManagedNetwork(TypedDict):
        # Ports that may be reached.
        loopbackPorts: NotRequired[list[int]]
        # Listeners are allowed. Absent: false.
        allowLocalBinding: NotRequired[bool]
        # Paths of sockets.
        allowUnixSockets: NotRequired[list[str]]
        # All sockets are allowed. Absent: false.
        dangerouslyAllowAllUnixSockets: NotRequired[bool]
        # Needs the same in `networkProxy.proxy`. Absent: false.
        transparentTcp: NotRequired[bool]

    class PolicyRequestParams(TypedDict):
        # The process, by the id that the client has chosen.
        processId: str
        # Where the process wants to go.
        request: PolicyRequest

    class PolicyRequest(TypedDict):
        # How the process reaches for the host. Known: http, https_connect, socks5_tcp, socks5_udp.
        protocol: str
        # A name or an address, never a URL.
        host: str
        # The port.
        port: int
        # Of an HTTP request, if the start of the process had a rule about requests. Only with
        # networkRequestRules.
        method: NotRequired[str | None]
        # Without a query. One that was cut ends in "...". Only with networkRequestRules.
        path: NotRequired[str | None]

    class PolicyAnswer(TypedDict):
        # The answer.
        decision: PolicyChoice

    PolicyChoice: TypeAlias = 'AllowChoice | RefuseChoice'

    class AllowChoice(TypedDict):
        # Says which of the records this is.
        type: Literal["allow"]

    class RefuseChoice(TypedDict):
        # ask: refused, because somebody must be asked first.
        type: Literal["deny", "ask"]
        # The command reads it.
        reason: str

    class PolicyDecision(TypedDict):
        # The process, by the id that the client has chosen.
        processId: str
        # UTC, with milliseconds.
        timestamp: str
        # What was judged. Known: domain, non_domain.
        scope: str
        # The outcome. Known: allow, deny, ask.
        decision: str
        # What has decided. Known: baseline_policy, decider, mode_guard, proxy_state.
        source: str
        # A word for why, or the text of the client.
        reason: str
        # How the process reaches for the host. Known: http, https_connect, socks5_tcp, socks5_udp.
        protocol: str
        # A name or an address.
        host: str
        # The port.
        port: int
        # The HTTP method, CONNECT for a tunnel. Absent for SOCKS.
        method: NotRequired[str | None]
        # Of an HTTP request, without its query. Only with networkRequestRules.
        path: NotRequired[str | None]
        # The process's end of its connection to the proxy.
        client: str
        # The client allowed a host that the list does not allow.
        policyOverride: bool

    class HTTPRequestParams(TypedDict):
        # Any token, such as GET.
        method: str
        # An absolute http or https URL.
        url: str
        # In this order. Absent: [].
        headers: NotRequired[list[HTTPHeader]]
        # The body.
        bodyBase64: NotRequired[str | None]
        # For headers and body. Absent: no limit.
        timeoutMs: NotRequired[int | None]
        # follow: up to 10 redirects. stop: the redirect is the result. Absent: "follow".
        redirectPolicy: NotRequired[Literal["follow", "stop"]]
        # The client's choice. The pieces of a stream have it.
        requestId: str
        # Send the body in `http/request/bodyDelta`. Absent: false.
        streamResponse: NotRequired[bool]

    class HTTPResponse(TypedDict):
        # The HTTP status.
        status: int
        # Names are in lower case.
        headers: list[HTTPHeader]
        # Empty if the body is streamed.
        bodyBase64: str

    class HTTPHeader(TypedDict):
        # The name.
        name: str
        # The value.
        value: str
        # Only in a request: a variable of the agent's whose content is put behind `value`. Only
        # with httpHeaderEnvVars.
        valueEnvVar: NotRequired[str | None]

    class HTTPBodyDelta(TypedDict):
        # The id that the client has chosen.
        requestId: str
        # From 1.
        seq: int
        # The bytes.
        deltaBase64: str
        # It is the last piece.
        done: bool
        # Why the body has ended early.
        error: NotRequired[str | None]

    class WriteFileParams(TypedDict):
        # The file.
        path: str
        # The new content.
        dataBase64: str
        # false: refuse links anywhere in the path. Absent: true.
        followSymlinks: NotRequired[bool | None]
        # The permissions of the file afterwards, whatever the umask is: 0 to 511 (octal 777). null:
        # those that it has, or those of every new file. Only with fsWriteOptions.
        mode: NotRequired[int | None]
        # Make the directories of the path that are missing. Absent: false. Only with
        # fsWriteOptions.
        parents: NotRequired[bool | None]
        # Make a new file: a name that exists, also a link, is an error. Absent: false. Only with
        # fsWriteOptions.
        exclusive: NotRequired[bool | None]
        # Write a new file beside the old one, and rename it. Others see the whole old content or
        # the whole new one. Permissions, owner and ACL stay, or nothing is changed. Absent: false.
        # Only with fsWriteOptions.
        atomic: NotRequired[bool | None]
        # What the request may do. Without it the request is not confined.
        sandbox: NotRequired[Sandbox | None]

    # The path of a request.
    class PathParams(TypedDict):
        # A file or directory on the agent's machine.
        path: str
        # false: refuse links anywhere in the path. Absent: true.
        followSymlinks: NotRequired[bool | None]
        # What the request may do. Without it the request is not confined.
        sandbox: NotRequired[Sandbox | None]

    class ReadFileResult(TypedDict):
        # The content.
        dataBase64: str

    class CreateDirectoryParams(TypedDict):
        # The directory.
        path: str
        # Make its parents too. What exists is no error then. Absent: true.
        recursive: NotRequired[bool | None]
        # false: refuse links anywhere in the path. Absent: true.
        followSymlinks: NotRequired[bool | None]
        # What the request may do. Without it the request is not confined.
        sandbox: NotRequired[Sandbox | None]

    class GetMetadataParams(TypedDict):
        # A file or directory on the agent's machine.
        path: str
        # false: refuse links anywhere in the path; with `lstat` before its end. Absent: true.
        followSymlinks: NotRequired[bool | None]
        # stat: the members of FileMetadata that have a flag are wanted, too. lstat: the same, and
        # all is about the path itself, although it is a link. Only with fsMetadata.
        details: NotRequired[Literal["stat", "lstat"] | None]
        # What the request may do. Without it the request is not confined.
        sandbox: NotRequired[Sandbox | None]

    class GetMetadataManyParams(TypedDict):
        # Files and directories.
        paths: list[str]
        # false: refuse links anywhere in the path. Absent: true.
        followSymlinks: NotRequired[bool | None]
        # As in GetMetadataParams.
        details: NotRequired[Literal["stat", "lstat"] | None]
        # What the request may do. Without it the request is not confined.
        sandbox: NotRequired[Sandbox | None]

    class GetMetadataManyResult(TypedDict):
        # One for each path, in the order of the request.
        files: list[FileOrError]

    # One of the two members is there.
    class FileOrError(TypedDict):
        # The file.
        metadata: NotRequired[FileMetadata]
        # Why there is none, as `fs/getMetadata` would answer.
        error: NotRequired[ErrorObject]

    class FileMetadata(TypedDict):
        # It is a directory.
        isDirectory: bool
        # It is a regular file.
        isFile: bool
        # About the path itself.
        isSymlink: bool
        # Bytes.
        size: int
        # Milliseconds since 1970. 0: not known.
        createdAtMs: int
        # Milliseconds since 1970.
        modifiedAtMs: int
        # With `details`. The others are absent where a sandbox shows no more than this. Only with
        # fsMetadata.
        type: NotRequired[FileType]
        # Permissions, set-ID bits and the sticky bit. Only with fsMetadata.
        mode: NotRequired[int]
        # The number of the owner. Only with fsMetadata.
        uid: NotRequired[int]
        # The number of the group. Only with fsMetadata.
        gid: NotRequired[int]
        # The name of the owner, if `/etc/passwd` has it and may be read. Only with fsMetadata.
        owner: NotRequired[str]
        # The name of the group, if `/etc/group` has it and may be read. Only with fsMetadata.
        group: NotRequired[str]
        # What a link leads to, with `lstat`: any text. Bytes that are not UTF-8 become U+FFFD. Only
        # with fsMetadata.
        linkTarget: NotRequired[str]

    # The type of a file.
    FileType: TypeAlias = str

    class CanonicalizeParams(TypedDict):
        # A file or directory on the agent's machine.
        path: str
        # It has no effect: links are resolved. Absent: true.
        followSymlinks: NotRequired[bool | None]
        # Names at the end may be missing, also behind a link. What a sandbox hides is missing.
        # Absent: false. Only with fsCanonicalizeMissing.
        allowMissing: NotRequired[bool | None]
        # What the request may do. Without it the request is not confined.
        sandbox: NotRequired[Sandbox | None]

    class CanonicalizeResult(TypedDict):
        # Without links and dots.
        path: str

    class ReadDirectoryParams(TypedDict):
        # A file or directory on the agent's machine.
        path: str
        # It has no effect: a link at the end is followed. Absent: true.
        followSymlinks: NotRequired[bool | None]
        # lstat: the entries are described themselves, and have the members with a flag. Only with
        # fsReadDirectoryLstat.
        entries: NotRequired[Literal["lstat"] | None]
        # What the request may do. Without it the request is not confined.
        sandbox: NotRequired[Sandbox | None]

    class ReadDirectoryResult(TypedDict):
        # The names in the directory.
        entries: list[DirectoryEntry]

    class DirectoryEntry(TypedDict):
        # Bytes that are not UTF-8 become U+FFFD.
        fileName: str
        # Of a link's target; with `lstat` of the name itself.
        isDirectory: bool
        # The same: a regular file.
        isFile: bool
        # Absent if the system does not tell it. Only with fsReadDirectoryLstat.
        type: NotRequired[FileType]
        # Bytes. Absent, as the next two, where no more than the type is known: a sandbox denies the
        # file, or the directory may not be searched. Only with fsReadDirectoryLstat.
        size: NotRequired[int]
        # Milliseconds since 1970. Only with fsReadDirectoryLstat.
        modifiedAtMs: NotRequired[int]
        # Permissions, set-ID bits and the sticky bit. Only with fsReadDirectoryLstat.
        mode: NotRequired[int]

    class WalkParams(TypedDict):
        # A file or directory on the agent's machine.
        path: str
        # Bounds of the walk.
        options: WalkOptions
        # What the request may do. Without it the request is not confined.
        sandbox: NotRequired[Sandbox | None]

    class WalkOptions(TypedDict):
        # 0 lists what is in the directory. At most 64.
        maxDepth: int
        # 1 to 10,000.
        maxDirectories: int
        # 1 to 50,000.
        maxEntries: int
        # Enter directories behind links, each once.
        followDirectorySymlinks: bool
        # List directories whose name begins with a dot, but do not enter them. Absent: false.
        pruneHiddenDirectories: NotRequired[bool]

    class WalkResult(TypedDict):
        # Files and directories, without the root.
        entries: list[WalkEntry]
        # What could not be read.
        errors: list[WalkError]
        # A limit was reached: there is more.
        truncated: bool

    class WalkEntry(TypedDict):
        # A file or directory on the agent's machine.
        path: str
        # What it is.
        kind: Literal["file", "directory"]

    class WalkError(TypedDict):
        # A file or directory on the agent's machine.
        path: str
        # Why it could not be read.
        message: str

    class SearchParams(TypedDict):
        # A file or directory on the agent's machine.
        path: str
        # Which names are looked at, each as a line of a .gitignore, with braces for alternatives. A
        # glob without a slash is about names at every depth, one with a slash about paths below
        # `path`. The last that matches decides; one that begins with `!` leaves names out. None, or
        # null: all names.
        globs: NotRequired[list[str] | None]
        # What is looked for in lines: a regular expression of RE2. null: only names are looked for.
        pattern: NotRequired[str | None]
        # The pattern is text, and no expression. Absent: false.
        literal: NotRequired[bool | None]
        # Upper and lower case are the same in lines. Absent: false.
        ignoreCase: NotRequired[bool | None]
        # Also names that begin with a dot. Absent: false.
        hidden: NotRequired[bool | None]
        # Also what a .gitignore names. Absent: false.
        noIgnore: NotRequired[bool | None]
        # The only kind that is listed without a pattern. null: all.
        kind: NotRequired[FileKind | None]
        # How many lines before a match are given. Absent: 0.
        before: NotRequired[int | None]
        # How many lines after a match are given. Absent: 0.
        after: NotRequired[int | None]
        # Of lines, or of files without a pattern. Absent: 1000.
        maxMatches: NotRequired[int | None]
        # Lines of one file. null: as many as `maxMatches` allows.
        maxFileMatches: NotRequired[int | None]
        # Names that are looked at, directories among them. Absent: 100000.
        maxFiles: NotRequired[int | None]
        # 0 looks only at what is in the directory. Absent: 256.
        maxDepth: NotRequired[int | None]
        # How many bytes of a line are given: those around the match. Absent: 512.
        maxLineBytes: NotRequired[int | None]
        # How long the search may take. Absent: 10000.
        timeoutMs: NotRequired[int | None]
        # What the request may do. Without it the request is not confined.
        sandbox: NotRequired[Sandbox | None]

    # What a file is. Links are not followed.
    FileKind: TypeAlias = Literal["file", "directory", "symlink", "other"]

    class SearchResult(TypedDict):
        # What was found, sorted by path.
        files: list[SearchedFile]
        # What could not be read.
        errors: list[WalkError]
        # The bound that was reached, so that something is missing. size: the answer is full. line:
        # of a line of more than 1 MiB only the first was searched. Absent: nothing is missing.
        truncated: NotRequired[Literal["matches", "files", "depth", "time", "size", "line"]]
        # How many files were searched.
        filesRead: int
        # How many files were skipped, because their beginning has a zero byte.
        binaryFiles: int

    class SearchedFile(TypedDict):
        # A file or directory on the agent's machine.
        path: str
        # What it is.
        kind: FileKind
        # The lines that match, if there is a pattern.
        matches: NotRequired[list[SearchMatch]]

    class SearchMatch(TypedDict):
        # The number of the line, from 1.
        line: int
        # The byte of the line where the first match begins, from 1.
        column: int
        # How many bytes the match has.
        length: int
        # The line, or of a long line a part with the match. What is not UTF-8 is U+FFFD.
        text: str
        # The byte of the line where `text` begins, from 1.
        textColumn: int
        # The line goes on after `text`.
        cut: bool
        # The lines before, without those that another match has.
        before: NotRequired[list[str]]
        # The lines after, without those that are matches themselves.
        after: NotRequired[list[str]]

    class RemoveParams(TypedDict):
        # A file or directory on the agent's machine.
        path: str
        # Remove a directory with all below it. Absent: true.
        recursive: NotRequired[bool | None]
        # A path that does not exist is no error. Absent: true.
        force: NotRequired[bool | None]
        # false: refuse links anywhere in the path. Absent: true.
        followSymlinks: NotRequired[bool | None]
        # What the request may do. Without it the request is not confined.
        sandbox: NotRequired[Sandbox | None]

    class CopyParams(TypedDict):
        # What is copied.
        sourcePath: str
        # What is made of it.
        destinationPath: str
        # Copy a directory with all below it.
        recursive: bool
        # What the request may do. Without it the request is not confined.
        sandbox: NotRequired[Sandbox | None]

    class RenameParams(TypedDict):
        # What is moved.
        sourcePath: str
        # Where it is then.
        destinationPath: str
        # Replace what is at the destination. Absent: true.
        replace: NotRequired[bool]
        # What the request may do. Without it the request is not confined.
        sandbox: NotRequired[Sandbox | None]

    class ApplyPatchParams(TypedDict):
        # Up to 16 MiB that name up to 1,024 files.
        patch: str
        # The folder of relative paths in the patch.
        cwd: str
        # Change nothing, and answer with a diff. Absent: false.
        dryRun: NotRequired[bool | None]
        # What the request may do. Without it the request is not confined.
        sandbox: NotRequired[Sandbox | None]

    class ApplyPatchResult(TypedDict):
        # What the tool would print.
        output: str
        # In the order of the patch.
        changes: list[PatchedFile]
        # A unified diff, after a dry run.
        diff: NotRequired[str]

    PatchedFile = TypedDict(
        "PatchedFile",
        {
            # What happened to it.
            "kind": Literal["added", "updated", "deleted"],
            # A file or directory on the agent's machine.
            "path": str,
            # The old path of a file that was moved.
            "from": NotRequired[str],
        },
    )

    class OpenParams(TypedDict):
        # Up to 32 bytes.
        handleId: str
        # A file or directory on the agent's machine.
        path: str
        # replace: make the file, or empty it. Only servers with fileWriteStreaming know it. Absent:
        # "read".
        mode: NotRequired[Literal["read", "replace"]]
        # What the request may do. Without it the request is not confined. Only with
        # sandboxedFileStreaming.
        sandbox: NotRequired[Sandbox | None]

    class HandleParams(TypedDict):
        # The handle, by the id that the client has chosen.
        handleId: str

    class WriteBlockParams(TypedDict):
        # The handle, by the id that the client has chosen.
        handleId: str
        # Where it begins in the file.
        offset: int
        # 1 to 1,048,576 bytes (-32600).
        chunk: str

    class ReadBlockParams(TypedDict):
        # The handle, by the id that the client has chosen.
        handleId: str
        # Where it begins in the file.
        offset: int
        # 1 to 1,048,576 (-32600).
        len: int

    class ReadBlockResult(TypedDict):
        # The bytes.
        chunk: str
        # The chunk is shorter than was asked for.
        eof: bool

    class WatchMissingParams(TypedDict):
        # Greater than all before on this connection, from 1.
        watchId: int
        # Up to 64 paths.
        missing: list[str]
        # A path that exists: the watch also fires when it changes.
        present: NotRequired[str | None]
        # What the request may do. Without it the request is not confined.
        sandbox: NotRequired[Sandbox | None]

    class WatchMissingResult(TypedDict):
        # false: there is no watch, for example because a path exists.
        watching: bool

    class MissingChangedNotification(TypedDict):
        # The watch, by the id that the client has chosen.
        watchId: int

    class WatchParams(TypedDict):
        # The client's choice, unique among the watches of the connection.
        watchId: str
        # A file or directory on the agent's machine.
        path: str
        # With all directories below. Absent: false.
        recursive: NotRequired[bool | None]
        # What the request may do. Without it the request is not confined.
        sandbox: NotRequired[Sandbox | None]

    class WatchResult(TypedDict):
        # What is watched, without links.
        path: str

    class UnwatchParams(TypedDict):
        # The watch, by the id that the client has chosen.
        watchId: str

    class ChangedNotification(TypedDict):
        # The watch, by the id that the client has chosen.
        watchId: str
        # In the order in which it happened.
        changes: list[FileChange]
        # More has changed: look at all of the tree. Absent: false.
        overflow: NotRequired[bool | None]

    FileChange: TypeAlias = 'PathChange | PathRenamed'

    class PathChange(TypedDict):
        # A file or directory on the agent's machine.
        path: str
        # created: what was there is gone, with all below it. modified: content, mode, owner or
        # times.
        kind: Literal["created", "modified", "removed"]

    PathRenamed = TypedDict(
        "PathRenamed",
        {
            # Where it is now.
            "path": str,
            # Says which of the records this is.
            "kind": Literal["renamed"],
            # Where it was, with all below it.
            "from": str,
        },
    )

    class PortListParams(TypedDict):
        # With it, only ports that a process in the sandbox can connect to are listed, without `pid`
        # and `program`.
        sandbox: NotRequired[Sandbox | None]

    class PortListResult(TypedDict):
        # At most 4096.
        ports: list[Port]
        # There are more. Absent: false.
        truncated: NotRequired[bool]

    class Port(TypedDict):
        # The port.
        port: int
        # The IP address where it listens. 0.0.0.0 and :: are all addresses.
        address: str
        # The user who has opened it. Absent: the agent does not see that.
        uid: NotRequired[int]
        # The process, the one with the lowest number if several have it. Absent: the agent does not
        # see that.
        pid: NotRequired[int]
        # The name of the program of that process.
        program: NotRequired[str]

    class PortWatchParams(TypedDict):
        # The client's choice, unique among the watches of ports of the connection.
        watchId: str
        # As for `port/list`.
        sandbox: NotRequired[Sandbox | None]

    class PortChangedNotification(TypedDict):
        # The watch, by the id that the client has chosen.
        watchId: str
        # Those that have opened.
        opened: list[Port]
        # Those that have closed.
        closed: list[Port]

    class SocketOpenParams(TypedDict):
        # The client's choice, unique among the sockets of the session.
        socketId: SocketId
        # tcp://HOST:PORT or unix:///PATH.
        address: str
        # How many bytes the agent sends before the client acknowledges the first of them. Absent:
        # 1048576.
        window: NotRequired[int | None]
        # Connect as a command with this sandbox would.
        sandbox: NotRequired[Sandbox | None]

    SocketId: TypeAlias = str

    class SocketWriteParams(TypedDict):
        # The socket, by the id that the client has chosen.
        socketId: SocketId
        # How many bytes were sent before. The agent takes no byte twice.
        offset: int
        # The bytes.
        chunk: str
        # Nothing follows. Absent: false.
        eof: NotRequired[bool | None]

    class SocketReceived(TypedDict):
        # How many bytes the agent has passed on in all.
        received: int

    class SocketReceivedParams(TypedDict):
        # The socket, by the id that the client has chosen.
        socketId: SocketId
        # How many bytes the client has in all.
        received: int

    class SocketParams(TypedDict):
        # The socket, by the id that the client has chosen.
        socketId: SocketId

    class SocketData(TypedDict):
        # The socket, by the id that the client has chosen.
        socketId: str
        # How many bytes came before.
        offset: int
        # The bytes.
        chunk: str
        # Nothing more comes. Absent: false.
        eof: NotRequired[bool | None]
        # Why nothing more can be read.
        error: NotRequired[str | None]

    class DiscoverRootsParams(TypedDict):
        # Up to 128.
        roots: list[CapabilityRoot]

    class CapabilityRoot(TypedDict):
        # The client's choice. The answer repeats it.
        id: str
        # The folder.
        path: str
        # What the request may do. Without it the request is not confined. Only with
        # capabilityDiscoverySandbox.
        sandbox: NotRequired[Sandbox | None]

    # In the order of the request.
    class DiscoverRootsResult(TypedDict):
        # One for each root.
        roots: list[DiscoveredRoot]

    # The files of one folder, as they are. With an error there is nothing else.
    class DiscoveredRoot(TypedDict):
        # That of the request.
        id: str
        # As it was sent.
        path: str
        # null: the folder is no plugin.
        plugin: PluginFiles | None
        # The skills below it.
        skills: list[SkillFiles]
        # Manifests that give skills a namespace.
        namespaceManifests: list[DiscoveredFile]
        # What could not be read, and why.
        warnings: list[str]
        # Why nothing could be read.
        error: str | None

    class DiscoveredFile(TypedDict):
        # Where it is.
        path: str
        # Its text.
        contents: str

    # The manifest of a plugin, and the files that it names.
    class PluginFiles(TypedDict):
        # plugin.json.
        manifest: DiscoveredFile
        # The MCP servers that it names.
        mcpConfig: DiscoveredFile | None
        # The apps that it names.
        appsConfig: DiscoveredFile | None

    # A SKILL.md and its openai.yaml.
    class SkillFiles(TypedDict):
        # SKILL.md.
        instructions: DiscoveredFile
        # openai.yaml.
        metadata: DiscoveredFile | None

    class DiscoverInstalledParams(TypedDict):
        # Needed, but without effect.
        cwd: str
        # Unlike elsewhere, it needs a `cwd`.
        sandbox: NotRequired[Sandbox | None]
        # Tell what is passed over, too. Without effect if there is a sandbox. Other servers ignore
        # it. Absent: false.
        details: NotRequired[bool]

    class DiscoverInstalledResult(TypedDict):
        # Plugins with their skills.
        plugins: list[InstalledPlugin]
        # Of no plugin.
        skills: list[InstalledSkill]
        # What could not be read, and why.
        warnings: list[str]
        # PATH: CAUSE of what is passed over.
        details: NotRequired[list[str]]

    class InstalledPlugin(TypedDict):
        # NAME@MARKETPLACE.
        id: str
        # For people.
        displayName: str
        # Its id where it comes from.
        remotePluginId: str | None
        # Its version.
        version: str
        # Its folder.
        root: str
        # Its files.
        files: PluginFiles
        # Its skills.
        skills: list[InstalledSkill]

    # The front matter of a SKILL.md, and its openai.yaml.
    class InstalledSkill(TypedDict):
        # NAMESPACE:NAME where there is a namespace.
        name: str
        # What the skill is for.
        description: str
        # The same for people, if there is one.
        shortDescription: str | None
        # Its SKILL.md.
        path: str
        # Where a skill of no plugin was found.
        discoveryRoot: NotRequired[DiscoveryRoot]
        # What it needs.
        dependencies: SkillDependencies | None
        # Where it may be used.
        policy: SkillPolicy | None

    class DiscoveryRoot(TypedDict):
        # Which of the places.
        id: str
        # The folder.
        path: str

    class SkillDependencies(TypedDict):
        # Tools that the skill needs.
        tools: list[SkillTool]

    class SkillTool(TypedDict):
        # The kind of tool, such as mcp.
        type: str
        # Its name.
        value: str
        # What it is for.
        description: str | None
        # How an MCP server is reached.
        transport: str | None
        # The command that starts it.
        command: str | None
        # Where it is.
        url: str | None
        # The port for the answer of a sign-in.
        oauthCallbackPort: int | None

    class SkillPolicy(TypedDict):
        # Whether a model may use it without being asked.
        allowImplicitInvocation: bool | None
        # Products that may use it.
        products: list[str]
