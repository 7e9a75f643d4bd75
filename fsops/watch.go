package fsops

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// MaxMissingPaths is how many paths one [Watch] takes, as in the reference
// (rpc.md 5.6).
const MaxMissingPaths = 64

// maxWatchedDirs bounds the watches of the kernel for one [Watch]: a user has a
// limited number of them (inotify(7), max_user_watches).
const maxWatchedDirs = 1024

// ErrNotWatchable says that there is nothing to wait for: no path was given or too
// many, a missing path exists already, leads through a link or lies under a file,
// or the present path is not there. The error reveals nothing about the place that
// a link leads to.
var ErrNotWatchable = errors.New("nothing to watch")

// Watch waits once for a path to appear. It has an inotify(7) watch on every
// directory on the way to its paths, and ignores events for names that are not on
// the way. All methods may run at once.
type Watch struct {
	file *os.File // inotify
	// names has, for each watched directory, the names that matter in it; the
	// value is true when a change of contents matters too.
	names   map[int32]map[string]bool
	changed chan struct{}
	done    chan struct{}
}

// Watchable allows every path.
func (Host) Watchable(string) error { return nil }

// Watchable tells why path may not be watched.
func (v *View) Watchable(path string) error { return v.paths.rules.Watchable(path) }

// WatchMissing watches until one of the missing paths, or the first missing
// directory above it, appears; or until present, if not empty, is modified,
// removed or replaced. A directory as present is modified by a change of its
// mode, owner or times. The watch also ends when a directory above is moved,
// removed or changes its mode, since the paths may lead elsewhere then. Links are
// not followed.
//
// The caller first asks Watchable of an [FS] about each path, and closes the watch
// at the end. With an error nothing is watched; [ErrNotWatchable] is the one to
// expect.
func WatchMissing(missing []string, present string) (*Watch, error) {
	if len(missing) == 0 || len(missing) > MaxMissingPaths {
		return nil, fmt.Errorf("%w: %d missing paths are not between 1 and %d", ErrNotWatchable, len(missing), MaxMissingPaths)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	w := &Watch{
		file:    os.NewFile(uintptr(fd), "inotify"),
		names:   map[int32]map[string]bool{},
		changed: make(chan struct{}),
		done:    make(chan struct{}),
	}
	fds := openOwnFDs()
	if fds >= 0 {
		defer unix.Close(fds)
	}
	for _, path := range missing {
		if err = w.add(fd, path, false, fds >= 0); err != nil {
			break
		}
	}
	if err == nil && present != "" {
		err = w.add(fd, present, true, fds >= 0)
	}
	if err != nil {
		w.file.Close()
		return nil, err
	}
	go w.run()
	return w, nil
}

// Changed is closed when something happened. It stays open when the watch is
// closed first.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Done is closed when the watch has ended, by a change or by Close.
func (w *Watch) Done() <-chan struct{} { return w.done }

// Close ends the watch and waits for its goroutine. It may be called more than
// once.
func (w *Watch) Close() {
	_ = w.file.Close() // already closed after a change
	<-w.done
}

// add watches every directory on the way to path, from the root on. It watches a
// directory before it looks at the name in it, so that no change goes unseen. It
// opens each directory from the one before, and watches it by its descriptor where
// byFD says that there is a procfs. By whole paths, a link that somebody puts in
// the place of a directory would be followed, and the answer would tell what is
// where the link leads.
func (w *Watch) add(inotify int, path string, present, byFD bool) error {
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
		if err := w.addDir(inotify, watched, dir, name, present && rest == ""); err != nil {
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
func (w *Watch) addDir(inotify int, watched, dir, name string, contents bool) error {
	mask := uint32(unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVE | unix.IN_ATTRIB | unix.IN_ONLYDIR | unix.IN_MASK_ADD)
	if watched == dir {
		mask |= unix.IN_DONT_FOLLOW
	}
	if contents {
		mask |= unix.IN_MODIFY
	}
	n, err := unix.InotifyAddWatch(inotify, watched, mask)
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP:
		return fmt.Errorf("%w: path %q is no longer a directory", ErrNotWatchable, dir)
	default:
		return pathError("inotify_add_watch", dir, err)
	}
	wd := int32(n)
	if w.names[wd] == nil {
		if len(w.names) == maxWatchedDirs {
			return fmt.Errorf("%w: the paths pass through more than %d directories", ErrNotWatchable, maxWatchedDirs)
		}
		w.names[wd] = map[string]bool{}
	}
	w.names[wd][name] = w.names[wd][name] || contents
	return nil
}

// run waits for the first event that matters.
func (w *Watch) run() {
	defer close(w.done)
	defer w.file.Close() // frees the watches of the kernel at once
	var buf [4096]byte
	for {
		n, err := w.file.Read(buf[:])
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil || w.matters(buf[:n]) {
			close(w.changed)
			return
		}
	}
}

// matters goes through the events of one read.
func (w *Watch) matters(events []byte) bool {
	for len(events) > 0 {
		wd, mask, name, n := parseEvent(events)
		if n == 0 {
			return true // this cannot happen; to end the watch is the safe answer
		}
		events = events[n:]
		if mask&(unix.IN_Q_OVERFLOW|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0 {
			return true // events were lost, or the directory is gone
		}
		contents, ok := w.names[wd][string(name)]
		if ok && (contents || mask&unix.IN_MODIFY == 0) {
			return true
		}
	}
	return false
}

// parseEvent takes one inotify_event (inotify(7)) off b: watch, mask, cookie
// and name length of 4 bytes each, name up to a NUL. The length n is 0 when b
// does not hold a whole event.
func parseEvent(b []byte) (wd int32, mask uint32, name []byte, n int) {
	if len(b) < unix.SizeofInotifyEvent {
		return 0, 0, nil, 0
	}
	size := uint64(binary.NativeEndian.Uint32(b[12:])) + unix.SizeofInotifyEvent
	if size > uint64(len(b)) {
		return 0, 0, nil, 0
	}
	name = b[unix.SizeofInotifyEvent:size]
	if i := bytes.IndexByte(name, 0); i >= 0 {
		name = name[:i]
	}
	return int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:]), name, int(size)
}
