package e2e

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/execagent/execagent/test/rig"
)

// files is the environment of users of an agent's files.
func (w *way) files(t *testing.T) []string {
	return slices.Clip(append(slices.Clone(w.environ), "PATH="+filepath.Dir(rig.Agent(t))+":"+os.Getenv("PATH"), "AGENT_WAIT=5m"))
}

// TestFiles: what a user of cp, ls, cat, rm and mkdir types, and what they print. The working
// directory of the agent is empty at first. A line that ends with another exit code than 0 says so.
func TestFiles(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *way) {
		environ, there := w.files(t), w.there
		here := t.TempDir()
		for _, step := range []struct{ line, want string }{
			{`mkdir site && echo hello >site/index && echo '#!' >site/run && chmod 755 site/run && ln -s index site/link && mkdir site/empty`, ``},
			{`agent mkdir -p a/b`, ``},
			{`agent mkdir a`, "agent: a: File exists\nexit 1\n"},
			{`agent mkdir no/such`, "agent: no/such: No such file or directory\nexit 1\n"},
			{`agent ls`, "a\n"},
			{`agent cp site :a/b`, ``},
			{`agent ls a/b :a/b/site`, "a/b:\nsite\n\na/b/site:\nempty\nindex\nlink\nrun\n"},
			{`agent cat a/b/site/index :a/b/site/run`, "hello\n#!\n"},
			{`agent cat a/b a/no a/b/site/index`, "hello\nagent: a/b: is a directory\nagent: a/no: No such file or directory\nexit 1\n"},
			{`agent ls -l a/b/site | sed "s/ $(id -un) *$(id -gn) / WHO /; s/[0-9-]* [0-9:]* \([a-z]*\)\$/TIME \1/; s/[0-9-]* [0-9:]* link/TIME link/; s/WHO  */WHO /; s/^\(d.*WHO\) *[0-9]*/\1 SIZE/"`, "drwxr-xr-x WHO SIZE TIME empty\n-rw-r--r-- WHO 6 TIME index\nlrwxrwxrwx WHO 5 TIME link -> index\n-rwxr-xr-x WHO 3 TIME run\n"},
			{`agent ls -o json a/b/site/run | tr -d '\n ' | sed "s/\"modified\":\"[^\"]*\"/M/; s,\"path\":\"[^\"]*/a/b,\"path\":\"a/b,; s/\"owner\":\"$(id -un)\",\"group\":\"$(id -gn)\"/ME/"`, `[{"name":"a/b/site/run","path":"a/b/site/run","type":"file","link":false,"size":3,M,"mode":"-rwxr-xr-x",ME}]`},
			{`ln -s nowhere gone; agent cp gone :a/gone; agent ls a; agent ls -l :a/gone; agent ls -l a | grep -c -e '-> nowhere'; agent ls -o json a | grep missing; agent rm a/gone`, "b\nagent: :a/gone: No such file or directory\n1\n    \"type\": \"missing\",\n"},
			{`agent ls -o json empty 2>&1 >/dev/null`, "agent: empty: No such file or directory\nexit 1\n"},
			{`agent ls -o json a/b/site/empty`, "[]\n"},
			{`agent cp :a/b/site back && find back -printf '%p %y %m %l\n' | sort`, "back d 755 \nback/empty d 755 \nback/index f 644 \nback/link l 777 index\nback/run f 755 \n"},
			{`agent cp :a/b/site/index :a/b/site/run back/empty && ls back/empty`, "index\nrun\n"},
			{`agent cp site/. :a && agent ls a`, "b\nempty\nindex\nlink\nrun\n"},
			{`agent cp :a/index - | tar x -O`, "hello\n"},
			{`tar c site | agent cp - :a/empty && agent ls a/empty`, "site\n"},
			{`agent cp site/index :new && agent cat new`, "hello\n"},
			{`agent cp site :new`, "agent: $THERE/new: not a directory\nexit 1\n"},
			{`agent cp site/index :new/`, "agent: $THERE/new/: not a directory\nexit 1\n"},
			{`agent cp :missing back`, "agent: $THERE/missing: no such file or directory\nexit 1\n"},
			{`agent cp missing :new`, "agent: missing: no such file or directory\nexit 1\n"},
			{`agent cp :new missing/new`, "agent: missing: no such file or directory\nexit 1\n"},
			{`echo nonsense | agent cp - :a`, "agent: standard input is not a tar archive\nexit 1\n"},
			{`tar cz site | agent cp - :a`, "agent: the archive is compressed: unpack it with gzip -d first\nexit 1\n"},
			{`agent cp - :a </dev/null`, ""},
			{`mkfifo site/p && agent cp site :a/p`, "agent: site/p: left out: neither a file nor a directory nor a link\nexit 1\n"},
			{`agent cp site/p :a/q; rm site/p; agent ls a/p`, "agent: site/p: left out: neither a file nor a directory nor a link\nempty\nindex\nlink\nrun\n"},
			{`agent cp :/dev/null .`, "agent: /dev/null: left out: neither a file nor a directory nor a link\nexit 1\n"},
			{`agent cp -rpf site/run :a/p/ && agent ls -lh a/p/run | sed 's/ 2.*//; s/ .* / /'`, "-rwxr-xr-x 3\n"},
			{`agent cp :a/run /dev/null`, "agent: /dev/null: is neither a file nor a directory\nexit 1\n"},
			{`agent rm a`, "agent: a: is a directory: use -r\nexit 1\n"},
			{`agent rm a/link a/run && agent ls a`, "b\nempty\nindex\np\n"},
			{`agent rm -r a && agent ls`, "new\n"},
			{`agent rm a new`, "agent: a: No such file or directory\nexit 1\n"},
			{`agent rm -f a new; agent ls`, ""},
			{`agent rm -rf /`, "agent: /: is not removed, because it is the root directory\nexit 1\n"},
			{`agent mkdir keep; ln -s ${THERE%/*} $HOME/up`, ""},
			{`agent rm -rf . :`, "agent: .: is not removed, because it ends in . or .. and not in a name\nagent: :: is not removed, because it ends in . or .. and not in a name\nexit 1\n"},
			{`agent rm -rf .. ./ keep/.. keep/. 2>&1 | grep -c 'not in a name'`, "4\n"},
			{`agent rm -rf $THERE $THERE/ ${THERE%/*} $HOME/up/${THERE##*/} 2>&1 | sed '/: waiting for/d; s/^.*: //'`, strings.Repeat("is not removed, because it holds the agent's working directory\n", 4)},
			{`agent ls; agent rm -rf $HOME/up keep; agent ls`, "keep\n"},
			// Names are bytes. The two names below are different files, and no step may take one for the other.
			{`X=$(printf 'x\377'); Y=$(printf 'x\357\277\275'); echo bytes >$X; echo text >$Y; agent cp $X $Y : && agent cat $X $Y && agent cp $Y :$X && agent cat $X &&
				agent cp $X : && agent cp :$X . && cat $X && agent mkdir $X.d && agent ls -l | grep -a -c -e " $X$" -e " $X.d$" -e " $Y$" && agent rm $X && agent cat $Y $X`,
				"bytes\ntext\ntext\nbytes\n3\ntext\nagent: \"x\\xff\": No such file or directory\nexit 1\n"},
			{`agent cp -q --timeout 1ms site :x`, "agent: timed out after 1ms\nexit 124\n"},
		} {
			cmd := rig.Command(t, "sh", "-c", step.line)
			cmd.Env, cmd.Dir = append(slices.Clone(environ), "HOME="+here, "THERE="+there, "TZ=UTC"), here
			rig.Is(t, says(t, cmd), strings.ReplaceAll(step.want, "$THERE", there), "%s", step.line)
		}
	})
}

