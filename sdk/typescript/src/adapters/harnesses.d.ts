/**
 * What the adapters extend of their harnesses, so that this package is built without them. Nothing of it is published:
 * the types of a user are those of the harness. adapters/harnesses.json compiles the adapters with the real ones.
 */

declare module "@mastra/core/workspace" {
  export interface CommandResult {
    success: boolean;
    exitCode: number;
    stdout: string;
    stderr: string;
    executionTimeMs: number;
    timedOut?: boolean;
    killed?: boolean;
  }
  export interface SpawnProcessOptions {
    timeout?: number;
    env?: Record<string, string | undefined>;
    cwd?: string;
    onStdout?: (data: string) => void;
    onStderr?: (data: string) => void;
    abortSignal?: AbortSignal;
    maxRetainedBytes?: number;
    stdinMode?: "pipe" | "ignore";
  }
  export interface ProcessInfo {
    pid: string;
    command?: string;
    running: boolean;
    exitCode?: number;
  }
  export abstract class ProcessHandle {
    constructor(options?: SpawnProcessOptions);
    abstract readonly pid: string;
    abstract readonly exitCode: number | undefined;
    command?: string;
    readonly stdout: string;
    readonly stderr: string;
    abstract kill(): Promise<boolean>;
    abstract sendStdin(data: string): Promise<void>;
    closeStdin(): Promise<void>;
    wait(options?: object): Promise<CommandResult>;
    emitStdout(data: string): void;
    emitStderr(data: string): void;
  }
  export abstract class SandboxProcessManager {
    protected readonly _tracked: Map<string, ProcessHandle>;
    spawn(command: string, options?: SpawnProcessOptions): Promise<ProcessHandle>;
    list(): Promise<ProcessInfo[]>;
    get(pid: string): Promise<ProcessHandle | undefined>;
  }
  export type ProviderStatus = "pending" | "initializing" | "ready" | "starting" | "running" | "stopping" | "stopped" | "destroying" | "destroyed" | "error";
  export interface SandboxInfo {
    id: string;
    name: string;
    provider: string;
    status: ProviderStatus;
    createdAt: Date;
    metadata?: Record<string, unknown>;
  }
  export abstract class MastraSandbox {
    constructor(options: { name: string; processes?: SandboxProcessManager });
    abstract readonly id: string;
    abstract readonly name: string;
    abstract readonly provider: string;
    abstract status: ProviderStatus;
    protected setWorkingDirectory(dir: string): void;
    start(): Promise<{ outcome: "created" | "connected" } | void>;
    destroy(): Promise<void>;
    getInstructions?(): string;
    getInfo?(): SandboxInfo | Promise<SandboxInfo>;
    writeFiles?(files: { path: string; content: string | Buffer; mode?: number }[], options?: { abortSignal?: AbortSignal }): Promise<void>;
  }

  export class FilesystemError extends Error {
    constructor(message: string, code: string, path: string);
  }
  export class FileNotFoundError extends FilesystemError {
    constructor(path: string);
  }
  export class DirectoryNotFoundError extends FilesystemError {
    constructor(path: string);
  }
  export class FileExistsError extends FilesystemError {
    constructor(path: string);
  }
  export class IsDirectoryError extends FilesystemError {
    constructor(path: string);
  }
  export class NotDirectoryError extends FilesystemError {
    constructor(path: string);
  }
  export class DirectoryNotEmptyError extends FilesystemError {
    constructor(path: string);
  }
  export class PermissionError extends FilesystemError {
    constructor(path: string, operation: string);
  }
  export class StaleFileError extends FilesystemError {
    constructor(path: string, expected: Date, actual: Date);
  }
  export class UnsupportedGrepPatternError extends FilesystemError {
    constructor(pattern: string, reason?: string);
  }
}

declare module "@openai/agents/sandbox" {
  interface Grant {
    readonly path: string;
    readonly hostPath?: string;
    readonly readOnly: boolean;
  }

  export class Manifest {
    constructor(init?: object);
    readonly version: number;
    readonly root: string;
    readonly entries: Record<string, object>;
    readonly environment: Record<string, { init(): object }>;
    readonly users: object[];
    readonly groups: object[];
    readonly extraPathGrants: Grant[];
    readonly remoteMountCommandAllowlist: string[];
    resolveEnvironment(): Promise<Record<string, string>>;
    ephemeralPersistencePaths(): Set<string>;
  }

  export function cloneManifest(manifest: object): Manifest;
  export function permissionsForSandboxEntry(permissions?: number): { toMode(): number };
}

declare module "@strands-agents/sdk" {
  export interface Tool {
    readonly name: string;
  }

  export abstract class Sandbox {
    getTools(): Tool[];
  }

  export class SandboxTimeoutError extends Error {
    constructor(seconds: number, stdout?: string, stderr?: string);
  }

  export class SandboxAbortError extends Error {}

  export class SandboxPathNotFoundError extends Error {
    constructor(path: string);
  }
}

declare module "@strands-agents/sdk/vended-tools/file-editor" {
  import type { Sandbox, Tool } from "@strands-agents/sdk";

  export const DEFAULT_FILE_EDITOR_DESCRIPTION: string;
  export function makeFileEditor(sandbox: Sandbox, options: { name: string; description: string }): Tool;
}

declare module "@strands-agents/sdk/vended-tools/shell" {
  import type { Sandbox, Tool } from "@strands-agents/sdk";

  export const SANDBOX_SHELL_DESCRIPTION: string;
  export function makeShell(sandbox: Sandbox, options: { name: string; description: string }): Tool;
}
