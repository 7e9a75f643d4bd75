package policy

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/sandbox/changes"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

func TestSecretVariables(t *testing.T) {
	t.Parallel()
	rig.Is(t, isSecret("GIT_CONFIG_VALUE_0", "AUTHORIZATION: basic eA=="), true, "a header")
	for words, want := range map[string]bool{
		"OPTS=-Dproxy=http://u:p@h URLS=https://h/x,https://u:p@h/x K=sk_live_0123456789ab G=AIza0123456789ab":                                                                                         true,
		"GITHUB_TOKEN=x GH_TOKEN=x AWS_SECRET_ACCESS_KEY=x AWS_ACCESS_KEY_ID=x PGPASSWORD=x DB_PASS=x NPMTOKEN=x TOKEN=x stripe_api_key=x MYSQL_PWD=x":                                                 true,
		"DATABASE_URL=postgres://u:p@h/db HTTPS_PROXY=http://u:p@proxy:1 X=ghp_0123456789ab Y=eyJhbGciOiJI.eyJzdWIiOiIx.x":                                                                             true,
		"GITHUB_TOKEN= PATH=/bin PWD=/x TOKENIZERS_PARALLELISM=1 KEYBOARD=us AWS_WEB_IDENTITY_TOKEN_FILE=/x GPG_KEY=0D96 COMPASS=n PROXY=http://proxy:1 SSH_AUTH_SOCK=/s MONKEY=x URL=https://h/a:b@c": false,
	} {
		for word := range strings.FieldsSeq(words) {
			name, value, _ := strings.Cut(word, "=")
			rig.Is(t, isSecret(name, value), want, "%s is a secret", word)
		}
	}
}

// TestCoreNames: the list here is that of every agent, and TERM.
func TestCoreNames(t *testing.T) {
	t.Parallel()
	var all []string
	for _, name := range coreNames {
		all = append(all, name+"=x")
	}
	got := (&procs.EnvPolicy{Inherit: procs.InheritCore}).Environ(append(all, "OTHER=x"), nil)
	rig.Is(t, len(got), len(coreNames)-1, "core variables of %q", got)
}

// TestEnvPolicy: an agent in this process passes on exactly what is kept, also of names that differ only in
// their letter case.
func TestEnvPolicy(t *testing.T) {
	t.Parallel()
	environ := []string{"HTTP_PROXY=http://u:p@h:1", "http_proxy=http://h:1", "X_TOKEN=", "x_token=secret", "PATH=/bin"}
	f := Flags{}
	kept, hidden := f.Environ(environ, nil)
	rig.Same(t, "hidden", []string{"HTTP_PROXY", "x_token"}, hidden)
	p := EnvPolicyHere(environ, kept)
	asked := &procs.EnvPolicy{Inherit: procs.Inherit(p.Inherit), IgnoreDefaultExcludes: p.IgnoreDefaultExcludes, Exclude: p.Exclude, Set: p.Set, IncludeOnly: p.IncludeOnly}
	rig.Same(t, "variables", slices.Sorted(slices.Values(kept)), asked.Environ(environ, nil))
}

// TestProfiles: this program can read each of its profiles, and use it where no folder of the profile exists. The
// help and docs/sandbox.md have its name. It passes on no secret whose name begins as the variables of its tool do.
func TestProfiles(t *testing.T) {
	t.Parallel()
	field, _ := reflect.TypeFor[Flags]().FieldByName("Profile")
	page := string(rig.Value(os.ReadFile("../../../../docs/sandbox.md")))
	for _, name := range names() {
		rig.Is(t, regexp.MustCompile(`\b`+name+`\b`).MatchString(field.Tag.Get("help")), true, "the help has %s", name)
		rig.Is(t, strings.Contains(page, "`"+name+"`"), true, "docs/sandbox.md has %s", name)
		f := Flags{Profile: []string{name}}
		rig.Must(t, f.Check())
		plan := rig.Value(f.Plan(Host{Home: t.TempDir(), Cwd: "/"}))
		rig.Must(t, rig.Err(plan.Profile.Compile()))
		rig.Is(t, len(f.Hosts()) > 0 && len(f.profiles) > 0, true, "%s allows hosts", name)
		kept, _ := f.Environ(strings.Fields("GOOGLE_API_KEY=x NODE_AUTH_TOKEN=x PYTHON_TOKEN=x JAVA_SECRET=x RUST_TOKEN=x GIT_TOKEN=x CARGO_TOKEN=x"), nil)
		rig.Is(t, len(kept), 0, "%s passes on %q", name, kept)
	}
}

