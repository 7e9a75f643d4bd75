package protocol

import (
	"bytes"
	"encoding/json"
	"fmt"
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
	make   func() strictjson.Unmarshaler
	full   string
	fields []field
}

// fields reads a list of members: "path kind may", separated by semicolons.
func fields(list string) []field {
	var out []field
	for line := range strings.SplitSeq(list, ";") {
		words := strings.Fields(line)
		f := field{path: words[0], kind: words[1]}
		if len(words) > 2 {
			f.may = words[2]
		}
		out = append(out, f)
	}
	return out
}

const exampleSandbox = `{"permissions":{"type":"managed","file_system":{"type":"restricted","glob_scan_max_depth":3,"entries":[
	{"path":{"type":"path","path":"file:///srv"},"access":"read","missing_path_behavior":"skip"},
	{"path":{"type":"glob_pattern","pattern":"**/*.env"},"access":"deny"},
	{"path":{"type":"special","value":{"kind":"project_roots","subpath":"sub"}},"access":"write"},
	{"path":{"type":"special","value":{"kind":"unknown","path":"x","subpath":"y"}},"access":"none"}]},"network":"restricted"},
	"windowsSandboxLevel":"disabled","cwd":"file:///w","workspaceRoots":["file:///w"],
	"policyContext":{"cwd":"file:///c","workspaceRoots":["file:///r","file:///s"]},"userHomeDir":"file:///h",
	"temporaryDirectories":["file:///t"],"windowsSandboxProxySettingsMode":"reconcile","useLegacyLandlock":true,
	"windowsSandboxPrivateDesktop":false}`

const (
	exampleManaged = `{"loopbackPorts":[1,65535],"allowLocalBinding":true,"allowUnixSockets":["/s"],"dangerouslyAllowAllUnixSockets":false,"transparentTcp":true}`
	exampleNetwork = `{"proxy":{"enabled":true,"enableSocks5":true,"transparentTcp":true,"enableSocks5Udp":false,"allowUpstreamProxy":true,
	"dangerouslyAllowAllUnixSockets":false,"mode":"full","domains":{"A":"allow"},"unixSockets":{"B":"deny"},"allowLocalBinding":false,
	"reviewDomains":["a.b"],"credentialMasking":true,"credentialProviders":{"A":{"env":["T"],"patterns":["t[a-z]{20}"],
	"url_prefixes":["https://h/"],"url_prefix_from_env":"U","auth":["bearer"],"header":"x","prefix":"y"}}},
	"auditMetadata":{"conversationId":"c","model":"m"},"environmentId":"e","executionId":"x","policyDecisionTimeoutMs":1}`
)

// of makes params of a type.
func of[P any, U interface {
	*P
	strictjson.Unmarshaler
}]() strictjson.Unmarshaler {
	return U(new(P))
}

// recordOf returns the record with a name.
func recordOf(name string) record {
	return records[slices.IndexFunc(records, func(r record) bool { return r.name == name })]
}

