package filecopy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/test/rig"
)

// plant makes a tree. A name that ends in / is a directory, a content that begins with -> a link,
// one that begins with = one more name of a file.
func plant(t testing.TB, dir string, tree ...string) {
	t.Helper()
	for _, line := range tree {
		name, content, _ := strings.Cut(line, " ")
		path := filepath.Join(dir, name)
		rig.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		switch to, link := strings.CutPrefix(content, "->"); {
		case strings.HasSuffix(name, "/"):
			rig.Must(t, os.MkdirAll(path, 0o755))
		case link:
			rig.Must(t, os.Symlink(to, path))
		case strings.HasPrefix(content, "="):
			rig.Must(t, os.Link(filepath.Join(dir, content[1:]), path))
		default:
			rig.Must(t, os.WriteFile(path, []byte(content), 0o644))
		}
	}
}

// harvest is what plant would make such a tree of: sorted, without a content of links' targets.
func harvest(t testing.TB, dir string) []string {
	t.Helper()
	var tree []string
	rig.Must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name := strings.TrimPrefix(path, dir+"/")
		switch d.Type() {
		case fs.ModeDir:
			tree = append(tree, name+"/")
		case fs.ModeSymlink:
			to, err := os.Readlink(path)
			tree = append(tree, name+" ->"+to)
			return err
		case 0:
			text, err := os.ReadFile(path)
			tree = append(tree, name+" "+string(text))
			return err
		default:
			tree = append(tree, name+" "+d.Type().String())
		}
		return nil
	}))
	slices.Sort(tree)
	return tree
}

// has fails a test in which a tree lacks a line.
func has(t testing.TB, dir, line string) {
	t.Helper()
	tree := harvest(t, dir)
	rig.Is(t, slices.Contains(tree, line), true, "there is %q, which has %q", tree, line)
}

// receive returns all errors of a Receive, also those of the entries that it leaves out.
func receive(r Receiver, stream io.Reader) error {
	var noted []error
	if r.Note == nil {
		r.Note = func(path string, err error) { noted = append(noted, about(path, err)) }
	}
	err := r.Receive(context.Background(), stream)
	if err == ErrIncomplete && len(noted) > 0 {
		err = errors.Join(noted...)
	}
	return err
}

// transfer sends and receives over a pipe. The receiver's error comes first, unless it is only that
// of the sender.
func transfer(s Sender, r Receiver) error {
	in, out := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := s.Send(context.Background(), out)
		out.CloseWithError(err)
		sent <- err
	}()
	err := receive(r, in)
	if err == nil {
		_, err = io.Copy(io.Discard, in)
	}
	in.Close()
	if failed := <-sent; failed != nil && !errors.Is(failed, io.ErrClosedPipe) {
		return failed
	}
	return err
}

// TestRoundTrip: what arrives is what was sent: content, modes, times, links, names of any kind.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plant(t, dir, "src/a/f text", "src/a/none ", "src/empty/", "src/out ->/etc", "src/dangling ->../nowhere/x", "src/a/up ->../a/f",
		"src/.hidden h", "src/again =src/a/f")
	for _, name := range []string{"with space", "new\nline", "tab\t", "not\xffutf8", "ünï", "-rf", strings.Repeat("n", 254), "*", `back\slash`, ":colon", "~"} {
		rig.Must(t, os.WriteFile(filepath.Join(dir, "src/empty", "n"+name), []byte(name), 0o600))
	}
	deep := filepath.Join(dir, "src", strings.Repeat("d/", 200))
	rig.Must(t, os.MkdirAll(deep, 0o755))
	// Larger than a read, with holes in the middle and at the end.
	big, err := os.Create(filepath.Join(dir, "src/big"))
	rig.Must(t, err)
	_, err = big.WriteAt(bytes.Repeat([]byte("content "), buffered/4), 0)
	rig.Must(t, err)
	_, err = big.WriteAt([]byte("island"), 40*buffered+17)
	rig.Must(t, err)
	rig.Must(t, big.Truncate(64*buffered))
	rig.Must(t, big.Close())
	rig.Must(t, os.Chmod(filepath.Join(dir, "src/a/f"), 0o4751))
	rig.Must(t, os.Chmod(filepath.Join(dir, "src/empty"), 0o1777))
	rig.Must(t, os.Chmod(filepath.Join(dir, "src/a"), 0o555))
	old := time.Date(1969, 7, 20, 20, 17, 40, 123456789, time.UTC)
	for _, name := range []string{"src/a/f", "src/a", "src/empty", "src"} {
		rig.Must(t, os.Chtimes(filepath.Join(dir, name), old, old))
	}
	t.Cleanup(func() {
		_ = os.Chmod(filepath.Join(dir, "src/a"), 0o755)
		_ = os.Chmod(filepath.Join(dir, "dst/a"), 0o755)
	})

	var total, came int64
	s := Sender{Sources: []string{filepath.Join(dir, "src")}, Measure: true}
	r := Receiver{Target: filepath.Join(dir, "dst"), Progress: func(n, all int64) { came, total = came+n, all }}
	rig.Must(t, transfer(s, r))
	rig.Same(t, "received", harvest(t, filepath.Join(dir, "src")), harvest(t, filepath.Join(dir, "dst")))
	for _, name := range []string{".", "a", "a/f", "empty", "big", "out"} {
		want, err := os.Lstat(filepath.Join(dir, "src", name))
		rig.Must(t, err)
		got, err := os.Lstat(filepath.Join(dir, "dst", name))
		rig.Must(t, err)
		rig.Is(t, got.Mode(), want.Mode()&^fs.ModeSetuid, "%s: mode", name)
		rig.Is(t, got.ModTime(), want.ModTime(), "%s: time", name)
	}
	info, err := os.Stat(filepath.Join(dir, "dst/big"))
	rig.Must(t, err)
	blocks := info.Sys().(*syscall.Stat_t).Blocks * 512
	rig.Is(t, blocks <= 8*buffered, true, "the file with holes takes %d bytes, which are few", blocks)
	first, again := rig.Value(os.Stat(dir+"/dst/a/f")), rig.Value(os.Stat(dir+"/dst/again"))
	rig.Is(t, os.SameFile(first, again), true, "two names of a file are one file")
	const large = int64(64 * buffered)
	rig.Is(t, total >= large+300 && came >= large && came <= total, true, "%d bytes of %d have come", came, total)
}