// TestFileFlag: agent exec confines a command if any flag about files is set. The others are about variables,
// or make a sandbox weaker.
func TestFileFlag(t *testing.T) {
	t.Parallel()
	others := []string{"CleanEnv", "KeepEnv", "ShowSecrets"}
	for field := range reflect.TypeFor[Flags]().Fields() {
		if !field.IsExported() || slices.Contains(others, field.Name) {
			continue
		}
		var f Flags
		switch v := reflect.ValueOf(&f).Elem().FieldByIndex(field.Index); v.Kind() {
		case reflect.Bool:
			v.SetBool(true)
		default:
			v.Set(reflect.ValueOf([]string{"x"}))
		}
		rig.Is(t, f.FileFlag() != "", true, "%s is a flag about files", field.Name)
	}
}

func TestParseProfile(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                       "",
		`write = ["~/.x", "/y"]`: "",
		`deny = ["~/**/*.pem"]`:  "",
		"\nwrites = []":          "p:2: unknown key writes, expected one of allow, deny, device, env, include, read, socket, write",
		`read = "x"`:             "p:1: read is not a list of texts",
		`read = [1]`:             "a member that is not a text",
		`write = ["x"]`:          `"x" does not begin with / or ~/`,
		`write = ["~/*"]`:        "only deny takes patterns",
		`allow = ["a,b"]`:        "comma",
		`env = ["A=1"]`:          "not the name of a variable",
		`env = [` + strings.Repeat(`"A",`, maxWords+1) + `]`: "at most 256",
	} {
		rig.Says(t, rig.Err(parseProfile("p", text)), want, "%.40q", text)
	}
}

func FuzzParseProfile(f *testing.F) {
	for _, name := range names() {
		f.Add(string(rig.Value(builtin.ReadFile("profiles/" + name + ".toml"))))
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parseProfile("p", text)
		relative := slices.ContainsFunc(slices.Concat(p.Write, p.Read, p.Deny), func(name string) bool { return name[0] != '/' && name[0] != '~' })
		rig.Is(t, err == nil && relative, false, "a relative path in %q", text)
	})
}

// TestHidden: a secret that is a link is hidden where the link leads, also if only a link to the home is shown,
// and one that is named is not hidden. A variable that moves a folder hides both places.
func TestHidden(t *testing.T) {
	t.Parallel()
	home := rig.Value(filepath.EvalSymlinks(t.TempDir()))
	for _, dir := range []string{"dots/ssh", ".aws", ".kube", "config/gh", ".config/gh"} {
		rig.Must(t, os.MkdirAll(filepath.Join(home, dir), 0o755))
	}
	link := filepath.Join(t.TempDir(), "link")
	rig.Must(t, os.Symlink("dots/ssh", filepath.Join(home, ".ssh")), os.Symlink(home, link))
	h := Host{Home: home, Cwd: home, Lookup: func(name string) (string, bool) { return home + "/config", name == "XDG_CONFIG_HOME" }}
	for _, f := range []Flags{
		{Workspace: []string{home}, Readable: []string{"~/.aws"}, Deny: []string{"~/**/*.pem"}},
		{View: true, Workspace: []string{link}, Readable: []string{link + "/dots", home + "/.aws"}},
	} {
		rig.Must(t, f.Check())
		h.Cwd = f.Workspace[0]
		plan := rig.Value(f.Plan(h))
		rig.Is(t, strings.Join(plan.Hidden, " "), "~/.ssh ~/.kube ~/.config/gh ~/config/gh", "hidden")
		policy := rig.Value(plan.Profile.Compile())
		for name, want := range map[string]sandbox.Access{
			"dots/ssh/id": sandbox.Denied, ".aws/x": sandbox.Read, ".kube": sandbox.Denied, "config/gh": sandbox.Denied, ".config/gh": sandbox.Denied,
		} {
			rig.Is(t, policy.Access(home+"/"+name), want, "access to %s", name)
		}
		rig.Is(t, policy.Access(f.Workspace[0]+"/x"), sandbox.Write, "access to the workspace")
		wire := plan.Wire()
		rig.Is(t, len(wire.Permissions.FileSystem.Entries), len(plan.Profile.Entries), "entries on the wire")
	}
	unset := HomeOf(func(string) (string, bool) { return "odd", true })
	rig.Is(t, unset, HomeOf(func(string) (string, bool) { return "", false }), "the home without HOME")
	rig.Is(t, filepath.IsAbs(unset) || os.Getuid() != 0, true, "root has a home: %q", unset)
}

