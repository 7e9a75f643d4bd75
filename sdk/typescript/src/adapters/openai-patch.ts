import { UsageError } from "../errors.js";
import { printable } from "../text.js";

/** A change of one file as a model writes it, with a diff in the form V4A, which has no headers. */
export type PatchOperation =
  | { readonly type: "create_file"; readonly path: string; readonly diff: string }
  | { readonly type: "update_file"; readonly path: string; readonly diff: string; readonly moveTo?: string | undefined }
  | { readonly type: "delete_file"; readonly path: string };

/**
 * Writes an operation as a patch of the tool apply_patch. The paths are absolute.
 *
 * A diff must not change another file than the one it is for, so it can have no line that is a header of a patch.
 */
export function patchOf(operation: PatchOperation): string {
  const header = (word: string, path: string): string => {
    if (/[\r\n]/.test(path) || path !== path.trim()) throw new UsageError(`${printable(path, 256)}: a path of a patch has no line ends, and no blanks at its ends`);
    return `*** ${word}: ${path}`;
  };
  const lines = ["*** Begin Patch"];
  if (operation.type === "delete_file") lines.push(header("Delete File", operation.path));
  else {
    lines.push(header(operation.type === "create_file" ? "Add File" : "Update File", operation.path));
    if (operation.type === "update_file" && operation.moveTo !== undefined) lines.push(header("Move to", operation.moveTo));
    const diff = operation.diff.split("\n");
    if (diff.at(-1) === "") diff.pop();
    for (const line of diff) {
      if (line.startsWith("*** ") && line.trimEnd() !== "*** End of File") throw new UsageError(`a diff of one file cannot have the line ${printable(line, 256)}`);
      if (operation.type === "create_file" && !line.startsWith("+")) throw new UsageError(`each line of a new file begins with +, but this one does not: ${printable(line, 256)}`);
      lines.push(line);
    }
  }
  return [...lines, "*** End Patch", ""].join("\n");
}
