package protocol

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/execagent/execagent/internal/strictjson"
	"github.com/execagent/execagent/test/rig"
)

// named is a dotted path as error texts write it.
func named(path string) string {
	var b strings.Builder
	for i, key := range strings.Split(path, ".") {
		switch {
		case unicode.IsDigit(rune(key[0])):
			b.WriteString("[" + key + "]")
		case key == "A" || key == "B": // keys of maps are quoted
			b.WriteString(`."` + key + `"`)
		case i > 0:
			b.WriteString("." + key)
		default:
			b.WriteString(key)
		}
	}
	return b.String()
}

func mustFail(t *testing.T, r record, doc any, what, path string) {
	t.Helper()
	err := unmarshal(t, r.make(), doc)
	e, ok := err.(*Error)
	switch {
	case err == nil:
		t.Errorf("%s %s: accepted", path, what)
	case !ok || e.Code != CodeInvalidParams:
		t.Errorf("%s %s: %v, want code %d", path, what, err, CodeInvalidParams)
	case !strings.Contains(e.Message, named(path)):
		t.Errorf("%s %s: %q does not name %s", path, what, e.Message, named(path))
	}
}

func mustPass(t *testing.T, r record, doc any, what, path string) {
	t.Helper()
	rig.Is(t, unmarshal(t, r.make(), doc), nil, "%s %s", path, what)
}

// verdict is what a document must do.
func verdict(pass bool) func(t *testing.T, r record, doc any, what, path string) {
	if pass {
		return mustPass
	}
	return mustFail
}

func TestParams(t *testing.T) {
	t.Parallel()
	wrong := map[string]any{
		"string": "no such word", "number": json.Number("7"), "boolean": true, "map": map[string]any{}, "sequence": []any{},
	}
	for _, r := range records(t) {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			doc := example(t, r.full)
			mustPass(t, r, doc, "the example", "")
			doc["zzz"] = map[string]any{"unknown": []any{nil}}
			mustPass(t, r, doc, "unknown member", "zzz")

			for _, f := range r.fields {
				inList := unicode.IsDigit(rune(f.path[strings.LastIndexByte(f.path, '.')+1]))
				if !inList {
					doc = example(t, r.full)
					change(t, doc, f.path, func(c any, key string) { delete(c.(map[string]any), key) })
					if f.may == "absent" || f.may == "both" {
						mustPass(t, r, doc, "absent", f.path)
					} else {
						mustFail(t, r, doc, "absent", f.path)
						// Names are compared exactly: another case is another member.
						change(t, doc, f.path, func(c any, key string) {
							set("x")(c, strings.ToUpper(key[:1])+key[1:])
							set("x")(c, strings.ToUpper(key))
						})
						mustFail(t, r, doc, "in other case", f.path)
					}
				}
				doc = example(t, r.full)
				change(t, doc, f.path, set(nil))
				verdict(f.may == "null" || f.may == "both")(t, r, doc, "null", f.path)
				for kind, value := range wrong {
					if kind == f.kind {
						continue
					}
					doc = example(t, r.full)
					change(t, doc, f.path, set(value))
					mustFail(t, r, doc, "as a "+kind, f.path)
				}
			}
		})
	}
}

func TestParamsNumbers(t *testing.T) {
	t.Parallel()
	for _, r := range records(t) {
		for _, f := range r.fields {
			if f.kind != "number" {
				continue
			}
			bad := []json.Number{"1.5", "1.0", "1e2", "18446744073709551616", "-18446744073709551616"}
			if f.path != "exitCode" {
				bad = append(bad, "-1")
			}
			for _, n := range bad {
				doc := example(t, r.full)
				change(t, doc, f.path, set(n))
				mustFail(t, r, doc, n.String(), f.path)
			}
		}
	}
}

