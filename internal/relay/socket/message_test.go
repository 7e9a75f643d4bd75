package socket

import "testing"

func TestMessage(t *testing.T) {
	t.Parallel()
	m := NewMessage(5000)
	if len(m.Bytes) != 0 || cap(m.Bytes) < 5000 {
		t.Errorf("%d bytes, room for %d", len(m.Bytes), cap(m.Bytes))
	}
	m.Retain()
	m.Release()
	if m.Bytes == nil {
		t.Error("gone while somebody holds it")
	}
	m.Release()
	if m.Bytes != nil {
		t.Error("kept when nobody holds it")
	}
	defer func() {
		if recover() == nil {
			t.Error("a release too many went unnoticed")
		}
	}()
	m.Release()
}
