package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/execagent/execagent/internal/hostenv"
	"github.com/execagent/execagent/internal/profile"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
)

// Flags say which files and variables a command may have.
type Flags struct {
	ReadOnly    bool     `env:"AGENT_SANDBOX_READ_ONLY" help:"Let the command read everything except secrets, and write nothing. This is the default of a confined command."`
	Workspace   []string `sep:"none" env:"AGENT_SANDBOX_WORKSPACE" bytes:"" placeholder:"DIR" help:"Let the command also write in this directory, in /tmp and in TMPDIR. Can be repeated."`
	Readable    []string `sep:"none" env:"AGENT_SANDBOX_READABLE" bytes:"" placeholder:"PATH" help:"Let the command read this file or directory, even if it is a secret. The command cannot write there, even in a workspace. Can be repeated."`
	Deny        []string `sep:"none" env:"AGENT_SANDBOX_DENY" bytes:"" placeholder:"PATH|GLOB" help:"Hide a file, a directory, or all files that a pattern such as '**/*.env' matches. Can be repeated."`
	View        bool     `env:"AGENT_SANDBOX_VIEW" help:"Show the command only the paths that other flags name, and those that programs need to run: /usr, /bin, /lib, /etc and the like."`
	Socket      []string `sep:"none" env:"AGENT_SANDBOX_SOCKET" bytes:"" placeholder:"PATH" help:"Let the command connect to this UNIX socket, such as /run/docker.sock, even without a network. What listens there can do for the command whatever it can do. Can be repeated."`
	Device      []string `sep:"none" env:"AGENT_SANDBOX_DEVICE" bytes:"" placeholder:"PATH" help:"Let the command use this device, such as /dev/fuse, as far as its mode lets this user. Can be repeated."`
	GPU         bool     `name:"gpu" env:"AGENT_SANDBOX_GPU" help:"Let the command use all GPUs: their devices of NVIDIA, AMD and others, and those in /dev/dri. With --view also show their libraries, and what /sys says of them."`
	KVM         bool     `name:"kvm" env:"AGENT_SANDBOX_KVM" help:"Let the command run virtual machines: --device /dev/kvm."`
	Profile     []string `sep:"none" env:"AGENT_SANDBOX_PROFILE" bytes:"" placeholder:"NAME|FILE" help:"Let the command do what a tool needs: node, yarn, pnpm, python, uv, go, rust, jvm, ruby, php or git. A file says this for another tool. The caches of the tool can be written, and its hosts reached, unless --network is on or off. Can be repeated."`
	CleanEnv    bool     `env:"AGENT_SANDBOX_CLEAN_ENV" help:"Give the command only the core variables, such as HOME, PATH, USER, LANG, TERM and TMPDIR, and those of --keep-env, --profile and -e."`
	KeepEnv     []string `sep:"none" env:"AGENT_SANDBOX_KEEP_ENV" bytes:"" placeholder:"NAME" help:"Give the command this variable, even if it looks like a secret. * stands for any text. Can be repeated."`
	ShowSecrets bool     `env:"AGENT_SANDBOX_SHOW_SECRETS" help:"Hide no secret files, and no variables that look like secrets."`

	profiles []toolProfile // the parsed form of Profile; Check sets it
}

// Check finds flags that contradict each other, and reads the profiles.
func (f *Flags) Check() error {
	if f.ReadOnly && len(f.Workspace) > 0 {
		return errors.New("--read-only and --workspace cannot be used together")
	}
	if f.ReadOnly && f.View {
		return errors.New("--read-only and --view cannot be used together, because --read-only shows everything")
	}
	for flag, values := range map[string][]string{"workspace": f.Workspace, "readable": f.Readable, "deny": f.Deny, "socket": f.Socket, "device": f.Device, "keep-env": f.KeepEnv, "profile": f.Profile} {
		if slices.Contains(values, "") {
			return fmt.Errorf("--%s is empty", flag)
		}
	}
	for _, name := range f.KeepEnv {
		if strings.Contains(name, "=") {
			return fmt.Errorf("--keep-env %q is not the name of a variable; -e sets one", name)
		}
		if _, err := path.Match(name, ""); err != nil {
			return fmt.Errorf("--keep-env %q: %w", name, err)
		}
	}
	var err error
	f.profiles, err = readProfiles(f.Profile)
	return err
}

