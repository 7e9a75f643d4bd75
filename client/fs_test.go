package client_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
		rig.Check(t, files.Mkdir(ctx, dir+"/a/b", true), files.Mkdir(ctx, dir+"/a/b", true))
		rig.Is(t, files.Mkdir(ctx, dir+"/a/b", false) != nil, true, "a directory is not made twice")
		rig.Check(t, files.WriteFile(ctx, dir+"/a/one ü", []byte("content")), files.WriteFile(ctx, dir+"/a/empty", nil))
		rig.Check(t, files.Copy(ctx, dir+"/a", dir+"/copy"), files.Rename(ctx, dir+"/copy/empty", dir+"/copy/b/moved", true))
		rig.Is(t, files.Rename(ctx, dir+"/copy/b/moved", dir+"/a/empty", false) != nil, true, "a rename without replace replaces nothing")
		patch := "*** Begin Patch\n*** Update File: one ü\n@@\n-content\n+changed\n*** Delete File: empty\n*** End Patch\n"
		missing := strings.Replace(patch, "empty", "copy/nothing", 1)
		err = rig.Err(files.ApplyPatch(ctx, dir+"/a", missing, false))
		rig.Says(t, err, "Failed to delete file "+dir+"/a/copy/nothing", "a patch of what is missing")
		tried, err := files.ApplyPatch(ctx, dir+"/a", patch, true)
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
		rig.Must(t, err)
		rig.Same(t, "a patch gives", wantPatch, applied, cmpopts.EquateComparable(protocol.PathURI{}))
		rig.Check(t, files.WriteFile(ctx, dir+"/copy/one ü", []byte("content")), files.WriteFile(ctx, dir+"/copy/b/moved", nil))
		got, err := files.ReadFile(ctx, dir+"/copy/one ü")
		rig.Check(t, err)
		rig.Is(t, string(got), "content", "read")
		info, err := files.Stat(ctx, dir+"/copy/one ü")
		rig.Check(t, err)
		rig.Is(t, info.IsFile && info.Size == 7, true, "Stat gives %+v", info)
		testDetails(t, files, dir)
		entries, err := files.ReadDir(ctx, dir+"/a")
		rig.Check(t, err)
		slices.SortFunc(entries, func(a, b protocol.DirectoryEntry) int { return bytes.Compare([]byte(a.FileName), []byte(b.FileName)) })
		want := []protocol.DirectoryEntry{
			{FileName: "b", IsDirectory: true}, {FileName: "empty", IsFile: true}, {FileName: "one ü", IsFile: true},
		}
		rig.Same(t, "ReadDir", want, entries)
		walked, err := files.Walk(ctx, dir, protocol.WalkOptions{MaxDepth: 9, MaxDirectories: 99, MaxEntries: 99})
		rig.Check(t, err)
		wantWalk := &protocol.WalkResult{Entries: []protocol.WalkEntry{
			{Path: dir + "/a", Directory: true}, {Path: dir + "/copy", Directory: true},
			{Path: dir + "/a/b", Directory: true}, {Path: dir + "/a/empty"}, {Path: dir + "/a/one ü"},
			{Path: dir + "/copy/b", Directory: true}, {Path: dir + "/copy/one ü"}, {Path: dir + "/copy/b/moved"},
		}}
		rig.Same(t, "Walk", wantWalk, walked, cmpopts.EquateComparable(protocol.PathURI{}))
		searched, err := files.Search(ctx, dir, protocol.SearchParams{Pattern: new("^con")})
		rig.Check(t, err)
		rig.Is(t, len(searched.Files) == 2 && searched.Files[1].Path == dir+"/copy/one ü" && searched.FilesRead == 4, true, "Search: %+v", searched)
		rig.Is(t, files.Remove(ctx, dir+"/a") != nil, true, "Remove removes no directory that is not empty")
		rig.Check(t, files.Remove(ctx, dir+"/a/empty"), files.RemoveAll(ctx, dir+"/a"), files.RemoveAll(ctx, dir+"/a"))
		rig.Is(t, files.Remove(ctx, dir+"/a"), fs.ErrNotExist, "removing what is not there")
		rig.Is(t, rig.Err(files.Stat(ctx, "relative")), fs.ErrInvalid, "a relative path")
	})
}

// testDetails: what only servers with flags of ours know. It leaves no files in dir.
func testDetails(t *testing.T, files *client.FS, dir string) {
	ctx, at := t.Context(), dir+"/more/file"
	all := client.WriteOptions{Mode: new(fs.FileMode(0o751)), Parents: true, Exclusive: true, Atomic: true}
	rig.Must(t, files.WriteFileWith(ctx, at, nil, all), os.Symlink("gone", dir+"/more/link"))
	err := files.WriteFileWith(ctx, at, nil, all)
	rig.Is(t, err, fs.ErrExist, "a file that exists")
	refused, _ := errors.AsType[*protocol.Error](err)
	rig.Same(t, "the cause", &protocol.Cause{Errno: 17, Name: "EEXIST", What: protocol.WhatPath}, refused.Cause())
	rig.Is(t, *rig.Value(files.StatDetails(ctx, at)).Mode, 0o751, "mode")
	rig.Is(t, rig.Value(files.Lstat(ctx, dir+"/more/link")).LinkTarget, "gone", "link")
	rig.Is(t, rig.Value(files.CanonicalizeMissing(ctx, dir+"/more/link/x")), dir+"/more/gone/x", "a path that is missing")
	rig.Is(t, len(rig.Value(files.ReadDirLstat(ctx, dir+"/more"))), 2, "names")
	many := rig.Value(files.StatMany(ctx, append(slices.Repeat([]string{at}, protocol.MaxManyPaths), dir+"/more/link"), protocol.Stat))
	rig.Is(t, many[len(many)-1].Err, fs.ErrNotExist, "the last of %d", len(many))
	rig.Must(t, files.RemoveAll(ctx, dir+"/more"))
}

func TestFile(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *client.Client) {
		ctx, path := t.Context(), filepath.Join(t.TempDir(), "file")
		data := bytes.Repeat([]byte("0123456789abcdef"), 3<<16) // three blocks
		out := rig.Value(c.FS(nil).Open(ctx, path, protocol.OpenReplace))
		rig.Is(t, fmt.Sprint(out.WriteAt(data, 4)), fmt.Sprint(len(data), nil), "WriteAt gives")
		rig.Must(t, errors.Join(out.Close(), out.Close()))
		want := append(make([]byte, 4), data...)
		rig.Is(t, bytes.Equal(rig.Value(os.ReadFile(path)), want), true, "the file holds what was written")

		in := rig.Value(c.FS(nil).Open(ctx, path, protocol.OpenRead))
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
		rig.Is(t, rig.Err(in.WriteAt([]byte("x"), 0)) != nil, true, "a file opened for reading is not written")
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
	rig.Must(t, err)
	rig.Is(t, bytes.Equal(got, want), true, "read, of %d bytes, is what was written, of %d", len(got), len(want))
}
