import { spawn } from "node:child_process";
import { homedir } from "node:os";
import { dirname, isAbsolute, join, resolve } from "node:path";
import { UsageError } from "../errors.js";
import { printable } from "../text.js";
import { isMissing, readSecret } from "./trust.js";
import { parseTOML, type Table, type Value } from "./toml.js";

/*
 * Contexts, tokens and the files of TLS, found as the program `agent` finds them: in execagent/config.toml below
 * XDG_CONFIG_HOME or ~/.config, or in the file that AGENT_CONFIG names.
 */

/** The files by which client and agent identify each other, and the name of the agent's certificate. */
export interface TLSFiles {
  readonly ca?: string | undefined;
  readonly cert?: string | undefined;
  readonly key?: string | undefined;
  readonly serverName?: string | undefined;
}

/** A name for an agent: it has a URL, or a registry and an environment. */
export interface Context {
  readonly name: string;
  readonly url: string | undefined;
  readonly registry: string | undefined;
  readonly environmentId: string | undefined;
  readonly tls: TLSFiles;
  /** Returns the token; undefined: the context has none. */
  token(): Promise<string | undefined>;
  /** Whether the token may be another one each time. */
  readonly renews: boolean;
}

/** How large a file of contexts, and a token with the white space around it, may be. */
const maxFile = 1 << 20;
const maxToken = 64 << 10;

const maxContexts = 1000;
const maxValue = 4096;
const maxWords = 64;

/** How long a token_command may take. It may ask the user something. */
const commandMs = 60_000;

const validName = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/;

const texts = ["url", "registry", "environment_id", "transport", "token", "token_file", "tls_ca", "tls_cert", "tls_key", "tls_server_name"] as const;
type Texts = { [Name in (typeof texts)[number]]?: string } & { token_command?: string[] };

/** A file of contexts. */
export interface ContextFile {
  readonly path: string;
  readonly current: string | undefined;
  readonly names: readonly string[];
  find(name: string): Context;
}

/** Returns the path of the user's file of contexts. */
export function locateContexts(env: NodeJS.ProcessEnv = process.env): string {
  const named = env["AGENT_CONFIG"];
  if (named !== undefined && named !== "") return resolve(named);
  const base = env["XDG_CONFIG_HOME"];
  if (base !== undefined && base !== "") {
    if (!isAbsolute(base)) throw new UsageError("XDG_CONFIG_HOME is not an absolute path");
    return join(base, "execagent", "config.toml");
  }
  return join(homedir(), ".config", "execagent", "config.toml");
}

/** Reads a file of contexts. A missing file and /dev/null have none. `warn` is called with what is dangerous and works. */
export async function readContexts(path: string, warn: (text: string) => void): Promise<ContextFile> {
  let text = "";
  let readable: string | undefined;
  if (path !== "/dev/null") {
    try {
      text = await readSecret(path, maxFile, (why) => (readable = why));
    } catch (error) {
      if (!isMissing(error)) throw error;
    }
  }
  const document = parseTOML(text, path);
  const contexts = new Map<string, Texts>();
  const listed = document["contexts"];
  if (listed !== undefined && !isTable(listed)) throw new UsageError(`${path}: contexts is not a table`);
  for (const [name, values] of Object.entries((listed as Table | undefined) ?? {})) contexts.set(name, read(path, name, values));
  if (contexts.size > maxContexts) throw new UsageError(`${path}: more than ${maxContexts} contexts`);
  const current = document["current"];
  if (current !== undefined && (typeof current !== "string" || !contexts.has(current))) {
    throw new UsageError(`${path}: current names the context ${printable(String(current), 128)}, which does not exist`);
  }
  if (readable !== undefined && [...contexts.values()].some((context) => context.token !== undefined)) {
    throw new UsageError(`${path} holds a token: ${readable}`);
  }
  return {
    path,
    current,
    names: [...contexts.keys()].sort(),
    find(name) {
      const found = contexts.get(name);
      if (found !== undefined) return context(path, name, found, warn);
      const names = [...contexts.keys()].sort();
      const shown = names.length > 10 ? [...names.slice(0, 10), "..."] : names;
      throw new UsageError(
        `context ${printable(name, 128)} is not in ${path}, which has ${names.length === 0 ? "none (see agent context add)" : shown.join(", ")}`,
      );
    },
  };
}

function isTable(value: Value): value is Table {
  return typeof value === "object" && !Array.isArray(value);
}