// FileFlag returns the first flag about files that is set; "": none is. agent exec confines a command only if
// one is set, so each flag about files has to be here.
func (f *Flags) FileFlag() string {
	switch {
	case f.ReadOnly:
		return "--read-only"
	case len(f.Workspace) > 0:
		return "--workspace"
	case len(f.Readable) > 0:
		return "--readable"
	case len(f.Deny) > 0:
		return "--deny"
	case len(f.Socket) > 0:
		return "--socket"
	case len(f.Device) > 0:
		return "--device"
	case f.GPU:
		return "--gpu"
	case f.KVM:
		return "--kvm"
	case f.View:
		return "--view"
	case len(f.Profile) > 0:
		return "--profile"
	}
	return ""
}

// Hosts returns the hosts that the profiles allow, each with the origin of its line in an explanation.
func (f *Flags) Hosts() map[string]string {
	hosts := map[string]string{}
	for _, p := range f.profiles {
		for _, host := range p.Allow {
			if _, ok := hosts[host]; !ok {
				hosts[host] = p.origin()
			}
		}
	}
	return hosts
}

// Host is the machine that the command runs on, as far as a plan depends on it.
type Host struct {
	Home   string                           // the directory that ~ stands for; "": it is unknown
	Cwd    string                           // the directory that the command runs in
	TmpDir string                           // TMPDIR of the command; "": it is unknown
	Lookup func(name string) (string, bool) // a variable of the command
	// Abs makes a word of the command line absolute, and Real follows the links of a path. nil: the machine is
	// this one.
	Abs  func(word string) (string, error)
	Real func(name string) (string, error)
	// NoReplaceable: the machine does not know replaceable entries, so histories are not hidden there.
	NoReplaceable bool
	// List returns the names in a folder, sorted; none if it cannot be listed. nil: the machine is this one.
	List func(dir string) (names []string)
}

// abs and real are Abs and Real.
func (h Host) abs(word string) (string, error) {
	if h.Abs == nil {
		return filepath.Abs(word)
	}
	return h.Abs(word)
}

func (h Host) real(name string) (string, error) {
	if h.Real == nil {
		return filepath.EvalSymlinks(name)
	}
	return h.Real(name)
}

// Plan is what the flags mean on a host.
type Plan struct {
	Profile sandbox.Profile
	Hidden  []string // secret files that the command does not see, with ~ for the home
	// Make are the folders that profiles let the command write. The caller makes those that are missing, so that
	// the command can use them.
	Make    []string
	origins map[string]string // the flag, profile or default that an entry, a socket or a device comes from, by path or pattern
}

// Wire returns the plan as the sandbox of a request.
func (p *Plan) Wire() *protocol.Sandbox { return profile.Wire(&p.Profile) }

// entry adds an entry with its origin. The first origin of a path stays.
func (p *Plan) entry(e sandbox.Entry, origin string) {
	p.Profile.Entries = append(p.Profile.Entries, e)
	if _, ok := p.origins[e.Path]; !ok {
		p.origins[e.Path] = origin
	}
}

// named adds a socket or a device to a list of the profile.
func (p *Plan) named(to *[]string, name, origin string) {
	*to = append(*to, name)
	if _, ok := p.origins[name]; !ok {
		p.origins[name] = origin
	}
}

// devices adds the devices of the flags. A device is named by its path, without links, because a view shows
// no links to devices.
func (f *Flags) devices(h Host, p *Plan) error {
	add := func(flag, word, origin string) error {
		name, err := h.existing(flag, word)
		if err == nil {
			name, err = h.real(name)
		}
		if err == nil {
			p.named(&p.Profile.Devices, name, origin)
		}
		return err
	}
	for _, word := range f.Device {
		if err := add("--device", word, "--device "+word); err != nil {
			return err
		}
	}
	if f.KVM {
		if err := add("--kvm", "/dev/kvm", "--kvm"); err != nil {
			return err
		}
	}
	if !f.GPU {
		return nil
	}
	devices, folders, err := h.gpu()
	for _, name := range devices {
		p.named(&p.Profile.Devices, name, "--gpu")
	}
	if f.View {
		for _, name := range folders {
			p.entry(sandbox.Entry{Path: name, Access: sandbox.Read, SkipMissing: true}, "--gpu")
		}
	}
	return err
}

