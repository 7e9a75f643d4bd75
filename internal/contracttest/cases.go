package contracttest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/execagent/execagent/protocol/contract"
)

// A Case is a document for a record.
type Case struct {
	// Path is the member that was changed, as errors of decoders write it; "" in a complete document.
	Path string
	// What the member is, for messages.
	What string
	JSON []byte
}

// Full returns a document in which every member of a record is given.
func Full(record string) []byte {
	c := contract.Load()
	return marshal(full(c, c.Named(record)))
}

// Cases returns documents for a record. In each, one member is absent, null, of each type, and at and
// beyond each of its bounds. This is done with the members of its records too, in each arm of a union.
// A Sandbox is left to the cases of Sandbox.
func Cases(record string) []Case {
	w := &walker{c: contract.Load(), seen: map[string]bool{"Sandbox": record != "Sandbox"}}
	w.record(w.c.Named(record), "", func(v any) any { return v })
	return w.cases
}

// With returns a document with another value at a path such as a.0.b.
func With(document []byte, path string, value any) []byte {
	v, err := decode(document)
	if err != nil {
		panic(err)
	}
	keys := strings.Split(path, ".")
	at := v
	for i, key := range keys {
		var n int
		list, isList := at.([]any)
		if isList {
			_, _ = fmt.Sscan(key, &n)
		}
		switch last := i == len(keys)-1; {
		case last && isList:
			list[n] = value
		case last:
			at.(map[string]any)[key] = value
		case isList:
			at = list[n]
		default:
			at = at.(map[string]any)[key]
		}
	}
	return marshal(v)
}

func marshal(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // there are only values of JSON
	}
	return text
}

// A walker makes the cases of one record.
type walker struct {
	c     *contract.Contract
	seen  map[string]bool
	cases []Case
}

func (w *walker) add(path, what string, document any) {
	w.cases = append(w.cases, Case{path, what, marshal(document)})
}

// full returns a record with all members that may be given together.
func full(c *contract.Contract, n *contract.Named) any {
	if n.Type != nil {
		return example(c, n.Type)
	}
	o := map[string]any{}
	for _, m := range n.Members {
		o[m.Name] = example(c, m.Type)
	}
	for _, r := range n.Rules {
		if r.Both {
			delete(o, r.Member)
		}
	}
	return o
}

// example returns a value of a type that is not the default of a member.
func example(c *contract.Contract, t *contract.Type) any {
	switch t.Kind {
	case contract.String:
		if t.Example != "" {
			return t.Example
		}
		return "s"
	case contract.Integer:
		return max(1, t.Least)
	case contract.Boolean:
		return true
	case contract.Any:
		return []any{1}
	case contract.Base64:
		return "AQID"
	case contract.Path:
		return "file:///a"
	case contract.Word:
		return t.Word
	case contract.List:
		return []any{example(c, t.Elem)}
	case contract.Map:
		return map[string]any{"A": example(c, t.Elem)}
	case contract.Ref:
		return full(c, c.Named(t.Name))
	case contract.Union:
		return example(c, t.Arms[0])
	}
	return nil
}

// record makes the cases of a record. put puts a value of it into the whole document.
func (w *walker) record(n *contract.Named, path string, put func(any) any) {
	if n.Type != nil {
		w.inside(n.Type, path, put)
		return
	}
	if w.seen[n.Name] {
		return
	}
	w.seen[n.Name] = true
	all := full(w.c, n).(map[string]any)
	with := func(name string, v any) any {
		o := maps.Clone(all)
		o[name] = v
		for _, r := range n.Rules {
			if r.Both && r.Member == name {
				delete(o, r.With)
			}
		}
		return put(o)
	}
	w.add("", "complete "+n.Name, put(all))
	w.add("", "unknown member", with("zzz", map[string]any{"unknown": []any{nil}}))
	for _, r := range n.Rules {
		if r.Both {
			o := maps.Clone(all)
			o[r.Member] = example(w.c, n.Member(r.Member).Type)
			w.add(join(path, r.Member), "beside "+r.With, put(o))
			continue
		}
		o := maps.Clone(all[r.Member].(map[string]any))
		delete(o, r.With)
		w.add(join(path, r.Member+"."+r.With), "absent", with(r.Member, o))
	}
	for _, m := range n.Members {
		at := join(path, m.Name)
		o := with(m.Name, nil)
		without := maps.Clone(all)
		delete(without, m.Name)
		w.add(at, "null", o)
		w.add(at, "absent", put(without))
		if !n.Strict {
			// Names are compared exactly: another case is another member.
			without[strings.ToUpper(m.Name)] = all[m.Name]
			w.add(at, "in other case", put(without))
		}
		w.values(m.Type, at, func(v any) any { return with(m.Name, v) })
		w.inside(m.Type, at, func(v any) any { return with(m.Name, v) })
	}
}

