package conformance

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// wildcard, as a whole value, matches anything; inside a string it matches any run of characters.
const wildcard = "<any>"

// match reports whether got is what want asks for. Both are decoded JSON with numbers as
// json.Number, so that 1, 1.0 and true stay three different things. Objects must have the same
// members, arrays the same length.
func match(want, got any) bool {
	switch want := want.(type) {
	case string:
		if want == wildcard {
			return true
		}
		got, ok := got.(string)
		return ok && matchText(want, got)
	case map[string]any:
		got, ok := got.(map[string]any)
		if !ok || len(got) != len(want) {
			return false
		}
		for name, w := range want {
			g, ok := got[name]
			if !ok || !match(w, g) {
				return false
			}
		}
		return true
	case []any:
		got, ok := got.([]any)
		if !ok || len(got) != len(want) {
			return false
		}
		for i := range want {
			if !match(want[i], got[i]) {
				return false
			}
		}
		return true
	default:
		return want == got
	}
}

func matchText(want, got string) bool {
	parts := strings.Split(want, wildcard)
	first, rest := parts[0], parts[1:]
	if len(rest) == 0 {
		return want == got
	}
	got, ok := strings.CutPrefix(got, first)
	if !ok {
		return false
	}
	last := len(rest) - 1
	for _, part := range rest[:last] {
		if _, got, ok = strings.Cut(got, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(got, rest[last])
}

func TestMatch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, want, got string
		ok              bool
	}{
		{"equal", `{"a":[1,"x",null,true]}`, `{"a":[1,"x",null,true]}`, true},
		{"missing member", `{"a":1,"b":2}`, `{"a":1}`, false},
		{"further member", `{"a":1}`, `{"a":1,"b":2}`, false},
		{"another member", `{"a":1}`, `{"b":1}`, false},
		{"array length", `[1]`, `[1,2]`, false},
		{"number kinds", `1`, `1.0`, false},
		{"number is not boolean", `1`, `true`, false},
		{"any value", `{"a":"<any>"}`, `{"a":{"b":[1]}}`, true},
		{"any needs its member", `{"a":"<any>"}`, `{}`, false},
		{"any inside text", `"a<any>c"`, `"abbc"`, true},
		{"any may be empty", `"a<any>c"`, `"ac"`, true},
		{"any spans lines", `"a<any>c"`, `"a\nc"`, true},
		{"any is anchored", `"a<any>c"`, `"abcd"`, false},
		{"two in order", `"<any>b<any>d"`, `"abcd"`, true},
		{"two out of order", `"<any>d<any>b<any>"`, `"abcd"`, false},
		{"no overlap", `"ab<any>bc"`, `"abc"`, false},
		{"text is not a number", `"a<any>"`, `1`, false},
	} {
		is := match(rig.Value(decode([]byte(tt.want))), rig.Value(decode([]byte(tt.got))))
		rig.Is(t, is, tt.ok, "%s: match(%s, %s)", tt.name, tt.want, tt.got)
	}
}

// decode is json.Unmarshal that keeps numbers as they were written.
func decode(data []byte) (any, error) {
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.UseNumber()
	var v any
	return v, d.Decode(&v)
}