// Plan returns what the flags mean on a host. Check has to be called before.
func (f *Flags) Plan(h Host) (*Plan, error) {
	p := &Plan{Profile: sandbox.Profile{Strict: true, Cwd: h.Cwd, TmpDir: h.TmpDir}, origins: map[string]string{}}
	root := sandbox.Entry{Place: sandbox.PlaceRoot, Access: sandbox.Read}
	if f.View {
		root.Place = sandbox.PlaceMinimal
	}
	p.Profile.Entries = append(p.Profile.Entries, root)
	p.origins["/"] = "default"
	if f.ReadOnly {
		p.origins["/"] = "--read-only"
	}
	for _, word := range f.Workspace {
		name, err := h.existing("--workspace", word)
		if err != nil {
			return nil, err
		}
		p.Profile.WorkspaceRoots = append(p.Profile.WorkspaceRoots, name)
		p.origins[name] = "--workspace " + word
	}
	if len(f.Workspace) > 0 {
		for _, place := range []sandbox.Place{sandbox.PlaceProjectRoots, sandbox.PlaceSlashTmp, sandbox.PlaceTmpDir} {
			p.Profile.Entries = append(p.Profile.Entries, sandbox.Entry{Place: place, Access: sandbox.Write})
		}
		for _, name := range []string{"/tmp", h.TmpDir} {
			if _, ok := p.origins[name]; !ok {
				p.origins[name] = "--workspace"
			}
		}
	}
	for _, word := range f.Readable {
		name, err := h.existing("--readable", word)
		if err != nil {
			return nil, err
		}
		p.entry(sandbox.Entry{Path: name, Access: sandbox.Read}, "--readable "+word)
	}
	for _, word := range f.Socket {
		name, err := h.existing("--socket", word)
		if err != nil {
			return nil, err
		}
		p.named(&p.Profile.Sockets, name, "--socket "+word)
	}
	if err := f.devices(h, p); err != nil {
		return nil, err
	}
	for _, word := range f.Deny {
		if err := p.deny(h, word, "--deny "+word); err != nil {
			return nil, fmt.Errorf("--deny: %w", err)
		}
	}
	for _, tool := range f.profiles {
		if err := p.take(h, tool); err != nil {
			return nil, fmt.Errorf("--profile %s: %w", tool.name, err)
		}
	}
	if !f.ShowSecrets {
		if err := p.hide(h); err != nil {
			return nil, err
		}
	}
	return p, f.checkView(h, p)
}

// checkView refuses a view that does not show the directory of the command. Without this check the system
// would only say that the directory does not exist.
func (f *Flags) checkView(h Host, p *Plan) error {
	if !f.View {
		return nil
	}
	policy, err := p.Profile.Compile()
	if err != nil {
		return err
	}
	real, err := h.real(p.Profile.Cwd)
	if err != nil {
		return nil // the start says so
	}
	for _, dir := range []string{p.Profile.Cwd, real} {
		if policy.Access(dir) >= sandbox.Read || policy.Leads(dir) {
			return nil
		}
	}
	return fmt.Errorf("--view does not show %s, where the command would run: name it with --readable or --workspace, or another directory with -C", p.Profile.Cwd)
}

// take adds the entries of a profile.
func (p *Plan) take(h Host, from toolProfile) error {
	for _, list := range []struct {
		names  []string
		access sandbox.Access
	}{{from.Write, sandbox.Write}, {from.Read, sandbox.Read}} {
		for _, word := range list.names {
			name, err := h.expand(word)
			if err != nil {
				return err
			}
			if list.access == sandbox.Write {
				p.Make = append(p.Make, name)
			}
			p.entry(sandbox.Entry{Path: name, Access: list.access, SkipMissing: list.access == sandbox.Read}, from.origin())
		}
	}
	for _, list := range []struct {
		words []string
		to    *[]string
	}{{from.Socket, &p.Profile.Sockets}, {from.Device, &p.Profile.Devices}} {
		for _, word := range list.words {
			name, err := h.expand(word)
			if err != nil {
				return err
			}
			p.named(list.to, name, from.origin())
		}
	}
	for _, word := range from.Deny {
		if err := p.deny(h, word, from.origin()); err != nil {
			return err
		}
	}
	return nil
}

