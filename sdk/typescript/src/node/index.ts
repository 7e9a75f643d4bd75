/**
 * What needs Node, or Bun or Deno with their modules of Node: contexts, UNIX sockets, agents that are started here, files of
 * TLS, copies of trees, and forwarded ports.
 *
 * @packageDocumentation
 */

import { resolve } from "node:path";
import { Agent } from "../agent.js";
import { Client, type Dial, type Route } from "../client.js";
import { ConnectError, UsageError } from "../errors.js";
import { commandDial, type CommandTarget } from "./command.js";
import { locateContexts, readContexts, readToken, type Context, type TLSFiles } from "./contexts.js";
import { download, upload, type CopyOptions } from "./copy.js";
import { unixDial, urlDial, type URLOptions } from "./dial.js";
import { registryDial } from "./registry.js";
import { forward, type Forward, type ForwardOptions } from "./forward.js";

export * from "../index.js";
export type { CommandTarget } from "./command.js";
export { CopyError } from "./copy.js";
export type { CopyOptions } from "./copy.js";
export { webSocket } from "./factory.js";
export type { TLSFiles } from "./contexts.js";
export type { URLOptions } from "./dial.js";
export type { Forward, ForwardOptions } from "./forward.js";

/** An agent that listens at a URL: `ws://HOST:PORT`, `HOST:PORT`, `wss://HOST` or `unix:///PATH`. */
export interface URLTarget {
  readonly url: string;
}

/** An agent that listens at a UNIX socket. */
export interface UnixTarget {
  readonly unix: string;
}

/** A context of the program `agent`, see `agent context`. */
export interface ContextTarget {
  readonly context: string;
}

/** An agent behind a registry. It needs the packages @noble/curves and @noble/post-quantum. */
export interface EnvironmentTarget {
  readonly registry: string;
  readonly environmentId: string;
  /** A harness key, or what returns one for each connection. By default that of `AGENT_REGISTRY_TOKEN` or `CODEX_API_KEY`. */
  readonly token?: string | (() => string | Promise<string>);
}

/** An agent. A string is a URL. */
export type Target = string | URLTarget | UnixTarget | ContextTarget | CommandTarget | EnvironmentTarget;

/** How to connect. */
export type NodeOptions = URLOptions;

/** An agent, with what needs files and ports of this machine. */
export class NodeAgent extends Agent {
  /**
   * Copies a file or a tree of this machine to the agent: into `to` if that is a directory, and otherwise to that name. A
   * path that ends in `/.` stands for what is in the directory. Modes, times and links are kept.
   */
  upload(from: string, to: string, options?: CopyOptions): Promise<void> {
    return upload(this, from, to, options);
  }

  /** Copies a file or a tree of the agent to this machine, see {@link upload}. Nothing is written outside of `to`, and no link there is followed. */
  download(from: string, to: string, options?: CopyOptions): Promise<void> {
    return download(this, from, to, options);
  }

  /**
   * Listens here, and carries each connection to an address on the agent's side: `tcp://HOST:PORT`, `unix:///PATH`, or a
   * port of the agent's machine.
   */
  forward(to: string | number, options?: ForwardOptions): Promise<Forward> {
    return forward(this, to, options);
  }
}

/**
 * Connects to an agent.
 *
 * Without a target the agent is found as the program `agent` finds it: `AGENT_URL` with `AGENT_TOKEN_FILE`, `AGENT_REGISTRY`
 * with `AGENT_ENVIRONMENT_ID` and a token, then the context of `AGENT_CONTEXT`, then the current context.
 */
export async function connect(target?: Target, options: NodeOptions = {}): Promise<NodeAgent> {
  const route = await routeTo(target, options);
  return new NodeAgent(await Client.connect(route, options, options.signal), options);
}

async function routeTo(target: Target | undefined, options: NodeOptions): Promise<Route> {
  if (target === undefined) return routeByEnvironment(options);
  if (typeof target === "string") return { dial: dialTo(target, options) };
  if ("url" in target) return { dial: dialTo(target.url, options) };
  if ("unix" in target) return { dial: unixDial(target.unix, options) };
  if ("context" in target) return routeByContext(target.context, options);
  if ("command" in target) return { dial: commandDial(target), single: true };
  if ("registry" in target) return { dial: registryDial({ ...target, token: target.token ?? (() => registryToken(options)) }, options) };
  throw new UsageError("the agent is named by a URL, or by url, unix, context, command or registry");
}

