package fsops

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/inotify"
)

// MaxMissingPaths is how many paths one [Watch] takes, as in the reference
// (rpc.md 5.6).
const MaxMissingPaths = 64

// maxWatchedDirs bounds the watches of the kernel for one [Watch]: a user has a
// limited number of them (inotify(7), max_user_watches).
const maxWatchedDirs = 1024

// ErrNotWatchable says that there is nothing to wait for: no path was given or too
// many; a missing path exists already, leads through a link or lies under a file;
// or the present path does not exist. The error reveals nothing about the target
// of a link.
var ErrNotWatchable = errors.New("nothing to watch")

// WatchGroup is the instance of inotify(7) that watches share: a user has few of them. The zero value
// is ready to use. Close ends it, with all its watches.
type WatchGroup = inotify.Group

// Watch waits once for a path to appear. It has an inotify(7) watch on every
// directory on the way to its paths, and ignores events for names that are not on
// the way. All methods may run concurrently.
type Watch struct {
	group *WatchGroup
	// names has, for each watched directory, the names that matter in it; the
	// value is true if a change of contents matters too. It does not change once
	// the watch is ready.
	names   map[int32]map[string]bool
	changed chan struct{}
	done    chan struct{}
	fired   chan struct{} // closed by the first event that matters
	closing chan struct{}
	close   sync.Once

	mu sync.Mutex // guards what follows
	// early are the events of a watch that is not ready.
	early []inotify.Event
	ready bool
	over  bool // fired is closed
}

// maxEarlyEvents is how many events are kept before a watch is ready. With more
// events, the watch ends.
const maxEarlyEvents = 1024

// Watchable allows every path.
func (Host) Watchable(string, bool) error { return nil }

// Watchable returns the reason why path may not be watched, or nil.
func (v *View) Watchable(path string, directory bool) error {
	return v.paths.rules.Watchable(path, directory)
}

// WatchMissing watches until one of the missing paths, or the first missing
// directory above it, appears; or until present, if not empty, is modified,
// removed or replaced. A directory as present is modified by a change of its
// mode, owner or times. The watch also ends when a directory above is moved,
// removed or changes its mode, because the paths may then lead elsewhere. Links
// are not followed.
//
// The caller first calls Watchable of an [FS] for each path, and closes the watch
// at the end. After an error, usually [ErrNotWatchable], nothing is watched.
func WatchMissing(group *WatchGroup, missing []string, present string) (*Watch, error) {
	if len(missing) == 0 || len(missing) > MaxMissingPaths {
		return nil, fmt.Errorf("%w: %d missing paths are not between 1 and %d", ErrNotWatchable, len(missing), MaxMissingPaths)
	}
	w := &Watch{
		group:   group,
		names:   map[int32]map[string]bool{},
		changed: make(chan struct{}),
		done:    make(chan struct{}),
		fired:   make(chan struct{}),
		closing: make(chan struct{}),
	}
	fds := openOwnFDs()
	if fds >= 0 {
		defer unix.Close(fds)
	}
	var err error
	for _, path := range missing {
		if err = w.add(path, false, fds >= 0); err != nil {
			break
		}
	}
	if err == nil && present != "" {
		err = w.add(present, true, fds >= 0)
	}
	if err != nil {
		w.remove()
		return nil, err
	}
	w.begin()
	go w.run()
	return w, nil
}

// Changed is closed when something happened. It stays open if the watch is
// closed first.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Done is closed when the watch has ended, by a change or by Close.
func (w *Watch) Done() <-chan struct{} { return w.done }

// Close ends the watch and waits for its goroutine. It may be called more than
// once.
func (w *Watch) Close() {
	w.close.Do(func() { close(w.closing) })
	<-w.done
}

// remove frees the watches of the kernel.
func (w *Watch) remove() {
	for wd := range w.names {
		w.group.Remove(wd, (*notices)(w))
	}
}

