package forwarding

import (
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestParseSpec(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Spec{
		"8080":                 {"tcp", "127.0.0.1:8080", "tcp://localhost:8080"},
		"8080:80":              {"tcp", "127.0.0.1:8080", "tcp://localhost:80"},
		":80":                  {"tcp", "127.0.0.1:0", "tcp://localhost:80"},
		"0:80":                 {"tcp", "127.0.0.1:0", "tcp://localhost:80"},
		"8080:db.internal:80":  {"tcp", "127.0.0.1:8080", "tcp://db.internal:80"},
		"8080:[::1]:80":        {"tcp", "127.0.0.1:8080", "tcp://[::1]:80"},
		"[::1]:80":             {"tcp", "127.0.0.1:0", "tcp://[::1]:80"},
		"8080:/run/app.sock":   {"tcp", "127.0.0.1:8080", "unix:///run/app.sock"},
		"/tmp/s:/run/app:1.s":  {"unix", "/tmp/s", "unix:///run/app:1.s"},
		"/tmp/s:80":            {"unix", "/tmp/s", "tcp://localhost:80"},
		"/tmp/s:127.0.0.1:443": {"unix", "/tmp/s", "tcp://127.0.0.1:443"},
	} {
		got, err := ParseSpec(text, "127.0.0.1")
		rig.Is(t, got == want && err == nil, true, "%s: %+v, %v", text, got, err)
	}
	got, err := ParseSpec("80", "::1")
	rig.Is(t, got.Local == "[::1]:80" && err == nil, true, "at ::1: %+v, %v", got, err)
	_, err = ParseSpec("/"+strings.Repeat("x", 107)+":22", "127.0.0.1")
	rig.Says(t, err, "the path of a socket can have at most 107 bytes, and this one has 108", "a long path")
	for _, text := range []string{"", ":", "0", "x", "80:", "80:0", "65536", "-1:80", "80:host", "80:host:", "80::80", "80:host:x", "80:a:b:80", "relative/s:80", "/tmp/s", "80:[::1"} {
		rig.Is(t, rig.Err(ParseSpec(text, "127.0.0.1")) != nil, true, "%q is refused", text)
	}
}
