import type { Agent } from "../agent.js";
import { background } from "../client.js";
import { UsageError } from "../errors.js";
import { CopyError, Incoming, Notes, Tool } from "../node/copy.js";
import { block, padded, readHeader, type ReadBytes } from "../node/tar.js";
import { concat, printable } from "../text.js";

/* A directory of an agent as a tar archive, made and read by a tool of the agent, so that its image needs none. */

/** Bounds of an archive; null: no bound. */
export interface ArchiveLimits {
  readonly maxInputBytes?: number | null;
  readonly maxExtractedBytes?: number | null;
  readonly maxMembers?: number | null;
}

/** How large an archive may become, because it is held in memory. */
const packedMost = 1 << 30;

const pieceBytes = 1 << 20;

/** Waits for the end of the tool. What is neither a file nor a directory nor a link has no place in an archive. */
async function finish(tool: Tool): Promise<void> {
  await tool.finish(new Notes(), undefined).catch((error: unknown) => {
    if (!(error instanceof CopyError)) throw error;
    const notes = error.notes.filter((note) => !note.includes("left out: neither"));
    if (notes.length > 0) throw new CopyError(notes, true);
  });
}

/** Returns what is in a directory. without: paths below it that are left out, with all below them. */
export async function pack(agent: Agent, root: string, without: ReadonlySet<string>): Promise<Uint8Array> {
  const tool = await Tool.start(agent, { send: [`${root}/.`], plain: true }, {});
  const { process } = tool;
  const pieces: Uint8Array[] = [];
  let size = 0;
  try {
    const stream = new Incoming(process, {});
    for (let piece = await stream.read(pieceBytes); piece.length > 0; piece = await stream.read(pieceBytes)) {
      pieces.push(piece);
      size += piece.length;
      if (size > packedMost) throw new UsageError(`${printable(root, 256)} has more than ${packedMost} bytes, which is too much for an archive in memory`);
    }
    background(process.closeStdin());
    await finish(tool);
  } finally {
    await process[Symbol.asyncDispose]();
  }
  const all = concat(pieces, size);
  return without.size === 0 ? all : strip(all, without);
}

/** Leaves some paths out of an archive. */
async function strip(archive: Uint8Array, without: ReadonlySet<string>): Promise<Uint8Array> {
  const kept: Uint8Array[] = [];
  await each(archive, (name, from, to) => {
    const names = name.split("/");
    if (!names.some((_, i) => without.has(names.slice(0, i + 1).join("/")))) kept.push(archive.subarray(from, to));
  });
  return concat([...kept, new Uint8Array(2 * block)]);
}

/** Puts an archive into a directory. Files that are there already and not in the archive stay. */
export async function unpack(agent: Agent, root: string, archive: Uint8Array, limits: ArchiveLimits | null): Promise<void> {
  const { maxInputBytes, maxExtractedBytes, maxMembers } = limits ?? {};
  const bound = (what: string, is: number, most: number | null | undefined): void => {
    if (is > (most ?? Infinity)) throw new UsageError(`the archive has ${is} ${what}, and may have ${String(most)} (archiveLimits)`);
  };
  bound("bytes", archive.length, maxInputBytes);
  let extracted = 0;
  let members = 0;
  await each(archive, (_name, _from, _to, size) => {
    bound("bytes of content", (extracted += size), maxExtractedBytes);
    bound("members", ++members, maxMembers);
  });
  const tool = await Tool.start(agent, { receive: `${root}/.`, many: true, plain: true }, {});
  const { process } = tool;
  try {
    background(process.stdout.cancel()); // it writes nothing there
    await process.write(archive).catch(() => {}); // the tool says why it has ended
    await process.closeStdin().catch(() => {});
    await finish(tool);
  } finally {
    await process[Symbol.asyncDispose]();
  }
}

/** Calls a function for each entry, with its name, its place in the archive and the size of its content. */
async function each(archive: Uint8Array, call: (name: string, from: number, to: number, size: number) => void): Promise<void> {
  let at = 0;
  const bytes = Buffer.from(archive.buffer, archive.byteOffset, archive.byteLength);
  const read: ReadBytes = async (size) => {
    const piece = bytes.subarray(at, at + size);
    at += piece.length;
    return piece;
  };
  for (;;) {
    const from = at;
    const header = await readHeader(read);
    if (header === undefined) return;
    at += padded(header.size);
    if (at > archive.length) throw new UsageError("the archive ends in the middle of a file");
    if (header.kind === "global") continue;
    call(header.name.toString().replace(/^(?:\.\/)+|\/+$/g, ""), from, at, header.size);
  }
}
