import { UsageError } from "./errors.js";
import { toURI } from "./uri.js";
import type { NetworkProxy, Sandbox, SandboxEntry } from "./wire.js";

/**
 * What a command may do, in the words of the flags of `agent exec`. A command with a policy may read everything and write
 * nothing, and has no network, unless the policy says otherwise. All paths are absolute paths at the agent.
 *
 * Secrets of the agent's user, such as ~/.ssh, are not hidden: name them in `deny`.
 */
export interface Policy {
  /** Nothing can be written, which is so without a workspace, too. */
  readonly readOnly?: boolean;
  /** Folders that the command may write, and temporary folders with them. */
  readonly workspace?: string | readonly string[];
  /** Paths that can be read and not written, also in a workspace or a view. */
  readonly readable?: string | readonly string[];
  /** Paths, and patterns such as `**\/*.env`, that are hidden. A relative pattern starts at the directory of the command. */
  readonly deny?: string | readonly string[];
  /** Show nothing but what programs need, the workspace and what is readable. */
  readonly view?: boolean;
  /** UNIX sockets that can be reached. */
  readonly socket?: string | readonly string[];
  /** Devices that can be used. */
  readonly device?: string | readonly string[];
  /** The network: none (`off`, the default), the host's (`on`), or a proxy that lets through what is allowed. */
  readonly network?: "off" | "on" | NetworkPolicy;
}

/** What a proxy lets through. What no word is about is asked, if connect has `approveNetwork`, and refused otherwise. */
export interface NetworkPolicy {
  /** Hosts, such as `example.org`, `*.example.org` and `db.example.org:5432`, or requests, such as `GET example.org/api/`. */
  readonly allow?: string | readonly string[];
  readonly deny?: string | readonly string[];
  /** Hosts and requests about which the client is asked. */
  readonly ask?: string | readonly string[];
  /** Names may lead to local and private addresses. */
  readonly local?: boolean;
}

/** The policy as the members of a request. */
export interface Confinement {
  sandbox?: Sandbox;
  networkProxy?: NetworkProxy;
  enforceManagedNetwork?: boolean;
}

/** How long a question about the network may stay open. A command gives up earlier. */
const networkPatienceMs = 24 * 60 * 60 * 1000;

const known = ["readOnly", "workspace", "readable", "deny", "view", "socket", "device", "network"];
const knownNetwork = ["allow", "deny", "ask", "local"];

/**
 * Translates a policy. cwd is the directory of the command. asks: the client can be asked about the network. transparent:
 * programs need not know of the proxy.
 */
export function confinement(policy: Policy | undefined, cwd: string | undefined, asks = false, transparent = false): Confinement {
  if (policy === undefined) return {};
  only(policy, known, "sandbox");
  const entries: SandboxEntry[] = [place(policy.view === true ? "minimal" : "root", "read")];
  const workspace = words(policy.workspace);
  if (policy.readOnly === true && workspace.length > 0) throw new UsageError("sandbox has readOnly and a workspace, which can be written");
  if (workspace.length > 0) entries.push(place("project_roots", "write"), place("slash_tmp", "write"), place("tmpdir", "write"));
  for (const path of words(policy.readable)) entries.push({ path: { type: "path", path: toURI(path) }, access: "read" });
  for (const path of words(policy.socket)) entries.push({ path: { type: "unix_socket", path: toURI(path) }, access: "write" });
  for (const path of words(policy.device)) entries.push({ path: { type: "device", path: toURI(path) }, access: "write" });
  for (const path of words(policy.deny)) {
    const pattern = /[*?[{]/.test(path) || !path.startsWith("/");
    entries.push({ path: pattern ? { type: "glob_pattern", pattern: path } : { type: "path", path: toURI(path) }, access: "deny" });
  }
  const network = policy.network ?? "off";
  const sandbox: Sandbox = {
    permissions: {
      type: "managed", file_system: { type: "restricted", entries }, network: network === "on" ? "enabled" : "restricted",
    },
    windowsSandboxLevel: "disabled",
  };
  if (cwd !== undefined) sandbox.cwd = toURI(cwd);
  if (workspace.length > 0) sandbox.workspaceRoots = workspace.map(toURI);
  if (network === "on" || network === "off") return { sandbox };
  return { sandbox, networkProxy: proxy(network, asks, transparent), enforceManagedNetwork: true };
}

/** Returns the paths of a policy that must exist, because what is said of a missing one would have no effect. */
export function named(policy: Policy): string[] {
  return [policy.workspace, policy.readable, policy.socket, policy.device].flatMap(words);
}

function place(kind: "root" | "minimal" | "project_roots" | "slash_tmp" | "tmpdir", access: "read" | "write"): SandboxEntry {
  return { path: { type: "special", value: { kind } }, access };
}

function proxy(network: NetworkPolicy, asks: boolean, transparent: boolean): NetworkProxy {
  if (typeof network !== "object" || network === null) throw new UsageError(`network is ${String(network)}, and must be off, on, or an object with allow, deny, ask, local`);
  only(network, knownNetwork, "network");
  const domains: Record<string, "allow" | "deny"> = Object.create(null);
  for (const verb of ["allow", "deny"] as const) {
    for (const host of words(network[verb])) {
      if (domains[host] !== undefined && domains[host] !== verb) throw new UsageError(`the network allows and denies ${host}`);
      domains[host] = verb;
    }
  }
  const asked: NetworkProxy = {
    proxy: {
      enabled: true, enableSocks5: true, enableSocks5Udp: false, allowUpstreamProxy: true, dangerouslyAllowAllUnixSockets: false, mode: "full",
      domains, allowLocalBinding: network.local === true, reviewDomains: words(network.ask),
    },
  };
  if (transparent) asked.proxy.transparentTcp = true;
  if (asks) asked.policyDecisionTimeoutMs = networkPatienceMs;
  return asked;
}

function words(value: string | readonly string[] | undefined): string[] {
  return value === undefined ? [] : typeof value === "string" ? [value] : [...value];
}

/** Refuses a word that is not known, because it could have meant less. */
export function only(value: object, names: readonly string[], what: string): void {
  for (const name of Object.keys(value)) {
    if (!names.includes(name)) throw new UsageError(`${what} has ${name}, and can only have ${names.join(", ")}`);
  }
}
