package unixsocket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

const stranger = 65533 // a user who is nobody else in these tests

// folder is a folder of its own, in a path that is short enough, and which everybody can enter.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sock")
	rig.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	rig.Must(t, os.Chmod(dir, 0o755))
	return dir
}

// as calls f as another user, on a thread that ends with it.
func as(t *testing.T, uid int, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0))
		if errno != 0 {
			done <- errno
			return
		}
		defer func() { done <- nil }() // f may end the test
		f()
	}()
	rig.Must(t, <-done)
}

// dead leaves a socket at which nobody listens.
func dead(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	rig.Must(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	rig.Must(t, l.Close())
}

func mustListen(t *testing.T, path string, open bool) *Listener {
	t.Helper()
	l, err := Listen(path, open)
	rig.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestPath(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"unix:///run/a.sock":                  "/run/a.sock",
		"unix:///run/a b%20c?d#e":             "/run/a b%20c?d#e",
		"unix:///" + strings.Repeat("x", 106): "/" + strings.Repeat("x", 106),
		"unix:///" + strings.Repeat("x", 107): "error: the path has 108 bytes, but the path of a socket can have at most 107: choose a shorter path",
		"unix://":                             "error: want unix:///PATH, with an absolute path (abstract names are not supported)",
		"unix:run/a.sock":                     "error: want unix:///PATH, with an absolute path (abstract names are not supported)",
		"unix://run/a.sock":                   "error: want unix:///PATH, with an absolute path (abstract names are not supported)",
		"unix://@abstract":                    "error: want unix:///PATH, with an absolute path (abstract names are not supported)",
		"unix://\x00abstract":                 "error: want unix:///PATH, with an absolute path (abstract names are not supported)",
		"unix:///run/\x00":                    "error: the path holds a NUL",
		"unix:////run/a.sock":                 "error: the path is not in its shortest form, /run/a.sock",
		"unix:///run/../a.sock":               "error: the path is not in its shortest form, /a.sock",
		"unix:///run/a.sock/":                 "error: the path is not in its shortest form, /run/a.sock",
		"unix:///":                            "error: the path is the root folder",
		"ws://127.0.0.1:1":                    "error: want unix:///PATH, with an absolute path (abstract names are not supported)",
	} {
		got, err := Path(url)
		if err != nil {
			got = "error: " + err.Error()
		}
		rig.Is(t, got, want, "%q", url)
	}
}

// TestListenRefuses: what is at the path, or around it, that is not ours to replace.
func TestListenRefuses(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	mkdir := func(name string, mode fs.FileMode) {
		rig.Must(t, errors.Join(os.Mkdir(dir+"/"+name, 0o755), os.Chmod(dir+"/"+name, mode)))
	}
	mkdir("wide", 0o777)
	mkdir("group", 0o775)
	mkdir("sticky", fs.ModeSticky|0o777)
	rig.Must(t, errors.Join(os.WriteFile(dir+"/file", nil, 0o600), os.Symlink(dir+"/nowhere", dir+"/link"), os.Symlink(dir+"/sticky", dir+"/way")))
	mustListen(t, dir+"/used", false)
	datagrams, err := net.ListenPacket("unixgram", dir+"/datagrams")
	rig.Must(t, err)
	defer datagrams.Close()
	for name, want := range map[string]string{
		"used":       "another program already listens at DIR/used",
		"file":       "DIR/file already exists and is not a socket",
		"sticky":     "DIR/sticky already exists and is not a socket",
		"link":       "DIR/link is a symbolic link",
		"datagrams":  "checking whether another program listens: dial unix DIR/datagrams: connect: protocol wrong type for socket",
		"none/x":     "the folder of the socket: open DIR/none: no such file or directory",
		"file/x":     "the folder of the socket: DIR/file is not a folder",
		"wide/x":     "others can write the folder of the socket, DIR/wide, and could replace the socket: run chmod go-w DIR/wide, or choose another folder",
		"group/x":    "others can write the folder of the socket, DIR/group, and could replace the socket: run chmod go-w DIR/group, or choose another folder",
		"sticky/ok":  "<nil>",
		"way/ok-too": "<nil>",
	} {
		l, err := Listen(dir+"/"+name, false)
		if err == nil {
			err = l.Close()
		}
		rig.Is(t, fmt.Sprint(err), strings.ReplaceAll(want, "DIR", dir), "%s", name)
	}
	rig.Check(t, rig.Err(os.Lstat(dir+"/link")))
}

// TestListenForeign: what belongs to other users.
func TestListenForeign(t *testing.T) {
	dir := folder(t)
	as(t, 0, func() {})
	theirs := dir + "/theirs"
	rig.Must(t, errors.Join(os.Mkdir(theirs, 0o755), os.Chown(theirs, stranger, -1), os.Mkdir(dir+"/shared", 0o755), os.Chmod(dir+"/shared", fs.ModeSticky|0o777)))
	as(t, stranger, func() { dead(t, dir+"/shared/dead") })
	for path, want := range map[string]string{
		theirs + "/x":        fmt.Sprintf("the folder of the socket, %s, belongs to uid %d, who could replace the socket", theirs, stranger),
		dir + "/shared/dead": fmt.Sprintf("%s/shared/dead already exists and belongs to uid %d", dir, stranger),
	} {
		l, err := Listen(path, false)
		rig.Is(t, fmt.Sprint(err), want, "%s", path)
		if err == nil {
			_ = l.Close()
		}
	}
}

// TestMode: the mode does not depend on the umask, and is never wider than in the end.
func TestMode(t *testing.T) {
	dir := folder(t)
	for _, umask := range []int{0, 0o022, 0o777} {
		old := syscall.Umask(umask)
		config := net.ListenConfig{Control: narrow}
		bound, err := config.Listen(t.Context(), "unix", dir+"/bound")
		var first fs.FileMode
		if err == nil {
			first = mode(t, dir+"/bound")
			err = bound.Close()
		}
		l := mustListen(t, dir+"/own", false)
		open := mustListen(t, dir+"/open", true)
		syscall.Umask(old)
		rig.Is(t, first&^0o600, 0, "umask %o: more than there is in the end of the mode %o", umask, first)
		rig.Is(t, mode(t, dir+"/own"), 0o600, "umask %o: the mode of our own", umask)
		rig.Is(t, mode(t, dir+"/open"), 0o666, "umask %o: the mode of an open one", umask)
		rig.Check(t, err, l.Close(), open.Close())
	}
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	rig.Must(t, err)
	return info.Mode().Perm()
}

// TestDead: of many that find a socket at which nobody answers, one listens.
func TestDead(t *testing.T) {
	t.Parallel()
	path := folder(t) + "/sock"
	for range 20 {
		dead(t, path)
		var won atomic.Pointer[Listener]
		var ready, all sync.WaitGroup
		ready.Add(8)
		for range 8 {
			all.Go(func() {
				ready.Done()
				ready.Wait()
				l, err := Listen(path, false)
				if err == nil && won.Swap(l) != nil {
					t.Error("two listen")
				}
				if err != nil && !strings.Contains(err.Error(), "another program already listens") {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if t.Failed() {
			return
		}
		conn, err := Dial(t.Context(), path)
		rig.Must(t, err)
		rig.Must(t, conn.Close(), won.Load().Close())
		rig.Is(t, rig.Err(os.Lstat(path)), fs.ErrNotExist, "in the end")
	}
}

// TestCloseRemovesItsOwn: and nothing that somebody else has put at the path.
func TestCloseRemovesItsOwn(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	for _, replace := range []func(path string) error{
		func(path string) error { return os.WriteFile(path, nil, 0o600) },
		func(path string) error { dead(t, path); return nil },
		func(path string) error { // a link to itself, moved
			return errors.Join(os.Rename(path+".old", path+".moved"), os.Symlink(path+".moved", path))
		},
	} {
		path := filepath.Join(dir, "s")
		l := mustListen(t, path, false)
		rig.Must(t, os.Rename(path, path+".old"), replace(path), l.Close(), l.Close())
		rig.Check(t, os.Remove(path))
	}
	l := mustListen(t, dir+"/gone", false)
	rig.Check(t, errors.Join(os.Remove(dir+"/gone"), l.Close()))
}

// TestCloseTwice: by the second time the path may be somebody else's.
func TestCloseTwice(t *testing.T) {
	t.Parallel()
	path := folder(t) + "/s"
	first := mustListen(t, path, false)
	rig.Must(t, first.Close())
	second := mustListen(t, path, false)
	rig.Check(t, first.Close())
	rig.Check(t, rig.Err(os.Lstat(path)))
	rig.Check(t, second.Close())
}

// TestPeer: both ends know whose the other is.
func TestPeer(t *testing.T) {
	dir := folder(t)
	peer := func(l *Listener) int {
		t.Helper()
		conn, err := l.Accept()
		rig.Must(t, err)
		defer conn.Close()
		uid, err := Peer(conn.(*net.UnixConn))
		rig.Must(t, err)
		return int(uid)
	}
	dial := func(path string) error {
		conn, err := Dial(t.Context(), path)
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	own, open := mustListen(t, dir+"/own", false), mustListen(t, dir+"/open", true)
	rig.Must(t, dial(dir+"/own"))
	rig.Is(t, peer(own), os.Geteuid(), "uid")
	as(t, stranger, func() {
		const denied = "/own: connect: permission denied: the socket belongs to uid 0, who does not let other users connect"
		rig.Is(t, fmt.Sprint(dial(dir+"/own")), "dial unix "+dir+denied, "another user")
		rig.Check(t, dial(dir+"/open"))
	})
	rig.Is(t, peer(open), stranger, "uid")

	// A server that is neither this user nor root. See also TestGiven.
	shared := dir + "/shared"
	rig.Must(t, errors.Join(os.Mkdir(shared, 0o755), os.Chmod(shared, fs.ModeSticky|0o777)))
	as(t, stranger, func() { mustListen(t, shared+"/s", true) })
	want := fmt.Sprintf("the server runs as uid %d, which is not trusted: it is neither this user nor root, and they have not given it the folder %s", stranger, shared)
	rig.Is(t, fmt.Sprint(dial(shared+"/s")), want, "a server of another user in a folder that everybody may write")
}

// TestGiven: the owner of a folder is trusted only where nobody but root and this user can have
// made it, and no link that somebody else has made leads there.
func TestGiven(t *testing.T) {
	as(t, 0, func() {})
	top, err := os.MkdirTemp("/run", "sock") // all above belongs to root
	rig.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	mkdir := func(name string, mode fs.FileMode, uid int) {
		path := top + "/" + name
		rig.Must(t, errors.Join(os.Mkdir(path, 0o755), os.Chmod(path, mode), os.Chown(path, uid, -1)))
	}
	link := func(target, name string, uid int) {
		rig.Must(t, errors.Join(os.Symlink(target, top+"/"+name), os.Lchown(top+"/"+name, uid, -1)))
	}
	rig.Must(t, os.Chmod(top, 0o755))
	mkdir("theirs", 0o755, stranger)
	mkdir("theirs/own", 0o755, stranger)
	mkdir("root", 0o755, 0)
	mkdir("root/theirs", 0o700, stranger)
	mkdir("sticky", fs.ModeSticky|0o777, 0)
	mkdir("sticky/theirs", 0o755, stranger)
	mkdir("group", 0o775, 0)
	mkdir("group/theirs", 0o755, stranger)
	link("root/theirs", "relative", 0)
	link(top+"/root", "absolute", 0)
	link("../root/./theirs", "root/up", 0)
	link("../theirs", "sticky/planted", stranger)
	link("sticky/planted", "through", 0)
	link("loop", "loop", 0)
	for name, want := range map[string]bool{
		"theirs": true, "root/theirs": true, "relative": true, "absolute/theirs": true, "root/up": true,
		"theirs/own": false, "sticky/theirs": false, "group/theirs": false, "sticky/planted": false, "through": false, "loop": false,
	} {
		to, ok, err := given(top + "/" + name)
		rig.Check(t, err)
		rig.Is(t, ok, want, "%s: it is given", name)
		rig.Is(t, !ok || to == stranger, true, "%s: to uid %d", name, to)
	}
	_, ok, err := given("run")
	rig.Is(t, ok || err != nil, false, "%v: a path from the folder of the process is given", err)
	_, ok, err = given(top + "/none")
	rig.Is(t, !ok && errors.Is(err, fs.ErrNotExist), true, "%v, %v: there is no folder", ok, err)

	as(t, stranger, func() {
		mustListen(t, top+"/root/theirs/s", true)
		mustListen(t, top+"/sticky/theirs/s", true)
	})
	conn, err := Dial(t.Context(), top+"/root/theirs/s")
	rig.Must(t, err)
	_ = conn.Close()
	conn, err = Dial(t.Context(), top+"/sticky/theirs/s")
	if _, refused := errors.AsType[*ServerError](err); !refused {
		t.Errorf("in a folder that they have made for themselves: %v", err)
		_ = conn.Close()
	}
}
