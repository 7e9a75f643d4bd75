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
	fill := func(n int) string {
		return `{"version":1,"environment_id":"env-1","token":"` + strings.Repeat("t", n) + `","expires_at":1795177928}`
	}
	for _, tt := range []struct{ name, line, want, wantErr string }{
		{"exact", `{"version":1,"environment_id":"env-1","token":"tok1","expires_at":1795177928}`, "tok1", ""},
		{"another order and blanks", " {\"expires_at\" : 1795177928, \"token\":\"tok1\", \"environment_id\":\"env-1\",\"version\":1}\r\n", "tok1", ""},
		{"very far", `{"version":1,"environment_id":"env-1","token":"tok1","expires_at":9223372036854775807}`, "tok1", ""},
		{"long", fill(15000), strings.Repeat("t", 15000), ""},
		{"escapes", `{"version":1,"environment_id":"env-1","token":"\u0074ok1","expires_at":1795177928}`, "tok1", ""},
		{"expires now", `{"version":1,"environment_id":"env-1","token":"tok1","expires_at":1795177927}`, "", "expires_at"},
		{"expired", `{"version":1,"environment_id":"env-1","token":"tok1","expires_at":-1}`, "", "expires_at"},
		{"null expiry", `{"version":1,"environment_id":"env-1","token":"tok1","expires_at":null}`, "", "expires_at"},
		{"fraction", `{"version":1,"environment_id":"env-1","token":"tok1","expires_at":1795177928.0}`, "", "JSON"},
		{"expiry as text", `{"version":1,"environment_id":"env-1","token":"tok1","expires_at":"1795177928"}`, "", "JSON"},
		{"expiry too large", `{"version":1,"environment_id":"env-1","token":"tok1","expires_at":9223372036854775808}`, "", "JSON"},
		{"version 2", `{"version":2,"environment_id":"env-1","token":"tok1","expires_at":1795177928}`, "", "version"},
		{"version null", `{"version":null,"environment_id":"env-1","token":"tok1","expires_at":1795177928}`, "", "version"},
		{"foreign", `{"version":1,"environment_id":"env-2","token":"tok1","expires_at":1795177928}`, "", "environment_id"},
		{"foreign by case", `{"version":1,"environment_id":"ENV-1","token":"tok1","expires_at":1795177928}`, "", "environment_id"},
		{"empty token", `{"version":1,"environment_id":"env-1","token":"","expires_at":1795177928}`, "", "token"},
		{"null token", `{"version":1,"environment_id":"env-1","token":null,"expires_at":1795177928}`, "", "token"},
		{"token with blank", `{"version":1,"environment_id":"env-1","token":"tok 1","expires_at":1795177928}`, "", "token"},
		{"token with newline", `{"version":1,"environment_id":"env-1","token":"tok\n1","expires_at":1795177928}`, "", "token"},
		{"unknown member", `{"version":1,"environment_id":"env-1","token":"tok1","expires_at":1795177928,"x":1}`, "", "JSON"},
		{"missing member", `{"version":1,"environment_id":"env-1","token":"tok1"}`, "", "JSON"},
		{"member twice", `{"version":1,"version":1,"environment_id":"env-1","token":"tok1","expires_at":1795177928}`, "", "JSON"},
		{"other spelling", `{"Version":1,"environment_id":"env-1","token":"tok1","expires_at":1795177928}`, "", "JSON"},
		{"two objects", `{"version":1,"environment_id":"env-1","token":"tok1","expires_at":1795177928}{}`, "", "JSON"},
		{"array", `[1]`, "", "JSON"}, {"text", `"tok1"`, "", "JSON"}, {"null", `null`, "", "JSON"}, {"empty", "\n", "", "JSON"},
		{"cut", `{"version":1`, "", "JSON"}, {"empty object", `{}`, "", "JSON"}, {"no JSON", `tok1`, "", "JSON"},
	} {
		f, err := parseFrame([]byte(tt.line), "env-1", now)
		if !failed(t, tt.name, err, tt.wantErr) {
			rig.Is(t, f.token, tt.want, "%s: token", tt.name)
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
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, w := openCredentials(t, frameLine("tok1"))
			write(t, w, tt.later)
			w.Close()
			<-c.Done()
			failed(t, "the end", c.Err(), tt.wantErr)
			wantAuthorization(t, "after it", c, "Bearer tok1")
		})
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
