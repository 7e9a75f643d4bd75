package program

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestPrintJSON: what a terminal could act upon is an escape, and means the same.
func TestPrintJSON(t *testing.T) {
	t.Parallel()
	const text = "a\x1b[2J\x7f\u009b2J\u202e\U000e0001\n<é🙂>"
	var b strings.Builder
	rig.Must(t, PrintJSON(&b, []string{text}))
	const want = "[\n  \"a\\u001b[2J\\u007f\\u009b2J\\u202e\\udb40\\udc01\\n<é🙂>\"\n]\n"
	rig.Is(t, b.String(), want, "")
	var back []string
	rig.Must(t, json.Unmarshal([]byte(b.String()), &back))
	rig.Same(t, "read again", []string{text}, back)
}
