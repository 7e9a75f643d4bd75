// Package applypatch reads the patches that models write for the tool apply_patch, and applies
// them to the files of an [fsops.FS]. Linux only.
//
// [Parse] reads the whole of a patch before anything is touched. A [Target] says where the patch is
// applied, and in which of three ways. inOrder writes one file after the other, as the tool of the
// reference does; if a later file fails, the earlier changes stay. Whole changes all files or none.
// Preview changes nothing, and prints the changes as a diff. [Main] is the tool itself.
//
// A patch names no line numbers. It gives the lines that it expects, which are searched in the
// file, first exactly, then less and less exactly (match.go). Neither a file nor a patch is ever
// split into a list of lines: places in a file are offsets, and new content is put together while
// it is written. So a patch costs the memory of one file, of the patch, and little more.
//
// The grammar, the search and the texts of errors are those of the reference. Its defects are not
// repeated: a file that is moved onto itself stays, and a file that is moved stays executable.
package applypatch
