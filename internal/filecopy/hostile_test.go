package filecopy

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// archive makes a stream of entries; sealed with the records of ours.
func archive(t testing.TB, sealed bool, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	record := func(key, value string) {
		if sealed {
			rig.Must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{key: value}}))
		}
	}
	record(recordBegin, version)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.to, Mode: e.mode, Size: int64(len(e.content)), Format: tar.FormatPAX}
		if e.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		for key, value := range map[string]string{recordSize: e.size, recordExtents: e.extents} {
			if value != "" {
				h.PAXRecords = map[string]string{key: value}
			}
		}
		rig.Must(t, w.WriteHeader(h))
		_, err := io.WriteString(w, e.content)
		rig.Must(t, err)
		if h.Typeflag == tar.TypeReg && e.size == "" {
			sum := sha256.Sum256([]byte(e.content))
			record(recordSum, hex.EncodeToString(sum[:]))
		}
	}
	record(recordEnd, strconv.Itoa(len(entries)))
	rig.Must(t, w.Close())
	return out.Bytes()
}

type entry struct {
	name, content string
	kind          byte // 0: a file
	to            string
	mode          int64
	size, extents string // of a file with holes, and of its piece
}

// site is a target with a folder beside it that nothing may be written to.
func site(t testing.TB) (root, target string) {
	t.Helper()
	root = t.TempDir()
	plant(t, root, "outside/kept kept", "target/file old", "target/dir/file old", "target/out ->../outside", "target/self ->dir", "target/keptlink ->../outside/kept")
	return root, filepath.Join(root, "target")
}

// unharmed: outside of the target all is as it was.
func unharmed(t testing.TB, root string) {
	t.Helper()
	rig.Same(t, "outside", []string{"kept kept"}, harvest(t, filepath.Join(root, "outside")))
	entries := rig.Value(os.ReadDir(root))
	rig.Is(t, len(entries), 2, "the target and what is beside it, %v", entries)
}

// noTemporary: nothing temporary is left.
func noTemporary(t testing.TB, target string) {
	t.Helper()
	for _, line := range harvest(t, target) {
		rig.Is(t, strings.Contains(line, ".agent-cp-"), false, "%s is left", line)
	}
}

