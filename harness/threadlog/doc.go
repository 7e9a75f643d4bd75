// Package threadlog stores what a harness must remember of a thread (one conversation with
// a model) beyond the life of its process: which environments and capability roots it
// worked with, where its turns began and ended, and which processes it ran. The harness
// stores the conversation itself, here under types of its own ([Thread.Append]) or
// elsewhere.
//
//	s, err := threadlog.OpenStore(filepath.Join(home, "threads"))
//	t, err := s.Create(threadlog.Meta{SelectedCapabilityRoots: roots, Environments: selection})
//	turn, err := t.StartTurn(nil)
//	err = t.AppendProcess(threadlog.ProcessRef{ProcessID: "1", Argv: argv, Status: threadlog.Exited, Output: output})
//	err = t.EndTurn(threadlog.TurnCompleted)
//
// A [Store] is a folder. A thread is a file in it, ID.jsonl, with one JSON object a line,
// which is a [Record]:
//
//	{"timestamp":"2026-03-01T12:00:00Z","ordinal":1,"type":"turn_started","payload":{…}}
//
// The ordinal of a record is the number of lines before it. The first record, of type
// session_meta, holds the [Meta] that the thread began with. Lines are only ever
// added. [Store.Open] resumes a thread: it restores the selections and appends to the
// file. [Store.History] reads one without opening it.
//
// # What stays as written
//
// The selected roots and the selection of environments are JSON arrays that are kept as they were
// given, with members that this package does not know (only spaces between the tokens go). They
// have the form that thread/start and turn/start of the reference take:
//
//	{"id":"demo@1","location":{"type":"environment","environmentId":"worker","path":"file:///plugins/demo"}}
//	{"environmentId":"worker","cwd":"file:///srv/w","runtimeWorkspaceRoots":["file:///srv/w"]}
//
// This package does not know whether an environment of a restored selection still exists. The
// harness keeps the order, marks missing environments, and puts no others in their place.
//
// Records of other types, and members that this version does not know, stay in the file, and
// [Store.History] passes them on. Members that are missing have zero values.
//
// # Crashes
//
// A record is whole if its line ends with a line break. Readers skip whatever a crash left behind
// the last line break, and the next opening cuts it off. A thread exists with its first record or
// not at all; a file ID.new is the rest of a creation that crashed.
//
// Records reach the disk at the end of a turn ([Thread.EndTurn]), with [Thread.Sync] and with
// [Thread.Close]. Until then they survive a crash of the program, but not of the machine. A turn
// that was started and never ended was interrupted.
//
// # Files that are not ours
//
// Anybody may have written to a file. A line that is not a record is a [CorruptError], which names
// the file, the line and the member; nothing is skipped and nothing is changed. JSON is read
// strictly: a repeated name, bytes that are not UTF-8, and more than 127 levels or 262,144 values
// are refused, also when a record is written. Lines, files, names and chains of forks are bounded.
// Links, FIFOs and folders are refused in place of files.
//
// # One writer
//
// A thread can be open only once. A second opening, in this program or in another one, fails with
// [ErrInUse]. The lock is flock(2). It ends with the program, however the program ends, and binds
// only programs that use the lock too. Where there is no flock, as on Windows, threads cannot be
// made or opened, and the error is [errors.ErrUnsupported].
//
// # Forks
//
// [Store.Fork] makes a thread that goes on from another one. It copies no records. Its first record
// names that thread, the number of bytes of its file that belong to the history of the fork, and
// for a bounded history the beginning of it ([HistoryBase]). So the files of ancestors must stay:
// without them, reading the history of the fork fails. The fork can still be opened.
//
// # Names
//
// Threads are given names by [Store.SetName] and found by [Store.Find]; [Store.Open] then resumes
// the thread by the id. Names are in session_index.jsonl, one line for each naming, and the last
// line of a thread counts:
//
//	{"id":"0195…","thread_name":"the flaky test","updated_at":"2026-03-01T12:00:00Z"}
//
// # Secrets
//
// Files have the mode 0600, and a created folder has 0700. Everything is written as the caller
// passes it, command lines and output included, so do not pass what must not be on disk.
package threadlog
