package agent

import (
	"maps"
	"strings"
	"testing"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestRefusals: a client that asks for refusals gets them with the exit. With --tell-refusals other
// clients get lines on standard error.
func TestRefusals(t *testing.T) {
	t.Parallel()
	const note = "exit code 2. If the sandbox is the cause: the command has no network and can change no files; ask for the host HOST or write access to DIR"
	file := sh("f", "echo x >/etc/passwd")
	file["sandbox"] = managed("restricted", special("root", "read"))
	terminal := maps.Clone(file)
	terminal["tty"] = true
	unended := maps.Clone(file)
	unended["argv"] = []string{"/bin/sh", "-c", "printf 'read-only file system' >&2; exit 2"}
	offline := maps.Clone(file)
	offline["argv"] = []string{"/bin/sh", "-c", "echo 'curl: (6) Could not resolve host: a.example' >&2; exit 6"}
	program := sh("p", "p=ls; /bin/$p; /bin/$p; exit 3")
	program["execApproval"] = object{"rules": []object{{"name": "r", "text": `prefix_rule(pattern=["ls"], decision="forbidden", justification="use find")`}}}
	host := proxied("h", "")
	delete(host["networkProxy"].(object), "policyDecisionTimeoutMs")
	host["argv"] = []string{"/bin/bash", "-c", `a=${HTTP_PROXY#http://}; exec 3<>/dev/tcp/${a%:*}/${a#*:}
		printf 'GET http://no.example/ HTTP/1.1\r\nHost: no.example\r\n\r\n' >&3; head -n 1 <&3 >&2; exit 3`}
	for _, tt := range []struct {
		name       string
		tell, asks bool
		start      object
		want       string // what the client gets
		ends       string // the end of standard error
	}{
		{"file", false, true, file, "note: " + note, "Read-only file system\n"},
		{"file, nobody asks", false, false, file, "", "Read-only file system\n"},
		{"file, told", true, false, file, "", "Read-only file system\nsandbox: " + note + "\n"},
		{"terminal, told", true, false, terminal, "", "Read-only file system\r\nsandbox: " + note + "\r\n"},
		{"offline", false, true, offline, "note: the command has no network, and attempts to use one are not told; ask for the host HOST", "a.example\n"},
		{"no end of a line, told", true, false, unended, "", "read-only file system\nsandbox: " + note + "\n"},
		{"file, told and asked", true, true, file, "note: " + note, "Read-only file system\n"},
		{"program", true, true, program, "refused: execute /bin/ls (2 times): `/bin/ls` rejected: use find (client)", "/bin/ls: Operation not permitted\n"},
		{"host", false, true, host, "refused: connect to no.example:80: not allowed; ask for the host no.example:80", " 403 Forbidden\r\n"},
		{"host, told", true, false, host, "", " 403 Forbidden\r\nsandbox: refused: connect to no.example:80: not allowed; ask for the host no.example:80\n"},
		{"nothing", true, true, sh("n", "echo failed >&2; false"), "", "failed\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newHarness(t, Config{TellRefusals: tt.tell})
			if tt.start["execApproval"] != nil && !r.agent.sandboxes.judges() {
				t.Skip("this host cannot judge programs")
			}
			c, _, _ := r.opens(t, object{"refusals": tt.asks})
			c.call("s", "process/start", maps.Clone(tt.start))
			var stderr, got string
			for _, h := range c.toEnd(nil) {
				stderr += string(h.Params.Chunk)
				if h.Method != protocol.MethodProcessExited || h.Params.Refusals == nil {
					continue
				}
				for _, one := range h.Params.Refusals.List {
					got += strings.ReplaceAll(one.Text, "/usr/bin/ls", "/bin/ls")
				}
				if note := h.Params.Refusals.Note; note != "" {
					got += "note: " + note
				}
			}
			rig.Is(t, got, tt.want, "refusals")
			rig.Is(t, strings.HasSuffix(stderr, tt.ends), true, "the end of %q", stderr)
		})
	}
}
