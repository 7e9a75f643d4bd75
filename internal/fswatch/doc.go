// Package fswatch watches files and directories, on request with everything below
// them, and reports what was created, modified, removed and renamed. It knows native
// paths and inotify(7), and nothing of JSON, URIs or connections. Linux only.
//
// One [Watch] has three parts, and a goroutine of its own:
//
//	inotify.Group ── Notice ──► queue      events as they came, bounded
//	                              │ run
//	                              ▼
//	                            tree       which directory each kernel watch is for, as
//	                              │        of the event that was taken last
//	                              ▼
//	                            changes    what nobody has taken yet, merged, bounded
//	                              │ Wait, Take
//	                              ▼
//	                            whoever watches, at their own pace
//
// Nothing is dropped silently. When events were lost, the tree is rebuilt from the file
// system, and then [Batch.Overflow] tells the watcher to look for itself. It comes after
// the rebuild, so that no change is missed in between. If only the changes are too many,
// they are dropped and the overflow is reported at once. A tree with more directories
// than may be watched reports an overflow with every batch, because nothing watches the
// rest.
//
// A new directory is first watched and then listed, so that nothing in it is missed; the
// listed names are reported as created. Links are not followed: the root is canonical,
// and each name below is opened in its directory. Directories on file systems of the
// kernel, such as procfs, are not entered. A mount on a directory that was already
// entered is not seen.
//
// The root itself may disappear and come back. Every directory above it is watched for
// moves and removals. While the root is missing, the deepest existing directory on its
// path is watched for the next name of that path.
package fswatch
