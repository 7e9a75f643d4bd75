package fswatch

import (
	"context"
	"errors"
	"io/fs"
	"path"

	"github.com/execagent/execagent/fsops"
)

// Root returns the canonical path of the object to watch, for Options.Root, and reports
// whether it is a directory. In a missing path, the existing directories are canonical.
func Root(ctx context.Context, files fsops.FS, asked string) (root string, directory bool, err error) {
	missing := ""
	for {
		root, err = files.Canonicalize(ctx, asked, false)
		if err == nil || !errors.Is(err, fs.ErrNotExist) || asked == "/" {
			break
		}
		missing = path.Join(path.Base(asked), missing)
		asked = path.Dir(asked)
	}
	switch {
	case err != nil:
		return "", false, err
	case missing != "":
		return path.Join(root, missing), false, nil
	}
	info, err := files.Stat(ctx, root, fsops.FollowLinks)
	return root, err == nil && info.IsDirectory, nil
}