// wildcards are the characters that make a word a pattern.
const wildcards = "*?[{"

// deny hides a path, or all files that a pattern matches. A word with wildcards that is the name of a file is
// a path.
func (p *Plan) deny(h Host, word, origin string) error {
	name, err := h.expand(word)
	if err != nil {
		return err
	}
	e := sandbox.Entry{Path: name, Access: sandbox.Denied}
	if strings.ContainsAny(word, wildcards) && !h.exists(name) {
		e.Place = sandbox.PlaceGlob
		if !path.IsAbs(word) && !strings.HasPrefix(word, "~") { // the name of the directory may have wildcards
			dir, err := h.abs(".")
			if err != nil {
				return err
			}
			e.Path = escape.Replace(dir) + "/" + word
		}
	}
	p.entry(e, origin)
	return nil
}

// escape makes a pattern that matches only this text.
var escape = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `{`, `\{`, `}`, `\}`)

// hide hides the secret files of the home. It leaves out those that do not exist, those that no entry shows,
// and those that an entry names.
func (p *Plan) hide(h Host) error {
	if !path.IsAbs(h.Home) {
		return nil
	}
	shown, err := p.followed(h).Compile()
	if err != nil {
		return err
	}
	named := map[string]bool{}
	for _, e := range p.Profile.Entries {
		named[e.Path] = true
	}
	for _, name := range p.Profile.WorkspaceRoots {
		named[name] = true
	}
	type secret struct {
		name, why, real string
		replaceable     bool
	}
	var all []secret
	add := func(rows []secretFile, replaceable bool) {
		for _, row := range rows {
			for _, name := range h.places(row.path) {
				all = append(all, secret{name: name, why: row.why, replaceable: replaceable})
			}
		}
	}
	add(secretFiles, false)
	if !h.NoReplaceable {
		add(histories, true)
	}
	// An agent may be far away, so all files are looked up together. Links are followed, because the policy
	// refuses a path through a link that can be written.
	errs := make([]error, len(all))
	var looking sync.WaitGroup
	for i := range all {
		look := func() { all[i].real, errs[i] = h.real(all[i].name) }
		if h.Real == nil {
			look()
			continue
		}
		looking.Go(look)
	}
	looking.Wait()
	for i, s := range all {
		if errors.Is(errs[i], os.ErrNotExist) || errors.Is(errs[i], syscall.ENOTDIR) {
			continue
		}
		if errs[i] != nil {
			s.real = s.name // it may exist
		}
		if named[s.name] || named[s.real] {
			continue
		}
		if shown.Access(s.real) < sandbox.Read {
			continue
		}
		named[s.real] = true // a variable may name the file of another row
		p.entry(sandbox.Entry{Path: s.real, Access: sandbox.Denied, SkipMissing: true, Replaceable: s.replaceable}, "default: "+s.why)
		p.Hidden = append(p.Hidden, h.tilde(s.name))
	}
	return nil
}

// followed returns the profile with the paths that its links lead to, too. A secret counts as shown if one of
// them shows it.
func (p *Plan) followed(h Host) sandbox.Profile {
	all := p.Profile
	all.Entries, all.WorkspaceRoots = slices.Clone(all.Entries), slices.Clone(all.WorkspaceRoots)
	for _, e := range p.Profile.Entries {
		if real, err := h.real(e.Path); e.Place == sandbox.PlacePath && e.Access >= sandbox.Read && err == nil && real != e.Path {
			e.Path = real
			all.Entries = append(all.Entries, e)
		}
	}
	for _, root := range p.Profile.WorkspaceRoots {
		if real, err := h.real(root); err == nil && real != root {
			all.WorkspaceRoots = append(all.WorkspaceRoots, real)
		}
	}
	return all
}