/** Dials the forms of a URL that the program takes. */
function dialTo(address: string, options: NodeOptions, exposed = false): Dial {
  if (address.startsWith("unix://")) return unixDial(address.slice("unix://".length), options);
  if (options.webSocket !== undefined) throw new UsageError("webSocket is an option of connect of @execagent/client");
  const secure = Object.values(options.tls ?? {}).some((file) => file !== undefined);
  const scheme = /^wss?:\/\//.exec(address)?.[0];
  const place = address.slice(scheme?.length ?? 0);
  if (scheme === undefined && (address.includes("/") || !address.includes(":"))) {
    if (address.startsWith("/")) throw new UsageError(`for a UNIX socket write unix://${address}`);
    return urlDial(address, options, exposed); // which says what is wrong
  }
  const host = place.startsWith(":") ? "127.0.0.1" + place : place;
  return urlDial((scheme ?? (secure ? "wss://" : "ws://")) + host, options, exposed);
}

/** Finds the agent as the program does. */
async function routeByEnvironment(options: NodeOptions): Promise<Route> {
  const env = process.env;
  const url = env["AGENT_URL"];
  if (url !== undefined && url !== "") {
    const tls: TLSFiles = {
      ca: file(env["AGENT_TLS_CA"]), cert: file(env["AGENT_CLIENT_TLS_CERT"]), key: file(env["AGENT_CLIENT_TLS_KEY"]),
      serverName: env["AGENT_TLS_SERVER_NAME"] || undefined,
    };
    const tokenFile = file(env["AGENT_TOKEN_FILE"]);
    const token = options.token ?? (tokenFile === undefined ? undefined : await readToken(tokenFile, options.warn ?? console.warn));
    return { dial: dialTo(url, { ...options, token, tls: options.tls ?? tls }, tokenFile !== undefined) };
  }
  const registry = env["AGENT_REGISTRY"];
  if (registry !== undefined && registry !== "") {
    const environmentId = env["AGENT_ENVIRONMENT_ID"];
    if (environmentId === undefined || environmentId === "") throw new UsageError("AGENT_REGISTRY needs AGENT_ENVIRONMENT_ID");
    const tls = options.tls ?? { ca: file(env["AGENT_TLS_CA"]) };
    return { dial: registryDial({ registry, environmentId, token: () => registryToken(options) }, { ...options, tls }) };
  }
  return routeByContext(env["AGENT_CONTEXT"], options);
}

/** Returns the token for a registry that a variable or the caller names. */
async function registryToken(options: NodeOptions): Promise<string> {
  const env = process.env;
  const given = typeof options.token === "function" ? await options.token() : options.token;
  const named = file(env["AGENT_REGISTRY_TOKEN_FILE"]);
  const token = given ?? (named === undefined ? (env["AGENT_REGISTRY_TOKEN"] || env["CODEX_API_KEY"])?.trim() : await readToken(named, options.warn ?? console.warn));
  if (token === undefined || token === "") throw new UsageError("a registry needs a token: give one, or set AGENT_REGISTRY_TOKEN or CODEX_API_KEY");
  return token;
}

function file(name: string | undefined): string | undefined {
  return name === undefined || name === "" ? undefined : resolve(name);
}

/** Finds a context; undefined: the current one. */
async function routeByContext(name: string | undefined, options: NodeOptions): Promise<Route> {
  const warn = options.warn ?? console.warn;
  const contexts = await readContexts(locateContexts(), warn);
  const chosen = name === undefined ? contexts.current : name;
  if (chosen === undefined || chosen === "") {
    const { names } = contexts;
    throw new UsageError(
      "which agent? name it with a URL, or with url, unix, context or command, or set AGENT_URL" + (names.length === 0 ? "" : `; the contexts are ${names.slice(0, 10).join(", ")}`),
    );
  }
  const context = contexts.find(chosen);
  if (context.url !== undefined) return { dial: contextDial(context, context.url, options) };
  const { registry, environmentId = process.env["AGENT_ENVIRONMENT_ID"], tls } = context;
  if (environmentId === undefined) throw new UsageError(`context ${context.name} names a registry but no environment: set AGENT_ENVIRONMENT_ID`);
  const token = async (): Promise<string> => {
    const found = await context.token();
    if (found === undefined) throw new UsageError(`context ${context.name} has no token: give it a token_file or a token_command`);
    return found;
  };
  return { dial: registryDial({ registry: registry as string, environmentId, token: options.token ?? token }, { ...options, tls: options.tls ?? tls }) };
}

/** Dials the agent of a context. Its token command runs again when the agent no longer accepts the token. */
function contextDial(context: Context, url: string, options: NodeOptions): Dial {
  let known: string | undefined;
  let accepted = false;
  const dial = async (...args: Parameters<Dial>): ReturnType<Dial> => {
    known ??= await context.token();
    return dialTo(url, { ...options, token: options.token ?? known, tls: options.tls ?? context.tls }, true)(...args);
  };
  return async (...args) => {
    try {
      const channel = await dial(...args);
      accepted = true;
      return channel;
    } catch (error) {
      if (!(error instanceof ConnectError && error.status === 401 && accepted && context.renews)) throw error;
      accepted = false;
      known = undefined;
      return dial(...args);
    }
  };
}

