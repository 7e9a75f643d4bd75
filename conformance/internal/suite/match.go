package suite

import (
	"encoding/json"
	"strings"
)

// wildcard, as a whole value, matches anything; inside a string it matches any run of characters.
const wildcard = "<any>"

// match reports whether got is what want asks for. Both are decoded JSON with numbers as
// json.Number, so that 1, 1.0 and true stay three different things. Objects must have the same
// members, arrays the same length. A member whose name ends in ? in want may be absent, unless exact.
func match(want, got any, exact bool) bool {
	switch want := want.(type) {
	case string:
		if want == wildcard {
			return true
		}
		got, ok := got.(string)
		return ok && matchText(want, got)
	case map[string]any:
		got, ok := got.(map[string]any)
		if !ok {
			return false
		}
		left := len(got)
		for name, w := range want {
			name, optional := strings.CutSuffix(name, "?")
			g, ok := got[name]
			switch {
			case !ok && optional && !exact:
			case !ok || !match(w, g, exact):
				return false
			default:
				left--
			}
		}
		return left == 0
	case []any:
		got, ok := got.([]any)
		if !ok || len(got) != len(want) {
			return false
		}
		for i := range want {
			if !match(want[i], got[i], exact) {
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

// decode is json.Unmarshal that keeps numbers as they were written.
func decode(data []byte) (any, error) {
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.UseNumber()
	var v any
	return v, d.Decode(&v)
}
