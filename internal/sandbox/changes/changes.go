// Package changes collects the folders in which a command has changed something: those that a policy has
// to let it write. A supervisor notes each change, and the agent reads the folders when the command has
// ended, from a file in memory.
//
// Everything is bounded, because a command decides how much it changes. Linux only.
package changes

import (
	"maps"
	"path"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/pack"
	"github.com/execagent/execagent/internal/sandbox/pathname"
)

// Bounds of a Log.
const (
	maxFolders = 512
	maxLike    = 16       // folders of one folder; more are one: the folder that they are in
	maxBytes   = 96 << 10 // of the paths
)

// FileSize is the size of the part of a file that a Log takes, in bytes. A path takes little more than its bytes.
const FileSize = 128 << 10

// Log collects the folders of one command. A folder also stands for those below it, unless it was only made. The methods may be called at
// once, also on nil, which collects nothing.
type Log struct {
	home  string   // each file in it is noted by its own name
	apart []string // these folders, and those that they are in, stand for none below them

	mu      sync.Mutex        // guards what follows
	folders map[string]string // one path that was changed, by the folder
	bytes   int
	more    int // changes whose folders were not kept

	fd, at int // the file and the place in it; 0: there is none
}

// New returns a Log in which the folders apart, and those that they are in, stand for none below them. Their paths are
// canonical. The first is the home: a change of a name in it is noted as that name, because one name, such as .bashrc,
// may tell more than another.
func New(apart ...string) *Log {
	l := &Log{apart: apart}
	if len(apart) > 0 {
		l.home = apart[0]
	}
	return l
}

// ToFile returns a Log like New that also writes to a place of a file, which has FileSize bytes there, for another process.
func ToFile(fd, at int, apart ...string) *Log {
	l := New(apart...)
	l.fd, l.at = fd, at
	return l
}

// Apart returns the folders that the Log was made with.
func (l *Log) Apart() []string { return l.apart }

// Add notes that the object at a canonical path was changed, for which the folder has to be writable. If both are the
// same, the folder was made.
func (l *Log) Add(folder, changed string) {
	if l == nil || !path.IsAbs(folder) {
		return
	}
	if folder == l.home && pathname.Below(changed, folder) {
		folder = changed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.more
	if l.addLocked(folder, changed) {
		l.storeLocked(l.more > before)
	}
}

// addLocked reports whether something is new.
func (l *Log) addLocked(folder, changed string) bool {
	made := changed == folder
	if _, known := l.folders[folder]; known && (made || !l.isMade(folder)) {
		return false
	}
	var needless []string
	for above := folder; above != "/"; {
		above = pathname.Parent(above)
		switch _, known := l.folders[above]; {
		case !known || l.isApart(above):
		case l.isMade(above):
			needless = append(needless, above)
		default:
			return false
		}
	}
	below := l.those(func(other string) bool { return pathname.Below(other, folder) })
	if made && len(below) > 0 {
		return false
	}
	if !l.isApart(folder) {
		needless = append(needless, below...)
		parent := pathname.Parent(folder)
		like := l.those(func(other string) bool { return pathname.Parent(other) == parent && !l.isApart(other) })
		if len(like) >= maxLike && !l.isApart(parent) {
			return l.addLocked(parent, changed)
		}
	}
	l.remove(append(needless, folder))
	if len(l.folders) >= maxFolders || l.bytes+len(folder)+len(changed) > maxBytes {
		l.more++
		return true
	}
	if l.folders == nil {
		l.folders = map[string]string{}
	}
	l.folders[folder] = changed
	l.bytes += len(folder) + len(changed)
	return true
}

// isApart reports whether a folder stands for none below it.
func (l *Log) isApart(folder string) bool {
	return folder == "/" || slices.ContainsFunc(l.apart, func(name string) bool { return pathname.Within(name, folder) })
}

func (l *Log) those(are func(folder string) bool) (all []string) {
	for folder := range l.folders {
		if are(folder) {
			all = append(all, folder)
		}
	}
	return all
}

func (l *Log) remove(folders []string) {
	for _, folder := range folders {
		if changed, known := l.folders[folder]; known {
			l.bytes -= len(folder) + len(changed)
			delete(l.folders, folder)
		}
	}
}

// isMade reports whether all that has happened in a known folder is that it was made. Who may write in a folder below
// it needs no more, because who uses a profile makes that folder and those above it.
func (l *Log) isMade(folder string) bool { return l.folders[folder] == folder }

// A Folder is a folder in which something was changed, with one path that was; that of the folder if it was made.
type Folder struct{ Path, Changed string }

// All returns the folders, sorted, and how many changes there were in folders that were not kept.
func (l *Log) All() (all []Folder, more int) {
	if l == nil {
		return nil, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, folder := range slices.Sorted(maps.Keys(l.folders)) {
		all = append(all, Folder{folder, l.folders[folder]})
	}
	return all, l.more
}

// storeLocked writes everything, or only how many changes were not kept. It writes everything at most maxFolders
// times, and once for each time that a folder takes the place of others.
func (l *Log) storeLocked(onlyMore bool) {
	if l.fd == 0 {
		return
	}
	b := pack.AppendInt(nil, l.more)
	if !onlyMore {
		var words []string
		for folder, changed := range l.folders {
			words = append(words, folder, changed)
		}
		b = pack.AppendStrings(b, words)
	}
	_, _ = unix.Pwrite(l.fd, b, int64(l.at)) // only a wrong descriptor fails
}

// ReadFile adds the folders of a file to l.
func (l *Log) ReadFile(fd, at int) {
	b := make([]byte, FileSize)
	n, err := unix.Pread(fd, b, int64(at))
	if err != nil {
		return
	}
	l.read(b[:n])
}

// read adds what it can decode.
func (l *Log) read(b []byte) {
	d := pack.NewDecoder(b)
	more := d.Int()
	words := d.Strings(FileSize)
	if !d.OK() || len(words)%2 != 0 || more < 0 {
		return
	}
	for pair := range slices.Chunk(words, 2) {
		l.Add(pair[0], pair[1])
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.more += more
}
