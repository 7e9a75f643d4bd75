package strictjson

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestParseMap(t *testing.T) {
	t.Parallel()
	text := []byte(` {"a":"x","\u0062":[1, {}],"c":null} `)
	m, err := ParseMap(text)
	rig.Must(t, err)
	clear(text) // the values are copies
	rig.Is(t, string(rig.Value(json.Marshal(m))), `{"a":"x","b":[1,{}],"c":null}`, "")
	rig.Is(t, fmt.Sprint(m.Has("a"), m.Has("c"), m.Has("d")), "true false false", "it has a member that is there, null and absent")
	for _, text := range []string{
		"", "null", `"secret"`, `["secret"]`, `{"secret":1} {}`, `{"secret":1`, `{"secret":1,"secret":1}`,
		`{"secret":1,"s\u0065cret":1}`, `{"a":{"secret":1,"secret":1}}`, `{"secret":"\ud800"}`, "{\"secret\":\"\xff\"}",
		`{"secret":01}`, `{"secret":` + strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth) + `}`,
	} {
		m, err := ParseMap([]byte(text))
		rig.Is(t, m == nil && err != nil && !strings.Contains(err.Error(), "secret"), true, "%.60q: %v, %v repeats nothing", text, m, err)
	}
}

// TestMapMembers reads one member in each way; "!" is an error.
func TestMapMembers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ value, text, texts, number string }{
		{``, "", "[]", "0"},
		{`null`, "", "[]", "0"},
		{`"a\n"`, "a\n", `["a\n"]`, "!"},
		{`""`, "", `[""]`, "!"},
		{`["a", "b"]`, "!", `["a","b"]`, "!"},
		{`[]`, "!", "[]", "!"},
		{`["a",null]`, "!", "!", "!"},
		{`["a",["b"]]`, "!", "!", "!"},
		{`{"a":"a"}`, "!", "!", "!"},
		{`true`, "!", "!", "!"},
		{`-9223372036854775808`, "!", "!", "-9223372036854775808"},
		{`9223372036854775808`, "!", "!", "!"},
		{`1.0`, "!", "!", "!"},
		{`1e3`, "!", "!", "!"},
		{`"1"`, "1", `["1"]`, "!"},
	} {
		text := "{}"
		if tt.value != "" {
			text = `{"m":` + tt.value + `}`
		}
		m, err := ParseMap([]byte(text))
		rig.Must(t, err)
		show := func(v any, err error) string {
			if err != nil {
				return "!"
			}
			encoded, _ := json.Marshal(v)
			return string(encoded)
		}
		s, err := m.Text("m")
		rig.Is(t, strings.Trim(show(s, err), `"`), strings.ReplaceAll(tt.text, "\n", `\n`), "%s as a text", text)
		list, err := m.Texts("m")
		rig.Is(t, show(append([]string{}, list...), err), tt.texts, "%s as texts", text)
		n, err := m.Int64("m")
		rig.Is(t, show(n, err), tt.number, "%s as a number", text)
	}
}