// TestHostile: whatever a stream says, nothing is written outside the target, and what cannot be is
// refused.
func TestHostile(t *testing.T) {
	t.Parallel()
	const dir, link, hard = tar.TypeDir, tar.TypeSymlink, tar.TypeLink
	deep := strings.Repeat("d/", maxDepth) + "f"
	for _, tt := range []struct {
		name    string
		entries []entry
		want    string // a part of the error, "" for none
		after   string // a line of the target afterwards
	}{
		{"parent", []entry{{name: "../outside/kept", content: "x"}}, "leads out", ""},
		{"parent inside", []entry{{name: "dir/../../outside/kept", content: "x"}}, "leads out", ""},
		{"parent that stays", []entry{{name: "dir/../file", content: "x"}}, "leads out", "file old"},
		{"parent directory", []entry{{name: "../new", kind: dir}}, "leads out", ""},
		{"only parent", []entry{{name: "..", kind: dir}}, "leads out", ""},
		{"absolute", []entry{{name: "/tmp/x", content: "x"}}, "absolute", ""},
		{"absolute directory", []entry{{name: "/", kind: dir}}, "absolute", ""},
		{"too deep", []entry{{name: deep, content: "x"}}, "deep", ""},
		{"too long", []entry{{name: strings.Repeat("n/", maxName/2) + "x", content: "x"}}, "a name in the stream has", ""},
		{"name too long for a file system", []entry{{name: strings.Repeat("n", 256), content: "x"}}, "file name too long", ""},
		{"through a link that is there", []entry{{name: "out/kept", content: "x"}}, "out/kept: not a directory", ""},
		{"through a link inside", []entry{{name: "self/file", content: "x"}}, "not a directory", "dir/file old"},
		{"a directory on a link", []entry{{name: "out", kind: dir}, {name: "out/kept", content: "x"}}, "not a directory", "out ->../outside"},
		{"through a link of the stream", []entry{{name: "l", kind: link, to: "../outside"}, {name: "l/kept", content: "x"}}, "not a directory", "l ->../outside"},
		{"through an absolute link", []entry{{name: "l", kind: link, to: "/"}, {name: "l/tmp/x", content: "x"}}, "not a directory", "l ->/"},
		{"through two links", []entry{{name: "l", kind: link, to: "."}, {name: "l/m", kind: link, to: ".."}, {name: "l/m/x", content: "x"}}, "not a directory", ""},
		{"onto a link to a file", []entry{{name: "keptlink", content: "x"}}, "", "keptlink x"},
		{"a link in the place of a directory", []entry{{name: "dir", kind: link, to: "../outside"}}, "is a directory", "dir/file old"},
		{"a file in the place of a directory", []entry{{name: "dir", content: "x"}}, "is a directory", "dir/file old"},
		{"a directory in the place of a file", []entry{{name: "file", kind: dir}}, "not a directory", "file old"},
		{"a link replaces a directory of the stream", []entry{{name: "n", kind: dir}, {name: "n", kind: link, to: "../outside"}, {name: "n/kept", content: "x"}}, "is a directory", "n/"},
		{"a hard link to the outside", []entry{{name: "h", kind: hard, to: "../outside/kept"}}, "leads out", ""},
		{"a hard link by an absolute name", []entry{{name: "h", kind: hard, to: "/etc/passwd"}}, "absolute", ""},
		{"a hard link through a link", []entry{{name: "h", kind: hard, to: "out/kept"}}, "not a directory", ""},
		{"a hard link to a link", []entry{{name: "h", kind: hard, to: "keptlink"}}, "is no file", ""},
		{"a hard link to a directory", []entry{{name: "h", kind: hard, to: "dir"}}, "is no file", ""},
		{"a hard link to nothing", []entry{{name: "h", kind: hard, to: "nothing"}}, "no such file", ""},
		{"a hard link to itself", []entry{{name: "file", kind: hard, to: "file"}}, "", "file old"},
		{"a hard link to the target", []entry{{name: "h", kind: hard, to: "."}}, "is a directory", ""},
		{"writing by a hard link", []entry{{name: "h", kind: hard, to: "file"}, {name: "h", content: "x"}}, "", "file old"},
		{"the target is a file", []entry{{name: ".", content: "x"}}, "which is no directory", ""},
		{"the target is a link", []entry{{name: "./", kind: link, to: "x"}}, "which is no directory", ""},
		{"a link to nothing", []entry{{name: "l", kind: link, to: ""}}, "no such file", ""},
		{"a link that is too long", []entry{{name: "l", kind: link, to: strings.Repeat("n", 5000)}}, "file name too long", ""},
		{"set-ID", []entry{{name: "s", content: "x", mode: 0o6777}, {name: "g", kind: dir, mode: 0o2777}}, "", "s x"},
		{"character device", []entry{{name: "c", kind: tar.TypeChar}, {name: "after", content: "x"}}, "left out", "after x"},
		{"block device", []entry{{name: "b", kind: tar.TypeBlock}, {name: "after", content: "x"}}, "left out", "after x"},
		{"fifo", []entry{{name: "p", kind: tar.TypeFifo}, {name: "after", content: "x"}}, "left out", "after x"},
		{"unknown kind", []entry{{name: "u", kind: 'Q'}, {name: "after", content: "x"}}, "left out", "after x"},
		{"duplicates", []entry{{name: "file", content: "1"}, {name: "file", content: "2"}, {name: "dir", kind: dir}, {name: "dir", kind: dir}}, "", "file 2"},
		{"not UTF-8", []entry{{name: "\xff\xfe", content: "x"}}, "", "\xff\xfe x"},
		{"new line", []entry{{name: "a\nb", content: "x"}}, "", "a\nb x"},
		{"dots", []entry{{name: "./././/new//./x", content: "x"}, {name: "...", content: "y"}}, "", "new/x x"},
		{"back to a directory", []entry{{name: "n", kind: dir}, {name: "n/a", content: "a"}, {name: "m", content: "m"}, {name: "n/b", content: "b"}}, "", "n/b b"},
	} {
		for _, sealed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s %v", tt.name, sealed), func(t *testing.T) {
				t.Parallel()
				root, target := site(t)
				err := receive(Receiver{Target: target, Plain: !sealed}, bytes.NewReader(archive(t, sealed, tt.entries...)))
				unharmed(t, root)
				noTemporary(t, target)
				rig.Says(t, err, tt.want, "the transfer")
				if tt.after != "" {
					has(t, target, tt.after)
				}
				for _, name := range []string{"s", "g"} {
					if info, err := os.Stat(filepath.Join(target, name)); err == nil && info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
						t.Errorf("%s has the mode %v", name, info.Mode())
					}
				}
				for _, name := range []string{"c", "b", "p", "u"} {
					rig.Is(t, rig.Err(os.Lstat(filepath.Join(target, name))), os.ErrNotExist, "%s", name)
				}
			})
		}
	}
}

