package conformance

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rawclient"
	"github.com/execagent/execagent/test/rig"
)

// interfaces is where supervised commands differ from what is recorded.
const interfaces = "there is no network namespace: the command sees the interfaces of the host, or may not look, and reaches none of them"

// otherSupervised names the network cases that an agent without namespaces answers in another
// way, and why.
var otherSupervised = map[string]string{
	"net-sandbox-restricted": interfaces, "net-sandbox-enabled": interfaces,
	"net-sandbox-unrestricted-files": interfaces, "net-sandbox-disabled": interfaces,
}

// TestNetworkCases replays the cases of the managed network. Each has servers of its own.
func TestNetworkCases(t *testing.T) { replayNetwork(t, agentURL, nil, "net-", "transparent-") }

// TestNetworkCasesSupervised replays those with a sandbox against an agent that can make no
// namespaces, and so supervises.
func TestNetworkCasesSupervised(t *testing.T) {
	if *flagURL != "" {
		t.Skip("an agent named by -url is as it is")
	}
	launcher := rig.Launcher(t, t.TempDir())
	agent := rig.Start(t, exec.CommandContext(t.Context(), launcher, "--", program, "--listen", "ws://127.0.0.1:0"))
	url := agent.Line(t)
	prefixes := []string{"net-mask-in-sandbox", "net-sandbox-all-"} // the short form
	if rig.Runs(rig.Merge) {
		prefixes[1] = "net-sandbox-"
	}
	t.Run("cases", func(t *testing.T) { replayNetwork(t, url, otherSupervised, prefixes...) })
	agent.Terminate(t)
}

// replayNetwork replays the cases whose names begin so against the agent at url, which answers
// some of them in another way, for the reasons given.
func replayNetwork(t *testing.T, url string, other map[string]string, prefixes ...string) {
	cases := &suite{differs: other, play: func(t *testing.T, line []byte, dir string) ([]step, string, *destinations) {
		d := listen(t, dir)
		var c script
		rig.Must(t, json.Unmarshal(d.fill(line, filepath.Join(dir, "w")), &c))
		return c.Steps, url, d
	}}
	cases.replay(t, map[string]int{"network-cases.jsonl": 147, "transparent-cases.jsonl": 8}, prefixes...)
}

var portNumber = regexp.MustCompile(`"port": "@([A-Z0-9]+)@"`)

// fill replaces the placeholders of a case. A port that is quoted becomes a number.
func (d *destinations) fill(line []byte, dir string) []byte {
	line = portNumber.ReplaceAll(line, []byte(`"port": @$1@`))
	line = bytes.ReplaceAll(line, []byte("@DIR@"), []byte(dir))
	for name, value := range d.values {
		line = bytes.ReplaceAll(line, []byte("@"+name+"@"), []byte(value))
	}
	return line
}

// networkStep has the members that only steps of network cases have; the first line of
// network-cases.jsonl explains them.
type networkStep struct {
	ExpectOutput *expectedOutput `json:"expectOutput"`
	ExpectNone   string          `json:"expectNone"`
	Within       float64         `json:"within"` // seconds
	ExpectSeen   string          `json:"expectSeen"`
	Count        int             `json:"count"`
}

type expectedOutput struct {
	ProcessID string   `json:"processId"`
	Text      *string  `json:"text"`
	ExitCode  *int     `json:"exitCode"`
	NotIn     []string `json:"notIn"`
}

// networkStep plays a step that only network cases have, and reports whether s is one.
func (p *player) networkStep(ctx context.Context, s step, name string) (is bool, err error) {
	switch {
	case s.ExpectOutput != nil:
		return true, p.conns[name].output(s.ExpectOutput)
	case s.ExpectNone != "":
		return true, p.conns[name].none(ctx, s.ExpectNone, time.Duration(cmp.Or(s.Within, 0.3)*float64(time.Second)))
	case s.ExpectSeen != "":
		if n := p.servers.count(s.ExpectSeen); n != s.Count {
			return true, fmt.Errorf("the destinations have seen %q %d times, not %d: %q", s.ExpectSeen, n, s.Count, p.servers.seen)
		}
		return true, nil
	}
	return false, nil
}

// about reports whether a message is a notification of a method about a process.
func about(m map[string]any, method, process string) bool {
	params, _ := m["params"].(map[string]any)
	return m["method"] == method && params["processId"] == process
}

// output waits for the end of a process, and compares all that it has printed.
func (c *conn) output(want *expectedOutput) error {
	exited, err := c.find(func(m map[string]any) bool { return about(m, "process/exited", want.ProcessID) })
	if err != nil {
		return fmt.Errorf("process %s has not exited: %w", want.ProcessID, err)
	}
	if _, err := c.find(func(m map[string]any) bool { return about(m, "process/closed", want.ProcessID) }); err != nil {
		return fmt.Errorf("process %s has not closed: %w", want.ProcessID, err)
	}
	var output []byte
	var others []map[string]any
	for _, m := range c.queue {
		if !about(m, "process/output", want.ProcessID) {
			others = append(others, m)
			continue
		}
		chunk, _ := m["params"].(map[string]any)["chunk"].(string)
		data, err := base64.StdEncoding.DecodeString(chunk)
		if err != nil {
			return err
		}
		output = append(output, data...)
	}
	c.queue = others
	if want.Text != nil && !matchText(*want.Text, string(output)) {
		return fmt.Errorf("expected output %q\n     got %q", *want.Text, output)
	}
	for _, text := range want.NotIn {
		if strings.Contains(string(output), text) {
			return fmt.Errorf("output has %q: %q", text, output)
		}
	}
	code := exited["params"].(map[string]any)["exitCode"]
	if want.ExitCode != nil && fmt.Sprint(code) != fmt.Sprint(*want.ExitCode) {
		return fmt.Errorf("exit code %v, not %d; output %q", code, *want.ExitCode, output)
	}
	return nil
}

// none fails if a message of a method has come, or comes before an answer that is asked for when
// the time is up.
func (c *conn) none(ctx context.Context, method string, within time.Duration) error {
	select {
	case <-time.After(within):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := c.Write([]byte(`{"id":"none","method":"environment/status","params":{}}`)); err != nil {
		return err
	}
	if _, err := c.find(func(m map[string]any) bool { return m["id"] == "none" }); err != nil && !errors.Is(err, rawclient.ErrEnded) {
		return err
	}
	for _, m := range c.queue {
		if m["method"] == method {
			text, _ := json.Marshal(m) // decoded from JSON: encodes again
			return fmt.Errorf("unexpected %s", text)
		}
	}
	return nil
}