// records are all params that a peer reads, from rpc.md 3 to 6. Which members may
// be null was found out by asking the reference.
var records = []record{
	{"initialize", of[InitializeParams], `{"clientName":"c","resumeSessionId":"s","take":true,"retainMs":1,"subcommandApprovals":true}`,
		fields("clientName string; resumeSessionId string both; take boolean both; retainMs number both; subcommandApprovals boolean both")},
	{"initialize by name", of[InitializeParams], `{"clientName":"c","sessionName":"s","existing":true,"take":true,"retainMs":1}`,
		fields("clientName string; sessionName string both; existing boolean both; take boolean both; retainMs number both")},
	{"session/list", of[SessionListParams], `{}`, nil},
	{"session/end", of[SessionParams], `{"sessionId":"s"}`, fields("sessionId string")},
	{"session/taken", of[TakenNotification], `{"clientName":"c"}`, fields("clientName string")},
	{"environmentConfig/read", of[ConfigReadParams], `{"cwd":"file:///w","configPaths":[["a","b"],[]],"requirementsPaths":[["c"]]}`,
		fields("cwd string; configPaths sequence; configPaths.0 sequence absent; configPaths.0.1 string absent; requirementsPaths sequence")},
	{"process/start", of[StartParams],
		`{"processId":"p","metadata":{"threadId":"67e55044-10b1-426f-9247-bb680e5fe0c8","toolCallId":"t"},
		"argv":["sh","-c","true"],"cwd":"file:///w","envPolicy":{"inherit":"core","ignoreDefaultExcludes":false,
		"exclude":["X*"],"set":{"A":"1"},"includeOnly":["A"]},"shellSnapshot":{"scopeId":"s","shell":{"name":"bash","path":"/bin/bash"}},
		"env":{"B":"2"},"tty":true,"rows":24,"cols":80,"pipeStdin":true,"execApproval":{"rules":[{"name":"r","text":"t"}],"unmatched":"prompt","timeoutMs":1000,"report":"all"},"arg0":"-sh","sandbox":` + exampleSandbox + `,
		"enforceManagedNetwork":false,"builtin":false,"managedNetwork":` + exampleManaged + `,"networkProxy":` + exampleNetwork + `}`,
		fields(`processId string; metadata map both; metadata.threadId string both; metadata.toolCallId string both;
		argv sequence; argv.1 string absent; cwd string; envPolicy map both; envPolicy.inherit string;
		envPolicy.ignoreDefaultExcludes boolean; envPolicy.exclude sequence; envPolicy.exclude.0 string absent; envPolicy.set map;
		envPolicy.set.A string absent; envPolicy.includeOnly sequence; shellSnapshot map both; shellSnapshot.scopeId string;
		shellSnapshot.shell map; shellSnapshot.shell.name string; shellSnapshot.shell.path string; env map; env.B string absent;
		tty boolean; rows number both; cols number both; pipeStdin boolean absent; execApproval map both;
		execApproval.rules sequence both; execApproval.rules.0 map absent; execApproval.rules.0.name string; execApproval.rules.0.text string; execApproval.unmatched string both; execApproval.timeoutMs number both; execApproval.report string both; arg0 string both; sandbox map both;
		enforceManagedNetwork boolean absent; builtin boolean absent; managedNetwork map both; networkProxy map both;
		managedNetwork.loopbackPorts sequence absent; managedNetwork.loopbackPorts.1 number; managedNetwork.allowLocalBinding boolean absent;
		managedNetwork.allowUnixSockets sequence absent; managedNetwork.allowUnixSockets.0 string absent;
		managedNetwork.dangerouslyAllowAllUnixSockets boolean absent; managedNetwork.transparentTcp boolean absent;
		networkProxy.proxy map; networkProxy.auditMetadata map absent; networkProxy.auditMetadata.model string both;
		networkProxy.environmentId string both; networkProxy.executionId string both; networkProxy.policyDecisionTimeoutMs number both;
		networkProxy.proxy.enabled boolean; networkProxy.proxy.enableSocks5 boolean; networkProxy.proxy.transparentTcp boolean absent; networkProxy.proxy.enableSocks5Udp boolean;
		networkProxy.proxy.allowUpstreamProxy boolean; networkProxy.proxy.dangerouslyAllowAllUnixSockets boolean;
		networkProxy.proxy.mode string; networkProxy.proxy.domains map both; networkProxy.proxy.domains.A string absent;
		networkProxy.proxy.unixSockets map both; networkProxy.proxy.unixSockets.B string absent; networkProxy.proxy.allowLocalBinding boolean;
		networkProxy.proxy.reviewDomains sequence absent; networkProxy.proxy.reviewDomains.0 string absent;
		networkProxy.proxy.credentialMasking boolean absent; networkProxy.proxy.credentialProviders map absent;
		networkProxy.proxy.credentialProviders.A map absent; networkProxy.proxy.credentialProviders.A.env sequence absent;
		networkProxy.proxy.credentialProviders.A.patterns sequence absent; networkProxy.proxy.credentialProviders.A.url_prefixes sequence absent;
		networkProxy.proxy.credentialProviders.A.url_prefix_from_env string both; networkProxy.proxy.credentialProviders.A.auth sequence absent;
		networkProxy.proxy.credentialProviders.A.auth.0 string absent; networkProxy.proxy.credentialProviders.A.header string both;
		networkProxy.proxy.credentialProviders.A.prefix string both`)},
	{"process/execApproval", of[ExecApprovalParams],
		`{"processId":"p","approvalId":"a","kind":"exec","argv":["ls"],"truncated":true,"exe":"/bin/ls","cwd":"/","pid":1,"ppid":2,"reason":"r","matchedRules":[1],
		"proposedPrefix":["ls"],"afterSeq":3,"timeoutMs":4}`,
		fields(`processId string; approvalId string; kind string; argv sequence; argv.0 string absent; truncated boolean absent; exe string; cwd string;
		pid number both; ppid number both; reason string; proposedPrefix sequence both; proposedPrefix.0 string absent; afterSeq number; timeoutMs number`)},
	{"network/policyRequest", of[PolicyRequestParams], `{"processId":"p","request":{"protocol":"http","host":"h","port":80}}`,
		fields("processId string; request map; request.protocol string; request.host string; request.port number")},
	{"answer to network/policyRequest", of[PolicyAnswer],
		`{"decision":{"type":"deny","reason":"r"}}`, fields("decision map; decision.type string; decision.reason string")},
	{"network/policyDecision", of[PolicyDecision],
		`{"processId":"p","timestamp":"t","scope":"domain","decision":"allow","source":"decider","reason":"not_allowed",
		"protocol":"http","host":"h","port":80,"method":"GET","client":"127.0.0.1:1","policyOverride":true}`,
		fields(`processId string; timestamp string; scope string; decision string; source string; reason string; protocol string;
		host string; port number; method string both; client string; policyOverride boolean`)},
	{"process/closeStdin", of[ProcessParams], `{"processId":"p"}`, fields("processId string")},
	{"process/terminate", of[TerminateParams], `{"sessionId":"s","processId":"p"}`, fields("sessionId string both; processId string")},
	{"process/read", of[ReadParams],
		`{"processId":"p","afterSeq":1,"maxBytes":18446744073709551615,"waitMs":0,"sessionId":"s","timestamps":true,"exitOnly":true}`,
		fields(`processId string; afterSeq number both; maxBytes number both; waitMs number both; sessionId string both;
		timestamps boolean both; exitOnly boolean both`)},
	{"process/write", of[WriteParams], `{"processId":"p","chunk":"AQID","writeId":"w"}`, fields("processId string; chunk string; writeId string")},
	{"process/signal", of[SignalParams], `{"sessionId":"s","processId":"p","signal":"interrupt"}`,
		fields("sessionId string both; processId string; signal string")},
	{"process/resize", of[ResizeParams], `{"processId":"p","rows":1,"cols":65535}`, fields("processId string; rows number; cols number")},
	{"process/list", of[ListParams], `{"sessionId":"s"}`, fields("sessionId string both")},
	{"process/output", of[OutputNotification], `{"processId":"p","seq":1,"stream":"stdout","chunk":"AQID"}`,
		fields("processId string; seq number; stream string; chunk string")},
	{"process/exited", of[ExitedNotification], `{"processId":"p","seq":2,"exitCode":-1,"sandboxDenied":true}`,
		fields("processId string; seq number; exitCode number; sandboxDenied boolean both")},
	{"process/closed", of[ClosedNotification], `{"processId":"p","seq":3}`, fields("processId string; seq number")},
	{"http/request", of[HTTPRequestParams],
		`{"method":"GET","url":"http://h/","headers":[{"name":"a","value":"b","valueEnvVar":"V"}],"bodyBase64":"AQID",
		"timeoutMs":5,"redirectPolicy":"stop","requestId":"r","streamResponse":true}`,
		fields(`method string; url string; headers sequence absent; headers.0 map absent; headers.0.name string; headers.0.value string;
		headers.0.valueEnvVar string both; bodyBase64 string both; timeoutMs number both; redirectPolicy string absent;
		requestId string; streamResponse boolean absent`)},
	{"http/request/bodyDelta", of[HTTPBodyDelta], `{"requestId":"r","seq":1,"deltaBase64":"AQID","done":true,"error":"e"}`,
		fields("requestId string; seq number; deltaBase64 string; done boolean; error string both")},
	{"fs/readFile", of[PathParams],
		`{"path":"file:///a","followSymlinks":false,"sandbox":` + exampleSandbox + `}`,
		fields("path string; followSymlinks boolean both; sandbox map both")},
	{"fs/writeFile", of[WriteFileParams],
		`{"path":"file:///a","dataBase64":"AQID","followSymlinks":false,"sandbox":` + exampleSandbox + `}`,
		fields("path string; dataBase64 string; followSymlinks boolean both; sandbox map both")},
	{"fs/createDirectory", of[CreateDirectoryParams],
		`{"path":"file:///a","recursive":false,"followSymlinks":false,"sandbox":` + exampleSandbox + `}`,
		fields("path string; recursive boolean both; followSymlinks boolean both; sandbox map both")},
	{"fs/walk", of[WalkParams],
		`{"path":"file:///a","options":{"maxDepth":1,"maxDirectories":2,"maxEntries":3,"followDirectorySymlinks":true,
		"pruneHiddenDirectories":true},"sandbox":` + exampleSandbox + `}`,
		fields(`path string; options map; options.maxDepth number; options.maxDirectories number; options.maxEntries number;
		options.followDirectorySymlinks boolean; options.pruneHiddenDirectories boolean absent; sandbox map both`)},
	{"fs/remove", of[RemoveParams],
		`{"path":"file:///a","recursive":false,"force":false,"followSymlinks":true,"sandbox":` + exampleSandbox + `}`,
		fields("path string; recursive boolean both; force boolean both; followSymlinks boolean both; sandbox map both")},
	{"fs/copy", of[CopyParams],
		`{"sourcePath":"file:///a","destinationPath":"file:///b","recursive":true,"sandbox":` + exampleSandbox + `}`,
		fields("sourcePath string; destinationPath string; recursive boolean; sandbox map both")},
	{"fs/rename", of[RenameParams],
		`{"sourcePath":"file:///a","destinationPath":"file:///b","replace":false,"sandbox":` + exampleSandbox + `}`,
		fields("sourcePath string; destinationPath string; replace boolean absent; sandbox map both")},
	{"fs/applyPatch", of[ApplyPatchParams],
		`{"patch":"*** Begin Patch\n*** End Patch\n","cwd":"file:///a","dryRun":true,"sandbox":` + exampleSandbox + `}`,
		fields("patch string; cwd string; dryRun boolean both; sandbox map both")},
	{"fs/open", of[OpenParams],
		`{"handleId":"h","path":"file:///a","mode":"replace","sandbox":` + exampleSandbox + `}`,
		fields("handleId string; path string; mode string absent; sandbox map both")},
	{"fs/close", of[HandleParams], `{"handleId":"h"}`, fields("handleId string")},
	{"fs/readBlock", of[ReadBlockParams], `{"handleId":"h","offset":18446744073709551615,"len":1}`,
		fields("handleId string; offset number; len number")},
	{"fs/writeBlock", of[WriteBlockParams], `{"handleId":"h","offset":0,"chunk":"AQID"}`, fields("handleId string; offset number; chunk string")},
	{"fs/watchMissing", of[WatchMissingParams],
		`{"watchId":1,"missing":["file:///a","file:///b"],"present":"file:///c","sandbox":` + exampleSandbox + `}`,
		fields("watchId number; missing sequence; missing.1 string absent; present string both; sandbox map both")},
	{"fs/missingChanged", of[MissingChangedNotification], `{"watchId":1}`, fields("watchId number")},
	{"fs/watch", of[WatchParams],
		`{"watchId":"w","path":"file:///a","recursive":true,"sandbox":` + exampleSandbox + `}`,
		fields("watchId string; path string; recursive boolean both; sandbox map both")},
	{"fs/unwatch", of[UnwatchParams], `{"watchId":"w"}`, fields("watchId string")},
	{"fs/changed", of[ChangedNotification], `{"watchId":"w","changes":[{"path":"file:///a","kind":"renamed","from":"file:///b"}],"overflow":true}`,
		fields(`watchId string; changes sequence; changes.0 map absent; changes.0.path string; changes.0.kind string;
		changes.0.from string; overflow boolean both`)},
	{"socket/open", of[SocketOpenParams],
		`{"socketId":"s","address":"tcp://h:1","window":65536,"sandbox":` + exampleSandbox + `}`,
		fields("socketId string; address string; window number both; sandbox map both")},
	{"socket/write", of[SocketWriteParams], `{"socketId":"s","offset":18446744073709551615,"chunk":"AQID","eof":true}`,
		fields("socketId string; offset number; chunk string; eof boolean both")},
	{"socket/ack", of[SocketReceivedParams], `{"socketId":"s","received":3}`, fields("socketId string; received number")},
	{"socket/close", of[SocketParams], `{"socketId":"s"}`, fields("socketId string")},
	{"socket/data", of[SocketData], `{"socketId":"s","offset":3,"chunk":"AQID","eof":true,"error":"Connection reset by peer (os error 104)"}`,
		fields("socketId string; offset number; chunk string; eof boolean both; error string both")},
	{"capabilityRoots/discoverV1", of[DiscoverRootsParams],
		`{"roots":[{"id":"r","path":"file:///a","sandbox":` + exampleSandbox + `}]}`,
		fields("roots sequence; roots.0 map absent; roots.0.id string; roots.0.path string; roots.0.sandbox map both")},
	{"capabilities/discoverV2", of[DiscoverInstalledParams],
		`{"cwd":"file:///w","sandbox":` + exampleSandbox + `}`,
		fields("cwd string; sandbox map both; sandbox.cwd string")},
	{"sandbox", of[Sandbox], exampleSandbox,
		fields(`permissions map; permissions.type string; permissions.file_system map; permissions.file_system.type string;
		permissions.file_system.entries sequence; permissions.file_system.entries.0 map absent;
		permissions.file_system.glob_scan_max_depth number both; permissions.network string;
		permissions.file_system.entries.0.path map; permissions.file_system.entries.0.access string;
		permissions.file_system.entries.0.missing_path_behavior string both; permissions.file_system.entries.0.path.type string;
		permissions.file_system.entries.0.path.path string; permissions.file_system.entries.1.path.pattern string;
		permissions.file_system.entries.2.path.value map; permissions.file_system.entries.2.path.value.kind string;
		permissions.file_system.entries.2.path.value.subpath string both; permissions.file_system.entries.3.path.value.path string;
		permissions.file_system.entries.3.path.value.subpath string both; windowsSandboxLevel string; cwd string both;
		workspaceRoots sequence absent; workspaceRoots.0 string absent; policyContext map both; policyContext.cwd string both;
		policyContext.workspaceRoots sequence absent; policyContext.workspaceRoots.1 string absent; userHomeDir string both;
		temporaryDirectories sequence both; temporaryDirectories.0 string absent; windowsSandboxProxySettingsMode string both;
		useLegacyLandlock boolean absent; windowsSandboxPrivateDesktop boolean both`)},
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
	for _, r := range records {
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