// TestNotAskedFor: a stream brings nothing but what was asked for, whatever else it has. What it
// brings under a name that was asked for may be a link.
func TestNotAskedFor(t *testing.T) {
	t.Parallel()
	const dir, link, hard = tar.TypeDir, tar.TypeSymlink, tar.TypeLink
	const refused = "nobody has asked for"
	for _, tt := range []struct {
		name    string
		target  string // below the target
		entries []entry
		want    string // a part of the error, "" for none
		after   string // what is new or changed in the target
	}{
		{"a file beside", "", []entry{{name: "report", content: "r"}, {name: ".bashrc", content: "x"}}, refused, "report r"},
		{"a file first", "", []entry{{name: ".bashrc", content: "x"}, {name: "report", content: "r"}}, refused, ""},
		{"over a file", "", []entry{{name: "file", content: "x"}}, refused, ""},
		{"a directory", "", []entry{{name: ".ssh", kind: dir}}, refused, ""},
		{"a file in a directory", "", []entry{{name: ".ssh/authorized_keys", content: "x"}}, refused, ""},
		{"a link", "", []entry{{name: ".bashrc", kind: link, to: "report"}}, refused, ""},
		{"a name of a file here", "", []entry{{name: "report", kind: hard, to: "file"}}, refused, ""},
		{"a device", "", []entry{{name: "c", kind: tar.TypeChar}}, refused, ""},
		{"what is in a directory", "", []entry{{name: "./report", content: "x"}}, refused, ""},
		{"the directory itself", "", []entry{{name: ".", kind: dir}}, refused, ""},
		{"a part of the name", "", []entry{{name: "repor", content: "x"}}, refused, ""},
		{"a longer name", "", []entry{{name: "report.exe", content: "x"}}, refused, ""},
		{"another name for a new one", "new", []entry{{name: "x", content: "x"}}, refused, ""},
		{"what is in a directory for a new name", "new", []entry{{name: ".", kind: dir}, {name: "./x", content: "x"}}, refused, ""},
		{"what was asked for", "", []entry{{name: "report", content: "r"}, {name: "log", kind: dir}, {name: "log/a", content: "a"}}, "", "log/ log/a a report r"},
		{"a link that was asked for", "", []entry{{name: "report", kind: link, to: "/etc"}, {name: "log", kind: hard, to: "report"}}, "is no file", "report ->/etc"},
		{"through a link that was asked for", "", []entry{{name: "report", kind: link, to: "../outside"}, {name: "report/kept", content: "x"}}, "not a directory", "report ->../outside"},
		{"for a new name", "new", []entry{{name: "report", kind: dir}, {name: "report/a", content: "a"}}, "", "new/ new/a a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root, target := site(t)
			before := harvest(t, target)
			r := Receiver{Target: filepath.Join(target, tt.target), Names: Names([]string{"/w/report", "/w/log/"})}
			err := receive(r, bytes.NewReader(archive(t, true, tt.entries...)))
			rig.Says(t, err, tt.want, "the transfer")
			unharmed(t, root)
			got := slices.DeleteFunc(harvest(t, target), func(line string) bool { return slices.Contains(before, line) })
			rig.Is(t, strings.Join(got, " "), tt.after, "what is new")
		})
	}
	for sources, want := range map[string][]string{
		"/w/a": {"a"}, "/w/a/": {"a"}, "/a b/c": {"a", "c"}, "/w/a/.": {"."}, "/": {"."}, "/a /b/.": {"a", "."}, ". a": {".", "a"}, "a/..": {"."},
	} {
		rig.Same(t, "the names of "+sources, want, Names(strings.Fields(sources)))
	}
}

