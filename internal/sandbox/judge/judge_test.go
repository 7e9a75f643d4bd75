package judge

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/test/rig"
)

// FuzzDecode: an event that is read is sent as it was.
func FuzzDecode(f *testing.F) {
	f.Add((&Event{Kind: Asked, Question: Question{ID: 1, PID: 2, Parent: 3, Argv: []string{"a", ""}, Exe: "/a", Called: "/b", Dir: "/", Reason: "r", Matched: "[]", Proposed: []string{"a"}, Unasked: true, Decider: "/r:1:2"}}).encode())
	f.Add((&Event{Kind: Refused, Question: Question{Truncated: true}}).encode())
	f.Add((&Event{Kind: Withdrawn, Question: Question{ID: 7}}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decode(b)
		if err != nil {
			return
		}
		rig.Same(t, "encoded and decoded", e, rig.Value(decode(e.encode())))
	})
}

// TestLoader: a program that a file names as its loader runs in its place, so rules are asked about
// it; they are not about the loaders that all programs name.
func TestLoader(t *testing.T) {
	t.Parallel()
	rules, err := execpolicy.ParseClient([]execpolicy.ClientFile{{Name: "t", Text: `prefix_rule(["kubectl", "delete"], "forbidden")
prefix_rule(["ld-linux-x86-64.so.2"], "forbidden")
prefix_rule(["rm", "-rf"], "forbidden")
`}})
	rig.Must(t, err)
	j := rig.Value(New(execpolicy.AppendPacked(nil, &execpolicy.Policy{Rules: rules}), nil, -1))
	for _, tt := range []struct {
		loader, name, word string
		allowed            bool
	}{
		{"", "x", "delete", true},
		{"/usr/bin/kubectl", "x", "delete", false},
		{"/usr/bin/kubectl", "x", "get", true},
		{"/usr/lib64/ld-linux-x86-64.so.2", "x", "delete", true},
		{"", "rm", "-rf", true}, // the file is not called so
		{"/usr/bin/busybox.static", "rm", "-rf", false},
		{"/usr/bin/busybox.static", "rm", "-i", true},
	} {
		argv := []string{tt.name, tt.word}
		err := j.Decide(&Exec{Called: "/w/x", Real: []string{"/w/x"}, Heads: [][]byte{nil}, Argv: argv, Loader: tt.loader, Final: argv, Dir: "/"})
		rig.Is(t, err == nil, tt.allowed, "with the loader %q, %s %s: %v", tt.loader, tt.name, tt.word, err)
		if tt.loader == "" {
			continue
		}
		// The kernel has found another one than was judged.
		err = j.Decide(&Exec{Called: tt.loader, Real: []string{tt.loader}, Argv: argv, Loader: tt.loader, Dir: "/", Loaded: true})
		rig.Is(t, err == nil, tt.allowed, "the loader %q was loaded, %s %s: %v", tt.loader, tt.name, tt.word, err)
	}
	// The line of a script has arguments, too.
	err = j.Decide(&Exec{
		Called: "/w/s", Real: []string{"/w/s", "/w/x"}, Heads: [][]byte{[]byte("#!/w/x delete\n"), nil}, Argv: []string{"s"},
		Loader: "/usr/bin/kubectl", Final: []string{"/w/x", "delete", "/w/s"}, Dir: "/",
	})
	rig.Is(t, err != nil, true, "a script cannot run the loader of its interpreter with a word that is forbidden")
}

// TestCalled: a path with .. behind a link is not what its text says, and one through a process is unknown.
func TestCalled(t *testing.T) {
	t.Parallel()
	dir := rig.Value(filepath.EvalSymlinks(t.TempDir()))
	rig.Must(t, os.MkdirAll(dir+"/a/b", 0o755))
	for link, to := range map[string]string{"l": "a/b", "a/tool": "x", "here": "."} {
		rig.Must(t, os.Symlink(to, dir+"/"+link))
	}
	rig.Must(t, os.WriteFile(dir+"/a/x", nil, 0o755))
	for path, want := range map[string]string{
		"l/../tool": "/a/tool", dir + "/l/../x": "/a/x", "a/../a/tool": "/a/tool", "here/a/../here/a/x": "/here/here/a/x", "l/../no": "", "no/../a/x": "", "no": "/no", "here/a/x": "/here/a/x",
		"/proc/self/root/../.." + dir + "/a/x": "", "../" + filepath.Base(dir) + "/a/x": "/a/x", "./a//x": "/a/x",
	} {
		if want != "" {
			want = dir + want
		}
		rig.Is(t, Called(path, dir), want, "%s is called as", path)
	}
	rig.Is(t, Called("../tool", dir+"/l"), dir+"/a/tool", "where the folder is a link, the program is called as")
}

// TestQuestionsClosed: after Close no method touches the file that has the number of the socket by
// then. A process that is ended hangs up again, and may be closed meanwhile.
func TestQuestionsClosed(t *testing.T) { // not parallel: another test could take the number
	q, theirs, err := Pair()
	rig.Must(t, err)
	defer unix.Close(theirs)
	socket := q.socket
	q.Close()
	others := rig.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0))
	defer unix.Close(others[1])
	if others[0] != socket {
		rig.Must(t, unix.Dup3(others[0], socket, unix.O_CLOEXEC))
		unix.Close(others[0])
	}
	defer unix.Close(socket)
	q.Answer(1, true)
	q.Hang()
	q.Close()
	rig.Is[error](t, rig.Err(unix.Read(others[1], make([]byte, 16))), unix.EAGAIN, "reading the other end of that file")
}
