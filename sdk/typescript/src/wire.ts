/** The records of the protocol that this package sends or shows. */

/** What a sandbox has refused to a process, as far as that is known. */
export interface Refusals {
  list: Refusal[];
  /** Refusals that are not in the list. */
  more?: number;
  /** What the sandbox allows, for a model. */
  note?: string;
}

/** Something that a process has tried, once or several times. */
export interface Refusal {
  layer: string;
  operation: string;
  subject: string;
  reason: string;
  needs?: string;
  at?: string;
  times: number;
  text: string;
}

export interface Sandbox {
  permissions: Permissions;
  cwd?: string;
  workspaceRoots?: string[];
  windowsSandboxLevel: "disabled";
}

export type Permissions =
  | { type: "managed"; file_system: FileSystemRules; network: "restricted" | "enabled" }
  | { type: "disabled" }
  | { type: "external"; network: "restricted" | "enabled" };

export type FileSystemRules = { type: "restricted"; entries: SandboxEntry[] } | { type: "unrestricted" };

export interface SandboxEntry {
  path: SandboxPath;
  access: "read" | "write" | "deny" | "none";
  missing_path_behavior?: "skip";
}

export type SandboxPath =
  | { type: "path" | "unix_socket" | "device"; path: string }
  | { type: "glob_pattern"; pattern: string }
  | { type: "special"; value: { kind: "root" | "minimal" | "current_working_directory" | "project_roots" | "tmpdir" | "slash_tmp" } };

export interface NetworkProxy {
  proxy: {
    enabled: boolean;
    enableSocks5: boolean;
    enableSocks5Udp: boolean;
    transparentTcp?: boolean;
    allowUpstreamProxy: boolean;
    dangerouslyAllowAllUnixSockets: boolean;
    mode: "full" | "limited";
    domains?: Record<string, "allow" | "deny">;
    allowLocalBinding: boolean;
    reviewDomains?: string[];
  };
  policyDecisionTimeoutMs?: number;
}

export interface EnvPolicy {
  inherit: "core" | "all" | "none";
  ignoreDefaultExcludes: boolean;
  exclude: string[];
  set: Record<string, string>;
  includeOnly: string[];
}

/** Rules of a client about commands. */
export interface ExecApproval {
  rules?: { name: string; text: string }[];
  unmatched?: "allow" | "prompt" | "forbidden";
  opaque?: "allow" | "prompt" | "forbidden";
  forcedRm?: "allow" | "prompt" | "forbidden";
  enforce?: "start" | "tree";
  timeoutMs?: number;
  report?: "refused" | "asked" | "all";
}

export interface StartParams {
  processId: string;
  argv: string[];
  cwd: string;
  env: Record<string, string>;
  envPolicy?: EnvPolicy;
  tty: boolean;
  rows?: number;
  cols?: number;
  pipeStdin: boolean;
  arg0?: string;
  sandbox?: Sandbox;
  enforceManagedNetwork?: boolean;
  networkProxy?: NetworkProxy;
  execApproval?: ExecApproval;
  builtin?: boolean;
}

export interface InitializeParams {
  clientName: string;
  resumeSessionId: string | null;
  sessionName?: string;
  existing?: boolean;
  take?: boolean;
  retainMs?: number;
  subcommandApprovals?: boolean;
  refusals?: boolean;
}
