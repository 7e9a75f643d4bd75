package transport

import (
	"bytes"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/internal/rpctest"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

func TestStdioConn(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		pipe func(t *testing.T) (r, w *os.File)
	}{
		{"pipes of this runtime", func(t *testing.T) (r, w *os.File) {
			r, w, err := os.Pipe()
			rig.Must(t, err)
			return r, w
		}},
		{"blocking pipes, as inherited", func(t *testing.T) (r, w *os.File) {
			var fds [2]int
			rig.Must(t, syscall.Pipe2(fds[:], syscall.O_CLOEXEC))
			return os.NewFile(uintptr(fds[0]), "r"), os.NewFile(uintptr(fds[1]), "w")
		}},
		{"blocking sockets, as inherited", func(t *testing.T) (r, w *os.File) {
			fds := rig.Value(syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0))
			return os.NewFile(uintptr(fds[0]), "r"), os.NewFile(uintptr(fds[1]), "w")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rpctest.TestConn(t, func(t *testing.T) (a, b rpc.Conn) {
				aIn, bOut := tt.pipe(t)
				bIn, aOut := tt.pipe(t)
				return Stdio(aIn, aOut, nil), Stdio(bIn, bOut, nil)
			})
		})
	}
}

// stdioOver reads input and forgets what is written.
func stdioOver(input io.Reader) *Lines {
	return Stdio(io.NopCloser(input), nopWriteCloser{io.Discard}, nil)
}

type nopWriteCloser struct{ io.Writer }

func (nopWriteCloser) Close() error { return nil }

func TestStdioLines(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", lineReadBuffer)
	for _, tt := range []struct {
		name, input string
		want        []string
	}{
		{"nothing", "", nil},
		{"LF", "{}\n[]\n", []string{"{}", "[]"}},
		{"CRLF", "{}\r\n[]\r\n", []string{"{}", "[]"}},
		{"no ending", "{}\n[]", []string{"{}", "[]"}},
		{"CR at the end", "{}\r", []string{"{}"}},
		{"one CR belongs to the ending", "{}\r\r\n", []string{"{}\r"}},
		{"CR inside", "{\r}\n", []string{"{\r}"}},
		{"blank lines", "\n\r\n \t\n{}\n\n  ", []string{"{}"}},
		{"blanks around", "  {} \n", []string{"  {} "}},
		{"two objects", "{}{}\n", []string{"{}{}"}},
		{"as large as the buffer", large + "\n" + large[1:] + "\n" + large[2:] + "\r\n", []string{large, large[1:], large[2:]}},
		{"larger than the buffer", large + large + large + "y\n{}\n", []string{large + large + large + "y", "{}"}},
	} {
		c := stdioOver(strings.NewReader(tt.input))
		for _, want := range tt.want {
			wantRead(t, c, want)
		}
		for range 2 {
			rig.Is(t, rig.Err(c.Read()), io.EOF, "%s: at the end", tt.name)
		}
	}
}

func TestStdioLimit(t *testing.T) {
	t.Parallel()
	fill := bytes.Repeat([]byte("x"), maxMessage)
	for _, tt := range []struct {
		name  string
		input []io.Reader
		want  error
	}{
		{"largest", []io.Reader{bytes.NewReader(fill), strings.NewReader("\r\n")}, nil},
		{"one byte more", []io.Reader{bytes.NewReader(fill), strings.NewReader("x\n")}, ErrTooLarge},
		{"no end in sight", []io.Reader{bytes.NewReader(fill), bytes.NewReader(fill)}, ErrTooLarge},
	} {
		c := stdioOver(io.MultiReader(tt.input...))
		got, err := c.Read()
		rig.Is(t, err, tt.want, "%s", tt.name)
		if err == nil {
			rig.Is(t, len(got), maxMessage, "%s: bytes", tt.name)
		} else {
			rig.Is(t, rig.Err(c.Read()), err, "%s: Read again", tt.name)
		}
	}
}

func TestStdioWrites(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := Stdio(io.NopCloser(strings.NewReader("")), nopWriteCloser{&out}, nil)
	large := strings.Repeat("x", lineReadBuffer)
	for _, message := range []string{`{"a":1}`, large, "{}"} {
		rig.Must(t, c.Write([]byte(message)))
	}
	rig.Is(t, c.Write([]byte("{\n}")) == nil, false, "a message of two lines was written")
	rig.Is(t, out.String(), "{\"a\":1}\n"+large+"\n{}\n", "what was written")
	c.Close()
	rig.Is(t, c.Write([]byte("{}")), net.ErrClosed, "Write after Close")
	rig.Is(t, c.String(), "stdio", "String")
}

// After a write that failed half way, no other line may follow it.
func TestStdioWriteErrorIsFinal(t *testing.T) {
	t.Parallel()
	out := &halfWriter{}
	c := Stdio(io.NopCloser(strings.NewReader("")), nopWriteCloser{out}, nil)
	first := c.Write([]byte("{}"))
	second := c.Write([]byte("[]"))
	rig.Is(t, first != nil && second == first, true, "Write gives one error twice: %v, then %v", first, second)
	rig.Is(t, out.String(), "{", "half a line")
}

// halfWriter takes half of the first write.
type halfWriter struct{ bytes.Buffer }

func (w *halfWriter) Write(p []byte) (int, error) {
	n, _ := w.Buffer.Write(p[:len(p)/2])
	return n, io.ErrShortWrite
}
