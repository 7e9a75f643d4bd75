package protocol

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/contracttest"
	"github.com/execagent/execagent/internal/strictjson"
	"github.com/execagent/execagent/protocol/contract"
	"github.com/execagent/execagent/test/rig"
)

// types are those of the contract's records: first the ones that read themselves.
var types = []any{
	&Sandbox{}, &InitializeParams{}, &SessionListParams{}, &SessionParams{}, &TakenNotification{}, &ConfigReadParams{}, &EmptyParams{},
	&StartParams{}, &ExecApprovalParams{}, &ExecApprovalAnswer{}, &ExecApprovalClosed{}, &ExecDecision{}, &PolicyRequestParams{}, &PolicyAnswer{},
	&PolicyDecision{}, &ProcessParams{}, &TerminateParams{}, &ReadParams{}, &WriteParams{}, &SignalParams{}, &ResizeParams{}, &ListParams{},
	&OutputNotification{}, &ExitedNotification{}, &ClosedNotification{}, &HTTPRequestParams{}, &HTTPBodyDelta{},
	&PathParams{}, &GetMetadataParams{}, &GetMetadataManyParams{}, &CanonicalizeParams{}, &ReadDirectoryParams{}, &WriteFileParams{}, &CreateDirectoryParams{}, &WalkParams{}, &RemoveParams{}, &CopyParams{},
	&RenameParams{}, &ApplyPatchParams{}, &OpenParams{}, &HandleParams{}, &ReadBlockParams{}, &WriteBlockParams{},
	&WatchMissingParams{}, &MissingChangedNotification{}, &WatchParams{}, &UnwatchParams{}, &ChangedNotification{}, &SearchParams{}, &SearchResult{},
	&PortListParams{}, &PortWatchParams{}, &PortChangedNotification{},
	&SocketOpenParams{}, &SocketWriteParams{}, &SocketReceivedParams{}, &SocketParams{}, &SocketData{},
	&DiscoverRootsParams{}, &DiscoverInstalledParams{}, &ReadFileResult{}, &ReadBlockResult{}, &WalkResult{},

	&Empty{}, &InitializeResult{}, &EnvironmentInfo{}, &StatusResult{}, &ConfigReadResult{}, &SessionListResult{}, &StartResult{}, &ReadResult{},
	&WriteResult{}, &TerminateResult{}, &ListResult{}, &HTTPResponse{}, &FileMetadata{}, &GetMetadataManyResult{}, &CanonicalizeResult{}, &ReadDirectoryResult{},
	&ApplyPatchResult{}, &WatchMissingResult{}, &WatchResult{}, &PortListResult{}, &SocketReceived{}, &DiscoverRootsResult{}, &DiscoverInstalledResult{},
}

// record is a record of params, with a document in which every member is given.
type record struct {
	name string
	kind reflect.Type
	full []byte
}

func (r record) make() strictjson.Unmarshaler {
	return reflect.New(r.kind).Interface().(strictjson.Unmarshaler)
}

// records returns the records that read themselves.
func records() (all []record) {
	for _, v := range types {
		if kind := reflect.TypeOf(v).Elem(); reflect.TypeOf(v).Implements(reflect.TypeFor[strictjson.Unmarshaler]()) {
			all = append(all, record{kind.Name(), kind, contracttest.Full(kind.Name())})
		}
	}
	return all
}

// read reads a document as params are read. What a record leaves to its method to refuse is an error too.
func read(v strictjson.Unmarshaler, document []byte) error {
	m, err := Decode([]byte(inParams(string(document))))
	if err == nil {
		err = UnmarshalParams(m.Params, v)
	}
	if w, ok := v.(*WriteFileParams); ok && err == nil {
		return w.DataError
	}
	return err
}

// TestRecords: decoders and the published schema give each document the same verdict, and the error of a decoder
// names the member.
func TestRecords(t *testing.T) {
	t.Parallel()
	for _, r := range records() {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			for _, c := range contracttest.Cases(r.name) {
				valid, err := contracttest.Valid(r.name, c.JSON), read(r.make(), c.JSON)
				rig.Is(t, err == nil, valid == nil, "%s, %s: decoder: %v; schema: %v; %.300s", c.Path, c.What, err, valid, c.JSON)
				e, isError := err.(*Error)
				if isError && (e.Code != CodeInvalidParams || !strings.Contains(e.Message, c.Path)) {
					t.Errorf("%s, %s: %v does not name it", c.Path, c.What, e)
				}
			}
		})
	}
}

// TestRecordsRoundTrip: what is decoded and encoded again is the same JSON, so each member of the contract has a field.
func TestRecordsRoundTrip(t *testing.T) {
	t.Parallel()
	with := map[string]bool{}
	for _, v := range types {
		name := reflect.TypeOf(v).Elem().Name()
		with[name] = true
		full := contracttest.Full(name)
		v = reflect.New(reflect.TypeOf(v).Elem()).Interface()
		if reads, ok := v.(strictjson.Unmarshaler); ok {
			rig.Must(t, read(reads, full))
		} else {
			rig.Must(t, json.Unmarshal(full, v))
		}
		encoded := rig.Value(appendValue(nil, v))
		rig.Check(t, contracttest.Valid(name, encoded))
		var got, want any
		rig.Must(t, json.Unmarshal(encoded, &got), json.Unmarshal(full, &want))
		forget(want, "windowsSandboxProxySettingsMode", "windowsSandboxPrivateDesktop") // of another system
		if name == "HTTPResponse" {
			forget(want, "valueEnvVar") // only of requests
		}
		rig.Same(t, name, want, got)
		fields(t, reflect.TypeOf(v).Elem())
	}
	for _, m := range contract.Load().Methods {
		rig.Is(t, m.Params.Kind == contract.Any || with[m.Params.Name], true, "params of %s have a type", m.Name)
		rig.Is(t, m.Result == nil || with[m.Result.Name], true, "the result of %s has a type", m.Name)
	}
}

// forget removes members of these names.
func forget(v any, names ...string) {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range names {
			delete(v, name)
		}
		for _, inner := range v {
			forget(inner, names...)
		}
	case []any:
		for _, inner := range v {
			forget(inner, names...)
		}
	}
}

// fields checks that the contract has the members of a type, and those of the types in it.
func fields(t *testing.T, kind reflect.Type) {
	for kind.Kind() == reflect.Pointer || kind.Kind() == reflect.Slice || kind.Kind() == reflect.Map {
		kind = kind.Elem()
	}
	named := contract.Load().Named(kind.Name())
	if kind.Kind() != reflect.Struct {
		return
	}
	for f := range kind.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" && named != nil && named.Type == nil {
			rig.Is(t, named.Member(name) != nil, true, "the contract has %s.%s", kind.Name(), name)
			fields(t, f.Type)
		}
	}
}

// TestParamsOutliveTheirMessage: params that were read do not change when their
// message is overwritten, unless they say that they hold it.
func TestParamsOutliveTheirMessage(t *testing.T) {
	t.Parallel()
	for _, r := range records() {
		read := func(raw []byte) strictjson.Unmarshaler {
			p := r.make()
			rig.Must(t, UnmarshalParams(raw, p))
			return p
		}
		raw := bytes.Clone(r.full)
		got := read(raw)
		for i := range raw {
			raw[i] = '#'
		}
		_, holds := got.(interface{ HoldsMessage() })
		rig.Is(t, holds || reflect.DeepEqual(got, read(bytes.Clone(r.full))), true, "%s: %+v is what is left", r.name, got)
	}
}

// inParams is a request whose params are the given JSON.
func inParams(params string) string {
	return `{"id":1,"method":"m","params":` + params + `}`
}