// TestHiddenUnseen: a secret that cannot be looked up is hidden, because it may exist; a history only where it may be replaced.
func TestHiddenUnseen(t *testing.T) {
	t.Parallel()
	h := Host{Home: "/home/you", Cwd: "/", Real: func(string) (string, error) { return "", os.ErrPermission }}
	rig.Is(t, len(rig.Value(new(Flags).Plan(h)).Hidden), len(secretFiles)+len(histories), "hidden")
	h.NoReplaceable = true
	rig.Is(t, len(rig.Value(new(Flags).Plan(h)).Hidden), len(secretFiles), "hidden, histories apart")
}

// TestGPU: the devices of all makers are found, each once, and what a view has to show for them.
func TestGPU(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, "testdata/gpu.txt", "gpu", 3) {
		root := t.TempDir()
		for name := range strings.FieldsSeq(row[0]) {
			rig.Must(t, os.MkdirAll(filepath.Join(root, name), 0o755))
		}
		for _, view := range []bool{false, true} {
			plan, err := (&Flags{GPU: true, View: view}).Plan(Host{Cwd: "/usr", List: func(dir string) []string { return listHere(root + dir) }})
			if row[1] == "none" {
				rig.Says(t, err, "--gpu: there is no GPU", "%s", row[0])
				continue
			}
			rig.Must(t, err)
			var shown []string
			for _, e := range plan.Profile.Entries[1:] {
				rig.Is(t, e.Access == sandbox.Read && e.SkipMissing, true, "%+v is read if it exists", e)
				shown = append(shown, e.Path)
			}
			rig.Is(t, strings.Join(plan.Profile.Devices, " "), row[1], "devices of %s", row[0])
			rig.Is(t, strings.Join(shown, " "), map[bool]string{true: row[2]}[view], "shown for %s", row[0])
			rig.Is(t, len(plan.Wire().Permissions.FileSystem.Entries), 1+len(shown)+len(plan.Profile.Devices), "entries on the wire")
		}
	}
}

// TestLearned: a profile has what can be in one, and says nothing that the command has chosen but for names.
func TestLearned(t *testing.T) {
	t.Parallel()
	home := rig.Value(filepath.EvalSymlinks(t.TempDir()))
	for _, name := range []string{"a b", `c"\`, "d*", "e\n]", "f\x1b", "g/x", "h\u202e", ".aws/x"} {
		rig.Must(t, os.MkdirAll(filepath.Join(home, name), 0o700))
	}
	rig.Must(t, os.Symlink("/", filepath.Join(home, "link")))
	l := rig.Value((&Plan{}).Learning(Host{Home: home, Cwd: "/"}))
	var all []changes.Folder
	for _, name := range []string{"a b", `c"\`, "d*", "e\n]", "f\x1b", "g/x", "h\u202e", ".aws/x", "link"} {
		all = append(all, changes.Folder{Path: filepath.Join(home, name), Changed: filepath.Join(home, name, "#\r\n[x]")})
	}
	all[0].Changed = filepath.Join(home, "a b", "# x")
	got := l.Learned(all, 1, slices.Repeat([]string{"a.example"}, maxWords+2))
	p := rig.Value(parseProfile("p", got.Profile()))
	rig.Same(t, "folders", []string{"~/a b", `~/c"\`, "~/g/x"}, p.Write)
	rig.Is(t, len(p.Allow), maxWords, "hosts")
	rig.Is(t, strings.Contains(got.Profile(), `"~/a b", # ~/a b/# x`+"\n"), true, "a comment in %s", got.Profile())
	for _, note := range got.Notes {
		rig.Is(t, isPrintable(note), true, "%q can be printed", note)
	}
	rig.Is(t, len(got.Notes), 8, "notes: %q", got.Notes)
}