// TestLinkAtTarget: a link that the agent has made in one copy is not followed by the next one,
// whatever that brings, and the contents of a directory come in no other kind of file.
func TestLinkAtTarget(t *testing.T) {
	t.Parallel()
	const dir, link, hard = tar.TypeDir, tar.TypeSymlink, tar.TypeLink
	const refused, replaced, none = "no copy follows", "", "which is no directory"
	for i, tt := range []struct {
		source, leads, want, after string
		entries                    []entry
	}{
		{"/w/r", "outside/kept", replaced, "new x", []entry{{name: "r", content: "x"}}},
		{"/w/r", "outside/none", replaced, "new/ new/kept x", []entry{{name: "r", kind: dir}, {name: "r/kept", content: "x"}}},
		{"/w/r", "outside/kept", "not a directory", "new ->../outside/kept", []entry{{name: "r/kept", content: "x"}}},
		{"/w/r", "outside", refused, "new ->../outside", []entry{{name: "r", kind: dir}, {name: "r/kept", content: "x"}}},
		{"/w/r/.", "outside", refused, "new ->../outside", []entry{{name: ".", kind: dir}, {name: "./kept", content: "x"}}},
		{"/w/r/.", "outside/kept", replaced, "new/ new/kept x", []entry{{name: ".", kind: dir}, {name: "./kept", content: "x"}}},
		{"/w/r/.", "", none, "", []entry{{name: ".", kind: link, to: "../outside"}, {name: "./kept", content: "x"}}},
		{"/w/r/.", "", none, "", []entry{{name: "./.", content: "x"}}},
		{"/w/r/.", "", none, "new/ new/f x", []entry{{name: ".", kind: dir}, {name: "./f", content: "x"}, {name: ".", kind: hard, to: "./f"}}},
		{"/w/r/.", "", "nobody has asked for", "", []entry{{name: "r", kind: link, to: "../outside"}}},
		{"/w/r/.", "", "is no file", "new/", []entry{{name: ".", kind: dir}, {name: "./f", kind: hard, to: "."}}},
		{"/w/r", "", "holes in a form of other programs", "", []entry{{name: "r", size: "9"}}},
	} {
		root, target := site(t)
		before := harvest(t, target)
		if tt.leads != "" {
			plant(t, target, "new ->../"+tt.leads)
		}
		stream := bytes.Replace(archive(t, true, tt.entries...), []byte(recordSize), []byte("GNU.sparse.abc"), 1)
		err := receive(Receiver{Target: target + "/new", Names: Names([]string{tt.source})}, bytes.NewReader(stream))
		rig.Says(t, err, tt.want, "transfer %d", i)
		unharmed(t, root)
		got := slices.DeleteFunc(harvest(t, target), func(line string) bool { return slices.Contains(before, line) })
		rig.Is(t, strings.Join(got, " "), tt.after, "what transfer %d has made", i)
	}
}

