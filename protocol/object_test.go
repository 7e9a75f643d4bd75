package protocol

import (
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/strictjson"
	"github.com/execagent/execagent/test/rig"
)

func TestEmptyParams(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{``, `null`, `{}`, `{ }`} {
		rig.Check(t, UnmarshalParams([]byte(raw), new(EmptyParams)))
	}
	for _, raw := range []string{`{"a":1}`, `[]`, `[null]`, `5`, `"x"`, `true`} {
		rig.Is(t, UnmarshalParams([]byte(raw), new(EmptyParams)) != nil, true, "params %q are refused", raw)
	}
}

func TestUnmarshalParamsWantsAnObject(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ raw, want string }{
		{``, "params: invalid type: nothing, expected an object"},
		{`null`, "params: invalid type: null, expected an object"},
		{`[]`, "params: invalid type: sequence, expected an object"},
		{`["p"]`, "params: invalid type: sequence, expected an object"},
		{`5`, "params: invalid type: number, expected an object"},
		{`"x"`, "params: invalid type: string, expected an object"},
		{`false`, "params: invalid type: boolean, expected an object"},
	} {
		rig.Same(t, tt.raw, error(&Error{Code: CodeInvalidParams, Message: tt.want}), UnmarshalParams([]byte(tt.raw), new(ProcessParams)))
	}
}

// TestPathsNameThePlace: an error about a path in a list says which one it is
// about.
func TestPathsNameThePlace(t *testing.T) {
	t.Parallel()
	o, _ := strictjson.ParseObject([]byte(`{"p":["file:///a","b"]}`))
	pathsMember(o, "p")
	rig.Is(t, strings.HasPrefix(o.Err().Message, `p[1]: path uri "b"`), true, "%v names the place", o.Err())
}