// TestHoles: holes are not read, not sent and not written, wherever they begin and end. Nobody could
// wait for the zeros of these files.
func TestHoles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const size = 1 << 40
	var many []int64
	for i := range int64(maxExtents + 10) {
		many = append(many, 5+i<<13)
	}
	rig.Must(t, os.Mkdir(dir+"/src", 0o755))
	for name, places := range map[string][]int64{"empty": {}, "ends": {0, size - 1}, "odd": {7, 3*buffered - 1, 5*buffered + 4097, size / 2}, "many": many} {
		f := rig.Value(os.Create(dir + "/src/" + name))
		for _, at := range places {
			rig.Value(f.WriteAt([]byte{1}, at))
		}
		rig.Must(t, errors.Join(f.Truncate(size), f.Close()))
	}
	var total, came int64
	rig.Must(t, transfer(Sender{Sources: []string{dir + "/src"}, Measure: true}, Receiver{Target: dir + "/dst", Progress: func(n, all int64) { came, total = came+n, all }}))
	rig.Is(t, came, total, "bytes that have come")
	for _, entry := range rig.Value(os.ReadDir(dir + "/src")) {
		want, got := rig.Value(os.Open(dir+"/src/"+entry.Name())), rig.Value(os.Open(dir+"/dst/"+entry.Name()))
		for _, f := range []*os.File{want, got} {
			defer f.Close()
			rig.Is(t, rig.Value(f.Stat()).Size(), size, "%s: size", f.Name())
			for at := int64(0); at < size; {
				from, to := linux.NextData(int(f.Fd()), at, size)
				a, b := make([]byte, to-from), make([]byte, to-from)
				_ = rig.Value(want.ReadAt(a, from)) + rig.Value(got.ReadAt(b, from))
				rig.Is(t, bytes.Equal(a, b), true, "%s: the bytes from %d to %d are the same", entry.Name(), from, to)
				at = to
			}
		}
		takes := func(f *os.File) int64 { return rig.Value(f.Stat()).Sys().(*syscall.Stat_t).Blocks * 512 }
		rig.Is(t, takes(got) <= takes(want)+64<<10, true, "%s: %d bytes on disk, of %d", entry.Name(), takes(got), takes(want))
	}
}

