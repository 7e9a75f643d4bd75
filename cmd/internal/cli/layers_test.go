package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/test/rig"
)

// options are of every type that an option has.
func options() []Option {
	env := []string{"LAYERS_TEST_UNSET"}
	return []Option{
		{Name: "text", Type: reflect.TypeFor[string](), Env: env},
		{Name: "pointer", Type: reflect.TypeFor[*string](), Env: env},
		{Name: "mode", Type: reflect.TypeFor[string](), Env: env, Enum: []string{"", "a", "b"}},
		{Name: "on", Type: reflect.TypeFor[bool](), Env: env},
		{Name: "count", Type: reflect.TypeFor[int](), Env: env},
		{Name: "wide", Type: reflect.TypeFor[*int64](), Env: env},
		{Name: "natural", Type: reflect.TypeFor[uint64](), Env: env},
		{Name: "time", Type: reflect.TypeFor[time.Duration](), Env: env},
		{Name: "maybe", Type: reflect.TypeFor[*time.Duration](), Env: env},
		{Name: "size", Type: reflect.TypeFor[program.Size](), Env: env},
		{Name: "words", Type: reflect.TypeFor[[]string](), Env: env},
		{Name: "users", Type: reflect.TypeFor[[]uint32](), Env: env},
		{Name: "file", Type: reflect.TypeFor[string](), Env: env, Path: true},
		{Name: "files", Type: reflect.TypeFor[[]string](), Env: env, Path: true},
		{Name: "once", Type: reflect.TypeFor[bool]()},
		{Name: "config", Type: reflect.TypeFor[string](), Env: env, Path: true},
	}
}

// site is a folder of an administrator and the file of a user.
type site struct{ folder, user string }