/** Checks the values of a context. */
function read(path: string, name: string, values: Value): Texts {
  const fail = (why: string): never => {
    throw new UsageError(`${path}: context ${printable(name, 128)}: ${why}`);
  };
  if (!validName.test(name)) fail("its name is not 1 to 128 of A-Z a-z 0-9 . _ -, with a letter or a digit first");
  if (!isTable(values)) return fail("it is not a table");
  const found: Texts = {};
  const check = (key: string, value: Value): string => {
    if (typeof value !== "string" || value === "") return fail(`${key} is not a string with characters`);
    if (Buffer.byteLength(value) > maxValue || /[\u0000-\u001f\u007f]/.test(value)) fail(`${key} is longer than ${maxValue} bytes, or has control characters`);
    return value;
  };
  for (const [key, value] of Object.entries(values)) {
    const text = texts.find((known) => known === key);
    if (text !== undefined) found[text] = check(key, value);
    else if (key === "token_command") {
      if (!Array.isArray(value) || value.length === 0 || value.length > maxWords) fail(`token_command is not an array of 1 to ${maxWords} strings`);
      found.token_command = (value as Value[]).map((word) => check(key, word));
    } else fail(`unknown key ${printable(key, 64)}: use ${texts.join(", ")} or token_command`);
  }
  const { url, registry, environment_id, transport, token, token_file, token_command, tls_cert, tls_key, tls_server_name } = found;
  if (url === undefined && registry === undefined) fail("url or registry is missing");
  if (url !== undefined && registry !== undefined) fail("url and registry cannot be used together");
  if (url !== undefined && (environment_id ?? transport) !== undefined) fail("environment_id and transport cannot be used with url");
  if (transport !== undefined && transport !== "noise" && transport !== "direct") fail("transport is neither noise nor direct");
  if (url === undefined && (tls_cert ?? tls_key ?? tls_server_name) !== undefined) fail("tls_cert, tls_key and tls_server_name need url");
  if ((tls_cert === undefined) !== (tls_key === undefined)) fail("tls_cert and tls_key must be given together");
  if ([token, token_file, token_command].filter((given) => given !== undefined).length > 1) fail("token, token_file and token_command cannot be used together");
  return found;
}

function context(path: string, name: string, found: Texts, warn: (text: string) => void): Context {
  const { url, registry, token, token_file, token_command } = found;
  if (found.transport === "direct") throw new UsageError(`context ${name} has the transport direct, which this package does not have`);
  // A relative path starts at the folder of the file, and ~/ stands for the user's home.
  const place = (file: string | undefined): string | undefined =>
    file === undefined ? undefined : file.startsWith("~/") ? join(homedir(), file.slice(2)) : resolve(dirname(path), file);
  return {
    name,
    url,
    registry,
    environmentId: found.environment_id,
    tls: { ca: place(found.tls_ca), cert: place(found.tls_cert), key: place(found.tls_key), serverName: found.tls_server_name },
    renews: token_command !== undefined,
    async token() {
      if (token !== undefined) return checkToken(token, `the token of context ${name}`);
      if (token_file !== undefined) return readToken(place(token_file) as string, warn);
      if (token_command !== undefined) return runTokenCommand(token_command, `the token_command of context ${name}`);
      return undefined;
    },
  };
}

/** Reads a bearer token from a file. No error quotes it. */
export async function readToken(path: string, warn: (text: string) => void): Promise<string> {
  return checkToken(await readSecret(path, maxToken, warn), `the token file ${path}`);
}

function checkToken(text: string, what: string): string {
  const token = text.trim();
  if (token === "") throw new UsageError(`${what} is empty`);
  if (!/^[!-~]*$/.test(token)) throw new UsageError(`${what} has characters that a token cannot have`);
  return token;
}

/** Runs a command and returns the token that it prints. Its errors go to ours. It gets no input. */
function runTokenCommand(argv: readonly string[], what: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const child = spawn(argv[0] as string, argv.slice(1), { stdio: ["ignore", "pipe", "inherit"] });
    const timer = setTimeout(() => fail("the command takes too long"), commandMs);
    const pieces: Buffer[] = [];
    let length = 0;
    const fail = (why: string, cause?: unknown): void => {
      clearTimeout(timer);
      child.kill("SIGKILL");
      child.stdout.destroy();
      reject(new UsageError(`${what}: ${argv[0]}: ${why}`, cause));
    };
    child.stdout.on("data", (piece: Buffer) => {
      pieces.push(piece);
      length += piece.length;
      if (length > maxToken) fail(`the command prints more than ${maxToken} bytes`);
    });
    child.on("error", (error) => fail((error as NodeJS.ErrnoException).code ?? "it cannot be started", error));
    const end = (code: number | null, signal: string | null): void => {
      if (code !== 0) return fail(signal === null ? `it ended with ${code}` : `it was ended by ${signal}`);
      try {
        resolve(checkToken(Buffer.concat(pieces).toString("utf8"), `the output of ${what}`));
      } catch (error) {
        reject(error);
      }
    };
    // A process that the command has left behind may hold its output open.
    child.on("exit", (code, signal) => {
      clearTimeout(timer);
      const last = setTimeout(() => {
        child.stdout.destroy();
        end(code, signal);
      }, 1000);
      child.on("close", () => {
        clearTimeout(last);
        end(code, signal);
      });
    });
  });
}