// forest makes a tree with a large file and many small ones.
func forest(t *testing.T, dir string, size int) {
	t.Helper()
	random := rand.NewChaCha8([32]byte{1})
	large := make([]byte, size)
	_, _ = random.Read(large) // it never fails
	for name, content := range map[string][]byte{"large": large, "sub/a": large[:100], "sub/zero": nil, "name with\nnew line": large[:300_000]} {
		path := filepath.Join(dir, name)
		rig.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		rig.Must(t, os.WriteFile(path, content, 0o640))
	}
	for i := range size >> 16 {
		rig.Must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint("sub/", i)), large[i:2*i], 0o600))
	}
}

// sums are the names in a tree with their modes and the SHA-256 of what is in them, and with their
// times.
func sums(t *testing.T, dir string, times bool) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		fmt.Fprintf(&all, "%q %v %x", strings.TrimPrefix(path, dir), info.Mode(), sha256.Sum256(content))
		if times {
			fmt.Fprint(&all, " ", info.ModTime().UnixNano())
		}
		fmt.Fprintln(&all)
		return err
	})
	rig.Must(t, err)
	return all.String()
}

// TestCopyThroughCuts: connections that are lost one after the other change nothing of a copy,
// either way, as files or as an archive.
func TestCopyThroughCuts(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *way) {
		environ, proxy, there := w.files(t), w.proxy, w.there
		here := t.TempDir()
		size, cut := 8<<20, int64(2_000_000)
		if rig.Runs(rig.Merge) {
			size, cut = 48<<20, 6_000_000
		}
		forest(t, filepath.Join(here, "src"), size)

		for _, step := range []struct{ line, tree string }{
			{"agent cp src :up", there + "/up"},
			{"agent cp :up down", here + "/down"},
			{"agent mkdir in && tar c -C src . | agent cp - :in", there + "/in"},
			{"mkdir out && agent cp :up/. - | tar x -C out", here + "/out"},
			{"mkdir cat && cp -a src/. cat && agent cat up/large >cat/large && touch -r src/large cat/large", here + "/cat"},
		} {
			before, _ := proxy.Seen()
			stop := proxy.CutEach(cut)
			cmd := rig.Command(t, "sh", "-c", step.line)
			cmd.Env, cmd.Dir = environ, here
			said := says(t, cmd)
			stop()
			rig.Is(t, said, "", "%s", step.line)
			times := !strings.Contains(step.line, "tar") // which has no nanoseconds
			rig.Is(t, sums(t, step.tree, times), sums(t, filepath.Join(here, "src"), times), "%s: what arrives", step.line)
			after, _ := proxy.Seen()
			rig.Is(t, after-before < 3, false, "%s: the connection was cut %d times", step.line, after-before-1)
		}
	})
}

