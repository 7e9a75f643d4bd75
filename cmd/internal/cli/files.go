package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/execagent/execagent/cmd/internal/tomlfile"
	"github.com/execagent/execagent/internal/secretfile"
)

const (
	// HostFolder has the files of the host's administrator.
	HostFolder = "/etc/execagent"
	// MaxFile bounds a file, in bytes.
	MaxFile = 1 << 20

	settings     = "config.toml"
	requirements = "requirements.toml"

	// registry is the table with the tables of the commands of registry.
	registry = "registry"
	// ClientTable is the table with the options of all commands that connect to an agent.
	ClientTable = "client"
)

// agentTables are the commands of agent that have options which a file can set.
var agentTables = []string{
	"exec-server", "forward", "connect", "mcp", "exec", "cp", "ls", "cat", "find", "grep", "rm", "mkdir", "apply-patch", "skills", "sandbox", "doctor",
	"ports", "port-forward", "proxy-command", "health", "ps", "logs", "attach", "wait", "kill", "end", "environments",
}

// HasTable reports whether a key at the top of a file is a table with the options of a command, or
// the table of registry.
func HasTable(key string) bool { return key == registry || slices.Contains(agentTables, key) }

// KnownKey reports whether a key at the top of a file is a table with options.
func KnownKey(key string) bool { return key == ClientTable || HasTable(key) }

// NearTable returns the table whose name is most similar to key, or "" if no name is similar.
func NearTable(key string) string {
	return nearest(key, append([]string{registry, ClientTable}, agentTables...))
}

// UserFile returns the path of the user's file.
func UserFile() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "execagent", settings), nil
}

// rank is the priority of a file among the others: a file with a smaller rank is stronger.
type rank int

const (
	required rank = iota
	ofUser
	ofHost
	ranks
)

// file is a file that was read.
type file struct {
	rank   rank
	path   string
	doc    *tomlfile.Document
	tables map[string]tomlfile.Value // the tables of the program
}

// Files are the files that set options: the files of the host's administrator, and the user's file.
// Each layer overrides the layer before it:
//
//	the default of the option
//	/etc/execagent/config.toml
//	~/.config/execagent/config.toml, in XDG_CONFIG_HOME if that is set
//	the variable of the option
//	the flag on the command line
//	/etc/execagent/requirements.toml
//
// A file has a table for each command. The keys in it are the names of the flags. The commands of
// registry are below a table named registry, because both programs read the same files.
//
//	[client]                      # every command that reaches an agent
//	url = "wss://build.example.com"
//	token-file = "token"
//
//	[exec-server]                 # agent --listen ...
//	listen = "unix:///run/agent.sock"
//	session-ttl = "5m"
//
//	[sandbox]                     # agent sandbox
//	workspace = ["~/src", "/tmp"]
//
//	[registry.serve]
//	streams = 500
//
// Within a file the table of a command overrides [client].
//
// A file can set only the options that have a variable, because the other options are for one call.
// A path is relative to the folder of the file, and ~/ stands for the user's home.
type Files struct {
	program string
	files   []*file // the strongest first
	hidden  bool
}

// ReadFiles reads the files, for the program agent or registry. user is the path of the user's
// file; "" and /dev/null stand for none. A missing file sets nothing. The folder of the host's
// administrator sets nothing if this user may not look into it.
func ReadFiles(program, user string) (*Files, error) { return readFiles(program, HostFolder, user) }

// readFiles does what ReadFiles does, with another folder, for tests.
func readFiles(program, folder, user string) (*Files, error) {
	f := &Files{program: program}
	for _, at := range [...]struct {
		rank rank
		path string
		harm string
	}{
		{required, filepath.Join(folder, requirements), "undo what this host requires"},
		{ofUser, user, "have its commands run as you"},
		{ofHost, filepath.Join(folder, settings), "change what programs of this host do"},
	} {
		if at.path == "" || at.path == os.DevNull {
			continue
		}
		text, _, err := tomlfile.Read(at.path, MaxFile, at.harm)
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
			continue
		case errors.Is(err, fs.ErrPermission) && at.rank != ofUser && unseen(at.path):
			f.hidden = true
			continue
		case err == nil && at.rank != ofUser:
			err = secretfile.Refuse(at.path) // which checks the folders too
		}
		if errors.Is(err, fs.ErrPermission) {
			err = fmt.Errorf("%w: the user of the program must be able to read the file", err)
		}
		if err != nil {
			return nil, err
		}
		if err := f.add(at.rank, at.path, text); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// unseen reports whether this user may not even know that the file exists.
func unseen(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrPermission)
}

// add adds a file with the text that was read from it.
func (f *Files) add(r rank, path, text string) error {
	doc, top, err := tomlfile.Parse(path, text)
	if err != nil {
		return err
	}
	for key, at := range top {
		switch {
		case KnownKey(key):
			tomlfile.As[map[string]any](doc, key, "a table", at)
		case r == ofUser && (key == "current" || key == "contexts"):
		case r != ofUser && (key == "current" || key == "contexts"):
			doc.Fail(at, "%s cannot be set here, because contexts belong in a user's own file", key)
		default:
			doc.Fail(at, "unknown key %.64q: write an option in the table of its command, such as [exec], or [exec-server] for the server%s", key,
				Meant(NearTable(key)))
		}
	}
	tables := top
	if f.program == registry && doc.Err() == nil {
		tables = nil
		if at, ok := top[registry]; ok {
			tables = doc.Table(registry, at)
		}
	}
	if doc.Err() != nil {
		return doc.Err()
	}
	f.files = append(f.files, &file{r, path, doc, tables})
	return nil
}

