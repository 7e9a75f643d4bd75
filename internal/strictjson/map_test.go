package strictjson

import (
	"encoding/json"
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
	got, err := json.Marshal(m)
	if want := `{"a":"x","b":[1,{}],"c":null}`; err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	if m.Has("c") || m.Has("d") || !m.Has("a") {
		t.Error("Has is wrong about a member that is null, absent or there")
	}
	for _, text := range []string{
		"", "null", `"secret"`, `["secret"]`, `{"secret":1} {}`, `{"secret":1`, `{"secret":1,"secret":1}`,
		`{"secret":1,"s\u0065cret":1}`, `{"a":{"secret":1,"secret":1}}`, `{"secret":"\ud800"}`, "{\"secret\":\"\xff\"}",
		`{"secret":01}`, `{"secret":` + strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth) + `}`,
	} {
		if m, err := ParseMap([]byte(text)); err == nil || m != nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("ParseMap(%.60q) = %v, %v, want an error that repeats nothing", text, m, err)
		}
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
		s, err := m.Text("m")
		if err != nil {
			s += "!"
		}
		list, err := m.Texts("m")
		encoded, _ := json.Marshal(append([]string{}, list...))
		texts := string(encoded)
		if err != nil {
			texts = "!"
		}
		n, err := m.Int64("m")
		encoded, _ = json.Marshal(n)
		number := string(encoded)
		if err != nil {
			number = "!"
		}
		if s != tt.text || texts != tt.texts || number != tt.number {
			t.Errorf("%s is %q, %s, %s, want %q, %s, %s", text, s, texts, number, tt.text, tt.texts, tt.number)
		}
	}
}
