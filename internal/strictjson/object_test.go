package strictjson

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestObjectFirstErrorWins(t *testing.T) {
	t.Parallel()
	o, err := ParseObject([]byte(`{"a":1,"b":"x"}`))
	rig.Is(t, err == nil && o.String("b") == "x" && o.Err() == nil, true, "%v: b is read", err)
	_, _, _ = o.String("a"), o.String("c"), o.Uint64("b")
	rig.Is(t, o.Err().Message, "a: invalid type: number, expected a string", "the error")
}

func TestObjectErrorNamesThePlace(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 1<<20)
	for _, tt := range []struct {
		raw  string
		read func(*Object)
		want string
	}{
		{`{"a":{"b":{"c":1}}}`, func(o *Object) {
			o.In("a", func(o *Object) { o.In("b", func(o *Object) { o.String("c") }) })
		}, "a.b.c: invalid type: number, expected a string"},
		{`{"a":{"b":{}}}`, func(o *Object) {
			o.In("a", func(o *Object) { o.In("b", func(o *Object) { o.String("c") }) })
		}, "missing field `a.b.c`"},
		{`{"l":["x",5]}`, func(o *Object) { o.Strings("l") }, "l[1]: invalid type: number, expected a string"},
		{`{"l":[ ["x"] , [ "y" , null ] ]}`, func(o *Object) { o.StringLists("l") }, "l[1][1]: invalid type: null, expected a string"},
		{`{"l":[{},{"n":5}]}`, func(o *Object) { o.Each("l", func(o *Object) { o.OptString("n") }) }, "l[1].n: invalid type: number, expected a string"},
		{`{"l":[{},[]]}`, func(o *Object) { o.Each("l", func(*Object) {}) }, "l[1]: invalid type: sequence, expected an object"},
		{`{"m":{"k":"v","q\"":1}}`, func(o *Object) { o.StringMap("m") }, `m."q\"": invalid type: number, expected a string`},
		{`{"p":["a","b"]}`, func(o *Object) {
			o.ParseEach("p", func(s string) error {
				if s == "b" {
					return errors.New(`no "b"`)
				}
				return nil
			})
		}, `p[1]: no "b"`},
		{`{"n":-1}`, func(o *Object) { o.Uint64("n") }, "n: invalid number -1, expected an integer in range"},
		{`{"n":1.5}`, func(o *Object) { o.Int64("n") }, "n: invalid number 1.5, expected an integer in range"},
		{`{"n":65536}`, func(o *Object) { o.OptUint16("n") }, "n: 65536 is out of range, at most 65535"},
		{`{"w":"z"}`, func(o *Object) { o.OneOf("w", "x", "y") }, "w: unknown variant `z`, expected one of `x`, `y`"},
		{`{"b":"A*=="}`, func(o *Object) { o.Base64("b") }, "b: invalid base64: symbol '*' at offset 1"},
		{`{"m":{"` + long + `":1}}`, func(o *Object) { o.StringMap("m") }, `m."` + long[:128] + `": invalid type`},
		{`{"w":"` + long + `"}`, func(o *Object) { o.OneOf("w", "x") }, "unknown variant `" + long[:64] + "`"},
	} {
		o, err := ParseObject([]byte(tt.raw))
		rig.Is(t, err == nil, true, "%v: no error", err)
		tt.read(o)
		said := o.Err().Message
		rig.Is(t, strings.Contains(said, tt.want) && len(said) <= 1024, true, "%.80s: %s is short and has %s", tt.raw, said, tt.want)
	}
}

func TestStringMember(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		params, want string
		ok           bool
	}{
		{``, "", false},
		{`null`, "", false},
		{`[]`, "", false},
		{`["p"]`, "", false},
		{`{}`, "", false},
		{`{"P":"x"}`, "", false},
		{`{"p":null}`, "", false},
		{`{"p":5}`, "", false},
		{`{"p":{"p":"x"}}`, "", false},
		{`{"q":{"p":"x"}}`, "", false},
		{`{"p":""}`, "", true},
		{`{ "p" : "x" }`, "x", true},
		{`{"a":[1,{"p":"no"}],"b":"}\"","c":-1.5e3,"p":"x","d":true}`, "x", true},
		{`{"\u0070":"\u0078"}`, "x", true},
	} {
		got, ok := StringMember([]byte(tt.params), "p")
		rig.Is(t, fmt.Sprintf("%q %v", got, ok), fmt.Sprintf("%q %v", tt.want, tt.ok), "%s", tt.params)
	}
}