// TestTargets: docker's rules, which are mostly those of cp(1). The cases are in testdata.
func TestTargets(t *testing.T) {
	t.Parallel()
	given := []string{"src/f new", "src/d/x x", "src/e/y y", "src/fl ->f", "src/dl ->d", "src/gone ->nowhere",
		"dst/dir/old o", "dst/file old", "dst/todir ->dir", "dst/tofile ->file", "dst/nowhere ->missing", "dst/tonull ->/dev/null", "dst/self ->self", "dst/tosub ->dir/sub", "dst/dir/sub/d/"}
	for _, row := range rig.Rows(t, "testdata/targets.txt", "targets", 2) {
		command, want := row[0], row[1]
		t.Run(strings.ReplaceAll(command, "/", "|"), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			plant(t, dir, given...)
			before := harvest(t, filepath.Join(dir, "dst"))
			var s Sender
			command, s.Follow = strings.CutPrefix(command, "-L ")
			words := strings.Fields(command)
			for _, source := range words[:len(words)-1] {
				s.Sources = append(s.Sources, dir+"/src/"+source)
			}
			err := transfer(s, Receiver{Target: dir + "/dst/" + words[len(words)-1], Many: len(s.Sources) > 1, Names: Names(s.Sources)})
			got := strings.Join(slices.DeleteFunc(harvest(t, filepath.Join(dir, "dst")), func(line string) bool { return slices.Contains(before, line) }), " ")
			if err != nil {
				rig.Is(t, got, "", "it fails, and there")
				got = err.Error()
			}
			rig.Is(t, got, strings.NewReplacer("$SRC", dir+"/src", "$DST", dir+"/dst").Replace(want), "the result")
		})
	}
	for _, tt := range []struct{ target, want string }{
		{"/dev/null", "/dev/null: is neither a file nor a directory"},
		{"", `"": no such file or directory`},
	} {
		rig.Says(t, transfer(Sender{Sources: []string{"filecopy_test.go"}}, Receiver{Target: tt.target}), tt.want, "the transfer")
	}
}

// TestLeftOut: what is neither a file nor a directory nor a link is named and left out, and so is
// what cannot be read. Both are an error in the end.
func TestLeftOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plant(t, dir, "src/a a", "src/z z")
	rig.Must(t, unix.Mkfifo(dir+"/src/fifo", 0o644))
	var noted []string
	note := func(path string, err error) { noted = append(noted, strings.TrimPrefix(path, dir)+": "+err.Error()) }
	for _, source := range []string{"/src", "/src/fifo"} {
		err := transfer(Sender{Sources: []string{dir + source}, Note: note}, Receiver{Target: dir + "/dst"})
		rig.Is(t, err, ErrIncomplete, "%s", source)
	}
	// So is a link that has become another thing since it was looked at.
	rig.Must(t, (&outgoing{Sender: &Sender{Note: note}}).link("src", node{unix.AT_FDCWD, dir, dir + "/src", 1}, nil))
	rig.Same(t, "noted", []string{"/src/fifo: " + errSpecial.Error(), "/src/fifo: " + errSpecial.Error(), "/src: invalid argument"}, noted)
	rig.Same(t, "received", []string{"a a", "z z"}, harvest(t, dir+"/dst"))
	// procfs has files of which nobody knows the size.
	rig.Must(t, transfer(Sender{Sources: []string{"/proc/self/status"}}, Receiver{Target: dir + "/status"}))
	text := rig.Value(os.ReadFile(dir + "/status"))
	rig.Is(t, bytes.Contains(text, []byte("\nPid:")), true, "%q has a process id", text)
}

// TestShrinks: a file that becomes shorter while it is read does not take the place of anything.
func TestShrinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plant(t, dir, "dst/big old", "src/small s")
	rig.Must(t, os.WriteFile(dir+"/src/big", make([]byte, 8*buffered), 0o644))
	var noted []error
	shrink := func(n, _ int64) { rig.Must(t, os.Truncate(dir+"/src/big", 3*buffered)) }
	s := Sender{Sources: []string{dir + "/src/."}, Progress: shrink, Note: func(_ string, err error) { noted = append(noted, err) }}
	rig.Is(t, transfer(s, Receiver{Target: dir + "/dst"}), ErrIncomplete, "")
	rig.Same(t, "received", []string{"big old", "small s"}, harvest(t, dir+"/dst"))
	rig.Is(t, errors.Join(noted...).Error(), errShrunk.Error(), "noted")
}

// TestUnreadable: what may not be read is left out, and the rest is copied.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plant(t, dir, "src/a a", "src/b b", "src/locked/c c")
	rig.Must(t, os.Chmod(dir+"/src/a", 0))
	rig.Must(t, os.Chmod(dir+"/src/locked", 0))
	t.Cleanup(func() { _ = os.Chmod(dir+"/src/locked", 0o755) })
	if f, err := os.Open(dir + "/src/a"); err == nil {
		f.Close()
		t.Skip("root reads everything")
	}
	rig.Is(t, transfer(Sender{Sources: []string{dir + "/src"}}, Receiver{Target: dir + "/dst"}), ErrIncomplete, "")
	has(t, dir+"/dst", "b b")
}

// TestQuote: a name that is printed does nothing to a terminal, and cannot be taken for two.
func TestQuote(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"/a/b c": "/a/b c", "ü": "ü", "": `""`, "a\nb": `"a\nb"`, "\x1b[2J": `"\x1b[2J"`, "\xff": `"\xff"`, " a": `" a"`, "a\u202eb": `"a\u202eb"`,
	} {
		rig.Is(t, Quote(name), want, "%q is written", name)
	}
}