// TestBroken: a stream of ours that is not whole, or says another thing than it has, leaves
// what was there.
func TestBroken(t *testing.T) {
	t.Parallel()
	good := archive(t, true, entry{name: "file", content: strings.Repeat("new ", 1000)}, entry{name: "dir", kind: tar.TypeDir}, entry{name: "dir/file", content: "new"})
	other := archive(t, true, entry{name: "other", content: "x"})
	t.Run("cut", func(t *testing.T) {
		t.Parallel()
		end := bytes.LastIndex(good, []byte(recordEnd))
		for n := 0; n < end; n += 307 {
			root, target := site(t)
			err := (&Receiver{Target: target}).Receive(context.Background(), bytes.NewReader(good[:n]))
			rig.Is(t, err, ErrCut, "cut after %d bytes", n)
			unharmed(t, root)
			noTemporary(t, target)
			got := harvest(t, target)
			for _, line := range got {
				if name, text, _ := strings.Cut(line, " "); strings.HasSuffix(name, "file") && text != "old" && text != "new" && text != strings.Repeat("new ", 1000) {
					t.Errorf("cut after %d bytes: %q", n, line)
				}
			}
		}
	})
	for name, stream := range map[string][]byte{
		"a bit":         bytes.Replace(good, []byte("new new"), []byte("new nev"), 1),
		"no sum":        bytes.Replace(good, []byte(recordSum), []byte("EXECAGENT.sha25x"), 1),
		"plain":         archive(t, false, entry{name: "file", content: "x"}),
		"version":       bytes.Replace(good, []byte(recordBegin+"=1"), []byte(recordBegin+"=2"), 1),
		"count":         bytes.Replace(good, []byte(recordEnd+"=3"), []byte(recordEnd+"=4"), 1),
		"two":           slices.Concat(good[:len(good)-1024], other),
		"a piece alone": archive(t, true, entry{name: "file", content: strings.Repeat("x", 40), extents: "2"}),
		"a piece of a file without holes": bytes.Replace(archive(t, true, entry{name: "file"}, entry{name: "file", content: strings.Repeat("x", 40), extents: "2"}),
			[]byte(recordSum), []byte("EXECAGENT.sha25x"), 1),
		"an extent beyond the end": archive(t, true, entry{name: "file", size: "4"}, entry{content: strings.Repeat("\x00", 15) + "\x05hello", extents: "1"}),
		"an extent before the last": archive(t, true, entry{name: "file", size: "9"},
			entry{content: strings.Repeat("\x00", 7) + "\x04" + strings.Repeat("\x00", 7) + "\x01" + strings.Repeat("\x00", 15) + "\x01ab", extents: "2"}),
		"more than its extents": archive(t, true, entry{name: "file", size: "9"}, entry{content: strings.Repeat("\x00", 15) + "\x01ab", extents: "1"}),
		"a negative size":       archive(t, true, entry{name: "file", size: "-1"}),
		"nothing":               nil,
		"no tar at all":         bytes.Repeat([]byte("no tar at all "), 1000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, target := site(t)
			err := (&Receiver{Target: target}).Receive(context.Background(), bytes.NewReader(stream))
			rig.Is(t, err != nil, true, "%v: an error", err)
			unharmed(t, root)
			noTemporary(t, target)
			if name != "count" && name != "two" {
				has(t, target, "file old")
			}
		})
	}
}

// TestHuge: what an entry says of its size allocates nothing, and takes the place of nothing.
func TestHuge(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{1 << 40, maxFile, maxFile + 1, 1<<63 - 1} {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		rig.Must(t, w.WriteHeader(&tar.Header{Name: "file", Typeflag: tar.TypeReg, Size: size, Format: tar.FormatPAX}))
		_, target := site(t)
		err := (&Receiver{Target: target, Plain: true}).Receive(context.Background(), &out)
		rig.Is(t, err != nil, true, "%d bytes: %v: an error", size, err)
		has(t, target, "file old")
	}
	// Sizes that are no numbers, or less than nothing, are for archive/tar.
	_, target := site(t)
	negative := bytes.Replace(archive(t, false, entry{name: "file", content: "x"}), []byte("00000000001"), []byte("-0000000001"), 1)
	err := (&Receiver{Target: target, Plain: true}).Receive(context.Background(), bytes.NewReader(negative))
	rig.Is(t, err != nil, true, "%v: an error of a negative size", err)
}

