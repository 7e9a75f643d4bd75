package declared

import (
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/execagent/execagent/harness/projection/internal/mcpserver"
	"github.com/execagent/execagent/internal/strictjson"
	"github.com/execagent/execagent/protocol"
)

const (
	// maxServers and maxConnectors are how many servers and connectors one plugin, or the
	// configuration of one executor, may declare.
	maxServers    = 32
	maxConnectors = 256
	// maxName bounds the name of a server, in bytes. The name becomes a part of names of tools.
	maxName = 64
	// maxConnector bounds the id of a connector, in bytes.
	maxConnector = 256
	// maxHeaders is how many headers a server may have.
	maxHeaders = 64
	// maxWarnings bounds the warnings, because a file may have many errors.
	maxWarnings = 64
)

// Declarations are what one plugin, or one configuration, declares.
type Declarations struct {
	Servers    []mcpserver.Spec // by name
	Connectors []string         // their ids, each once
	Warnings   []string
}

// IsEmpty reports whether nothing is declared.
func (d *Declarations) IsEmpty() bool { return len(d.Servers) == 0 && len(d.Connectors) == 0 }

// Equal reports whether two declarations are equal, without their warnings.
func (d *Declarations) Equal(o *Declarations) bool {
	return d == o || slices.Equal(d.Connectors, o.Connectors) &&
		slices.EqualFunc(d.Servers, o.Servers, func(a, b mcpserver.Spec) bool { return a.Equal(&b) })
}

func (d *Declarations) warn(format string, args ...any) {
	if len(d.Warnings) < maxWarnings {
		d.Warnings = append(d.Warnings, fmt.Sprintf(format, args...))
	}
}

// Plugin reads the declarations of a plugin. Its servers carry its id, and run in its root.
func Plugin(id string, root protocol.PathURI, files *protocol.PluginFiles) Declarations {
	var d Declarations
	folder, err := root.Native()
	if err != nil {
		d.warn("plugin %.256q: %v", id, err)
		return d
	}
	of := file{files.Manifest.Contents, serversMember}
	switch own := files.MCPConfig; {
	case own == nil:
	case own.Path == files.Manifest.Path:
		// The servers that the manifest itself has, as capabilities/discoverV2 reports them.
		of.text = `{"` + serversMember + `":` + own.Contents + `}`
	default:
		of.text = own.Contents
	}
	found := of.each(func(name string, raw []byte) {
		s := server{folder: folder}
		if !isName(name) {
			d.warn("plugin %.256q: MCP server %.64q: the name may have %d letters, digits, - and _", id, name, maxName)
		} else if err := strictjson.Unmarshal(raw, &s); err != nil {
			d.warn("plugin %.256q: MCP server %s: %v", id, name, err)
		} else {
			s.spec.Name, s.spec.Plugin = name, id
			d.Servers = append(d.Servers, s.spec)
		}
	})
	if !found && files.MCPConfig != nil {
		d.warn("plugin %.256q: the file of MCP servers has no object %s", id, serversMember)
	}
	d.sort(fmt.Sprintf("plugin %.256q", id))
	if files.AppsConfig != nil {
		d.connectors(id, files.AppsConfig.Contents)
	}
	return d
}

// sort sorts the servers, and drops the servers beyond the bound.
func (d *Declarations) sort(of string) {
	slices.SortFunc(d.Servers, func(a, b mcpserver.Spec) int { return strings.Compare(a.Name, b.Name) })
	if len(d.Servers) > maxServers {
		d.warn("%s: more than %d MCP servers", of, maxServers)
		d.Servers = d.Servers[:maxServers]
	}
}

// Members of files.
const (
	serversMember    = "mcpServers"
	connectorsMember = "apps"
)

// file is a JSON object, and the name of the member that has declarations by their names.
type file struct{ text, member string }