// Tables returns the names of the tables in the files which have the options of agent's commands, and
// [ClientTable], sorted.
func (f *Files) Tables() (names []string) {
	for _, file := range f.files {
		for name := range file.tables {
			if KnownKey(name) && name != registry {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Empty reports whether no file was read.
func (f *Files) Empty() bool { return len(f.files) == 0 }

// Hidden reports whether this user may not look into the folder of the host's administrator.
func (f *Files) Hidden() bool { return f.hidden }

// Shared are the options that a command shares with other commands, those of the table
// [ClientTable], and the groups among them. Without options, the table is not used.
type Shared struct {
	Options []Option
	Groups  []Group
}

// Of returns the values that the files have for the options of a command, such as "exec" or "keys
// create". In each file, the table of the command overrides the shared table. An error names the
// file and the line.
func (f *Files) Of(command string, options []Option, shared Shared) (*Layers, error) {
	l := new(Layers)
	for _, file := range f.files {
		values, err := file.values(f.program, command, options)
		if err != nil {
			return nil, err
		}
		if len(shared.Options) > 0 {
			common, err := file.values(f.program, ClientTable, shared.Options)
			if err != nil {
				return nil, err
			}
			values = values.over(common.of(options, shared.Options), shared.Groups)
		}
		l.by[file.rank] = values
	}
	return l, nil
}

// of returns the values of the shared options that the command has too. Options with the same name
// and the same variable have the same meaning.
func (v Values) of(options, shared []Option) Values {
	mine := Values{}
	for _, s := range shared {
		value, ok := v[s.Name]
		if ok && slices.ContainsFunc(options, func(o Option) bool { return o.Name == s.Name && slices.Equal(o.Env, s.Env) }) {
			mine[s.Name] = value
		}
	}
	return mine
}

// over returns v with the additional values of common. If both have heads of a group, and the heads
// differ, the values of common for the group are dropped, as between layers: see [Layers.Merge].
func (v Values) over(common Values, groups []Group) Values {
	for _, group := range groups {
		mine, theirs := v.heads(group), common.heads(group)
		if len(mine) > 0 && len(theirs) > 0 && !maps.Equal(mine, theirs) {
			for _, name := range slices.Concat(group.Heads, group.Rest) {
				delete(common, name)
			}
		}
	}
	maps.Copy(common, v)
	return common
}

// Known refuses tables that belong to no command, for a program with commands below other commands.
func (f *Files) Known(commands []string) error {
	for _, file := range f.files {
		if file.known("", file.tables, commands); file.doc.Err() != nil {
			return file.doc.Err()
		}
	}
	return nil
}

// known records unknown commands. above are the names of the enclosing tables, followed by a space.
func (f *file) known(above string, tables map[string]tomlfile.Value, commands []string) {
	for key, at := range tables {
		name := above + key
		switch {
		case slices.Contains(commands, name):
		case slices.ContainsFunc(commands, func(c string) bool { return strings.HasPrefix(c, name+" ") }):
			f.known(name+" ", f.doc.Table(key, at), commands)
		default:
			f.doc.Fail(at, "unknown key %.64q: there is no command of that name%s", key, Meant(nearest(name, commands)))
		}
	}
}

// values returns the values of a command in one file.
func (f *file) values(program, command string, options []Option) (Values, error) {
	tables := f.tables
	for word := range strings.SplitSeq(command, " ") {
		at, ok := tables[word]
		if !ok {
			return nil, nil
		}
		if tables = f.doc.Table(word, at); f.doc.Err() != nil {
			return nil, f.doc.Err()
		}
	}
	values := Values{}
	for key, at := range tables {
		i := slices.IndexFunc(options, func(o Option) bool { return o.Name == key })
		switch {
		case i < 0:
			whose := program + " " + command + " has"
			if command == ClientTable {
				whose = "the commands that connect to an agent share"
			}
			f.doc.Fail(at, "unknown key %.64q: %s no option of that name%s", key, whose, Meant(nearest(key, settable(options))))
		case !options[i].Settable():
			f.doc.Fail(at, "%s cannot be set in a file, because it has no environment variable", key)
		default:
			v, err := options[i].read(f.doc.Any(at), filepath.Dir(f.path))
			if err != nil {
				f.doc.Fail(at, "%s is not %w", key, err)
				continue
			}
			v.Path, v.Line, v.Required = f.path, f.doc.Line(at), f.rank == required
			values[key] = v
		}
	}
	return values, f.doc.Err()
}

func settable(options []Option) (all []string) {
	for _, o := range options {
		if o.Settable() {
			all = append(all, o.Name)
		}
	}
	return all
}

// place returns the place of a value, as FILE:LINE.
func (v Value) place() string { return fmt.Sprintf("%s:%d", v.Path, v.Line) }