// TestManyEntries: a stream may have very many entries.
func TestManyEntries(t *testing.T) {
	t.Parallel()
	count := 300
	if rig.Runs(rig.Nightly) {
		count = 100_000
	} else if rig.Runs(rig.Merge) {
		count = 3000
	}
	in, out := io.Pipe()
	go func() {
		w := tar.NewWriter(out)
		for i := range count {
			if err := w.WriteHeader(&tar.Header{Name: "l", Linkname: strconv.Itoa(i), Typeflag: tar.TypeSymlink, Format: tar.FormatUSTAR}); err != nil {
				out.CloseWithError(err)
				return
			}
		}
		out.CloseWithError(w.Close())
	}()
	_, target := site(t)
	rig.Must(t, (&Receiver{Target: target, Plain: true}).Receive(context.Background(), in))
	has(t, target, "l ->"+strconv.Itoa(count-1))
	noTemporary(t, target)
}

// TestLinkMeanwhile: somebody who may write to the target puts links in the place of directories
// while files are written there. All of them stay in the target.
func TestLinkMeanwhile(t *testing.T) {
	t.Parallel()
	root, target := site(t)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			// The directory goes away and comes back; in between there is a link.
			_ = os.Rename(target+"/d", target+"/moved")
			_ = os.Symlink("../outside", target+"/d")
			_ = os.Remove(target + "/d")
			_ = os.Rename(target+"/moved", target+"/d")
		}
	}()
	rounds := 50
	if rig.Runs(rig.Merge) {
		rounds = 300
	}
	for i := range rounds {
		stream := archive(t, true, entry{name: "d", kind: tar.TypeDir}, entry{name: "d/kept", content: strconv.Itoa(i)}, entry{name: "d/e/kept", content: "x"})
		_ = (&Receiver{Target: target}).Receive(context.Background(), bytes.NewReader(stream)) // whether it fails does not matter
	}
	close(stop)
	<-stopped
	unharmed(t, root)
	noTemporary(t, target)
}

