package declared_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/execagent/execagent/harness/projection/internal/declared"
	"github.com/execagent/execagent/harness/projection/internal/mcpserver"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

var root = protocol.NewPathURI("/r")

// comparePaths compares what has no exported fields.
var comparePaths = cmp.Comparer(func(a, b protocol.PathURI) bool { return a == b })

func files(manifest, mcp, apps string) *protocol.PluginFiles {
	f := &protocol.PluginFiles{Manifest: protocol.DiscoveredFile{Contents: manifest}}
	if mcp != "" {
		f.MCPConfig = &protocol.DiscoveredFile{Path: protocol.NewPathURI("/r/.mcp.json"), Contents: mcp}
	}
	if apps != "" {
		f.AppsConfig = &protocol.DiscoveredFile{Contents: apps}
	}
	return f
}

// The bounds of the package.
const maxServers, maxConnectors, maxWarnings = 32, 256, 64

func TestPlugin(t *testing.T) {
	t.Parallel()
	stdio := func(name, dir string, argv ...string) mcpserver.Spec {
		return mcpserver.Spec{Name: name, Plugin: "p", Argv: argv, Dir: protocol.NewPathURI(dir)}
	}
	for name, test := range map[string]struct {
		files    *protocol.PluginFiles
		want     declared.Declarations
		warnings []string // parts of them
	}{
		"nothing":        {files: files(`{"name":"x"}`, "", "")},
		"manifest":       {files: files(`no JSON`, "", "")},
		"sorted":         {files: files(`{}`, `{"mcpServers":{"b":{"command":"x"},"a":{"command":"y","args":["1","${PLUGIN_ROOT}"]}}}`, ""), want: declared.Declarations{Servers: []mcpserver.Spec{stdio("a", "/r", "y", "1", "${PLUGIN_ROOT}"), stdio("b", "/r", "x")}}},
		"inline":         {files: files(`{"mcpServers":{"a":{"command":"y"}}}`, "", ""), want: declared.Declarations{Servers: []mcpserver.Spec{stdio("a", "/r", "y")}}},
		"inline, of V2":  {files: &protocol.PluginFiles{MCPConfig: &protocol.DiscoveredFile{Contents: `{"a":{"command":"y"}}`}}, want: declared.Declarations{Servers: []mcpserver.Spec{stdio("a", "/r", "y")}}},
		"file over path": {files: files(`{"mcpServers":"./x.json"}`, `{"mcpServers":{"a":{"command":"y"}}}`, ""), want: declared.Declarations{Servers: []mcpserver.Spec{stdio("a", "/r", "y")}}},
		"cwd":            {files: files(`{}`, `{"mcpServers":{"a":{"command":"y","cwd":"sub/./x"},"b":{"command":"y","cwd":"/abs"},"c":{"command":"y","cwd":null}}}`, ""), want: declared.Declarations{Servers: []mcpserver.Spec{stdio("a", "/r/sub/x", "y"), stdio("b", "/abs", "y"), stdio("c", "/r", "y")}}},
		"http": {files: files(`{}`, `{"mcpServers":{"a":{"type":"http","url":"https://x/y"},"b":{"url":"http://x","headers":{"z":"1","a":"2"}}}}`, ""), want: declared.Declarations{Servers: []mcpserver.Spec{
			{Name: "a", Plugin: "p", URL: "https://x/y"},
			{Name: "b", Plugin: "p", URL: "http://x", Headers: []protocol.HTTPHeader{{Name: "a", Value: "2"}, {Name: "z", Value: "1"}}},
		}}},
		"wrong ones": {
			files:    files(`{}`, `{"mcpServers":{"good":{"command":"y","more":[{}]},"a b":{"command":"y"},"":{"command":"y"},"c":{"command":""},"d":{"command":5},"e":{"type":"sse","url":"http://x"},"f":{"type":"http","url":"file:///x"},"g":5,"h":{"command":"y","env":{"A":1}},"i":{}}}`, ""),
			want:     declared.Declarations{Servers: []mcpserver.Spec{stdio("good", "/r", "y")}},
			warnings: []string{`"a b"`, `""`, "server c", "server d", "server e", "server f", "server g", "server h", "server i"},
		},
		"no object": {files: files(`{}`, `{"mcpServers":[]}`, ""), warnings: []string{"has no object mcpServers"}},
		"no JSON":   {files: files(`{}`, `{`, ""), warnings: []string{"has no object mcpServers"}},
		"twice":     {files: files(`{}`, `{"mcpServers":{"a":{"command":"y"},"a":{"command":"z"}}}`, ""), warnings: []string{"has no object mcpServers"}},
		"connectors": {
			files:    files(`{}`, "", `{"apps":{"z":{"id":"connector_1"},"a":{"id":" connector_2 "},"b":{"id":"connector_1"},"c":{"id":""},"d":{}}}`),
			want:     declared.Declarations{Connectors: []string{"connector_2", "connector_1"}},
			warnings: []string{`"c"`, `"d"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := declared.Plugin("p", root, test.files)
			warnings := got.Warnings
			got.Warnings = nil
			rig.Same(t, "the result", test.want, got, comparePaths)
			if len(warnings) != len(test.warnings) {
				t.Fatalf("the warnings are %q", warnings)
			}
			for i, part := range test.warnings {
				rig.Is(t, strings.Contains(warnings[i], part), true, "%q is in %q", part, warnings[i])
			}
		})
	}
}

// TestTooMany: what is too much is left out with a warning, or refused.
func TestTooMany(t *testing.T) {
	t.Parallel()
	var servers, apps []string
	for i := range maxServers + 1 {
		servers = append(servers, fmt.Sprintf(`"s%03d":{"command":"x"}`, i))
	}
	for i := range maxConnectors + 1 {
		apps = append(apps, fmt.Sprintf(`"a%03d":{"id":"c%03d"}`, i, i))
	}
	d := declared.Plugin("p", root, files(`{}`, `{"mcpServers":{`+strings.Join(servers, ",")+`}}`, `{"apps":{`+strings.Join(apps, ",")+`}}`))
	if len(d.Servers) != maxServers || len(d.Connectors) != maxConnectors || len(d.Warnings) != 1 {
		t.Errorf("%d servers, %d connectors, %q", len(d.Servers), len(d.Connectors), d.Warnings)
	}
}

// TestManyMistakes: the warnings about a file are not much larger than it is.
func TestManyMistakes(t *testing.T) {
	t.Parallel()
	var servers strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&servers, `,"%d":0`, i)
	}
	d := declared.Plugin("p", root, files(`{}`, `{"mcpServers":{`+servers.String()[1:]+`}}`, `{"apps":{`+servers.String()[1:]+`}}`))
	rig.Is(t, len(d.Warnings), maxWarnings, "warnings")
}

// TestCostOfKeys: what a decoder of TOML keeps of a configuration has bounds.
func TestCostOfKeys(t *testing.T) {
	var text strings.Builder
	fmt.Fprintf(&text, "[mcp_servers.%s]\n", strings.Repeat("a", 32<<10))
	for i := 0; text.Len() < 60<<10; i++ {
		fmt.Fprintf(&text, "a%d={}\n", i)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := declared.Configured(&protocol.ConfigReadResult{Config: layers(text.String())}, true)
	runtime.ReadMemStats(&after)
	allocated := after.TotalAlloc - before.TotalAlloc
	rig.Is(t, err != nil && allocated <= 200<<20, true, "%d MiB are allocated, the error is %v", allocated>>20, err)
}

func layers(texts ...string) (l protocol.ConfigLayers) {
	for _, text := range texts {
		l.Layers = append(l.Layers, protocol.ConfigLayer{Source: "layer", TOML: text})
	}
	return l
}

func TestConfigured(t *testing.T) {
	t.Parallel()
	bearer := protocol.HTTPHeader{Name: "authorization", Value: "Bearer ", ValueEnvVar: new("TOKEN")}
	web := func(name, url string, headers ...protocol.HTTPHeader) mcpserver.Spec {
		return mcpserver.Spec{Name: name, URL: url, Headers: headers}
	}
	for name, test := range map[string]struct {
		config, requirements protocol.ConfigLayers
		poor                 bool // no variables in headers
		want                 []mcpserver.Spec
		warnings             int
		fails                bool
	}{
		"nothing": {},
		"url only": {config: layers("[mcp_servers.b]\nurl='http://b'\n[mcp_servers.a]\nurl='https://a/x'\n[mcp_servers.s]\ncommand='sh'\n[mcp_servers.off]\nurl='http://off'\nenabled=false"),
			want: []mcpserver.Spec{web("a", "https://a/x"), web("b", "http://b")}},
		"merged": {config: layers("[mcp_servers.a]\nurl='http://low'\nbearer_token_env_var='TOKEN'", "[mcp_servers.a]\nurl='http://high'"),
			want: []mcpserver.Spec{web("a", "http://high", bearer)}},
		"headers": {config: layers("[mcp_servers.a]\nurl='http://a'\nbearer_token_env_var='TOKEN'\nhttp_headers={z='1',b='2'}\nenv_http_headers={x='VAR'}"),
			want: []mcpserver.Spec{web("a", "http://a", protocol.HTTPHeader{Name: "b", Value: "2"}, protocol.HTTPHeader{Name: "z", Value: "1"}, bearer, protocol.HTTPHeader{Name: "x", ValueEnvVar: new("VAR")})}},
		"no variables": {config: layers("[mcp_servers.a]\nurl='http://a'\nbearer_token_env_var='TOKEN'\n[mcp_servers.b]\nurl='http://b'"), poor: true,
			want: []mcpserver.Spec{web("b", "http://b")}, warnings: 1},
		"required": {
			config:       layers("[mcp_servers.a]\nurl='http://a'\n[mcp_servers.b]\nurl='http://b'\n[mcp_servers.c]\nurl='http://c'"),
			requirements: layers("[mcp_servers.a.identity]\nurl='http://a'", "[mcp_servers.b]\nurl='http://other'"),
			want:         []mcpserver.Spec{web("a", "http://a")}, warnings: 2,
		},
		"none allowed": {config: layers("[mcp_servers.a]\nurl='http://a'"), requirements: layers("[mcp_servers]"), warnings: 1},
		"wrong ones": {config: layers("[mcp_servers.'a b']\nurl='http://a'\n[mcp_servers.b]\nurl='nowhere'\n[mcp_servers.c]\nurl='http://c'\nhttp_headers={x=1}\n[mcp_servers.d]\nurl='http://d'\nhttp_headers=5\n[mcp_servers.e]\nurl=5"),
			warnings: 4},
		"timeouts": {
			config: layers("[mcp_servers.a]\nurl='http://a'\nstartup_timeout_sec=2.5\ntool_timeout_sec=600\n[mcp_servers.b]\nurl='http://b'\nstartup_timeout_sec=inf\ntool_timeout_sec=9223372036854775807\n[mcp_servers.c]\nurl='http://c'\ntool_timeout_sec=1e-20"),
			want: []mcpserver.Spec{
				{Name: "a", URL: "http://a", StartTimeout: 2500 * time.Millisecond, CallTimeout: 10 * time.Minute},
				{Name: "b", URL: "http://b", StartTimeout: 24 * time.Hour, CallTimeout: 24 * time.Hour},
				{Name: "c", URL: "http://c", CallTimeout: 1},
			},
		},
		"wrong timeouts": {config: layers("[mcp_servers.a]\nurl='http://a'\nstartup_timeout_sec=0\n[mcp_servers.b]\nurl='http://b'\ntool_timeout_sec=-1\n[mcp_servers.c]\nurl='http://c'\ntool_timeout_sec=nan\n[mcp_servers.d]\nurl='http://d'\ntool_timeout_sec='5'"),
			warnings: 4},
		"a scalar":    {config: layers("mcp_servers=5")},
		"no TOML":     {config: layers("[mcp_servers"), fails: true},
		"nested":      {config: layers("mcp_servers=" + strings.Repeat("[", 60<<10)), fails: true},
		"a.a.a":       {config: layers("mcp_servers." + strings.Repeat("a.", 30<<10) + "a=1"), fails: true},
		"a={a={":      {config: layers("mcp_servers=" + strings.Repeat("[\n{a=", 12<<10)), fails: true},
		"long key":    {config: layers("[mcp_servers]\n" + strings.Repeat("a", 300) + "={}"), fails: true},
		"long table":  {config: layers("[ mcp_servers.\"" + strings.Repeat("a", 300) + "\" ]\nb={}"), fails: true},
		"long tables": {config: layers("\n\t[[ mcp_servers." + strings.Repeat("a", 300) + " ]]\nb={}"), fails: true},
		"long inside": {config: layers("mcp_servers={" + strings.Repeat("a", 300) + "={}}"), fails: true},
		"long values": {
			config: layers("[mcp_servers.a]\nurl='http://a/" + strings.Repeat("a", 300) + "'\nx=[\n\"" + strings.Repeat("a", 300) + "\"]\ny={a='" + strings.Repeat("a", 300) + "', b=1}"),
			want:   []mcpserver.Spec{web("a", "http://a/"+strings.Repeat("a", 300))},
		},
		"strings": {
			config: layers("[mcp_servers.a]\nurl='http://a/" + strings.Repeat("{[.", 50) + "'\nx=\"\\\"" + strings.Repeat("[", 50) + "\"\ny='''\n" + strings.Repeat("[.", 50) + "\n''''\nz=\"\"\"\n[[[[[[[[[[[[[[[[[\\\"\"\"\"\n# " + strings.Repeat("[.", 50)),
			want:   []mcpserver.Spec{web("a", "http://a/"+strings.Repeat("{[.", 50))},
		},
		"too large": {config: layers(strings.Repeat("#\n", 32<<10+1)), fails: true},
	} {
		d, err := declared.Configured(&protocol.ConfigReadResult{Config: test.config, Requirements: test.requirements}, !test.poor)
		rig.Is(t, err != nil, test.fails, "%s: there is an error, %v", name, err)
		rig.Same(t, name, test.want, d.Servers, comparePaths)
		rig.Is(t, len(d.Warnings), test.warnings, "%s: warnings %q", name, d.Warnings)
	}
}

func FuzzPlugin(f *testing.F) {
	f.Add(`{"mcpServers":{"a":{"command":"x","args":["y"],"env":{"Z":"1"},"cwd":"../.."}}}`, `{"apps":{"a":{"id":"b"}}}`)
	f.Add(`{"mcpServers":{"a\u0062":{"type":"http","url":"http://x","headers":{"a":"b"}}}}`, `{"apps":[]}`)
	f.Fuzz(func(t *testing.T, mcp, apps string) {
		d := declared.Plugin("p", root, files(mcp, mcp, apps))
		if len(d.Servers) > maxServers || len(d.Connectors) > maxConnectors {
			t.Errorf("%d servers, %d connectors", len(d.Servers), len(d.Connectors))
		}
		for _, s := range d.Servers {
			if s.Plugin != "p" || s.Name == "" || (len(s.Argv) == 0) == (s.URL == "") || s.URL == "" && s.Dir.IsZero() {
				t.Errorf("%+v", s)
			}
		}
		again := declared.Plugin("p", root, files(mcp, mcp, apps))
		rig.Is(t, d.Equal(&again), true, "%+v and %+v", d, again)
	})
}

func FuzzConfigured(f *testing.F) {
	f.Add("[mcp_servers.a]\nurl='http://a'", "[mcp_servers.a.identity]\nurl='http://a'")
	f.Add("[mcp_servers.a]\nurl='http://a'\nstartup_timeout_sec=1e300\ntool_timeout_sec=1", "")
	f.Add("[mcp_servers]\na={url='http://a',http_headers={x='y'}}", "")
	f.Fuzz(func(t *testing.T, config, requirements string) {
		d, err := declared.Configured(&protocol.ConfigReadResult{Config: layers(config), Requirements: layers(requirements)}, true)
		rig.Is(t, err != nil && len(d.Servers) > 0, false, "%+v with %v", d, err)
		for _, s := range d.Servers {
			if s.URL == "" || len(s.Argv) > 0 || s.StartTimeout < 0 || s.CallTimeout < 0 || max(s.StartTimeout, s.CallTimeout) > 24*time.Hour {
				t.Errorf("%+v", s)
			}
		}
	})
}