// each calls visit for each declaration. found is false if the file has no such member. That is no
// error, because a manifest need not contain the declarations of its servers.
func (f file) each(visit func(name string, raw []byte)) (found bool) {
	v := member{name: f.member}
	if strictjson.Unmarshal([]byte(f.text), &v) != nil || v.raw == nil || strictjson.TypeOf(v.raw) != "map" {
		return false
	}
	_, _ = strictjson.Members(v.raw, func(name, value []byte) { visit(string(name), value) }) // it was checked as a part of the file
	return true
}

// member reads one member of an object, which may be anything.
type member struct {
	name string
	raw  []byte
}

func (m *member) UnmarshalObject(o *strictjson.Object) {
	if o.Has(m.name) {
		m.raw = o.Require(m.name)
	}
}

// server reads the declaration of a server.
type server struct {
	folder string
	spec   mcpserver.Spec
}

// Types of servers.
const (
	typeStdio = "stdio"
	typeHTTP  = "http"
)

// UnmarshalObject reads the declaration. Without a type, the members determine the type.
func (s *server) UnmarshalObject(o *strictjson.Object) {
	kind := typeStdio
	if !o.Has("command") && o.Has("url") {
		kind = typeHTTP
	}
	if o.Present("type") {
		if kind = o.String("type"); kind == "streamable_http" || kind == "streamable-http" {
			kind = typeHTTP
		}
	}
	switch kind {
	case typeStdio:
		command := o.String("command")
		if strings.TrimSpace(command) == "" {
			o.Fail("command", "is empty")
			return
		}
		s.spec.Argv = []string{command}
		if o.Present("args") {
			s.spec.Argv = append(s.spec.Argv, o.Strings("args")...)
		}
		if o.Present("env") {
			s.spec.Env = o.StringMap("env")
		}
		folder := s.folder
		if cwd := o.OptString("cwd"); cwd != nil {
			if folder = *cwd; !path.IsAbs(folder) {
				folder = path.Join(s.folder, folder)
			}
		}
		s.spec.Dir = protocol.NewPathURI(folder)
	case typeHTTP:
		if s.spec.URL = o.String("url"); !isURL(s.spec.URL) {
			o.Fail("url", "is no URL of HTTP")
		}
		if o.Present("headers") {
			headers := o.StringMap("headers")
			if len(headers) > maxHeaders {
				o.Fail("headers", "has more than %d", maxHeaders)
			}
			s.spec.Headers = literal(headers)
		}
	default:
		o.Fail("type", "is %.64q: servers are of type stdio or http", kind)
	}
}

// literal returns headers with fixed values, sorted by name.
func literal(values map[string]string) (headers []protocol.HTTPHeader) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		headers = append(headers, protocol.HTTPHeader{Name: name, Value: values[name]})
	}
	return headers
}

func isURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

// isName reports whether a server may have this name.
func isName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if !('a' <= c|0x20 && c|0x20 <= 'z') && !('0' <= c && c <= '9') && c != '-' && c != '_' {
			return false
		}
	}
	return 0 < len(name) && len(name) <= maxName
}

// connectors reads an apps file: {"apps":{NAME:{"id":ID}}}.
func (d *Declarations) connectors(id, text string) {
	byName := map[string]string{}
	file{text, connectorsMember}.each(func(name string, raw []byte) {
		var c connector
		if err := strictjson.Unmarshal(raw, &c); err != nil {
			d.warn("plugin %.256q: connector %.64q: %v", id, name, err)
			return
		}
		byName[name] = c.id
	})
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		if id := byName[name]; !slices.Contains(d.Connectors, id) {
			d.Connectors = append(d.Connectors, id)
		}
		if len(d.Connectors) == maxConnectors {
			break
		}
	}
}

// connector reads the declaration of a connector.
type connector struct{ id string }

func (c *connector) UnmarshalObject(o *strictjson.Object) {
	if c.id = strings.TrimSpace(o.String("id")); c.id == "" || len(c.id) > maxConnector {
		o.Fail("id", "has %d bytes, may have 1 to %d", len(c.id), maxConnector)
	}
}
