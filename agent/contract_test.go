package agent

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/protocol/contract"
	"github.com/execagent/execagent/test/rig"
)

// TestContractExamples makes the requests of docs/contract/README.md, one after the other. The agent answers with what the
// example answers, apart from values, or with an error that the page names.
func TestContractExamples(t *testing.T) {
	t.Parallel()
	p := newPlayer(t, "")
	here := strings.NewReplacer("file:///tmp", "file://"+p.dir, "127.0.0.1:8080", p.http, "127.0.0.1:9000", p.echo)
	answered := 0
	for i, m := range contract.Load().Methods {
		switch {
		case m.Server:
			continue
		case m.Result == nil:
			p.step(fmt.Sprintf(`> {"method":%q,"params":%s}`, m.Name, m.ParamsExample))
			continue
		}
		p.step(fmt.Sprintf(`> {"id":%d,"method":%q,"params":%s}`, i, m.Name, here.Replace(string(m.ParamsExample))))
		answer := rig.Value(protocol.Decode([]byte(p.now.next(t))))
		for answer.Kind == protocol.KindNotification {
			answer = rig.Value(protocol.Decode([]byte(p.now.next(t))))
		}
		if e := answer.Error; e != nil {
			named := func(f contract.Failure) bool { return f.Code == int(e.Code) }
			rig.Is(t, slices.ContainsFunc(m.Errors, named), true, "%s: %v is named", m.Name, e)
			continue
		}
		var got, want any
		rig.Must(t, json.Unmarshal(answer.Result, &got), json.Unmarshal(m.ResultExample, &want))
		rig.Is(t, alike(got, want), true, "%s: %s is like the example", m.Name, answer.Result)
		answered++
	}
	rig.Is(t, answered > 30, true, "%d examples have a result", answered)
}

// alike reports whether a value has all members of an example, with values of the same types.
func alike(got, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		have, ok := got.(map[string]any)
		for name, v := range want {
			ok = ok && (v == nil || have[name] == nil || alike(have[name], v))
			_, there := have[name]
			ok = ok && there
		}
		return ok
	case []any:
		have, ok := got.([]any)
		return ok && (len(have) == 0 || len(want) == 0 || alike(have[0], want[0]))
	}
	return fmt.Sprintf("%T", got) == fmt.Sprintf("%T", want)
}
