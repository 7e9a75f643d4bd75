package protocol

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/strictjson"
	"github.com/execagent/execagent/test/rig"
)

// field is one member of a record: its place in the full example, whether it
// may be absent or null, and the JSON types that are wrong for it.
type field struct {
	path string // dotted; numbers are indexes
	kind string // of JSON: string, number, boolean, map, sequence
	may  string // absent, null, both, or nothing
}

// record is a type of params with an example in which every member is given.
type record struct {
	name   string
	params reflect.Type
	full   string
	fields []field
}

func (r record) make() strictjson.Unmarshaler {
	return reflect.New(r.params).Interface().(strictjson.Unmarshaler)
}

// paramTypes are the types of all params that a peer reads, from rpc.md 3 to 6.
var paramTypes = []strictjson.Unmarshaler{
	&Sandbox{}, &InitializeParams{}, &SessionListParams{}, &SessionParams{}, &TakenNotification{}, &ConfigReadParams{},
	&StartParams{}, &ExecApprovalParams{}, &PolicyRequestParams{}, &PolicyAnswer{}, &PolicyDecision{}, &ProcessParams{},
	&TerminateParams{}, &ReadParams{}, &WriteParams{}, &SignalParams{}, &ResizeParams{}, &ListParams{},
	&OutputNotification{}, &ExitedNotification{}, &ClosedNotification{}, &HTTPRequestParams{}, &HTTPBodyDelta{},
	&PathParams{}, &WriteFileParams{}, &CreateDirectoryParams{}, &WalkParams{}, &RemoveParams{}, &CopyParams{},
	&RenameParams{}, &ApplyPatchParams{}, &OpenParams{}, &HandleParams{}, &ReadBlockParams{}, &WriteBlockParams{},
	&WatchMissingParams{}, &MissingChangedNotification{}, &WatchParams{}, &UnwatchParams{}, &ChangedNotification{},
	&SocketOpenParams{}, &SocketWriteParams{}, &SocketReceivedParams{}, &SocketParams{}, &SocketData{},
	&DiscoverRootsParams{}, &DiscoverInstalledParams{},
}

// records returns the records of testdata/records.txt, of which each type has one at least.
func records(t testing.TB) (all []record) {
	t.Helper()
	types := map[string]reflect.Type{}
	for _, params := range paramTypes {
		types[reflect.TypeOf(params).Elem().Name()] = reflect.TypeOf(params).Elem()
	}
	without := maps.Clone(types)
	sandbox := ""
	for _, s := range rig.Sections(t, "testdata/records.txt") {
		name, typeName, _ := strings.Cut(s.Name, ", ")
		full, members, _ := strings.Cut(s.Text, "\n\n")
		if name == "sandbox" {
			sandbox = full
		}
		r := record{name: name, params: types[typeName], full: strings.ReplaceAll(full, "SANDBOX", sandbox)}
		for line := range strings.Lines(strings.TrimSpace(members)) {
			words := append(strings.Fields(line), "")
			r.fields = append(r.fields, field{path: words[0], kind: words[1], may: words[2]})
		}
		if r.params == nil {
			t.Fatalf("%s: the type %s is not known", name, typeName)
		}
		delete(without, typeName)
		all = append(all, r)
	}
	rig.Is(t, len(without), 0, "types without a record: %v", without)
	return all
}

// recordOf returns the record with a name.
func recordOf(t testing.TB, name string) record {
	t.Helper()
	all := records(t)
	return all[slices.IndexFunc(all, func(r record) bool { return r.name == name })]
}

// example parses a record's example, so that it can be changed.
func example(t *testing.T, full string) map[string]any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(full))
	dec.UseNumber()
	var doc map[string]any
	rig.Must(t, dec.Decode(&doc))
	return doc
}

// change calls edit with the container of a member, and the member's key.
func change(t *testing.T, doc any, path string, edit func(container any, key string)) {
	t.Helper()
	keys := strings.Split(path, ".")
	for _, key := range keys[:len(keys)-1] {
		switch c := doc.(type) {
		case map[string]any:
			doc = c[key]
		case []any:
			i, _ := strconv.Atoi(key)
			doc = c[i]
		default:
			t.Fatalf("no %s in the example", path)
		}
	}
	edit(doc, keys[len(keys)-1])
}

func set(value any) func(any, string) {
	return func(container any, key string) {
		switch c := container.(type) {
		case map[string]any:
			c[key] = value
		case []any:
			i, _ := strconv.Atoi(key)
			c[i] = value
		}
	}
}

// unmarshal reads a document by way of Decode, as all params are read.
func unmarshal(t *testing.T, p strictjson.Unmarshaler, doc any) error {
	t.Helper()
	var raw bytes.Buffer
	fmt.Fprint(&raw, `{"id":1,"method":"m","params":`)
	rig.Must(t, json.NewEncoder(&raw).Encode(doc))
	raw.WriteByte('}')
	m, err := Decode(raw.Bytes())
	rig.Must(t, err)
	return UnmarshalParams(m.Params, p)
}

// TestParamsOutliveTheirMessage: params that were read do not change when their
// message is overwritten, unless they say that they hold it.
func TestParamsOutliveTheirMessage(t *testing.T) {
	t.Parallel()
	for _, r := range records(t) {
		read := func(raw []byte) strictjson.Unmarshaler {
			p := r.make()
			rig.Must(t, UnmarshalParams(raw, p))
			return p
		}
		raw := []byte(r.full)
		got := read(raw)
		for i := range raw {
			raw[i] = '#'
		}
		_, holds := got.(interface{ HoldsMessage() })
		rig.Is(t, holds || reflect.DeepEqual(got, read([]byte(r.full))), true, "%s: %+v is what is left", r.name, got)
	}
}

// inParams is a request whose params are the given JSON.
func inParams(params string) string {
	return `{"id":1,"method":"m","params":` + params + `}`
}
