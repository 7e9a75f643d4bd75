package paths

import (
	"io/fs"
	"os"
	"time"
)

// settled is how old a change must be so that the next change surely has a different time.
const settled = 2 * time.Second

// State is what [Look] found of a file, through links. A caller that looks before it reads the file
// learns later of every change since.
type State struct {
	path string
	info fs.FileInfo // nil: it could not be looked at
	at   time.Time
}

// Look returns the state of a file.
func Look(path string) State {
	s := State{path: path, at: time.Now()}
	if info, err := os.Stat(path); err == nil {
		s.info = info
	}
	return s
}

// Changed reports whether the file has to be read again: because it was replaced, because its size,
// mode or time has changed, or because it was so new at [Look] that a later change may have left the
// same time.
func (s State) Changed() bool {
	now, err := os.Stat(s.path)
	if err != nil || s.info == nil {
		return err == nil || s.info != nil
	}
	return !os.SameFile(s.info, now) || now.Size() != s.info.Size() || now.Mode() != s.info.Mode() ||
		!now.ModTime().Equal(s.info.ModTime()) || s.at.Sub(s.info.ModTime()).Abs() < settled
}
