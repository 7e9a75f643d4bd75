package target

import (
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestAddresses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string][2]string{
		"127.0.0.1:7000":         {"ws://127.0.0.1:7000", "ws://127.0.0.1:7000"},
		":7000":                  {"ws://0.0.0.0:7000", "ws://127.0.0.1:7000"},
		"ws://:7000":             {"ws://0.0.0.0:7000", "ws://127.0.0.1:7000"},
		"localhost:7000":         {"ws://127.0.0.1:7000", "ws://localhost:7000"},
		"ws://localhost:7000":    {"ws://127.0.0.1:7000", "ws://localhost:7000"},
		"[::1]:7000":             {"ws://[::1]:7000", "ws://[::1]:7000"},
		"build.example:7000":     {"ws://build.example:7000", "ws://build.example:7000"},
		"ws://127.0.0.1:7000/a":  {"ws://127.0.0.1:7000/a", "ws://127.0.0.1:7000/a"},
		"wss://:7000":            {"wss://0.0.0.0:7000", "wss://127.0.0.1:7000"},
		"wss://localhost:7000":   {"wss://127.0.0.1:7000", "wss://localhost:7000"},
		"wss://build.example":    {"wss://build.example", "wss://build.example"},
		"http://127.0.0.1:7000":  {"http://127.0.0.1:7000", "http://127.0.0.1:7000"},
		"stdio":                  {"stdio", "stdio"},
		"unix:///run/agent.sock": {"unix:///run/agent.sock", "unix:///run/agent.sock"},
		"":                       {"", ""},
	} {
		rig.Is(t, ListenURL(address), want[0], "listening on %q", address)
		rig.Is(t, DialURL(address), want[1], "dialling %q", address)
	}
}
