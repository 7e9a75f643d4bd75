package client_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

func TestFS(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *client.Client) {
		ctx, files := t.Context(), c.FS(nil)
		dir, err := files.Canonicalize(ctx, t.TempDir())
		rig.Must(t, err)
		do := func(err error) {
			t.Helper()
			rig.Check(t, err)
		}
		do(files.Mkdir(ctx, dir+"/a/b", true))
		do(files.Mkdir(ctx, dir+"/a/b", true))
		if err := files.Mkdir(ctx, dir+"/a/b", false); err == nil {
			t.Error("a directory can be made twice")
		}
		do(files.WriteFile(ctx, dir+"/a/one ü", []byte("content")))
		do(files.WriteFile(ctx, dir+"/a/empty", nil))
		do(files.Copy(ctx, dir+"/a", dir+"/copy"))
		do(files.Rename(ctx, dir+"/copy/empty", dir+"/copy/b/moved", true))
		if err := files.Rename(ctx, dir+"/copy/b/moved", dir+"/a/empty", false); err == nil {
			t.Error("a rename without replace has replaced")
		}
		patch := "*** Begin Patch\n*** Update File: one ü\n@@\n-content\n+changed\n*** Delete File: empty\n*** End Patch\n"
		tried, err := files.ApplyPatch(ctx, dir+"/a", strings.Replace(patch, "empty", "copy/nothing", 1), false)
		if err == nil || !strings.Contains(err.Error(), "Failed to delete file "+dir+"/a/copy/nothing") {
			t.Errorf("a patch of what is missing gives %+v, %v", tried, err)
		}
		tried, err = files.ApplyPatch(ctx, dir+"/a", patch, true)
		if err != nil || tried.Diff == nil || !strings.Contains(*tried.Diff, "\n-content\n") {
			t.Errorf("a dry run gives %+v, %v", tried, err)
		}
		applied, err := files.ApplyPatch(ctx, dir+"/copy", strings.Replace(patch, "empty", "b/moved", 1), false)
		wantPatch := &protocol.ApplyPatchResult{
			Output: "Success. Updated the following files:\nM one ü\nD b/moved\n",
			Changes: []protocol.PatchedFile{
				{Kind: protocol.PatchUpdated, Path: protocol.NewPathURI(dir + "/copy/one ü")},
				{Kind: protocol.PatchDeleted, Path: protocol.NewPathURI(dir + "/copy/b/moved")},
			},
		}
		if diff := cmp.Diff(wantPatch, applied, cmpopts.EquateComparable(protocol.PathURI{})); err != nil || diff != "" {
			t.Errorf("a patch gives %v (-want +got):\n%s", err, diff)
		}
		do(files.WriteFile(ctx, dir+"/copy/one ü", []byte("content")))
		do(files.WriteFile(ctx, dir+"/copy/b/moved", nil))
		got, err := files.ReadFile(ctx, dir+"/copy/one ü")
		do(err)
		if string(got) != "content" {
			t.Errorf("read %q", got)
		}
		info, err := files.Stat(ctx, dir+"/copy/one ü")
		do(err)
		if !info.IsFile || info.Size != 7 {
			t.Errorf("Stat gives %+v", info)
		}
		entries, err := files.ReadDir(ctx, dir+"/a")
		do(err)
		slices.SortFunc(entries, func(a, b protocol.DirectoryEntry) int { return bytes.Compare([]byte(a.FileName), []byte(b.FileName)) })
		want := []protocol.DirectoryEntry{
			{FileName: "b", IsDirectory: true}, {FileName: "empty", IsFile: true}, {FileName: "one ü", IsFile: true},
		}
		rig.Same(t, "ReadDir", want, entries)
		walked, err := files.Walk(ctx, dir, protocol.WalkOptions{MaxDepth: 9, MaxDirectories: 99, MaxEntries: 99})
		do(err)
		wantWalk := &protocol.WalkResult{Entries: []protocol.WalkEntry{
			{Path: dir + "/a", Directory: true}, {Path: dir + "/copy", Directory: true},
			{Path: dir + "/a/b", Directory: true}, {Path: dir + "/a/empty"}, {Path: dir + "/a/one ü"},
			{Path: dir + "/copy/b", Directory: true}, {Path: dir + "/copy/one ü"}, {Path: dir + "/copy/b/moved"},
		}}
		rig.Same(t, "Walk", wantWalk, walked)
		if err := files.Remove(ctx, dir+"/a"); err == nil {
			t.Error("Remove has removed a directory that was not empty")
		}
		do(files.Remove(ctx, dir+"/a/empty"))
		do(files.RemoveAll(ctx, dir+"/a"))
		do(files.RemoveAll(ctx, dir+"/a"))
		rig.Is(t, files.Remove(ctx, dir+"/a"), fs.ErrNotExist, "removing what is not there")
		rig.Is(t, rig.Err(files.Stat(ctx, "relative")), fs.ErrInvalid, "a relative path")
	})
}

func TestFile(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *client.Client) {
		ctx, path := t.Context(), filepath.Join(t.TempDir(), "file")
		data := bytes.Repeat([]byte("0123456789abcdef"), 3<<16) // three blocks
		out, err := c.FS(nil).Open(ctx, path, protocol.OpenReplace)
		rig.Must(t, err)
		if n, err := out.WriteAt(data, 4); n != len(data) || err != nil {
			t.Errorf("WriteAt gives %d, %v", n, err)
		}
		rig.Must(t, errors.Join(out.Close(), out.Close()))
		want := append(make([]byte, 4), data...)
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("the file holds %d bytes, %v, want %d", len(got), err, len(want))
		}

		in, err := c.FS(nil).Open(ctx, path, protocol.OpenRead)
		rig.Must(t, err)
		for _, tt := range []struct {
			offset, length int
			err            error
		}{
			{0, len(want), nil},
			{3, 1<<20 + 5, nil},
			{len(want) - 5, 10, io.EOF},
			{len(want), 1, io.EOF},
			{len(want), 0, nil},
		} {
			got := make([]byte, tt.length)
			n, err := in.ReadAt(got, int64(tt.offset))
			if err != tt.err || !bytes.Equal(got[:n], want[tt.offset:min(len(want), tt.offset+tt.length)]) {
				t.Errorf("ReadAt of %d bytes at %d gives %d, %v", tt.length, tt.offset, n, err)
			}
		}
		if _, err := in.WriteAt([]byte("x"), 0); err == nil {
			t.Error("a file opened for reading can be written")
		}
		rig.Must(t, in.Close())
		rig.Is(t, rig.Err(in.ReadAt(make([]byte, 1), 0)), fs.ErrNotExist, "reading a closed file")
	})
}

// TestLargeFile: files that no message can hold are cut into blocks.
func TestLargeFile(t *testing.T) {
	t.Parallel()
	c := reach(t, overWebSocket(t, newAgent(t)))
	path := filepath.Join(t.TempDir(), "file")
	want := bytes.Repeat([]byte("0123456789abcde\n"), 33<<16)
	rig.Must(t, c.FS(nil).WriteFile(t.Context(), path, want))
	got, err := c.FS(nil).ReadFile(t.Context(), path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("read %d bytes, %v, want %d", len(got), err, len(want))
	}
}