// moves are the variables that move a folder of secrets, or a file. Not every program knows the variable, so the
// secrets at the usual place are hidden, too. A folder that has the home in it is not hidden, nor is /dev/null, which
// stands for no history.
var moves = [][2]string{
	{"XDG_CONFIG_HOME", ".config/"},
	{"XDG_DATA_HOME", ".local/share/"},
	{"XDG_STATE_HOME", ".local/state/"},
	{"GNUPGHOME", ".gnupg/"},
	{"AZURE_CONFIG_DIR", ".azure/"},
	{"CLOUDSDK_CONFIG", ".config/gcloud/"},
	{"DOCKER_CONFIG", ".docker/"},
	{"GH_CONFIG_DIR", ".config/gh/"},
	{"CARGO_HOME", ".cargo/"},
	{"PASSWORD_STORE_DIR", ".password-store/"},
	{"CODEX_HOME", ".codex/"},
	{"CLAUDE_CONFIG_DIR", ".claude/"},
	{"HISTFILE", ".bash_history/"}, // of every shell that exports it
	{"LESSHISTFILE", ".lesshst/"},
	{"MYSQL_HISTFILE", ".mysql_history/"},
	{"NODE_REPL_HISTORY", ".node_repl_history/"},
	{"PSQL_HISTORY", ".psql_history/"},
	{"PYTHON_HISTORY", ".python_history/"},
	{"REDISCLI_HISTFILE", ".rediscli_history/"},
	{"SQLITE_HISTORY", ".sqlite_history/"},
}

// places returns the paths of a file of the home: the usual one, and those where variables have moved it.
func (h Host) places(name string) []string {
	all := []string{path.Join(h.Home, name)}
	for _, m := range moves {
		rest, ok := strings.CutPrefix(name+"/", m[1])
		if !ok || h.Lookup == nil {
			continue
		}
		dir, set := h.Lookup(m[0])
		moved := path.Join(dir, rest)
		if set && path.IsAbs(dir) && !strings.HasPrefix(moved, "/dev/") && !slices.Contains(all, moved) && !strings.HasPrefix(h.Home+"/", strings.TrimSuffix(moved, "/")+"/") {
			all = append(all, moved)
		}
	}
	return all
}

// HomeOf returns the home of the user: HOME, or what the system says of the user if HOME is no absolute path.
// Without that, an unset HOME would show the secrets.
func HomeOf(lookup func(string) (string, bool)) string {
	return hostenv.HomeDir(func(name string) (string, bool) {
		value, ok := lookup(name)
		if name == "HOME" && !path.IsAbs(value) {
			return "", false
		}
		return value, ok
	})
}

// tilde returns a path with ~ for the home.
func (h Host) tilde(name string) string {
	if rest, ok := strings.CutPrefix(name, strings.TrimSuffix(path.Clean(h.Home), "/")+"/"); ok {
		return "~/" + rest
	}
	return name
}

// expand returns the absolute path of a word, in which ~ stands for the home.
func (h Host) expand(word string) (string, error) {
	rest, ok := strings.CutPrefix(word, "~")
	if !ok || rest != "" && rest[0] != '/' {
		return h.abs(word)
	}
	if !path.IsAbs(h.Home) {
		return "", fmt.Errorf("%s: HOME is not an absolute path", word)
	}
	return path.Join(h.Home, rest), nil
}

// existing is expand for a path that must exist, because an entry for a missing path would have no effect.
func (h Host) existing(flag, word string) (string, error) {
	name, err := h.expand(word)
	if err == nil {
		_, err = h.real(name)
	}
	if at, ok := errors.AsType[*fs.PathError](err); ok { // it may name a part of the path
		err = &fs.PathError{Op: "stat", Path: name, Err: at.Err}
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	return name, nil
}

func (h Host) exists(name string) bool {
	_, err := h.real(name)
	return err == nil
}

// maxNamed bounds the names on a line about hidden secrets.
const maxNamed = 24

// HiddenFiles returns a line that tells the user which files are hidden; "": there are none.
func HiddenFiles(names []string) string {
	return hiddenLine("files hidden from the command", names, "--readable PATH shows one")
}

// HiddenVariables returns a line that tells the user which variables are hidden; "": there are none.
func HiddenVariables(names []string) string {
	return hiddenLine("variables hidden from the command", names, "--keep-env NAME shows one")
}

func hiddenLine(what string, names []string, one string) string {
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("%s: %s (%s, --show-secrets all)", what, listed(names), one)
}

// listed returns the first maxNamed names in one text, and how many more there are.
func listed(names []string) string {
	more := ""
	if len(names) > maxNamed {
		names, more = names[:maxNamed], fmt.Sprintf(" and %d more", len(names)-maxNamed)
	}
	return strings.Join(names, ", ") + more
}
