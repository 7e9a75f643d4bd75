package api

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/test/rig"
)

func TestErrorText(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, body, wantCode, wantMessage string }{
		{"both", `{"error":{"code":"c","message":"m"}}`, "c", "m"},
		{"code only", `{"error":{"code":"c"}}`, "c", ""},
		{"message only", `{"error":{"message":"m"},"x":1}`, "", "m"},
		{"neither", `{"error":{}}`, "", `{"error":{}}`},
		{"another shape", `{"error":"text"}`, "", `{"error":"text"}`},
		{"text", " not\r\nhere\x00\x1b[31m\xff ", "", "not  here\ufffd\ufffd[31m\ufffd"},
		{"empty", "", "", ""},
		{"long", strings.Repeat("ä", maxErrorText+1), "", strings.Repeat("ä", maxErrorText)},
		{"long message", `{"error":{"message":"` + strings.Repeat("ä", maxErrorText+1) + `"}}`, "", strings.Repeat("ä", maxErrorText)},
		{"what was sent", `{"error":{"code":"tok-s3cret","message":"no tok-s3cret here"}}`, "[redacted]", "no [redacted] here"},
		{"what was sent, as text", "Bearer tok-s3cret", "", "Bearer [redacted]"},
	} {
		got := newError(403, []byte(tt.body), "tok-s3cret")
		rig.Same(t, tt.name, &Error{403, tt.wantCode, tt.wantMessage}, got)
	}
	for want, e := range map[string]*Error{
		"registry answered 403": {403, "", ""}, "registry answered 403 c": {403, "c", ""},
		"registry answered 403: m": {403, "", "m"}, "registry answered 403 c: m": {403, "c", "m"},
	} {
		rig.Is(t, e.Error(), want, "Error")
	}
}

// TestDelay: the pause before a call to a registry is repeated is 0.5 to 5
// s.
func TestDelay(t *testing.T) {
	t.Parallel()
	for range 100 {
		for n := range 20 {
			if d := Delay(n); d < 500*time.Millisecond || d > 5*time.Second {
				t.Fatalf("delay %d: got %v, want 0.5 to 5s", n, d)
			}
		}
	}
}

func TestSleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		rig.Check(t, Sleep(t.Context(), time.Minute))
		rig.Is(t, time.Since(began), time.Minute, "it has slept")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		rig.Is(t, Sleep(ctx, time.Minute), context.DeadlineExceeded, "Sleep")
		rig.Is(t, time.Since(began), time.Second, "it has slept")
		rig.Is(t, Sleep(ctx, -time.Second), context.DeadlineExceeded, "sleeping no time with a context that has ended")
	})
}
