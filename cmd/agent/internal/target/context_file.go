package target

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/execagent/execagent/cmd/internal/cli"
	"github.com/execagent/execagent/cmd/internal/tomlfile"
)

const (
	// maxContexts is how many contexts a file may have.
	maxContexts = 1000
	// maxName is how long the name of a context may be, in bytes.
	maxName = 128
	// maxValue is how long any other text of a context may be, in bytes.
	maxValue = 4 << 10
	// maxWords is how many words a token_command may have.
	maxWords = 64
)

// Context is a name for an agent, or for a registry, and says how to reach it.
type Context struct {
	Name          string   `json:"name"`
	URL           string   `json:"url,omitempty"`
	Registry      string   `json:"registry,omitempty"`
	EnvironmentID string   `json:"environmentId,omitempty"`
	Transport     string   `json:"transport,omitempty"` // to an agent behind the registry; "": the command decides
	TokenFile     string   `json:"tokenFile,omitempty"` // as it is written, see [ContextFile.Resolve]
	TokenCommand  []string `json:"tokenCommand,omitempty"`
	TLSCA         string   `json:"tlsCa,omitempty"` // the paths of TLS files are resolved like TokenFile
	TLSCert       string   `json:"tlsCert,omitempty"`
	TLSKey        string   `json:"tlsKey,omitempty"`
	TLSServerName string   `json:"tlsServerName,omitempty"`
	token         string   // a token that the file itself has
}

// TokenSource says in a few words where the token is, or returns "" if there is none.
func (c *Context) TokenSource() string {
	switch {
	case c.TokenFile != "":
		return "file " + c.TokenFile
	case len(c.TokenCommand) > 0:
		return "command " + c.TokenCommand[0]
	case c.token != "":
		return "in the file of contexts"
	}
	return ""
}

// ValidContextName reports whether a context may have this name: up to 128 of A-Z a-z 0-9 . _ -,
// and first a letter or a digit. So the name is also safe as the name of a file.
func ValidContextName(name string) bool {
	for i, c := range []byte(name) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return name != "" && len(name) <= maxName
}

// check refuses a context with values that are wrong or contradict each other.
func (c *Context) check() error {
	for _, value := range slices.Concat([]string{c.URL, c.Registry, c.EnvironmentID, c.TokenFile, c.token}, c.tls(), c.TokenCommand) {
		if len(value) > maxValue || !printable(value) {
			return errors.New("a value is longer than 4096 bytes, or has control characters")
		}
	}
	tokens := 0
	for _, given := range []bool{c.TokenFile != "", len(c.TokenCommand) > 0, c.token != ""} {
		if given {
			tokens++
		}
	}
	switch {
	case c.URL == "" && c.Registry == "":
		return errors.New("url or registry is missing")
	case c.URL != "" && c.Registry != "":
		return errors.New("url and registry cannot be used together")
	case c.URL != "" && c.EnvironmentID != "":
		return errors.New("environment_id cannot be used with url")
	case c.URL != "" && c.Transport != "":
		return errors.New("transport cannot be used with url")
	case c.Transport != "" && c.Transport != "noise" && c.Transport != "direct":
		return fmt.Errorf("transport %.64q is neither noise nor direct", c.Transport)
	case c.URL == "" && strings.Join(c.tls()[1:], "") != "":
		return errors.New("tls_cert, tls_key and tls_server_name need url")
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return errors.New("tls_cert and tls_key must be given together")
	case tokens > 1:
		return errors.New("token, token_file and token_command cannot be used together")
	case len(c.TokenCommand) > maxWords || len(c.TokenCommand) > 0 && c.TokenCommand[0] == "":
		return fmt.Errorf("token_command is empty or has more than %d words", maxWords)
	}
	return nil
}

// tls returns the values about TLS.
func (c *Context) tls() []string { return []string{c.TLSCA, c.TLSCert, c.TLSKey, c.TLSServerName} }

// equal reports whether two contexts have the same values.
func (c *Context) equal(other *Context) bool {
	return c.Name == other.Name && c.URL == other.URL && c.Registry == other.Registry && c.EnvironmentID == other.EnvironmentID &&
		c.Transport == other.Transport &&
		slices.Equal(c.tls(), other.tls()) && c.TokenFile == other.TokenFile && c.token == other.token && slices.Equal(c.TokenCommand, other.TokenCommand)
}

// ContextFile is a file of contexts as it was read.
type ContextFile struct {
	Path     string
	Current  string    // name; "" for none
	Contexts []Context // sorted by name

	text string
}

// LocateContexts returns the path of the user's file of contexts: named, if that is not "", else
// config.toml in the folder execagent of XDG_CONFIG_HOME or ~/.config.
func LocateContexts(named string) (string, error) {
	if named != "" {
		return named, nil
	}
	path, err := cli.UserFile()
	if err != nil {
		return "", fmt.Errorf("no folder for a file of contexts: %w", err)
	}
	return path, nil
}

// ReadContexts reads a file of contexts. A missing file and /dev/null have no contexts.
func ReadContexts(path string) (*ContextFile, error) {
	f := &ContextFile{Path: path}
	if path == os.DevNull {
		return f, nil
	}
	text, others, err := tomlfile.Read(path, cli.MaxFile, "have its commands run as you")
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return nil, err
	}
	if err := f.parse(text); err != nil {
		return nil, err
	}
	for i := range f.Contexts {
		if f.Contexts[i].token != "" && others != "" {
			return nil, fmt.Errorf("%s holds a token and %s: make the file your own, with chmod 600", path, others)
		}
	}
	return f, nil
}

// Find returns a context. The error names the file and the contexts in it.
func (f *ContextFile) Find(name string) (*Context, error) {
	if i := f.index(name); i >= 0 {
		return &f.Contexts[i], nil
	}
	if len(f.Contexts) == 0 {
		return nil, fmt.Errorf("context %.*q: %s has no contexts (see agent context add)", maxName, name, f.Path)
	}
	names := f.Names()
	if len(names) > 10 {
		names = append(names[:10], "...")
	}
	return nil, fmt.Errorf("context %.*q is not in %s, which has %s", maxName, name, f.Path, strings.Join(names, ", "))
}

// Names returns the names of all contexts.
func (f *ContextFile) Names() []string {
	names := make([]string, 0, len(f.Contexts))
	for i := range f.Contexts {
		names = append(names, f.Contexts[i].Name)
	}
	return names
}

func (f *ContextFile) index(name string) int {
	return slices.IndexFunc(f.Contexts, func(c Context) bool { return c.Name == name })
}

// Resolve returns the path of a file that a context names. A relative path starts at the folder of
// the file of contexts, and ~/ stands for the user's home.
func (f *ContextFile) Resolve(path string) (string, error) {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		return filepath.Join(home, rest), nil
	}
	if filepath.IsAbs(path) {
		return path, nil
	}
	return filepath.Join(filepath.Dir(f.Path), path), nil
}