func TestParamsValues(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, "testdata/values.txt", "values", 4) {
		r, path, value := recordOf(t, row[0]), row[1], any(row[2])
		if json.Valid([]byte(row[2])) {
			value = json.RawMessage(row[2])
		}
		doc := example(t, r.full)
		change(t, doc, path, set(value))
		switch row[3] {
		case "taken", "refused":
			verdict(row[3] == "taken")(t, r, doc, row[2], path)
		default:
			mustFail(t, r, doc, row[2], row[3])
		}
	}
	for _, tt := range []struct {
		record, path string
		value        any
		ok           bool
	}{
		{"socket/open", "socketId", strings.Repeat("s", maxSocketID), true},
		{"socket/open", "socketId", strings.Repeat("s", maxSocketID+1), false},
		{"socket/open", "window", MaxSocketWindow, true},
		{"socket/open", "window", MaxSocketWindow + 1, false},
		{"socket/write", "chunk", make([]byte, MaxSocketChunk), true},
		{"socket/write", "chunk", make([]byte, MaxSocketChunk+1), false},
		{"process/start", "shellSnapshot.scopeId", strings.Repeat("s", 256), true},
		{"process/start", "shellSnapshot.scopeId", strings.Repeat("s", 257), false},
	} {
		r := recordOf(t, tt.record)
		doc := example(t, r.full)
		change(t, doc, tt.path, set(tt.value))
		verdict(tt.ok)(t, r, doc, tt.record, tt.path)
	}
}

func TestParamsDefaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in        string
		got, want strictjson.Unmarshaler
	}{
		{`{"path":"file:///a"}`, new(CreateDirectoryParams),
			&CreateDirectoryParams{Path: NewPathURI("/a"), Recursive: new(true)}},
		{`{"path":"file:///a"}`, new(RemoveParams),
			&RemoveParams{Path: NewPathURI("/a"), Recursive: new(true), Force: new(true)}},
		{`{"sourcePath":"file:///a","destinationPath":"file:///b"}`, new(RenameParams),
			&RenameParams{SourcePath: NewPathURI("/a"), DestinationPath: NewPathURI("/b"), Replace: new(true)}},
		{`{"handleId":"","path":"file:///a"}`, new(OpenParams), &OpenParams{Path: NewPathURI("/a"), Mode: OpenRead}},
		{`{"processId":"p"}`, new(ReadParams), &ReadParams{ProcessID: "p"}},
		{`{"clientName":""}`, new(InitializeParams), &InitializeParams{}},
		{`{"method":"M","url":"u","requestId":""}`, new(HTTPRequestParams),
			&HTTPRequestParams{Method: "M", URL: "u", RedirectPolicy: RedirectFollow}},
		{`{"path":"file:///a","dataBase64":""}`, new(WriteFileParams), &WriteFileParams{Path: NewPathURI("/a"), Data: []byte{}}},
		{`{"processId":"p","argv":["x"],"cwd":"file:///","env":{},"tty":false}`, new(StartParams),
			&StartParams{ProcessID: "p", Argv: []string{"x"}, Cwd: NewPathURI("/"), Env: map[string]string{}}},
		{`{"processId":"p","argv":["x"],"cwd":"file:///","env":{},"tty":false,"managedNetwork":{},"networkProxy":{"proxy":{"enabled":true,
		"enableSocks5":false,"enableSocks5Udp":false,"allowUpstreamProxy":false,"dangerouslyAllowAllUnixSockets":false,"mode":"limited",
		"allowLocalBinding":true}}}`, new(StartParams),
			&StartParams{ProcessID: "p", Argv: []string{"x"}, Cwd: NewPathURI("/"), Env: map[string]string{}, ManagedNetwork: &ManagedNetwork{},
				NetworkProxy: &NetworkProxy{Proxy: ProxyParams{Enabled: true, Mode: ProxyLimited, AllowLocalBinding: true}}}},
	} {
		rig.Check(t, unmarshal(t, tt.got, json.RawMessage(tt.in)))
		rig.Same(t, tt.in, tt.want, tt.got, cmp.AllowUnexported(PathURI{}))
	}
}

// TestWriteFileDataError: bad base64 in fs/writeFile is no error of decoding, since
// the method answers it itself, with -32600 (rpc.md 5.3).
func TestWriteFileDataError(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"!", "AAA", "AA=", "AB==", "AA==\n", "AA-_"} {
		var p WriteFileParams
		rig.Check(t, unmarshal(t, &p, map[string]string{"path": "file:///a", "dataBase64": data}))
		rig.Is(t, p.DataError != nil && p.Data == nil, true, "%q: data %q, error %v: an error alone", data, p.Data, p.DataError)
	}
}

func TestParamsRoundTrip(t *testing.T) {
	t.Parallel()
	for _, r := range records(t) {
		first, second := r.make(), r.make()
		rig.Must(t, unmarshal(t, first, example(t, r.full)))
		encoded, err := appendValue(nil, first)
		rig.Must(t, err, unmarshal(t, second, json.RawMessage(encoded)))
		rig.Same(t, r.name, first, second, cmp.AllowUnexported(PathURI{}), cmpopts.IgnoreUnexported(Sandbox{}))
	}
}
