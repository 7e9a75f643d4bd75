// Package fswatch watches files and directories, with all that is below them if asked,
// and tells what was created, modified, removed and renamed. It knows native paths and
// inotify(7), and nothing of JSON, URIs or connections. Linux only.
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
// What does not fit is never dropped in silence. Where events were lost, the tree is
// made anew from what is there, and then [Batch.Overflow] tells that whoever watches has
// to look for themselves. It is told afterwards, so that no change falls between. Where
// only the changes are too many, they are dropped and the overflow is told at once. A
// tree with more directories than may be watched tells an overflow with every batch,
// since nobody sees what happens in the rest.
//
// A new directory is watched first and listed then, so that nothing in it is missed;
// what the list has is told as created. Links are not followed: the root is canonical,
// and each name below is opened in its directory as it stands. Directories on file
// systems of the kernel, as procfs, are not entered. What is mounted on a directory after
// that directory was entered is not seen.
//
// The root itself may go and come back. Every directory above it is watched for being
// moved or removed, and while the root is missing the first directory that would have to
// hold the way to it is watched for that name.
package fswatch