func join(path, name string) string { return strings.TrimPrefix(path+"."+name, ".") }

// inside makes the cases of what a type consists of.
func (w *walker) inside(t *contract.Type, path string, put func(any) any) {
	switch t.Kind {
	case contract.Ref:
		w.record(w.c.Named(t.Name), path, put)
	case contract.Union:
		for _, arm := range t.Arms {
			w.inside(arm, path, put)
		}
	case contract.List:
		path, first := path+"[0]", func(v any) any { return put([]any{v}) }
		w.values(t.Elem, path, first)
		w.inside(t.Elem, path, first)
	case contract.Map:
		path, first := path+`."A"`, func(v any) any { return put(map[string]any{"A": v}) }
		w.values(t.Elem, path, first)
		w.inside(t.Elem, path, first)
	}
}

// values makes the cases of one value: of all types, of all words, and at the bounds.
func (w *walker) values(t *contract.Type, path string, put func(any) any) {
	for _, v := range []any{nil, "no such word", "", 7, -1, json.Number("1.5"), json.Number("1e-1"), true, map[string]any{}, []any{}} {
		w.add(path, fmt.Sprintf("%T %[1]v", v), put(v))
	}
	w.bounds(t, path, put)
}

// bounds makes the cases of a type that the others do not have.
func (w *walker) bounds(t *contract.Type, path string, put func(any) any) {
	// each calls value with the numbers around the bounds.
	each := func(what string, of *contract.Type, value func(n int) any) {
		for _, n := range []uint64{of.Least - 1, of.Least, of.Most, of.Most + 1} {
			if n < 1<<24 {
				w.add(path, fmt.Sprintf("%s %d", what, n), put(value(int(n))))
			}
		}
	}
	switch t.Kind {
	case contract.Ref:
		if n := w.c.Named(t.Name); n.Type != nil {
			w.bounds(n.Type, path, put)
		}
	case contract.Union:
		for _, arm := range t.Arms {
			w.bounds(arm, path, put)
		}
	case contract.Word:
		w.add(path, t.Word, put(t.Word))
		w.add(path, "in capitals", put(strings.ToUpper(t.Word)))
		w.add(path, "with a blank", put(t.Word+" "))
	case contract.Integer:
		each("number", t, func(n int) any { return n })
		// The first one is the next one of a float, which is what the validator compares.
		for _, n := range []json.Number{"-9223372036854777856", "-9223372036854775808", "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616"} {
			w.add(path, n.String(), put(n))
		}
	case contract.String:
		each("length", t, func(n int) any { return strings.Repeat("s", n) })
	case contract.Base64:
		each("bytes", t, func(n int) any { return base64.StdEncoding.EncodeToString(make([]byte, n)) })
		for _, text := range []string{"AAA", "AB==", "AA==\n", "AA-_", "AA==AA=="} {
			w.add(path, text, put(text))
		}
	case contract.Path:
		for _, text := range []string{"/a", "a", "http://h/", "file:///a?q", "file:///a#f", "file:///a%00b", "file:///%000", "file:///%%41%0", "FILE:/a"} {
			w.add(path, text, put(text))
		}
	case contract.List:
		each("elements", t, func(n int) any { return repeated(n, example(w.c, t.Elem)) })
	case contract.Map:
		each("members", t, func(n int) any {
			o := map[string]any{}
			for i := range n {
				o[fmt.Sprint("k", i)] = example(w.c, t.Elem)
			}
			return o
		})
		each("bytes of a key", t.Key, func(n int) any { return map[string]any{strings.Repeat("k", n): example(w.c, t.Elem)} })
	}
}

func repeated(n int, v any) []any {
	list := make([]any, n)
	for i := range list {
		list[i] = v
	}
	return list
}
