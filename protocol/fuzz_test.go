package protocol

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/execagent/execagent/internal/strictjson"
	"github.com/execagent/execagent/test/rig"
)

// seeds are the messages that the conformance cases send.
func seeds(f *testing.F) [][]byte {
	f.Helper()
	file, err := os.Open("../conformance/cases/executor/rpc.jsonl")
	rig.Must(f, err)
	defer file.Close()
	var out [][]byte
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c struct {
			Steps []struct {
				Send     json.RawMessage
				SendText string
			}
		}
		rig.Must(f, json.Unmarshal(lines.Bytes(), &c))
		for _, s := range c.Steps {
			for _, m := range [][]byte{s.Send, []byte(s.SendText)} {
				if 0 < len(m) && len(m) < 4096 {
					out = append(out, slices.Clone(m))
				}
			}
		}
	}
	rig.Must(f, lines.Err())
	if len(out) < 100 {
		f.Fatalf("only %d seeds", len(out))
	}
	return out
}

var escapes = regexp.MustCompile(`\\(u[0-9a-fA-F]{4}|.)`)

// loneSurrogate looks for half a pair in the escapes of valid JSON.
func loneSurrogate(data []byte) bool {
	want := -1 // where the second half must begin
	for _, at := range escapes.FindAllIndex(data, -1) {
		r, err := strconv.ParseUint(string(data[min(at[0]+2, at[1]):at[1]]), 16, 16)
		high, low := err == nil && r>>10 == 0xD800>>10, err == nil && r>>10 == 0xDC00>>10
		if low != (want == at[0]) || want >= 0 && want != at[0] {
			return true
		}
		if want = -1; high {
			want = at[1]
		}
	}
	return want >= 0
}

// wellFormed is the slow twin of the scanner of package strictjson: the rules of rpc.md
// 2.4 over the tokens of encoding/json.
func wellFormed(data []byte) bool {
	if !json.Valid(data) || !utf8.Valid(data) || loneSurrogate(data) {
		return false
	}
	type container struct {
		names map[string]bool // nil: an array
		key   bool            // a name is next
	}
	var open []container
	values := 0
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber() // a number that no float64 can hold is valid all the same
	for {
		token, err := dec.Token()
		if err != nil {
			return values <= strictjson.MaxValues
		}
		if delim, ok := token.(json.Delim); ok && (delim == '}' || delim == ']') {
			open = open[:len(open)-1]
			continue
		}
		if n := len(open); n > 0 && open[n-1].names != nil {
			c := &open[n-1]
			if c.key = !c.key; !c.key {
				name := token.(string)
				if c.names[name] {
					return false
				}
				c.names[name] = true
				continue
			}
		}
		values++
		switch token {
		case json.Delim('{'):
			open = append(open, container{map[string]bool{}, true})
		case json.Delim('['):
			open = append(open, container{})
		}
		if len(open) > strictjson.MaxDepth {
			return false
		}
	}
}

// encode writes a message again.
func encode(t *testing.T, m Message) []byte {
	t.Helper()
	var out []byte
	var err error
	var params any
	if m.Params != nil {
		params = m.Params
	}
	switch m.Kind {
	case KindRequest:
		out, err = AppendRequest(nil, m.ID, m.Method, params)
	case KindNotification:
		out, err = AppendNotification(nil, m.Method, params)
	case KindResult:
		out, err = AppendResult(nil, m.ID, m.Result)
	case KindError:
		out = AppendError(nil, m.ID, m.Error)
	}
	rig.Must(t, err)
	return out
}

func FuzzDecode(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed)
	}
	for _, seed := range []string{
		`{"id":1,"result":null}`, `{"id":"a","error":{"code":-32601,"message":"no"}}`, `{"a":{"\u0061":1,"a":2}}`,
		`{"id":1,"method":"\ud83d\ude00"}`, `{"id":1,"method":"\ud83d"}`, `{"id":1,"method":"\ud83d\ud83d\ude00"}`, "{\"\xff\":1}",
		`{"id":-0,"method":"m","trace":{"tracestate":""}}`, "\ufeff{}", `{"id":1,"method":"m","params":[1.5e+3,-0.0,true]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Decode(data)
		_, shape := errors.AsType[*Error](err)
		rig.Is(t, err == nil || shape, wellFormed(data), "Decode: %v: well-formed", err)
		if err != nil {
			return
		}
		again := encode(t, m)
		m2, err := Decode(again)
		rig.Must(t, err)
		if m.Params == nil {
			m.Params = m2.Params // {} for nothing
		}
		if m.Kind != KindResult {
			m.Result = nil // ignored beside a method
		}
		if m.Kind == KindResult || m.Kind == KindError {
			m.Params = nil
			m2.Params = nil
		}
		rig.Same(t, string(again), m, m2, cmp.AllowUnexported(ID{}))
	})
}

func FuzzUnmarshalParams(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed)
	}
	all := records()
	for _, r := range all {
		f.Add([]byte(inParams(string(r.full))))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Decode(data)
		if err != nil {
			return
		}
		if e := UnmarshalParams(m.Params, new(EmptyParams)); e == nil && len(m.Params) > 4 && len(bytes.Fields(m.Params)) == 1 {
			t.Errorf("empty params: %s", m.Params)
		}
		strictjson.StringMember(m.Params, "processId")
		for _, r := range all {
			first, second := r.make(), r.make()
			err := UnmarshalParams(m.Params, first)
			if err != nil {
				e, ok := err.(*Error)
				rig.Is(t, ok && e.Code == CodeInvalidParams && utf8.ValidString(e.Message) && len(e.Message) <= 4096, true, "%s: %v", r.name, err)
				continue
			}
			encoded, err := appendValue(nil, first)
			rig.Must(t, err)
			m2, err := Decode([]byte(inParams(string(encoded))))
			rig.Must(t, err)
			if w, ok := first.(*WriteFileParams); ok && w.DataError != nil {
				continue // there is nothing to send
			}
			rig.Must(t, UnmarshalParams(m2.Params, second))
		}
	})
}
