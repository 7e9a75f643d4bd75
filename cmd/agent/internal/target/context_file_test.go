package target

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/execagent/execagent/cmd/internal/cli"
	"github.com/execagent/execagent/test/rig"
)

// written writes a file of contexts and returns its path.
func written(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	rig.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestRead(t *testing.T) {
	t.Parallel()
	path := written(t, `# mine
current = "prod"
[contexts.prod]
registry = "https://r"
environment_id = "e"
transport = "noise"
token_command = ["pass",
  "show", "a b"] # two lines
[contexts."box.local"]
url = '127.0.0.1:7000'
token = "tok"
`)
	f, err := ReadContexts(path)
	rig.Must(t, err)
	want := []Context{
		{Name: "box.local", URL: "127.0.0.1:7000", token: "tok"},
		{Name: "prod", Registry: "https://r", EnvironmentID: "e", Transport: "noise", TokenCommand: []string{"pass", "show", "a b"}},
	}
	rig.Is(t, f.Current, "prod", "the current one")
	rig.Same(t, "contexts", want, f.Contexts, cmp.AllowUnexported(Context{}))
	for _, none := range []string{filepath.Join(t.TempDir(), "missing"), os.DevNull} {
		f := rig.Value(ReadContexts(none))
		rig.Is(t, len(f.Contexts), 0, "contexts in %s", none)
	}
}

// TestNoFile: /dev/null gets no contexts.
func TestNoFile(t *testing.T) {
	t.Parallel()
	err := ChangeContexts(os.DevNull, func(*ContextFile) error { return errors.New("changed") })
	rig.Is(t, err, errNoFile, "")
}

// TestErrors: what is wrong in a file, with the line of the first fault. No error shows a
// token.
func TestErrors(t *testing.T) {
	t.Parallel()
	cases := append(rig.Rows(t, "testdata/contexts.txt", "errors", 2),
		[]string{"[contexts.a]\nurl = 'x'\ntoken_command = [" + strings.Repeat("'x',", 65) + "]",
			":1: context a: token_command is empty or has more than 64 words"},
		[]string{"[contexts.a]\nurl = '" + strings.Repeat("x", maxValue+1) + "'",
			":1: context a: a value is longer than 4096 bytes, or has control characters"},
		[]string{"# " + strings.Repeat("x", cli.MaxFile), " is longer than 1048576 bytes"})
	for _, row := range cases {
		path := written(t, row[0])
		_, err := ReadContexts(path)
		rig.Is(t, fmt.Sprint(err), path+row[1], "%.100q", row[0])
		rig.Is(t, strings.Contains(fmt.Sprint(err), "s3cret"), false, "a token is shown: %v", err)
	}
	var many strings.Builder
	for i := range maxContexts + 1 {
		fmt.Fprintf(&many, "[contexts.a%d]\nurl='x'\n", i)
	}
	_, err := ReadContexts(written(t, many.String()))
	rig.Is(t, err != nil && strings.Contains(err.Error(), "more than 1000 contexts"), true, "too many: %v", err)
}

// TestOwner: a file that others could have written is never used, one that others can read
// not with a token in it, and links do not matter. Package tomlfile tests what is no such file.
func TestOwner(t *testing.T) {
	t.Parallel()
	const plain, secret = "[contexts.a]\nurl = 'x'\n", "[contexts.a]\nurl = 'x'\ntoken = 't'\n"
	me := os.Geteuid()
	for _, tt := range []struct {
		text  string
		owner int
		mode  os.FileMode
		want  string // "" for none
	}{
		{plain, me, 0o600, ""},
		{plain, me, 0o644, ""},
		{plain, me, 0o664, "others can write it"},
		{secret, me, 0o600, ""},
		{secret, me, 0o400, ""},
		{secret, me, 0o640, "holds a token and has mode 0640"},
		{secret, me, 0o604, "holds a token and has mode 0604"},
		{plain, 1, 0o600, "belongs to user 1"},
		{secret, 1, 0o600, "belongs to user 1"},
	} {
		if tt.owner != me && me != 0 {
			continue
		}
		path := written(t, tt.text)
		rig.Must(t, errors.Join(os.Chown(path, tt.owner, -1), os.Chmod(path, tt.mode)))
		link := path + ".link"
		rig.Must(t, os.Symlink(path, link))
		for _, name := range []string{path, link} {
			rig.Says(t, rig.Err(ReadContexts(name)), tt.want, "mode %04o of user %d", tt.mode, tt.owner)
		}
	}
}

// TestChange: a file is changed as a person would, and what it says elsewhere stays.
func TestChange(t *testing.T) {
	t.Parallel()
	const current = "# all of mine\ncurrent = \"b\" # for now\n"
	const aboutB = `
# about b
[contexts.b]
registry = "https://r"
token_command = [
  "[odd]",
]
`
	const added = `
[contexts."c.d"]
registry = "r"
environment_id = "e"
transport = "direct"
token_command = ["q\"\\", "ä"]
`
	using := current + "\n[contexts.a] # the first\nurl = \"x\"\n" + aboutB
	before := strings.Replace(using, `"b" #`, `"a" #`, 1)
	path := written(t, before)
	for _, step := range []struct {
		name   string
		change func(*ContextFile) error
		want   string
	}{
		{"use b", func(f *ContextFile) error { return f.Use("b") }, using},
		{"remove a", func(f *ContextFile) error { return f.Remove("a") }, current + aboutB},
		{"add c.d", func(f *ContextFile) error {
			return f.Put(Context{Name: "c.d", Registry: "r", EnvironmentID: "e", Transport: "direct", TokenCommand: []string{`q"\`, "ä"}})
		}, current + aboutB + added},
		{"remove the current one", func(f *ContextFile) error { return f.Remove("b") }, "# all of mine\n" + added},
		{"replace", func(f *ContextFile) error { return f.Put(Context{Name: "c.d", URL: "x"}) }, "# all of mine\n\n\n[contexts.\"c.d\"]\nurl = \"x\"\n"},
		{"use", func(f *ContextFile) error { return f.Use("c.d") }, "current = \"c.d\"\n\n# all of mine\n\n\n[contexts.\"c.d\"]\nurl = \"x\"\n"},
		{"use none", func(f *ContextFile) error { return f.Use("") }, "\n# all of mine\n\n\n[contexts.\"c.d\"]\nurl = \"x\"\n"},
	} {
		rig.Must(t, ChangeContexts(path, step.change))
		rig.Same(t, step.name, step.want, string(rig.Value(os.ReadFile(path))))
	}
	for name, change := range map[string]func(*ContextFile) error{
		"a name":          func(f *ContextFile) error { return f.Put(Context{Name: "../x", URL: "x"}) },
		"nothing in it":   func(f *ContextFile) error { return f.Put(Context{Name: "x"}) },
		"a control":       func(f *ContextFile) error { return f.Put(Context{Name: "x", URL: "a\x00"}) },
		"unknown to use":  func(f *ContextFile) error { return f.Use("nope") },
		"unknown to drop": func(f *ContextFile) error { return f.Remove("nope") },
	} {
		rig.Is(t, ChangeContexts(path, change) != nil, true, "%s is refused", name)
	}
}

// TestOddForms: what a change by lines would get wrong is refused, and the file stays.
func TestOddForms(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"contexts.a.url = 'x'\n",
		"contexts = { a = { url = 'x' } }\n",
		"[contexts]\na = { url = 'x' }\n",
		"[contexts.\"\\u0061\"]\nurl = 'x'\n",
		"[contexts.a]\nurl = '''\n[x'''\n",
	} {
		path := written(t, text)
		change := func(f *ContextFile) error { return f.Remove("a") }
		rig.Is(t, ChangeContexts(path, change) != nil, true, "changing %q is refused", text)
		rig.Is(t, string(rig.Value(os.ReadFile(path))), text, "the file")
	}
}

// TestChangeTogether: of many who change the file at once nobody's change is lost, and who
// reads it meanwhile reads a whole one. It stays what a link leads to, and private.
func TestChangeTogether(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	real, link := filepath.Join(dir, "dotfiles"), filepath.Join(dir, "new", "config.toml")
	rig.Must(t, errors.Join(os.WriteFile(real, []byte("# kept\n"), 0o644), os.Mkdir(filepath.Dir(link), 0o700), os.Symlink(real, link)))
	const each, writers = 4, 4
	var wg sync.WaitGroup
	stop := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if f, err := ReadContexts(link); err != nil || !strings.HasPrefix(f.text, "# kept\n") {
				t.Errorf("read meanwhile: %v", err)
				return
			}
		}
	})
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				rig.Check(t, ChangeContexts(link, func(f *ContextFile) error { return f.Put(Context{Name: fmt.Sprintf("c%d-%d", w, i), URL: "x"}) }))
			}
		})
	}
	wg.Wait()
	close(stop)
	reader.Wait()
	f := rig.Value(ReadContexts(link))
	rig.Is(t, len(f.Contexts), each*writers, "contexts")
	rig.Is(t, rig.Value(os.Lstat(link)).Mode().Type(), os.ModeSymlink, "the link is")
	rig.Is(t, rig.Value(os.Stat(real)).Mode().Perm(), 0o600, "the mode of the file")
	for _, d := range []string{dir, filepath.Dir(link)} {
		left := rig.Value(filepath.Glob(filepath.Join(d, ".*-*")))
		rig.Is(t, len(left), 0, "left behind are %v", left)
	}
}

// FuzzChange: whatever a file says, a change does what it should or nothing.
func FuzzChange(f *testing.F) {
	for _, seed := range []string{"", "current='a'\n[contexts.a]\nurl='x'\n", "[contexts]\n[contexts.a]\nurl='x'#", "[ contexts . \"a\" ]\nurl=\"\"\"\n[contexts.b]\"\"\"\n[contexts.b]\nurl='y'"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		before := &ContextFile{Path: "f"}
		if before.parse(text) != nil {
			return
		}
		same := cmp.Options{cmp.AllowUnexported(Context{}), cmpopts.EquateEmpty()}
		for _, name := range before.Names() {
			after := *before
			if after.Remove(name) != nil {
				continue
			}
			var want []Context
			for _, c := range before.Contexts {
				if c.Name != name {
					want = append(want, c)
				}
			}
			rig.Same(t, fmt.Sprintf("removing %s", name), want, after.Contexts, same)
		}
	})
}