func newSite(t *testing.T, requirements, user, host string) site {
	t.Helper()
	s := site{filepath.Join(t.TempDir(), "etc"), filepath.Join(t.TempDir(), "config.toml")}
	rig.Must(t, os.Mkdir(s.folder, 0o755))
	for path, text := range map[string]string{
		filepath.Join(s.folder, "requirements.toml"): requirements, s.user: user, filepath.Join(s.folder, "config.toml"): host,
	} {
		if text == "" {
			continue
		}
		rig.Must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return s
}

func (s site) of(command string) (*Layers, error) {
	files, err := readFiles("agent", s.folder, s.user)
	if err != nil {
		return nil, err
	}
	return files.Of(command, options(), Shared{})
}

func nothing(string) (string, bool) { return "", false }

// TestValues: each type of option takes what is written for it.
func TestValues(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	s := newSite(t, "", `[exec]
text = "a b"
pointer = ""
mode = "a"
on = true
count = -3
wide = 4294967296
natural = 7
time = "1h30m"
maybe = "5s"
size = "64K"
words = ["x", "y,z"]
users = [0, 33]
file = "~/keys"
files = ["a", "../b", "/c", "-"]
`, "")
	l := rig.Value(s.of("exec"))
	got := map[string]any{}
	for name, v := range l.Merge(nil, nothing) {
		for _, o := range options() {
			if o.Name == name {
				field := reflect.New(o.Type).Elem()
				v.Set(field)
				if field.Kind() == reflect.Pointer {
					field = field.Elem()
				}
				got[name] = field.Interface()
			}
		}
		rig.Is(t, v.Path == s.user && !v.Required, true, "%s: %+v", name, v)
	}
	dir := filepath.Dir(s.user)
	want := map[string]any{
		"text": "a b", "pointer": "", "mode": "a", "on": true, "count": -3, "wide": int64(4294967296), "natural": uint64(7),
		"time": 90 * time.Minute, "maybe": 5 * time.Second, "size": program.Size(65536), "words": []string{"x", "y,z"}, "users": []uint32{0, 33},
		"file": filepath.Join(home, "keys"), "files": []string{filepath.Join(dir, "a"), filepath.Join(filepath.Dir(dir), "b"), "/c", "-"},
	}
	rig.Same(t, "the result", want, got)
}

// TestErrors: what is wrong is told with the file, the line and what was expected.
func TestErrors(t *testing.T) {
	t.Parallel()
	cases := append(rig.Rows(t, "testdata/files.txt", "errors", 2),
		[]string{"#" + strings.Repeat("x", MaxFile), " is longer than 1048576 bytes"},
		[]string{"a = " + strings.Repeat("[", 100_000), " is nested deeper than 8"})
	for _, row := range cases {
		text, want := row[0], row[1]
		for _, user := range []bool{true, false} {
			s := newSite(t, text, "", "")
			path := filepath.Join(s.folder, "requirements.toml")
			if user {
				s = newSite(t, "", text, "")
				path = s.user
			}
			rig.Is(t, fmt.Sprint(rig.Err(s.of("exec"))), path+want, "%.60q", text)
		}
	}
	// What belongs to another command is not looked at, and contexts are a user's.
	rig.Check(t, rig.Err(newSite(t, "", "[cp]\nwrong = 1\n[registry.serve]\nx = 1\n[contexts.a]\nurl = 'x'", "").of("exec")))
	err := rig.Err(newSite(t, "", "", "current = 'x'").of("exec"))
	rig.Says(t, err, ":1: current cannot be set here, because contexts", "a file of the host")
}

// TestRegistry: the tables of registry are below one of its name, and each has to be a command.
func TestRegistry(t *testing.T) {
	t.Parallel()
	commands := []string{"serve", "keys create"}
	for _, row := range rig.Rows(t, "testdata/files.txt", "registry", 2) {
		text, want := row[0], row[1]
		s := newSite(t, "", text, "")
		files, err := readFiles("registry", s.folder, s.user)
		if err == nil {
			err = files.Known(commands)
		}
		if err == nil {
			_, err = files.Of("keys create", options(), Shared{})
		}
		if want == "" && err != nil || want != "" && (err == nil || err.Error() != s.user+want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// TestOrder: the user's file is over that of the host, and what is required over both.
func TestOrder(t *testing.T) {
	t.Parallel()
	s := newSite(t, "[exec]\nwords = ['r']", "[exec]\nwords = ['u']\ntext = 'u'", "[exec]\nwords = ['h']\ntext = 'h'\nmode = 'b'")
	l := rig.Value(s.of("exec"))
	got := l.Merge(nil, nothing)
	for name, want := range map[string]string{
		"words": s.folder + "/requirements.toml:2 r true", "text": s.user + ":3 u false", "mode": s.folder + "/config.toml:4 b false",
	} {
		v := got[name]
		rig.Is(t, strings.Join([]string{v.place(), v.Texts[0], map[bool]string{true: "true", false: "false"}[v.Required]}, " "), want, "%s", name)
	}
	rig.Is(t, len(l.Required()), 1, "required")
	rig.Is(t, len(got), 3, "values")
}

// TestGroups: of options that mean one thing together the strongest layer says all.
func TestGroups(t *testing.T) {
	t.Parallel()
	groups := []Group{{Heads: []string{"text", "pointer"}, Rest: []string{"file", "mode"}}}
	for _, tt := range []struct {
		name, required, user, host string
		given                      map[string]string
		want                       string
	}{
		{"one file", "", "text = 'u'\nfile = '/u'", "", nil, "file=/u text=u"},
		{"another head", "", "text = 'u'", "pointer = 'h'\nfile = '/h'\ncount = 1", nil, "count=1 text=u"},
		{"the same head, another value", "", "text = 'u'", "text = 'h'\nfile = '/h'", nil, "text=u"},
		{"the same value", "", "text = 'x'", "text = 'x'\nfile = '/h'", nil, "file=/h text=x"},
		{"no head of its own", "", "text = 'u'", "file = '/h'", nil, "file=/h text=u"},
		{"a flag", "", "text = 'u'\nfile = '/u'", "text = 'h'\nmode = 'a'", map[string]string{"pointer": "f"}, ""},
		{"a flag with the value of a file", "", "text = 'u'\nfile = '/u'", "text = 'h'\nmode = 'a'", map[string]string{"text": "u"}, "file=/u text=u"},
		{"a flag that is none", "", "text = 'u'\nfile = '/u'", "", map[string]string{"mode": "a"}, "file=/u text=u"},
		{"a requirement", "text = 'r'", "pointer = 'u'\nfile = '/u'", "", map[string]string{"text": "f"}, "text=r"},
		{"the rest is required", "file = '/r'", "text = 'u'\nfile = '/u'", "", nil, "file=/r text=u"},
	} {
		table := func(text string) string {
			if text == "" {
				return ""
			}
			return "[exec]\n" + text
		}
		l, err := newSite(t, table(tt.required), table(tt.user), table(tt.host)).of("exec")
		rig.Must(t, err)
		values := l.Merge(groups, func(name string) (string, bool) { text, ok := tt.given[name]; return text, ok })
		var got []string
		for _, name := range []string{"count", "file", "mode", "pointer", "text"} {
			if v, ok := values[name]; ok {
				got = append(got, name+"="+v.Texts[0])
			}
		}
		rig.Is(t, strings.Join(got, " "), tt.want, "%s", tt.name)
	}
}

// TestShared: within a file the table of a command is over the shared one, and a stronger file is
// over both of a weaker one. What the shared table says about something else than the command's
// counts for nothing, and so does what the command has no option for.
func TestShared(t *testing.T) {
	t.Parallel()
	shared := Shared{Options: options(), Groups: []Group{{Heads: []string{"text", "pointer"}, Rest: []string{"file"}}}}
	for _, tt := range []struct{ name, required, user, host, want string }{
		{"alone", "", "[client]\ntext = 'c'\nfile = '/c'", "", "file=/c:3 text=c:2"},
		{"beside", "", "[client]\ntext = 'c'\n[exec]\ncount = 1", "", "count=1:4 text=c:2"},
		{"below", "", "[exec]\nmode = 'a'\n[client]\nmode = 'b'\ncount = 2", "", "count=2:5 mode=a:2"},
		{"another head", "", "[client]\ntext = 'c'\nfile = '/c'\ncount = 2\n[exec]\npointer = 'e'", "", "count=2:4 pointer=e:6"},
		{"the same value", "", "[client]\ntext = 'c'\nfile = '/c'\n[exec]\ntext = 'c'", "", "file=/c:3 text=c:5"},
		{"over a weaker command", "", "[client]\nmode = 'a'", "[exec]\nmode = 'b'\ncount = 3", "count=3:3 mode=a:2"},
		{"another place in a stronger file", "", "[client]\ntext = 'c'", "[exec]\ntext = 'h'\nfile = '/h'", "text=c:2"},
		{"required", "[client]\ntext = 'r'", "[exec]\ntext = 'u'\nfile = '/u'", "", "text=r:2"},
		{"of another type", "", "[client]\nalien = 'x'", "", ""},
	} {
		s := newSite(t, tt.required, tt.user, tt.host)
		files := rig.Value(readFiles("agent", s.folder, s.user))
		with := shared
		with.Options = append(options(), Option{Name: "alien", Type: reflect.TypeFor[string](), Env: []string{"A"}})
		own := append(options(), Option{Name: "alien", Type: reflect.TypeFor[string](), Env: []string{"B"}})
		l := rig.Value(files.Of("exec", own, with))
		var got []string
		for name, v := range l.Merge(shared.Groups, nothing) {
			got = append(got, fmt.Sprintf("%s=%s:%d", name, v.Texts[0], v.Line))
		}
		slices.Sort(got)
		rig.Is(t, strings.Join(got, " "), tt.want, "%s", tt.name)
	}
	s := newSite(t, "", "[client]\nnope = 1", "")
	files := rig.Value(readFiles("agent", s.folder, s.user))
	rig.Check(t, rig.Err(files.Of("exec", options(), Shared{})))
	if _, err := files.Of("exec", options(), shared); err == nil || !strings.HasPrefix(err.Error(), s.user+`:2: unknown key "nope": the commands that connect to an agent share no option`) {
		t.Error(err)
	}
}

// TestWhose: a file that somebody else can have written is refused, and nothing waits for a pipe.
func TestWhose(t *testing.T) {
	t.Parallel()
	broken := func(spoil func(s site) error) error {
		s := newSite(t, "[exec]\ntext = 'r'", "[exec]\ntext = 'u'", "[exec]\ntext = 'h'")
		if err := spoil(s); err != nil {
			t.Skip(err)
		}
		_, err := s.of("exec")
		return err
	}
	for name, tt := range map[string]struct {
		spoil func(site) error
		want  string
	}{
		"fine":             {func(site) error { return nil }, ""},
		"of the group":     {func(s site) error { return os.Chmod(s.user, 0o620) }, "others can write it, and have its commands run as you"},
		"required, of all": {func(s site) error { return os.Chmod(s.folder+"/requirements.toml", 0o666) }, "others can write it, and undo what this host requires"},
		"of a stranger":    {func(s site) error { return os.Chown(s.folder+"/config.toml", 4321, -1) }, "belongs to user 4321"},
		"in an open folder": {func(s site) error { return os.Chmod(s.folder, 0o777) },
			"has mode 0777, so others can replace files in it"},
		"a pipe": {func(s site) error { return errors.Join(os.Remove(s.user), syscall.Mkfifo(s.user, 0o600)) }, "is not a regular file"},
	} {
		rig.Says(t, broken(tt.spoil), tt.want, "%s", name)
	}
}

// TestMissing: files that are not there say nothing.
func TestMissing(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "", "")
	for _, user := range []string{"", os.DevNull, s.user, filepath.Join(s.user, "below", "it")} {
		for _, folder := range []string{s.folder, filepath.Join(s.folder, "missing")} {
			files, err := readFiles("agent", folder, user)
			rig.Is(t, err == nil && files.Empty() && !files.Hidden(), true, "%s, %s: %+v, %v", folder, user, files, err)
		}
	}
}

// TestNoUser: without a file of the user those of the administrator hold as ever.
func TestNoUser(t *testing.T) {
	t.Parallel()
	s := newSite(t, "[exec]\ncount = 1\n", "[exec]\ntext = 'user'\n", "[exec]\ntext = 'host'\ncount = 2\n")
	s.user = os.DevNull
	values := rig.Value(s.of("exec")).Merge(nil, nothing)
	rig.Same(t, "text", []string{"host"}, values["text"].Texts)
	rig.Same(t, "count", []string{"1"}, values["count"].Texts)
}

// TestExplain: each option is told with the layer that counts, and no secret.
func TestExplain(t *testing.T) {
	t.Setenv("LAYERS_TEST_UNSET", "")
	t.Setenv("LAYERS_TEST_SET", "v")
	text := reflect.TypeFor[string]()
	all := []Option{
		{Name: "a", Type: text, Env: []string{"LAYERS_TEST_NONE"}, Default: "d"},
		{Name: "b", Type: text, Env: []string{"LAYERS_TEST_NONE", "LAYERS_TEST_SET"}},
		{Name: "c", Type: text, Env: []string{"LAYERS_TEST_SET"}},
		{Name: "d", Type: text, Env: []string{"LAYERS_TEST_SET"}},
		{Name: "e", Type: text, Env: []string{"LAYERS_TEST_NONE"}},
		{Name: "f", Type: text, Env: []string{"LAYERS_TEST_NONE"}, Secret: true},
		{Name: "g", Type: text, Env: []string{"LAYERS_TEST_UNSET"}, Path: true},
		{Name: "h", Type: text},
	}
	values := Values{
		"b": {Texts: []string{"x"}, Path: "/f", Line: 1}, "c": {Texts: []string{"x"}, Path: "/f", Line: 2}, "d": {Texts: []string{"r"}, Path: "/r", Line: 3, Required: true},
		"e": {Texts: []string{"nats://user:pa/s@host,nats://tok@other:1?key=k"}, Path: "/f", Line: 4}, "f": {Texts: []string{"s3cret"}, Path: "/f", Line: 5},
	}
	var got []string
	for _, s := range Explain("exec", all, values, map[string]string{"c": "flag", "d": "flag"}) {
		got = append(got, strings.Join(s.Row(), " "))
	}
	want := []string{
		"exec a d default", "exec b v LAYERS_TEST_SET", "exec c flag --c", "exec d r /r:3 (required)",
		"exec e nats://(not shown)@host,nats://(not shown)@other:1?(not shown) /f:4", "exec f (not shown) /f:5", "exec g - default",
	}
	rig.Same(t, "the result", want, got)
}

// FuzzFile: whatever a file has, its values can be set, and each error and value names a line of
// it.
func FuzzFile(f *testing.F) {
	for _, seed := range []string{
		"", "[exec]\ntext = 'x'\ncount = 1\n", "[exec]\nwords = ['a', \"b\"]\nusers = [1]\ntime = '5s'\nsize = 3", "exec.text = 'x'", "exec = {text = 'x', on = true}",
		"[exec]\nfile = '~/x'\nmode = 'b'", "[[exec]]", "[exec]\ntext = 1.5", "[exec]\nnope = 1", "[exec]\nmaybe = '-1h'\nnatural = 18446744073709551615", "[registry.serve]\nx = 1",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<12 {
			return
		}
		files := &Files{program: "agent"}
		lines := strings.Count(text, "\n") + 1
		if files.add(ofUser, "/home/file", text) != nil {
			return
		}
		l, err := files.Of("exec", options(), Shared{})
		if err != nil {
			if !strings.HasPrefix(err.Error(), "/home/file:") {
				t.Error(err)
			}
			return
		}
		for name, v := range l.Merge(nil, nothing) {
			for _, o := range options() {
				if o.Name != name {
					continue
				}
				field := reflect.New(o.Type).Elem()
				err := set(field, v.Texts)
				rig.Is(t, err == nil && v.Line >= 0 && v.Line <= lines, true, "%s = %q of line %d: %v", name, v.Texts, v.Line, err)
				v.Set(field)
			}
		}
	})
}

// TestHarmless: nothing of a password, a query or a fragment is shown.
func TestHarmless(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, "testdata/files.txt", "harmless", 2) {
		rig.Is(t, harmless(row[0], false), row[1], "%s", row[0])
	}
}
