package fsops_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/execagent/execagent/fsops"
)

// Whatever works on files takes an FS, and so works under a policy too: the caller
// chooses between Host, a View and a helper that has one.
func ExampleFS() {
	shout := func(ctx context.Context, files fsops.FS, path string) error {
		text, err := fsops.ReadFile(ctx, files, path, fsops.FollowLinks, nil)
		if err != nil {
			return err
		}
		next := path + ".next"
		if err := fsops.WriteFile(ctx, files, next, bytes.ToUpper(text), fsops.WriteOptions{}); err != nil {
			return err
		}
		return files.Rename(ctx, next, path, true)
	}

	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "a.txt")
	if err := os.WriteFile(path, []byte("hello"), 0o600); err != nil {
		panic(err)
	}
	ctx := context.Background()
	fmt.Println(shout(ctx, fsops.Host{}, path))
	text, err := fsops.ReadFile(ctx, fsops.Host{}, path, fsops.FollowLinks, nil)
	fmt.Println(string(text), err)

	view, err := fsops.NewView(fsops.Rules{
		Access: func(string) fsops.Access { return fsops.Read },
		Leads:  func(string) bool { return true },
		Bound:  func(string) bool { return false },
	})
	if err != nil {
		panic(err)
	}
	defer view.Close()
	fmt.Println(shout(ctx, view, path) != nil) // nothing may be written
	// Output:
	// <nil>
	// HELLO <nil>
	// true
}
