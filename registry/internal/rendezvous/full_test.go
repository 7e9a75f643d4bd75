package rendezvous

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/store/storetest"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/test/rig"
)

// diskVariable is the environment variable that names the folder of the disk to a test
// that ownDisk has started again, in a mount namespace of its own.
const diskVariable = "REGISTRY_TEST_DISK"

// ownDisk gives the test a disk of 16 MiB. For that it starts the test again in a mount
// namespace of its own, where it returns the folder of the disk and true. In the process
// that was there before it waits for the other one, and returns false.
func ownDisk(t *testing.T) (dir string, ok bool) {
	t.Helper()
	if dir := os.Getenv(diskVariable); dir != "" {
		rig.Must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"))
		return dir, true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), diskVariable+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		t.Skipf("no mount namespace: %v", err)
	}
	t.Logf("%s", out)
	rig.Check(t, err)
	return "", false
}

// fill takes all room that a disk has; the result gives it back.
func fill(t *testing.T, dir string) (empty func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f := rig.Value(os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600))
	defer f.Close()
	for block := make([]byte, 64<<10); len(block) > 0; {
		if _, err := f.Write(block); err != nil {
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			block = block[:len(block)/2] // to the last byte
		}
	}
	return func() {
		rig.Must(t, os.Remove(path))
	}
}

// TestDiskFull: a registry whose disk is full says so, goes on with what it has,
// and takes registrations and keys again by itself once there is room. The long form waits for
// timeouts of NATS.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	disk, ok := ownDisk(t)
	if !ok {
		return
	}
	ctx := t.Context()
	dir := filepath.Join(disk, "data")
	st := rig.Value(store.Open(ctx, store.Config{Dir: dir, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}))
	t.Cleanup(func() { rig.Check(t, st.Close()) })
	c := newCluster(t, st, func() state { return st })
	s := c.server(settings{})
	_, harness, err := st.CreateKey(ctx, store.Key{Role: string(ticket.Harness), Environments: "*"})
	rig.Must(t, err)
	var keys []string
	for range 50 {
		text, _, err := st.CreateKey(ctx, store.Key{Role: string(ticket.Executor), Environments: "*"})
		rig.Must(t, err)
		keys = append(keys, text)
	}
	known := storetest.Key(t)
	registered, _, err := s.take("known", known)
	rig.Must(t, err)
	e, h, own := s.executor(), s.harness(), s.ticket(ticket.Harness)
	own.Principal = store.KeyPrefix + harness.ID
	revoked := s.end(own)
	opened(h, e, "plain", 0)
	opened(h, e, "acknowledged", 1)
	opened(revoked, e, "revoked", 0)

	ready := func() bool { return st.Ready(ctx, s.node) == nil }
	register := func(environmentID string) error {
		_, _, err := s.take(environmentID, storetest.Key(t))
		return err
	}
	rig.Is(t, ready(), true, "ready before")

	rounds := 1
	if rig.Runs(rig.Merge) {
		rounds = 2
	}
	for round := range rounds {
		empty := fill(t, disk)
		if round == 0 {
			c.settles("readyz tells", func() bool { return !ready() })
			var err error
			// Pages of files that have room left take some registrations yet.
			for n := 0; err == nil && n < 100; n++ {
				err = register(fmt.Sprintf("new-%d", n))
			}
			rig.Is(t, err, store.ErrUnavailable, "registering")
			// Ends that have a websocket notice nothing, and executors can be found.
			exchange(h, e, "plain", 0)
			exchange(h, e, "acknowledged", 1)
			s.wantOnline(true)
			again := s.end(s.ticket(ticket.Executor))
			h.wantReset("plain", resetExecutorGone)
			revoked.wantEnd()
			h.want(again.sendFrame(acked(resume("acknowledged"), 1)))
			e = again
			exchange(h, e, "acknowledged", 1)
			opened(h, e, "plain", 0)
			revoked = s.end(own)
			opened(revoked, e, "revoked", 0)
			rig.Is(t, ready(), false, "it is ready")
		} else {
			// Nobody but a command of the operator needs the disk.
			beside := rig.Value(store.Open(ctx, store.Config{Dir: dir, Shared: true}))
			for n := 0; err == nil && n < 100; n++ {
				_, _, err = beside.CreateKey(ctx, store.Key{Role: string(ticket.Executor), Environments: "*"})
			}
			rig.Is[error](t, err, syscall.ENOSPC, "creating a key beside the registry")
			rig.Check(t, beside.Close())
		}
		empty()

		began := time.Now()
		c.settles("an operator can make a key", func() bool {
			_, _, err := st.CreateKey(ctx, store.Key{Role: string(ticket.Executor), Environments: "*"})
			return err == nil
		})
		c.settles("it is ready", func() bool { return ready() })
		t.Logf("ready %v after there was room", time.Since(began))
		rig.Check(t, register(strings.Repeat("n", round+1)))
		again, _, err := s.take("known", known)
		rig.Is(t, err != nil || again.ID != registered.ID, false, "registration %s is %s now, %v", registered.ID, again.ID, err)
		for _, key := range keys {
			rig.Value(st.AuthenticateKey(ctx, key))
		}
		c.waitOnline(s)
		s.wantOnline(true)
		exchange(h, e, "plain", 0)
		exchange(h, e, "acknowledged", 1)
	}
	if rounds == 1 {
		return
	}
	// What listens for changes hears of them as before, after some ten seconds.
	rig.Value(st.RevokeKey(ctx, harness.ID))
	revoked.wantEnd()
}
