package protocol

import (
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/strictjson"
)

func TestEmptyParams(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{``, `null`, `{}`, `{ }`} {
		if err := UnmarshalParams([]byte(raw), new(EmptyParams)); err != nil {
			t.Errorf("params %q: %v", raw, err)
		}
	}
	for _, raw := range []string{`{"a":1}`, `[]`, `[null]`, `5`, `"x"`, `true`} {
		if err := UnmarshalParams([]byte(raw), new(EmptyParams)); err == nil {
			t.Errorf("params %q: no error", raw)
		}
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
		err := UnmarshalParams([]byte(tt.raw), new(ProcessParams))
		e, ok := err.(*Error)
		if !ok || e.Code != CodeInvalidParams || e.Message != tt.want {
			t.Errorf("params %q: %v, want %d %s", tt.raw, err, CodeInvalidParams, tt.want)
		}
	}
}

// TestPathsNameThePlace: an error about a path in a list says which one it is
// about.
func TestPathsNameThePlace(t *testing.T) {
	t.Parallel()
	o, _ := strictjson.ParseObject([]byte(`{"p":["file:///a","b"]}`))
	pathsMember(o, "p")
	if want := `p[1]: path uri "b"`; o.Err() == nil || !strings.Contains(o.Err().Message, want) {
		t.Errorf("got %v, want %s", o.Err(), want)
	}
}
