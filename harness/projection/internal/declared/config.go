package declared

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/execagent/execagent/harness/projection/internal/mcpserver"
	"github.com/execagent/execagent/internal/tomltext"
	"github.com/execagent/execagent/protocol"
)

const (
	// maxConfig bounds the layers of a configuration together. maxKey bounds one key or the head of
	// a table. Both are in bytes. The decoder keeps each key with its enclosing keys.
	maxConfig = 64 << 10
	maxKey    = 256
	// maxDepth bounds the nesting of brackets, and the dots of a key. The memory of the decoder
	// also grows with the square of the depth.
	maxDepth = 16
	// maxTimeout bounds the timeouts of a configuration. A longer timeout is reduced to it.
	maxTimeout = 24 * time.Hour
)

// Path is the table of a configuration that declares servers.
var Path = []string{"mcp_servers"}

// Configured reads the servers of an executor's own configuration: those with a URL
// (capabilities.md 6.3). If the requirements declare servers, it reads only servers that the
// requirements name with the same URL. variables reports whether the executor fills variables into
// headers. If it does not, servers that need variables are left out.
func Configured(config *protocol.ConfigReadResult, variables bool) (Declarations, error) {
	var d Declarations
	servers, _, err := table(config.Config)
	if err != nil {
		return d, fmt.Errorf("configuration of the executor: %w", err)
	}
	required, restricted, err := table(config.Requirements)
	if err != nil {
		return d, fmt.Errorf("requirements of the executor: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		entry, _ := servers[name].(map[string]any)
		at, _ := entry["url"].(string)
		if at == "" {
			continue // a program is for the executor's user, and is not started from here
		}
		if enabled, ok := entry["enabled"].(bool); ok && !enabled {
			continue
		}
		spec := mcpserver.Spec{Name: name, URL: at}
		err := cmp.Or(headers(&spec, entry, variables),
			timeout(&spec.StartTimeout, entry, "startup_timeout_sec"), timeout(&spec.CallTimeout, entry, "tool_timeout_sec"))
		switch {
		case !isName(name):
			err = fmt.Errorf("the name may have %d letters, digits, - and _", maxName)
		case !isURL(at):
			err = fmt.Errorf("url is no URL of HTTP")
		case restricted && !allows(required[name], at):
			err = fmt.Errorf("the requirements of the executor do not allow it")
		}
		if err != nil {
			d.warn("configuration of the executor: MCP server %.64q: %v", name, err)
			continue
		}
		d.Servers = append(d.Servers, spec)
	}
	d.sort("configuration of the executor")
	return d, nil
}

// allows reports whether a server with this URL meets a requirement.
func allows(requirement any, at string) bool {
	entry, _ := requirement.(map[string]any)
	if identity, ok := entry["identity"].(map[string]any); ok {
		entry = identity
	}
	return entry["url"] == at
}

// headers reads the headers of requests to a server.
func headers(spec *mcpserver.Spec, entry map[string]any, variables bool) error {
	var fromVariables []protocol.HTTPHeader
	if name, _ := entry["bearer_token_env_var"].(string); name != "" {
		fromVariables = append(fromVariables, protocol.HTTPHeader{Name: "authorization", Value: "Bearer ", ValueEnvVar: &name})
	}
	named, err := texts(entry, "env_http_headers")
	if err != nil {
		return err
	}
	for _, header := range slices.Sorted(maps.Keys(named)) {
		fromVariables = append(fromVariables, protocol.HTTPHeader{Name: header, ValueEnvVar: new(named[header])})
	}
	if len(fromVariables) > 0 && !variables {
		return fmt.Errorf("the executor fills no variables into headers")
	}
	values, err := texts(entry, "http_headers")
	if err != nil {
		return err
	}
	if spec.Headers = append(literal(values), fromVariables...); len(spec.Headers) > maxHeaders {
		return fmt.Errorf("more than %d headers", maxHeaders)
	}
	return nil
}

// timeout reads a number of seconds, if there is one.
func timeout(into *time.Duration, entry map[string]any, key string) error {
	if entry[key] == nil {
		return nil
	}
	seconds, _ := entry[key].(float64)
	if whole, ok := entry[key].(int64); ok {
		seconds = float64(whole)
	}
	if !(seconds > 0) { // also false for NaN, and for a value that is no number
		return fmt.Errorf("%s is no number of seconds", key)
	}
	*into = max(1, time.Duration(min(seconds, maxTimeout.Seconds())*float64(time.Second)))
	return nil
}

// texts returns a table of strings.
func texts(entry map[string]any, key string) (map[string]string, error) {
	if entry[key] == nil {
		return nil, nil
	}
	values, ok := entry[key].(map[string]any)
	out := make(map[string]string, len(values))
	for name, value := range values {
		text, isText := value.(string)
		ok = ok && isText
		out[name] = text
	}
	if !ok {
		return nil, fmt.Errorf("%s is no table of texts", key)
	}
	return out, nil
}

// table merges the tables of servers of all layers. Later layers override earlier layers. there
// reports whether a layer has such a table.
func table(layers protocol.ConfigLayers) (servers map[string]any, there bool, err error) {
	merged, size := map[string]any{}, 0
	for _, layer := range layers.Layers {
		if size += len(layer.TOML); size > maxConfig {
			return nil, false, fmt.Errorf("more than %d bytes", maxConfig)
		}
		if !isFlat(layer.TOML) {
			return nil, false, fmt.Errorf("%.256s: nested too deep", layer.Source)
		}
		var values map[string]any
		if _, err := toml.Decode(layer.TOML, &values); err != nil {
			return nil, false, fmt.Errorf("%.256s: %w", layer.Source, err)
		}
		merge(merged, values)
	}
	servers, there = merged[Path[0]].(map[string]any)
	return servers, there, nil
}

// isFlat reports whether the nesting and the keys of a text are within the bounds. It recognizes
// strings, comments, brackets, dots and the ends of keys, and nothing else of TOML. The decoder
// refuses a text that is not TOML.
func isFlat(text string) bool {
	depth, dots := 0, 0
	begin := 0    // index at which a key or a value begins
	fresh := true // only blanks precede in this line
	head := false // this is the head of a table
	for i := 0; i < len(text); i++ {
		wasFresh := fresh
		fresh = text[i] == '\n' || fresh && (text[i] == ' ' || text[i] == '\t')
		switch text[i] {
		case '#':
			for i+1 < len(text) && text[i+1] != '\n' {
				i++
			}
		case '"', '\'':
			i = tomltext.StringEnd(text, i) - 1
		case '[', '{':
			head = head || wasFresh && depth == 0
			depth++
			begin, dots = i+1, 0
		case ']', '}':
			depth = max(depth-1, 0)
			if head && i-begin > maxKey {
				return false
			}
			head = false
		case '.':
			dots++
		case '=':
			if i-begin > maxKey {
				return false
			}
			dots = 0
		case '\n', ',':
			begin, dots = i+1, 0
		}
		if depth > maxDepth || dots > maxDepth {
			return false
		}
	}
	return true
}

// merge merges values into a table. The new values override, and tables are merged recursively.
func merge(into, values map[string]any) {
	for key, value := range values {
		below, isTable := value.(map[string]any)
		there, wasTable := into[key].(map[string]any)
		if isTable && wasTable {
			merge(there, below)
			continue
		}
		into[key] = value
	}
}
