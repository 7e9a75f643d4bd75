package paths

import (
	"io/fs"
	"os"
	"time"
)

// settled is how old a change has to be so that another one has another time for sure.
const settled = 2 * time.Second

// State is what a file, or what a link leads to, was like when somebody looked. Whoever looks
// before the file is read sees later what has changed meanwhile.
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

// Changed tells whether the file has to be read again: another one is there, or its size, mode or
// time is another one, or it was so new when it was looked at that it may have changed since within
// the same time.
func (s State) Changed() bool {
	now, err := os.Stat(s.path)
	if err != nil || s.info == nil {
		return err == nil || s.info != nil
	}
	return !os.SameFile(s.info, now) || now.Size() != s.info.Size() || now.Mode() != s.info.Mode() ||
		!now.ModTime().Equal(s.info.ModTime()) || s.at.Sub(s.info.ModTime()).Abs() < settled
}
