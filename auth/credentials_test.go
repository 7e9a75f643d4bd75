package auth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// frameLine is one frame that is valid for a minute.
func frameLine(token string) string { return frameUntil(token, time.Now().Add(time.Minute)) }

func frameUntil(token string, expires time.Time) string {
	return fmt.Sprintf(`{"version":1,"environment_id":"env-1","token":%q,"expires_at":%d}`+"\n", token, expires.Unix())
}

func TestParseFrame(t *testing.T) {
	t.Parallel()
	now := time.Unix(1795177927, 999)
	long := strings.Repeat("t", 15000)
	tests := append(rig.Rows(t, "testdata/frames.txt", "frames", 4),
		[]string{"long", `{"version":1,"environment_id":"env-1","token":"` + long + `","expires_at":1795177928}`, long, ""})
	for _, tt := range tests {
		f, err := parseFrame([]byte(tt[1]), "env-1", now)
		if !failed(t, tt[0], err, tt[3]) {
			rig.Is(t, f.token, tt[2], "%s: token", tt[0])
		}
	}
}

// openCredentials gives a reader of frames and the end to write them to.
func openCredentials(t *testing.T, first string) (*Credentials, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	rig.Must(t, err)
	t.Cleanup(func() { r.Close(); w.Close() })
	write(t, w, first)
	c := rig.Value(ReadCredentials(t.Context(), r, "env-1"))
	t.Cleanup(c.Close)
	return c, w
}

func write(t *testing.T, w io.Writer, text string) {
	t.Helper()
	rig.Value(io.WriteString(w, text))
}

func TestCredentialsRotate(t *testing.T) {
	t.Parallel()
	c, w := openCredentials(t, frameLine("tok1"))
	wantAuthorization(t, "the first frame", c, "Bearer tok1")
	long := strings.Repeat("t", maxFrameLine-len(frameLine("")))
	write(t, w, frameLine("tok2")+frameLine(long)+frameLine("tok3"))
	w.Close()
	<-c.Done() // everything has been read
	rig.Check(t, c.Err())
	wantAuthorization(t, "the last frame", c, "Bearer tok3")
}

func TestCredentialsEnd(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, later, wantErr string }{
		{"invalid", "{}\n", "JSON"},
		{"empty line", "\n", "JSON"},
		{"expired", frameUntil("tok2", time.Unix(1, 0)), "expires_at"},
		{"foreign", strings.Replace(frameLine("tok2"), "env-1", "env-2", 1), "environment_id"},
		{"too long", frameLine(strings.Repeat("t", maxFrameLine-len(frameLine(""))+1)), "too long"},
		{"cut", strings.TrimSpace(frameLine("tok2")), "no newline"},
		{"end", "", ""},
	} {
		c, w := openCredentials(t, frameLine("tok1"))
		write(t, w, tt.later)
		w.Close()
		<-c.Done()
		failed(t, tt.name, c.Err(), tt.wantErr)
		wantAuthorization(t, "after "+tt.name, c, "Bearer tok1")
	}
}

func TestCredentialsWithoutFirst(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, stdin string
		wantErr     string
	}{
		{"nothing", "", "ended before"},
		{"invalid", "{}\n", "JSON"},
		{"expired", frameUntil("tok1", time.Unix(1, 0)), "expires_at"},
		{"no newline", strings.TrimSpace(frameLine("tok1")), "no newline"},
	} {
		_, err := ReadCredentials(t.Context(), pipe(t, tt.stdin, true), "env-1")
		failed(t, tt.name, err, tt.wantErr)
	}
	cause := errors.New("told to end")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	rig.Is(t, rig.Err(ReadCredentials(ctx, pipe(t, "", false), "env-1")), cause, "interrupted: error")
	_, err := readCredentials(t.Context(), pipe(t, "", false), "env-1", time.Millisecond)
	failed(t, "late", err, "within 1ms")
}

func TestCredentialsClose(t *testing.T) {
	t.Parallel()
	c, w := openCredentials(t, frameLine("tok1"))
	c.Close()
	c.Close()
	<-c.Done()
	rig.Check(t, c.Err())
	write(t, w, "{}\n")
	wantAuthorization(t, "after Close", c, "Bearer tok1")
}

func TestCredentialsExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &Credentials{environmentID: "env-1"}
		take := func(token string, d time.Duration) {
			rig.Must(t, c.take([]byte(frameUntil(token, time.Now().Add(d)))))
		}
		take("tok1", 10*time.Second)
		time.Sleep(9999 * time.Millisecond)
		wantAuthorization(t, "just before", c, "Bearer tok1")
		time.Sleep(time.Millisecond)
		h := http.Header{}
		rig.Is(t, c.Authorize(t.Context(), h), ErrExpired, "at the expiry")
		rig.Is(t, len(h), 0, "headers at the expiry")
		take("tok2", time.Second)
		wantAuthorization(t, "after a new frame", c, "Bearer tok2")
	})
}

func FuzzParseFrame(f *testing.F) {
	f.Add([]byte(`{"version":1,"environment_id":"env-1","token":"tok1","expires_at":1795177928}`))
	f.Add([]byte(`{"version":1,"version":1}`))
	f.Add([]byte("\xff"))
	f.Fuzz(func(t *testing.T, line []byte) {
		got, err := parseFrame(line, "env-1", time.Unix(1795177927, 0))
		if err != nil {
			return
		}
		rig.Is(t, got.token == "" || strings.ContainsAny(got.token, " \r\n\t\x00"), false, "the token of %q fits no header", line)
		rig.Is(t, got.expires > 1795177927, true, "the token of %q is good", line)
	})
}
