/**
 * What the adapters use of their harnesses, so that the client is built without them. `adapters/harnesses.json` checks the
 * adapters with the harnesses' own types.
 */

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
