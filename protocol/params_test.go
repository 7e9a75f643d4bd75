package protocol

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/execagent/execagent/internal/contracttest"
	"github.com/execagent/execagent/internal/strictjson"
	"github.com/execagent/execagent/test/rig"
)

// TestParamsValues: values that no bound and no list of words in the contract tells.
func TestParamsValues(t *testing.T) {
	t.Parallel()
	all := map[string]record{}
	for _, r := range records() {
		all[r.name] = r
	}
	for _, row := range rig.Rows(t, "testdata/values.txt", "values", 4) {
		r, value := all[row[0]], any(row[2])
		if json.Valid([]byte(row[2])) {
			value = json.RawMessage(row[2])
		}
		doc := contracttest.With(r.full, row[1], value)
		err := read(r.make(), doc)
		rig.Is(t, err == nil, contracttest.Valid(r.name, doc) == nil, "%v: %v; the verdict of the schema", row, err)
		if row[3] != "taken" {
			rig.Says(t, err, row[3], "%v", row)
		}
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
		rig.Check(t, UnmarshalParams([]byte(tt.in), tt.got))
		rig.Same(t, tt.in, tt.want, tt.got, cmp.AllowUnexported(PathURI{}))
	}
}

// TestWriteFileDataError: bad base64 in fs/writeFile is no error of decoding, since
// the method answers it itself, with -32600 (rpc.md 5.3).
func TestWriteFileDataError(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"!", "AAA", "AA=", "AB==", "AA==\n", "AA-_"} {
		var p WriteFileParams
		rig.Check(t, UnmarshalParams(rig.Value(json.Marshal(map[string]string{"path": "file:///a", "dataBase64": data})), &p))
		rig.Is(t, p.DataError != nil && p.Data == nil, true, "%q: data %q, error %v: an error alone", data, p.Data, p.DataError)
	}
}
