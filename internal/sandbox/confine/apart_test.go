package confine

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/pack"
	"github.com/execagent/execagent/test/rig"
)

// TestApartKilled: a second init that is killed ends the socket, whatever it has not read yet. Init
// then reports the signal that killed it, and no error of the socket.
func TestApartKilled(t *testing.T) {
	t.Parallel()
	pair := func() (ours, theirs int) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		rig.Must(t, err)
		t.Cleanup(func() { _ = unix.Close(fds[0]) })
		return fds[0], fds[1]
	}
	await := func(socket int) error {
		dropped := false
		target := &target{drop: func() error { dropped = true; return nil }}
		err := target.awaitApart(socket, nil)
		rig.Is(t, dropped, err == nil, "the capabilities are dropped")
		return err
	}

	ours, theirs := pair()
	rig.Must(t, unix.Close(theirs))
	rig.Is(t, await(ours), nil, "killed before it said anything")

	ours, theirs = pair()
	rig.Must(t, sendApart(ours, apartGo, -1), unix.Close(theirs))
	rig.Is(t, await(ours), nil, "killed before it read a packet")

	ours, theirs = pair()
	mounts, err := pack.SealedFile("mounts", pack.AppendInt(nil, 0))
	rig.Must(t, err, sendApart(theirs, apartView, mounts), unix.Close(theirs), unix.Close(mounts))
	rig.Is(t, await(ours), nil, "killed after it sent its mounts")
}
