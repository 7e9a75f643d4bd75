package scenario

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/execagent/execagent/internal/strictjson"
)

// data returns the bytes that a value of a scenario stands for.
func data(v any) ([]byte, error) {
	switch v := v.(type) {
	case string:
		return []byte(v), nil
	case []byte:
		return v, nil
	case map[string]any:
		if text, ok := v["base64"].(string); ok {
			return strictjson.StdBase64.Decode(text)
		}
		text, isText := v["repeat"].(string)
		times, isNumber := v["times"].(float64)
		if isText && isNumber && times >= 0 && times*float64(len(text)) <= maxData {
			return bytes.Repeat([]byte(text), int(times)), nil
		}
	}
	return nil, fmt.Errorf("%v are no bytes", v)
}

// maxData bounds what one value stands for.
const maxData = 64 << 20

// differs says how a result differs from what has to be seen; "": it does not.
func differs(want, got any, at string) string {
	no := func(how string) string { return fmt.Sprintf("%s: %.200s %s %.200s", at, show(got), how, show(want)) }
	if w, ok := want.(map[string]any); ok && len(w) == 1 {
		for name, x := range w {
			if how, is := matcher(name, x, got, at); is {
				if how != "" {
					return no(how)
				}
				return ""
			}
		}
	}
	switch g := got.(type) {
	case []byte:
		if w, err := data(want); err != nil || !bytes.Equal(w, g) {
			return no(fmt.Sprintf("(%d bytes) is not", len(g)))
		}
		return ""
	case map[string]any:
		w, ok := want.(map[string]any)
		if !ok {
			return no("is not")
		}
		for name, x := range w {
			member, known := g[name] // nil: it is absent
			if !known {
				return fmt.Sprintf("%s has no %s", at, name)
			}
			if found := differs(x, member, at+"."+name); found != "" {
				return found
			}
		}
		return ""
	case []any:
		w, ok := want.([]any)
		if !ok || len(w) != len(g) {
			return no("is not")
		}
		for i := range w {
			if found := differs(w[i], g[i], fmt.Sprintf("%s[%d]", at, i)); found != "" {
				return found
			}
		}
		return ""
	}
	if !reflect.DeepEqual(want, number(got)) {
		return no("is not")
	}
	return ""
}

// matcher compares by one of the matchers, and says how the result fails it.
func matcher(name string, x, got any, at string) (how string, is bool) {
	fails := func(when bool) string {
		if when {
			return "does not match"
		}
		return ""
	}
	text, isText := bytesOf(got)
	list, _ := got.([]any)
	switch name {
	case "any":
		return "", true
	case "absent":
		return fails(got != nil), true
	case "matches":
		expression, err := regexp.Compile(fmt.Sprint(x))
		return fails(err != nil || !isText || !expression.Match(text)), true
	case "contains":
		part, err := data(x)
		if isText {
			return fails(err != nil || !bytes.Contains(text, part)), true
		}
		return fails(!slices.ContainsFunc(list, func(one any) bool { return differs(x, one, at) == "" })), true
	case "unordered":
		wanted, _ := x.([]any)
		left := slices.Clone(list)
		for _, w := range wanted {
			if i := slices.IndexFunc(left, func(one any) bool { return differs(w, one, at) == "" }); i >= 0 {
				left = slices.Delete(left, i, i+1)
			}
		}
		return fails(len(wanted) != len(list) || len(left) != 0), true
	case "length":
		n := len(list)
		if isText {
			n = len(text)
		}
		return fails(float64(n) != x), true
	case "sha256":
		sum := sha256.Sum256(text)
		return fails(hex.EncodeToString(sum[:]) != x), true
	case "atLeast":
		n, _ := number(got).(float64)
		least, _ := x.(float64)
		return fails(n < least), true
	}
	return "", false
}

func bytesOf(v any) ([]byte, bool) {
	switch v := v.(type) {
	case []byte:
		return v, true
	case string:
		return []byte(v), true
	}
	return nil, false
}

// number returns integers as JSON has numbers.
func number(v any) any {
	switch v := reflect.ValueOf(v); {
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	}
	return v
}

func show(v any) string {
	if text, ok := v.([]byte); ok {
		return fmt.Sprintf("%.200q", text)
	}
	return fmt.Sprintf("%.400v", v)
}

// fill puts values in the place of their names.
func (r *runner) fill(v any) any {
	switch v := v.(type) {
	case string:
		return variable.ReplaceAllStringFunc(v, func(name string) string {
			name, member, _ := strings.Cut(strings.TrimSuffix(name[2:], "}"), ".")
			value := r.values[name]
			if p, ok := value.(*process); ok && member == "id" {
				return p.ID()
			}
			if text, ok := bytesOf(value); ok {
				return string(text)
			}
			return fmt.Sprint(value)
		})
	case []any:
		filled := make([]any, len(v))
		for i := range v {
			filled[i] = r.fill(v[i])
		}
		return filled
	case map[string]any:
		filled := map[string]any{}
		for name := range v {
			filled[name] = r.fill(v[name])
		}
		return filled
	}
	return v
}

var variable = regexp.MustCompile(`\$\{[^}]+\}`)
