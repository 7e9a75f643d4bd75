import type { Agent } from "../agent.js";
import { background } from "../client.js";
import { UsageError } from "../errors.js";
import { CopyError } from "../node/copy.js";
import { block, padded, readHeader, type ReadBytes } from "../node/tar.js";
import type { Process } from "../process.js";
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

/** The tool sends 4 MiB beyond what was acknowledged. Each quarter is. */
const ackBytes = 1 << 20;

const linesMost = 100;

/** Starts the tool. The text of its errors is read beside its output. */
async function copy(agent: Agent, request: object): Promise<{ process: Process; finish(): Promise<void> }> {
  const process = await agent.builtin(["copy", JSON.stringify({ ...request, plain: true })], {});
  const said = lines(process.stderr);
  background(said);
  const finish = async (): Promise<void> => {
    const { exitCode } = await process.wait();
    // What is neither a file nor a directory nor a link has no place in an archive.
    const notes = (await said).filter((line) => !line.includes("left out: neither"));
    const silent = exitCode !== 0 && (await said).length === 0;
    if (notes.length > 0 || silent) throw new CopyError(silent ? [`the agent's tool ended with ${exitCode}`] : notes, true);
  };
  return { process, finish };
}

async function lines(stream: ReadableStream<Uint8Array>): Promise<string[]> {
  const decoder = new TextDecoder();
  const found: string[] = [];
  let rest = "";
  for await (const piece of stream) {
    const all = (rest + decoder.decode(piece, { stream: true })).split("\n");
    rest = (all.pop() as string).slice(0, 4096);
    found.push(...all.slice(0, linesMost - found.length).map((line) => printable(line, 4096)));
  }
  return found;
}

/** Returns what is in a directory. without: paths below it that are left out, with all below them. */
export async function pack(agent: Agent, root: string, without: ReadonlySet<string>): Promise<Uint8Array> {
  const { process, finish } = await copy(agent, { send: [`${root}/.`] });
  const pieces: Uint8Array[] = [];
  let size = 0;
  let acked = 0;
  try {
    for await (const piece of process.stdout) {
      pieces.push(piece);
      size += piece.length;
      if (size > packedMost) throw new UsageError(`${printable(root, 256)} has more than ${packedMost} bytes, which is too much for an archive in memory`);
      if (size - acked < ackBytes) continue;
      acked = size;
      const message = new Uint8Array(8);
      new DataView(message.buffer).setBigUint64(0, BigInt(size));
      background(process.write(message)); // if that fails, the output ends, too
    }
    background(process.closeStdin());
    await finish();
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
  const { process, finish } = await copy(agent, { receive: `${root}/.`, many: true });
  try {
    background(process.stdout.cancel()); // it writes nothing there
    await process.write(archive).catch(() => {}); // the tool says why it has ended
    await process.closeStdin().catch(() => {});
    await finish();
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
