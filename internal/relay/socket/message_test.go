package socket

import (
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestMessage(t *testing.T) {
	t.Parallel()
	m := NewMessage(5000)
	rig.Is(t, len(m.Bytes) != 0 || cap(m.Bytes) < 5000, false, "%d bytes, room for %d", len(m.Bytes), cap(m.Bytes))
	m.Retain()
	m.Release()
	rig.Is(t, m.Bytes == nil, false, "it is gone while somebody holds it")
	m.Release()
	rig.Is(t, m.Bytes == nil, true, "it is gone when nobody holds it")
	defer func() {
		rig.Is(t, recover() == nil, false, "a release too many went unnoticed")
	}()
	m.Release()
}
