import { constants } from "node:fs";
import { lstat, open, realpath, stat, type FileHandle } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { ConnectError, UsageError } from "../errors.js";

/* Which files and sockets of this machine may be believed: those that nobody but this user and root could have put there. */

function me(): number {
  return process.geteuid?.() ?? 0;
}

function trusted(uid: number): boolean {
  return uid === me() || uid === 0;
}

/** Returns why others can replace an entry of a folder, or of a folder above; undefined: they cannot. */
async function replaceable(folder: string, owner: number): Promise<string | undefined> {
  for (let at = folder; ; at = dirname(at)) {
    const { uid, mode } = await stat(at);
    if (!trusted(uid) && !(at === folder && uid === owner)) return `the folder ${at} belongs to uid ${uid}, who can replace files in it`;
    // In a folder such as /tmp others can make files, and not replace ours.
    if ((mode & 0o022) !== 0 && (mode & constants.S_IFDIR) !== 0 && (mode & 0o1000) === 0) return `others can write the folder ${at}, and replace files in it`;
    if (at === "/") return undefined;
  }
}

/**
 * Reads a file with a token, a key or contexts. One that others can write or replace is refused. `readable` is called with
 * why others can read it.
 */
export async function readSecret(path: string, most: number, readable: (why: string) => void): Promise<string> {
  let file: FileHandle;
  try {
    file = await open(path, constants.O_RDONLY | constants.O_NOCTTY);
  } catch (error) {
    throw systemError(error);
  }
  try {
    const info = await file.stat();
    if (info.isFile()) {
      if (!trusted(info.uid)) throw new UsageError(`${path} belongs to uid ${info.uid}, who could change it`);
      if ((info.mode & 0o022) !== 0) throw new UsageError(`${path} has mode ${octal(info.mode)}: others can write it (chmod go-w ${path})`);
      const why = await replaceable(dirname(await realpath(path)), info.uid);
      if (why !== undefined) throw new UsageError(`${path} cannot be trusted: ${why}`);
      if ((info.mode & 0o077) !== 0) readable(`${path} has mode ${octal(info.mode)}, so others can read it (chmod 600 ${path})`);
    } else if (info.isDirectory()) {
      throw new UsageError(`${path} is a directory, and not a file`);
    }
    const buffer = Buffer.alloc(most + 1);
    let length = 0;
    for (;;) {
      const { bytesRead } = await file.read(buffer, length, buffer.length - length);
      length += bytesRead;
      if (length > most) throw new UsageError(`${path} is longer than ${most} bytes`);
      if (bytesRead === 0) return buffer.toString("utf8", 0, length);
    }
  } catch (error) {
    throw systemError(error);
  } finally {
    await file.close();
  }
}

/** Refuses a UNIX socket that somebody else could have put there. */
export async function checkSocket(path: string): Promise<void> {
  let folder: string;
  let owner: number;
  try {
    folder = await realpath(dirname(path));
    const info = await lstat(join(folder, basename(path)));
    owner = info.uid;
    if (info.isSymbolicLink()) return await checkSocket(await realpath(path));
    if (!info.isSocket()) throw new ConnectError(`${path} is not a socket`, true);
  } catch (error) {
    if (error instanceof ConnectError) throw error;
    throw new ConnectError(`${path}: ${(error as NodeJS.ErrnoException).code ?? "it cannot be looked at"}`, false, error);
  }
  const given = (await stat(folder)).uid; // this user or root may have given the folder to somebody
  if (!trusted(owner) && owner !== given) throw new ConnectError(`the socket ${path} belongs to uid ${owner}, who is not trusted`, true);
  const why = await replaceable(folder, owner);
  if (why !== undefined) throw new ConnectError(`the socket ${path} cannot be trusted: ${why}`, true);
}

function octal(mode: number): string {
  return (mode & 0o777).toString(8).padStart(4, "0");
}

function systemError(error: unknown): unknown {
  const { code, path } = error as NodeJS.ErrnoException;
  if (typeof code !== "string" || error instanceof UsageError) return error;
  const refused = new UsageError(`${path ?? "a file"} cannot be read: ${code}`, error);
  return Object.assign(refused, { missing: code === "ENOENT" });
}

/** Reports whether an error of {@link readSecret} says that there is no such file. */
export function isMissing(error: unknown): boolean {
  return error instanceof UsageError && (error as { missing?: unknown }).missing === true;
}
