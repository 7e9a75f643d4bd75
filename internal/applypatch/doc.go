// Package applypatch reads the patches that models write for the tool apply_patch, and applies
// them to the files of an [fsops.FS]. Linux only.
//
// [Parse] reads the whole of a patch before anything is touched. A [Target] says where it is
// applied, and has three ways to do so: inOrder writes file after file, as the tool of the
// reference does, and what is done stays done if a later file fails; Whole changes all files or
// none; Preview changes nothing, and prints what would change as a diff. [Main] is the tool
// itself.
//
// A patch names no line numbers. It says which lines it expects, and they are looked for in the
// file, first as they are written, then less and less exactly (match.go). Neither a file nor a
// patch is ever cut into a list of its lines: places in a file are offsets, and what is written
// is put together while it is written. So a patch costs the memory of one file, of the patch, and
// little more.
//
// The grammar, the search and the texts of errors are those of the reference. Its defects are not
// repeated: a file that is moved onto itself stays, and a file that is moved stays executable.
package applypatch
