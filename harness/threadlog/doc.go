// Package threadlog keeps what a harness has to remember of a thread (one conversation with
// a model) when its process ends: which environments and capability roots it worked with,
// where its turns began and ended, and which processes it ran. What was said is for the
// harness to keep, here under types of its own ([Thread.Append]) or elsewhere.
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
// session_meta, says what the thread began with ([Meta]). Lines are only ever added.
// [Store.Open] resumes a thread: it restores the selections and appends to the file.
// [Store.History] reads one without opening it.
//
// # What is as written
//
// The selected roots and the selection of environments are JSON arrays that are kept as they
// were given, with members that nobody here knows (only spaces between the tokens go). They
// are what thread/start and turn/start of the reference take:
//
//	{"id":"demo@1","location":{"type":"environment","environmentId":"worker","path":"file:///plugins/demo"}}
//	{"environmentId":"worker","cwd":"file:///srv/w","runtimeWorkspaceRoots":["file:///srv/w"]}
//
// Nothing here tells whether an environment of a restored selection is still there. The harness
// keeps the order, marks those that are missing, and puts no other in their place.
//
// Records of other types, and members that this version does not know, stay in the file, and
// [Store.History] passes them on. Members that are missing have zero values.
//
// # Crashes
//
// A record is whole if its line ends with a line break. What a crash leaves behind the last
// line break is passed over by readers and cut off when the thread is next opened. A thread
// is there with its first record or not at all; a file ID.new is what a crash has left of one.
//
// Records reach the disk at the end of a turn ([Thread.EndTurn]), with [Thread.Sync] and with
// [Thread.Close]. Until then they outlive the death of the program, but not that of the machine.
// A turn that was started and never ended was interrupted.
//
// # Files that are not ours
//
// Anybody may have written to a file. A line that is not a record is a [CorruptError], which
// names the file, the line and the member; nothing is skipped and nothing is changed. JSON is
// read strictly: a name that is there twice, bytes that are not UTF-8, and more than 127 levels
// or 262,144 values are refused, when a record is written too. Lines, files, names and chains of
// forks have bounds. Links, FIFOs and folders are refused in place of files.
//
// # One writer
//
// A thread is open once. Whoever opens it a second time, in this program or in another one, is
// refused with [ErrInUse]. The lock is that of flock(2). It ends with the program, however that
// ends, and it binds only programs that ask for it. Where there is no flock, as on Windows,
// threads cannot be made or opened, and the error is [errors.ErrUnsupported].
//
// # Forks
//
// [Store.Fork] makes a thread that goes on from another one. It copies no records. Its first
// record names the thread and how many bytes of its file belong to the history of the fork, and
// with a bounded history also where that begins ([HistoryBase]). So the files of ancestors have
// to stay: without them the history of the fork is an error. The fork can be opened all the same.
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
// Files have the mode 0600, and a folder that is created has 0700. Whatever is given is written
// as it is, command lines and output included: what must not be on disk must not be given.
package threadlog
