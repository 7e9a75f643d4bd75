package capability_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/harness/capability"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// one is the stored form of one root.
func one(id, kind, env, path string) string {
	text := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	return fmt.Sprintf(`{"id":%s,"location":{"type":%s,"environmentId":%s,"path":%s}}`, text(id), text(kind), text(env), text(path))
}

func root(id, env, path string) capability.Root {
	return capability.Root{ID: id, EnvironmentID: env, Path: protocol.NewPathURI(path)}
}

func TestParse(t *testing.T) {
	t.Parallel()
	foreign := rig.Value(protocol.ParsePathURI("file:///C:/plugins"))
	for text, want := range map[string][]capability.Root{
		"": nil, " null ": nil, "[]": nil,
		`[{"id":"demo@1","location":{"type":"environment","environmentId":"worker","path":"file:///plugins/demo"}}]`: {
			root("demo@1", "worker", "/plugins/demo"),
		},
		// Members that nobody knows, and members in another order.
		`[{"x":[{}],"location":{"path":"file:///a%20b","y":1,"environmentId":"e","type":"environment"},"id":"é"}]`: {root("é", "e", "/a b")},
		"[" + one("2", "environment", "e", "/a//b/../c") + "," + one("1", "environment", "f", "/") + "]": {
			root("2", "e", "/a/c"), root("1", "f", "/"),
		},
		"[" + one("a", "environment", "e", "file:///C:/plugins") + "]": {{ID: "a", EnvironmentID: "e", Path: foreign}},
	} {
		got, err := capability.Parse(json.RawMessage(text))
		rig.Is(t, err == nil && slices.Equal(got, want), true, "%s: %+v, %v", text, got, err)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	many := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, one(fmt.Sprint(i), "environment", "e", "/p"))
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	for text, want := range map[string]string{
		"{}":                                  "expected a sequence",
		"[1]":                                 "expected an object",
		"[null]":                              "expected an object",
		"[":                                   "no JSON",
		`[],"x":[]`:                           "no JSON",
		"[] []":                               "no JSON",
		`[{}]`:                                "missing field",
		`[{"id":"a"}]`:                        "selected_capability_roots[0].location",
		`[{"id":"a","id":"b","location":{}}]`: "duplicate",
		"[" + one("a", "environment", "e", "rel") + "]":                                           "path `rel` is not absolute",
		"[" + one("a", "environment", "e", "") + "]":                                              "is not absolute",
		"[" + one("a", "environment", "e", "http://h/p") + "]":                                    `scheme "http" is not file`,
		"[" + one("a", "environment", "e", "file:///a?b") + "]":                                   "query",
		"[" + one("a", "environment", "e", "/a\x00b") + "]":                                       "NUL",
		"[" + one("a", "environment", "e", "file:///a%00b") + "]":                                 "nul",
		"[" + one("a", "host", "e", "/a") + "]":                                                   "unknown variant `host`",
		"[" + one("", "environment", "e", "/a") + "]":                                             "the id is blank",
		"[" + one(" \u00a0\t", "environment", "e", "/a") + "]":                                    "the id is blank",
		"[" + one("a", "environment", " ", "/a") + "]":                                            "the environment id is blank",
		"[" + one("a", "environment", "e", "/a") + "," + one("a", "environment", "f", "/b") + "]": "duplicate id `a`",
		many(capability.MaxRoots + 1):                                                             "257, 256 are allowed",
		"[" + one(strings.Repeat("x", capability.MaxSelection), "environment", "e", "/a") + "]":   "262144 are allowed",
	} {
		if got, err := capability.Parse(json.RawMessage(text)); err == nil || !strings.Contains(err.Error(), want) || got != nil {
			t.Errorf("%.100s: %v, %v, want %s", text, got, err, want)
		}
	}
	got, err := capability.Parse(json.RawMessage(many(capability.MaxRoots)))
	rig.Is(t, err == nil && len(got) == capability.MaxRoots, true, "as many as there may be: %d, %v", len(got), err)
}

func TestFormat(t *testing.T) {
	t.Parallel()
	text, err := capability.Format([]capability.Root{root("demo@1", "worker", "/plugins/a b")})
	const want = `[{"id":"demo@1","location":{"type":"environment","environmentId":"worker","path":"file:///plugins/a%20b"}}]`
	rig.Must(t, err)
	rig.Is(t, string(text), want, "Format gives")
	rig.Is(t, string(rig.Value(capability.Format(nil))), "[]", "of nothing Format gives")
	for _, roots := range [][]capability.Root{
		{root("a", "e", "/a"), root("a", "e", "/a")},
		{root("\xff", "e", "/a")},
		{{ID: "a", EnvironmentID: "e"}},
		{root(strings.Repeat("x", capability.MaxSelection), "e", "/a")},
	} {
		rig.Is(t, rig.Err(capability.Format(roots)) != nil, true, "%.100v is refused", roots)
	}
	blank := capability.Config{Roots: []capability.Root{root("", "e", "/a")}}
	rig.Is(t, rig.Err(capability.New(blank)) != nil, true, "New refuses a blank id")
}

// FuzzParse: what is read can be written, and is read again as the same.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"", "null", "[]", "[" + one("demo@1", "environment", "worker", "file:///plugins/demo") + "]",
		"[" + one("é", "environment", "e", "/a//b/../%41") + "," + one("b", "environment", "e", "file://h/%2e%2e%2Fx\\y") + "]",
		"[" + one("a", "environment", "e", "rel") + "]", `[{"id":1,"location":[]}]`, `[{"id":"a","location":{"type":"environment","path":"file:C|/x"}}],"y":1`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		roots, err := capability.Parse(text)
		if err != nil {
			rig.Is(t, len(roots), 0, "roots with %v", err)
			return
		}
		rig.Check(t, capability.Check(roots))
		again, err := capability.Format(roots)
		if err != nil {
			if strings.Contains(err.Error(), "bytes") {
				return // paths are longer as URIs
			}
			t.Fatal(err)
		}
		twice, err := capability.Parse(again)
		rig.Must(t, err)
		rig.Same(t, "read again", roots, twice, samePath)
	})
}
