package sockfd

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// memory is the memory of a process, from address 0 on.
type memory []byte

func (m memory) read(addr uint64, n int) ([]byte, error) {
	if n < 0 || addr > uint64(len(m)) || uint64(n) > uint64(len(m))-addr {
		return nil, unix.EFAULT
	}
	return m[addr : addr+uint64(n)], nil
}

// header puts a struct msghdr at the beginning.
func header(name uint64, nameSize int32, vectors, count uint64, rest ...byte) memory {
	m := make(memory, sizeMsghdr)
	binary.NativeEndian.PutUint64(m, name)
	binary.NativeEndian.PutUint32(m[NameSizeAt:], uint32(nameSize))
	binary.NativeEndian.PutUint64(m[16:], vectors)
	binary.NativeEndian.PutUint64(m[24:], count)
	return append(m, rest...)
}

// TestReadName: the address of a message is read within bounds.
func TestReadName(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		m    memory
		want string
		err  error
	}{
		"none":          {header(0, 16, 0, 0), "", nil},
		"empty":         {header(sizeMsghdr, 0, 0, 0), "", nil},
		"some":          {header(sizeMsghdr, 4, 0, 0, []byte("abcdef")...), "abcd", nil},
		"negative":      {header(sizeMsghdr, -1, 0, 0, []byte("abcdef")...), "", unix.EINVAL},
		"out of memory": {header(sizeMsghdr, 8, 0, 0, []byte("abcdef")...), "", unix.EFAULT},
		"too long":      {header(sizeMsghdr, 1<<20, 0, 0, make([]byte, 200)...), string(make([]byte, maxName)), nil},
		"no header":     {nil, "", unix.EFAULT},
	} {
		got, err := ReadName(tt.m.read, 0)
		rig.Is(t, string(got), tt.want, "%s", name)
		rig.Is(t, err, tt.err, "%s", name)
	}
}

// TestReadBuffers: the places for a message are read within bounds.
func TestReadBuffers(t *testing.T) {
	t.Parallel()
	vectors := binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, 7), 100)
	got, err := ReadBuffers(header(9, 16, sizeMsghdr, 1, vectors...).read, 0)
	rig.Must(t, err)
	rig.Same(t, "the places", Buffers{Name: 9, NameRoom: 16, Vectors: []Vector{{7, 100}}}, got)
	for name, tt := range map[string]struct {
		m   memory
		err error
	}{
		"too many":       {header(0, 0, sizeMsghdr, MaxVectors+1, vectors...), unix.EMSGSIZE},
		"out of memory":  {header(0, 0, sizeMsghdr, 2, vectors...), unix.EFAULT},
		"a negative one": {header(9, -1, sizeMsghdr, 1, vectors...), unix.EINVAL},
	} {
		_, err := ReadBuffers(tt.m.read, 0)
		rig.Is(t, err, tt.err, "%s", name)
	}
}

func FuzzMessage(f *testing.F) {
	f.Add([]byte(header(sizeMsghdr, 16, sizeMsghdr, 1, make([]byte, 40)...)))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, _ := ReadName(memory(b).read, 0)
		rig.Is(t, len(name) <= maxName, true, "an address of %d bytes", len(name))
		places, _ := ReadBuffers(memory(b).read, 0)
		rig.Is(t, len(places.Vectors) <= MaxVectors, true, "%d places", len(places.Vectors))
		m, _ := ReadMessage(memory(b).read, 0)
		rig.Is(t, len(m.Data) <= MaxData, true, "%d bytes", len(m.Data))
	})
}
