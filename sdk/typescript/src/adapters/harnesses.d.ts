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
