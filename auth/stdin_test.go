package auth

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/execagent/execagent/test/rig"
)

// pipe returns the reading end of a pipe with text in it; its writing end is open
// unless ended.
func pipe(t *testing.T, text string, ended bool) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	rig.Must(t, err)
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = io.WriteString(w, text) // the reader may stop early
		if ended {
			w.Close()
		}
	}()
	t.Cleanup(func() {
		r.Close()
		w.Close()
		<-written
	})
	return r
}

func TestReadBearer(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", maxBearerLine-1)
	for _, tt := range []struct {
		name, stdin string
		ended       bool
		want        string
		wantErr     string
	}{
		{name: "line", stdin: "tok\n", want: "tok"},
		{name: "more behind it", stdin: "tok\nrest\n", want: "tok"},
		{name: "carriage return", stdin: "tok\r\n", want: "tok"},
		{name: "longest", stdin: long + "\n", want: long},
		{name: "too long", stdin: long + "a\n", wantErr: "too long"},
		{name: "endless", stdin: long + "aaaaaaaaaaaaaaaaaaaaa", wantErr: "too long"},
		{name: "no newline", stdin: "s3cret", ended: true, wantErr: "no newline"},
		{name: "nothing", ended: true, wantErr: "ended before"},
		{name: "empty", stdin: "\n", wantErr: "empty"},
		{name: "blank before", stdin: " s3cret\n", wantErr: "blanks"},
		{name: "blank behind", stdin: "s3cret \n", wantErr: "blanks"},
		{name: "blank inside", stdin: "s3cret two\n", wantErr: "blanks"},
		{name: "tab", stdin: "s3cret\ttwo\n", wantErr: "blanks"},
		{name: "two carriage returns", stdin: "s3cret\r\r\n", wantErr: "blanks"},
		{name: "not ASCII", stdin: "s3crét\n", wantErr: "ASCII"},
		{name: "delete", stdin: "s3cret\x7f\n", wantErr: "ASCII"},
	} {
		s, err := ReadBearer(t.Context(), pipe(t, tt.stdin, tt.ended))
		if !failed(t, tt.name, err, tt.wantErr) {
			wantAuthorization(t, tt.name, s, "Bearer "+tt.want)
		}
	}
	cause := errors.New("told to end")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	rig.Is(t, rig.Err(ReadBearer(ctx, pipe(t, "", false))), cause, "interrupted")
}

func TestReadBearerOfFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	rig.Must(t, os.WriteFile(path, []byte("tok\n"), 0o600))
	f := rig.Value(os.Open(path))
	defer f.Close()
	wantAuthorization(t, "of a file", rig.Value(ReadBearer(t.Context(), f)), "Bearer tok")
	failed(t, "ReadChatGPTToken of a file", rig.Err(ReadChatGPTToken(t.Context(), f, "")), "pipe or socket")
}

func TestReadChatGPTToken(t *testing.T) {
	t.Parallel()
	claim := map[string]any{"chatgpt_account_id": "acct-1"}
	good := unsignedJWT(map[string]any{claimAuth: claim})
	for _, tt := range []struct {
		name, stdin, account string
		want                 http.Header
		wantErr              string
	}{
		{name: "line", stdin: good + "\n",
			want: http.Header{"Authorization": {"Bearer " + good}, "Chatgpt-Account-Id": {"acct-1"}}},
		{name: "account asked for", stdin: good + "\r\n", account: "acct-1",
			want: http.Header{"Authorization": {"Bearer " + good}, "Chatgpt-Account-Id": {"acct-1"}}},
		{name: "another account asked for", stdin: good + "\n", account: "acct-2", wantErr: "another account"},
		{name: "opaque", stdin: "s3cret\n", account: "acct-1", wantErr: "not a JWT"},
		{name: "no claim", stdin: unsignedJWT(map[string]any{"sub": "x"}) + "\n", account: "acct-1", wantErr: "account"},
		{name: "claim of another kind", stdin: unsignedJWT(map[string]any{claimAuth: "acct-1"}) + "\n", wantErr: "account"},
		{name: "account of another kind", stdin: unsignedJWT(map[string]any{claimAuth: map[string]any{"chatgpt_account_id": 1}}) + "\n", wantErr: "account"},
		{name: "empty account", stdin: unsignedJWT(map[string]any{claimAuth: map[string]any{"chatgpt_account_id": ""}}) + "\n", wantErr: "account"},
		{name: "account that is no header", stdin: unsignedJWT(map[string]any{claimAuth: map[string]any{"chatgpt_account_id": "a\r\nX: y"}}) + "\n", wantErr: "account"},
		{name: "no newline", stdin: good, wantErr: "no newline"},
		{name: "too long", stdin: strings.Repeat("s", maxToken) + "\n", wantErr: "too long"},
		{name: "blanks", stdin: " " + good + "\n", wantErr: "blanks"},
	} {
		s, err := ReadChatGPTToken(t.Context(), pipe(t, tt.stdin, true), tt.account)
		if failed(t, tt.name, err, tt.wantErr) {
			continue
		}
		wantHeaders(t, tt.name, s, tt.want)
		rig.Is(t, rig.Err(CheckBase("http://127.0.0.1", s)) == nil, false, "CheckBase takes plain http")
	}
}

func TestReadChatGPTTokenOfSocket(t *testing.T) {
	t.Parallel()
	fds := rig.Value(syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0))
	near, far := os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
	defer near.Close()
	defer far.Close()
	token := unsignedJWT(map[string]any{claimAuth: map[string]any{"chatgpt_account_id": "acct-1", "chatgpt_account_is_fedramp": true}})
	rig.Value(io.WriteString(far, token+"\n"))
	s := rig.Value(ReadChatGPTToken(t.Context(), near, ""))
	wantHeaders(t, "by a socket", s, http.Header{"Authorization": {"Bearer " + token}, "Chatgpt-Account-Id": {"acct-1"}, "X-Openai-Fedramp": {"true"}})
}

// TestLines reads lines byte by byte and at once, to the byte of the limit.
func TestLines(t *testing.T) {
	t.Parallel()
	const text = "12345678\n\nab\n1234567\nlong-tail"
	for _, r := range []io.Reader{strings.NewReader(text), iotest.OneByteReader(strings.NewReader(text)), iotest.DataErrReader(strings.NewReader(text))} {
		l := &lines{r: r, buf: make([]byte, 9)}
		var got []string
		var err error
		for {
			var line []byte
			if line, err = l.next(); err != nil {
				break
			}
			got = append(got, string(line))
		}
		rig.Same(t, "lines", []string{"12345678\n", "\n", "ab\n", "1234567\n"}, got)
		rig.Is(t, err, errLineLong, "the end of the lines")
	}
	l := &lines{r: iotest.ErrReader(net.ErrClosed), buf: make([]byte, 9)}
	rig.Is(t, rig.Err(l.next()), net.ErrClosed, "next")
}
