import { Manifest } from "@openai/agents/sandbox";
import { UsageError } from "../errors.js";
import { decodeBase64, printable } from "../text.js";

/* What the sandbox of openai-agents takes of a manifest. */

/** Something of a manifest: a file, a directory, or where one comes from. */
export interface Entry {
  readonly type: string;
  readonly [key: string]: unknown;
}

/** Refuses a manifest with something that this sandbox cannot have. */
export function supported(manifest: Manifest): void {
  const { groups, extraPathGrants, entries } = manifest;
  if (groups.length > 0) throw new UsageError("a manifest with groups needs another sandbox: an agent makes no groups");
  for (const { path, hostPath } of extraPathGrants) {
    if (hostPath !== undefined) throw new UsageError(`the grant of ${printable(path, 256)} has a hostPath: at an agent each path has only one name`);
  }
  for (const [path, entry] of Object.entries(entries)) supportedEntry(path, entry as Entry);
}

/** Refuses an entry of a manifest, or something in it, that this sandbox cannot have. */
export function supportedEntry(path: string, entry: Entry): void {
  const refuse = (why: string): never => {
    throw new UsageError(`${printable(path, 256)} of the manifest ${why}`);
  };
  if (entry["group"] !== undefined) refuse("has a group: files belong to the agent's user");
  if (entry["permissions"] !== undefined && entry.type !== "file") refuse("has permissions: only an entry of the type file can");
  switch (entry.type) {
    case "dir":
      for (const [name, child] of childrenOf(entry)) supportedEntry(`${path}/${name}`, child);
      return;
    case "file":
      if (typeof entry["content"] !== "string" && !(entry["content"] instanceof Uint8Array)) refuse("has no content, a string or bytes");
      return;
    case "local_file":
    case "local_dir":
      if (typeof entry["src"] !== "string" || entry["src"] === "") refuse("has no src");
      return;
    case "git_repo":
      for (const word of ["repo", "host", "ref", "subpath"]) {
        const value = entry[word];
        if (value !== undefined && (typeof value !== "string" || value.startsWith("-"))) refuse(`has a wrong ${word}`);
      }
      return;
  }
  refuse(`is of the type ${printable(String(entry.type), 64)}: mount it at the agent's machine, and grant its path`);
}

/** Returns what is in an entry that is a directory. */
export function childrenOf(entry: Entry): [string, Entry][] {
  return Object.entries((entry["children"] ?? {}) as Record<string, Entry>);
}

/** Returns a manifest with some members changed. */
export function changed(manifest: Manifest, members: object): Manifest {
  const { version, root, entries, users, groups, extraPathGrants, remoteMountCommandAllowlist } = manifest;
  return new Manifest({ version, root, entries, environment: variables(manifest), users, groups, extraPathGrants, remoteMountCommandAllowlist, ...members });
}

/** Returns the variables of a manifest, to make another one with them. */
export function variables({ environment }: Pick<Manifest, "environment">): Record<string, ReturnType<Manifest["environment"][string]["init"]>> {
  return Object.fromEntries(Object.entries(environment).map(([name, value]) => [name, value.init()]));
}

/** Returns a manifest of a serialized run with bytes where it has base64. */
export function withContents(record: object): object {
  const entries = (record as { entries?: Record<string, Entry> }).entries ?? {};
  const runtime = (entry: Entry): Entry => {
    if (entry.type === "dir") return { ...entry, children: Object.fromEntries(childrenOf(entry).map(([name, child]) => [name, runtime(child)])) };
    const { content } = entry;
    if (typeof content !== "object" || content === null || content instanceof Uint8Array) return entry;
    const bytes = decodeBase64(String((content as { data?: unknown }).data));
    if (bytes === undefined) throw new UsageError("the manifest of the state has a file whose content is not base64");
    return { ...entry, content: bytes };
  };
  return { ...record, entries: Object.fromEntries(Object.entries(entries).map(([path, entry]) => [path, runtime(entry)])) };
}