// TestCopyInterrupted: who ends a copy in the middle finds what was there before, and nothing else,
// on both sides; also where the client or the agent is killed.
func TestCopyInterrupted(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *way) {
		environ, proxy, there := w.files(t), w.proxy, w.there
		here := t.TempDir()
		large := bytes.Repeat([]byte("new content "), 700_000)
		for _, tt := range []struct {
			up     bool
			signal syscall.Signal
			code   int
		}{
			{true, syscall.SIGINT, 130}, {false, syscall.SIGINT, 130}, {true, syscall.SIGTERM, 143}, {false, syscall.SIGTERM, 143},
			{true, syscall.SIGKILL, -1}, {false, syscall.SIGKILL, -1},
		} {
			from, to, args := filepath.Join(here, "file"), filepath.Join(there, "file"), []string{"cp", "file", ":file"}
			if !tt.up {
				from, to, args = to, from, []string{"cp", ":file", "file"}
			}
			rig.Must(t, os.WriteFile(from, large, 0o644))
			rig.Must(t, os.WriteFile(to, []byte("old"), 0o644))
			held := make(chan struct{})
			proxy.CutAfter(3_000_000, func() {
				if tt.up {
					proxy.HoldUp()
				} else {
					proxy.HoldDown()
				}
				close(held)
			})
			cmd := exec.Command(rig.Agent(t), args...)
			cmd.Env, cmd.Dir = environ, here
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			p := rig.Start(t, cmd)
			p.Until(t, "the copy is held up", isClosed(held))
			rig.Must(t, p.Process.Signal(tt.signal))
			proxy.Pass()
			rig.Is(t, ending(withoutWaits(stderr.String()), p.Exit(t)), ending("", tt.code), "%v, up %v", tt.signal, tt.up)
			rig.Is(t, textOf(os.ReadFile(to)), "old", "%v, up %v: there is", tt.signal, tt.up)
			for _, dir := range []string{here, there} {
				rig.Is(t, fmt.Sprint(rig.Value(filepath.Glob(dir+"/.*"))), "[]", "%v, up %v: left", tt.signal, tt.up)
			}
		}
	})
}

// isClosed returns a function that reports whether the channel is closed.
func isClosed(c <-chan struct{}) func() bool {
	return func() bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
}

// TestCopyProgress: on a terminal a bar shows how far the copy is. A script sees nothing of it.
func TestCopyProgress(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *way) {
		environ, proxy := w.files(t), w.proxy
		here := t.TempDir()
		rig.Must(t, os.WriteFile(filepath.Join(here, "file"), bytes.Repeat([]byte("content "), 1<<20), 0o644))
		for _, args := range [][]string{{"cp", "file", ":file"}, {"cp", ":file", "back"}} {
			// It goes on when the bar has been seen.
			held := make(chan struct{})
			proxy.CutAfter(3_000_000, func() {
				proxy.HoldUp()
				proxy.HoldDown()
				close(held)
			})
			cmd := exec.Command(rig.Agent(t), args...)
			cmd.Env, cmd.Dir = append(slices.Clone(environ), "NO_COLOR=1"), here
			u := at(t, cmd, &pty.Winsize{Rows: 24, Cols: 100})
			rig.Until(t, "the copy is held up", isClosed(held))
			u.sees(t, "[=", "% ", "of 8.4 MB")
			u.sees(t, "/s")
			u.sees(t, " left")
			proxy.Pass()
			u.sees(t, "] 100%  8.4 MB of 8.4 MB", "\r\n")
			u.ends(t, 0)
		}
		cmd := exec.Command(rig.Agent(t), "cp", "-q", "file", ":file")
		cmd.Env, cmd.Dir = environ, here
		u := at(t, cmd, &pty.Winsize{Rows: 24, Cols: 100})
		rig.Is(t, withoutWaits(u.exits(t)), "", "--quiet shows")
		u.ends(t, 0)
	})
}