// TestNoRoom: on a full disk what was there stays, whole.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("no file system can be mounted: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	plant(t, dir, "file old")
	big := strings.Repeat("content ", 1<<18)
	stream := archive(t, true, entry{name: "small", content: "s"}, entry{name: "file", content: big}, entry{name: "never", content: "x"})
	err := (&Receiver{Target: dir}).Receive(context.Background(), bytes.NewReader(stream))
	rig.Is[error](t, err, unix.ENOSPC, "")
	rig.Says(t, err, dir+"/file: no space left on device", "the transfer")
	rig.Same(t, "what is there", []string{"file old", "small s"}, harvest(t, dir))

	// Nor is there any where nothing may be written.
	rig.Must(t, unix.Mount("none", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	err = receive(Receiver{Target: dir}, bytes.NewReader(archive(t, true, entry{name: "file", content: "x"})))
	rig.Is[error](t, err, unix.EROFS, "")
	rig.Same(t, "what is there", []string{"file old", "small s"}, harvest(t, dir))
}

// TestOneFails: a file or a folder that cannot be written is named, what is below the folder comes no
// more, and the rest is copied.
func TestOneFails(t *testing.T) {
	t.Parallel()
	root, target := site(t)
	plant(t, target, "busy/x x", "n")
	const dir = tar.TypeDir
	stream := archive(t, true, entry{name: "n", kind: dir}, entry{name: "n/deep", kind: dir}, entry{name: "n/deep/er", content: "x"}, entry{name: "dir", content: "x"},
		entry{name: "busy", content: strings.Repeat("x", 3*buffered)}, entry{name: "busy/x", content: "new"}, entry{name: "z", content: "z"})
	var noted []string
	r := Receiver{Target: target, Note: func(path string, err error) {
		noted = append(noted, strings.TrimPrefix(path, target+"/")+": "+err.Error())
	}}
	rig.Is(t, receive(r, bytes.NewReader(stream)), ErrIncomplete, "")
	rig.Same(t, "noted", []string{"n: not a directory", "dir: is a directory", "busy: is a directory"}, noted)
	has(t, target, "busy/x new")
	has(t, target, "z z")
	noTemporary(t, target)
	unharmed(t, root)
}

// TestInPlace: a file that can be written and not replaced is written in place, but only when its
// content has come. Others that hold it open see the new content.
func TestInPlace(t *testing.T) {
	t.Parallel()
	_, target := site(t)
	plant(t, target, "dir/tail")
	if unix.Geteuid() == 0 {
		if err := unix.Mount(target+"/file", target+"/dir/file", "", unix.MS_BIND, ""); err != nil {
			t.Skipf("nothing can be mounted: %v", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(target+"/dir/file", unix.MNT_DETACH) })
	} else {
		rig.Must(t, os.Remove(target+"/dir/file"))
		rig.Must(t, os.Link(target+"/file", target+"/dir/file"))
		rig.Must(t, os.Chmod(target+"/dir", 0o555))
		t.Cleanup(func() { _ = os.Chmod(target+"/dir", 0o755) })
	}
	stream := archive(t, true, entry{name: "dir/file", content: "new and longer", mode: 0o600}, entry{name: "dir/../x", content: "y"})
	rig.Says(t, receive(Receiver{Target: target}, bytes.NewReader(stream)), "leads out", "the transfer")
	has(t, target, "file new and longer")
	rig.Is(t, rig.Value(os.Stat(target+"/file")).Mode(), 0o600, "mode")
	cut := archive(t, true, entry{name: "dir/file", content: strings.Repeat("cut ", buffered)})
	rig.Is(t, receive(Receiver{Target: target}, bytes.NewReader(cut[:len(cut)/2])), ErrCut, "")
	has(t, target, "file new and longer")
	rig.Must(t, receive(Receiver{Target: target + "/dir/file"}, bytes.NewReader(archive(t, true, entry{name: "f", content: "short"}))))
	has(t, target, "file short")
	noTemporary(t, target)
}

// TestEnded: when the copy is given up, nothing temporary is left and what was there is.
func TestEnded(t *testing.T) {
	t.Parallel()
	_, target := site(t)
	ctx, cancel := context.WithCancelCause(context.Background())
	reason := errors.New("a signal")
	stream := archive(t, true, entry{name: "file", content: strings.Repeat("x", 8*buffered)})
	r := Receiver{Target: target, Progress: func(int64, int64) { cancel(reason) }}
	rig.Is(t, r.Receive(ctx, bytes.NewReader(stream)), reason, "")
	noTemporary(t, target)
	has(t, target, "file old")
}

// TestNamedTemporary: where no file can be made without a name, it has a temporary one.
func TestNamedTemporary(t *testing.T) {
	t.Parallel()
	_, target := site(t)
	fd, err := unix.Open(target, unix.O_PATH|unix.O_DIRECTORY, 0)
	rig.Must(t, err)
	defer unix.Close(fd)
	for _, put := range []bool{true, false} {
		f := &newFile{dir: fd, name: "file"}
		rig.Must(t, f.temporary())
		_, err = f.WriteString("new")
		rig.Must(t, err)
		if put {
			rig.Must(t, f.put(&attributes{mode: 0o640}))
		}
		rig.Must(t, f.drop())
		noTemporary(t, target)
	}
	has(t, target, "file new")
}

// FuzzReceive: no stream writes outside of the target or leaves something temporary, and none makes
// the receiver panic.
func FuzzReceive(f *testing.F) {
	f.Add(archive(f, true, entry{name: "file", content: "x"}, entry{name: "l", kind: tar.TypeSymlink, to: "../outside"}, entry{name: "l/kept", content: "y"}), false)
	f.Add(archive(f, false, entry{name: "out/kept", content: "x"}, entry{name: "h", kind: tar.TypeLink, to: "keptlink"}, entry{name: "d", kind: tar.TypeDir}, entry{name: "d/../../x", content: "z"}), true)
	f.Fuzz(func(t *testing.T, stream []byte, plain bool) {
		if len(stream) > 64<<10 {
			return
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		root, target := site(t)
		var written int64
		r := Receiver{Target: target, Plain: plain, Progress: func(n, _ int64) {
			if written += n; written > 16<<20 { // a sparse archive may stand for very much
				cancel()
			}
		}}
		_ = r.Receive(ctx, bytes.NewReader(stream)) // whether it fails does not matter
		unharmed(t, root)
		noTemporary(t, target)
	})
}
