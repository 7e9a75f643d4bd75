package suite

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/execagent/execagent/internal/strictjson"
)

var portNumber = regexp.MustCompile(`"port": "@([A-Z0-9]+)@"`)

// fill replaces the placeholders of a case. A port that is quoted becomes a number.
func (d *destinations) fill(line []byte) []byte {
	line = portNumber.ReplaceAll(line, []byte(`"port": @$1@`))
	for name, value := range d.values {
		line = bytes.ReplaceAll(line, []byte("@"+name+"@"), []byte(value))
	}
	return line
}

// networkStep has the members that only steps of network cases have; conformance/README.md explains them.
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
			return true, fmt.Errorf("the destinations have seen %q %d times, not %d: %.2000q", s.ExpectSeen, n, s.Count, p.servers.all())
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
		data, err := strictjson.StdBase64.Decode(chunk)
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
	if err := c.send([]byte(`{"id":"none","method":"environment/status","params":{}}`)); err != nil {
		return err
	}
	if _, err := c.find(func(m map[string]any) bool { return m["id"] == "none" }); err != nil && !errors.Is(err, errEnded) {
		return err
	}
	for _, m := range c.queue {
		if m["method"] == method {
			return fmt.Errorf("unexpected %s", text(m))
		}
	}
	return nil
}
