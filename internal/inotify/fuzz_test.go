package inotify

import (
	"bytes"
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

func FuzzParse(f *testing.F) {
	event := make([]byte, 32)
	binary.NativeEndian.PutUint32(event, 1)
	binary.NativeEndian.PutUint32(event[4:], unix.IN_CREATE)
	binary.NativeEndian.PutUint32(event[12:], 16)
	copy(event[16:], "name")
	f.Add(event)
	f.Add(event[:16])
	f.Add(bytes.Repeat([]byte{0xff}, 20))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, n := parse(b)
		rig.Is(t, (n == 0 || n >= 16 && n <= len(b)) && len(e.Name) <= max(n-16, 0), true, "%d of %d bytes, name %q", n, len(b), e.Name)
	})
}