// add watches every directory on the way to path, from the root on. It watches a
// directory before it looks at the name in it, so that no change goes unseen. It
// opens each directory from the one before, and watches it by its descriptor where
// byFD says that there is a procfs. With whole paths, a link that replaces a
// directory would be followed, and the answer would reveal the target of the link.
func (w *Watch) add(path string, present, byFD bool) error {
	at, err := openAt(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return pathError("open", "/", err)
	}
	defer func() { unix.Close(at) }()
	dir, rest := "/", strings.TrimPrefix(path, "/")
	for rest != "" {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		watched := dir
		if byFD {
			watched = join(ownFDs, strconv.Itoa(at))
		}
		if err := w.addDir(watched, dir, name, present && rest == ""); err != nil {
			return err
		}
		dir = join(dir, name)
		var st unix.Stat_t
		next, err := openAt(at, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
		if err == nil {
			unix.Close(at)
			at = next
			err = fstat(at, &st)
		}
		if err == nil {
			at, err = admit(at, -1, unix.O_PATH, nil)
		}
		switch {
		case err == unix.ENOENT && !present:
			return nil
		case err == unix.ENOENT:
			return fmt.Errorf("%w: present path %q does not exist", ErrNotWatchable, path)
		case err != nil:
			return pathError("open", dir, err)
		case kindOf(&st) == unix.DT_LNK:
			return fmt.Errorf("%w: path %q is a symbolic link", ErrNotWatchable, dir)
		case rest != "" && kindOf(&st) != unix.DT_DIR:
			return fmt.Errorf("%w: path %q is not a directory", ErrNotWatchable, dir)
		}
	}
	if !present {
		return fmt.Errorf("%w: path %q exists", ErrNotWatchable, path)
	}
	return nil
}

// addDir watches name in the directory dir. watched is the path by which the
// kernel finds the directory: dir itself, or its descriptor in procfs.
func (w *Watch) addDir(watched, dir, name string, contents bool) error {
	mask := uint32(unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVE | unix.IN_ATTRIB | unix.IN_ONLYDIR)
	if watched == dir {
		mask |= unix.IN_DONT_FOLLOW
	}
	if contents {
		mask |= unix.IN_MODIFY
	}
	wd, err := w.group.Add(watched, mask, (*notices)(w))
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP:
		return fmt.Errorf("%w: path %q is no longer a directory", ErrNotWatchable, dir)
	default:
		return pathError("inotify_add_watch", dir, err)
	}
	if w.names[wd] == nil {
		if len(w.names) == maxWatchedDirs {
			w.group.Remove(wd, (*notices)(w))
			return fmt.Errorf("%w: the paths pass through more than %d directories", ErrNotWatchable, maxWatchedDirs)
		}
		w.names[wd] = map[string]bool{}
	}
	w.names[wd][name] = w.names[wd][name] || contents
	return nil
}

// notices is a Watch as a subscriber of the group.
type notices Watch

// Notice takes an event of the group.
func (n *notices) Notice(e inotify.Event) {
	w := (*Watch)(n)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.over:
	case !w.ready && len(w.early) < maxEarlyEvents:
		w.early = append(w.early, e)
	case !w.ready || w.matters(e):
		w.over = true
		close(w.fired)
	}
}

// begin judges the events that came while the directories were added, because only
// now all names that matter are known.
func (w *Watch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ready = true
	for _, e := range w.early {
		if !w.over && w.matters(e) {
			w.over = true
			close(w.fired)
		}
	}
	w.early = nil
}

// run waits for the first event that matters.
func (w *Watch) run() {
	defer close(w.done)
	defer w.remove() // frees the watches of the kernel at once
	select {
	case <-w.fired:
		close(w.changed)
	case <-w.closing:
	}
}

// matters reports whether an event ends the watch.
func (w *Watch) matters(e inotify.Event) bool {
	if e.Mask&(unix.IN_Q_OVERFLOW|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0 {
		return true // events were lost, or the directory is gone
	}
	contents, ok := w.names[e.WD][e.Name]
	return ok && (contents || e.Mask&unix.IN_MODIFY == 0)
}
