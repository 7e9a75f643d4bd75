package environment_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/test/rig"
)

const protocolError = "exec-server protocol error: "

// TestReadFile has the keys of client.md 4.3.
func TestReadFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one := func(e environment.Entry) environment.Plan {
		return environment.Plan{Entries: []environment.Entry{e}, Default: "local", IncludeLocal: true}
	}
	server := func(u environment.URL) environment.Plan { return one(environment.Entry{ID: "a", Transport: u}) }
	program := func(p environment.Stdio) environment.Plan { return one(environment.Entry{ID: "a", Transport: p}) }
	const a = "[[environments]]\nid = \"a\"\n"
	for _, tt := range []struct {
		name, text string
		want       environment.Plan
	}{
		{"empty", "", environment.Plan{Default: "local", IncludeLocal: true}},
		{"without local", "include_local = false\n", environment.Plan{}},
		{"default none", "default = \" NONE \"\n", environment.Plan{IncludeLocal: true}},
		{"default local", "default = \" local \"\n", environment.Plan{Default: "local", IncludeLocal: true}},
		{"default another", "default = \"a\"\ninclude_local = false\n" + a + "url = \"ws://h\"\n", environment.Plan{
			Entries: []environment.Entry{{ID: "a", Transport: environment.URL{URL: "ws://h"}}}, Default: "a",
		}},
		{"url", a + "url = \" ws://h:1/p?q \"\n", server(environment.URL{URL: "ws://h:1/p?q"})},
		{"longest id", "[[environments]]\nid = \"" + strings.Repeat("a", 64) + "\"\nurl = \"ws://h\"\n", one(environment.Entry{
			ID: strings.Repeat("a", 64), Transport: environment.URL{URL: "ws://h"},
		})},
		{"token with wss", a + "url = \"wss://h\"\nauth_bearer_token = \"t\"\n", server(environment.URL{URL: "wss://h", BearerToken: "t"})},
		{"token with localhost", a + "url = \"ws://LocalHost:1\"\nauth_bearer_token = \"t\"\n", server(environment.URL{URL: "ws://LocalHost:1", BearerToken: "t"})},
		{"token with 127", a + "url = \"ws://127.9.9.9\"\nauth_bearer_token = \"t\"\n", server(environment.URL{URL: "ws://127.9.9.9", BearerToken: "t"})},
		{"token with ::1", a + "url = \"ws://[::1]:1\"\nauth_bearer_token = \"t\"\n", server(environment.URL{URL: "ws://[::1]:1", BearerToken: "t"})},
		{"empty token", a + "url = \"ws://h\"\nauth_bearer_token = \"\"\n", server(environment.URL{URL: "ws://h"})},
		{"timeouts", a + "url = \"ws://h\"\nconnect_timeout_sec = 0.25\ninitialize_timeout_sec = 3\n", server(environment.URL{
			URL: "ws://h", ConnectTimeout: 250 * time.Millisecond, InitializeTimeout: 3 * time.Second,
		})},
		{"timeout of nothing", a + "url = \"ws://h\"\nconnect_timeout_sec = 0\n", server(environment.URL{URL: "ws://h", ConnectTimeout: 1})},
		{"skills", a + "url = \"ws://h\"\nskills.required = [\"x\", \"y\"]\n", one(environment.Entry{
			ID: "a", Transport: environment.URL{URL: "ws://h"}, Skills: environment.Skills{Required: []string{"x", "y"}},
		})},
		{"program", a + "program = \" ssh \"\n", program(environment.Stdio{Program: "ssh"})},
		{"program with all", a + "program = \"p\"\nargs = [\"x\"]\nenv = {A = \"1\"}\ncwd = \"/c\"\ninitialize_timeout_sec = 1\n", program(environment.Stdio{
			Program: "p", Args: []string{"x"}, Env: map[string]string{"A": "1"}, Dir: "/c", InitializeTimeout: time.Second,
		})},
		{"relative cwd", a + "program = \"p\"\ncwd = \"sub\"\n", program(environment.Stdio{Program: "p", Dir: filepath.Join(dir, "relative cwd", "sub")})},
		{"inline", "environments = [{id = \"a\", url = \"ws://h\"}]\n", server(environment.URL{URL: "ws://h"})},
		{"two", a + "url = \"ws://h\"\n[[environments]]\nid = \"b-_9\"\nprogram = \"p\"\n", environment.Plan{
			Entries: []environment.Entry{
				{ID: "a", Transport: environment.URL{URL: "ws://h"}}, {ID: "b-_9", Transport: environment.Stdio{Program: "p"}},
			},
			Default: "local", IncludeLocal: true,
		}},
	} {
		got, err := readText(t, filepath.Join(dir, tt.name), tt.text)
		rig.Must(t, err)
		rig.Same(t, tt.name, tt.want, got)
	}
}

// TestReadFileErrors has the errors of client.md 4.3, word by word.
func TestReadFileErrors(t *testing.T) {
	t.Parallel()
	const keys = "`id`, `skills`, `url`, `auth_bearer_token`, `program`, `args`, `env`, `cwd`, `connect_timeout_sec`, `initialize_timeout_sec`"
	long := strings.Repeat("a", 65)
	// The errors of files that a text file would not show.
	cases := []rig.Section{
		{Name: "id with a no-break space: environment id `a\u00a0` must not contain surrounding whitespace", Text: "[[environments]]\nid = \"a\u00a0\"\nurl = \"ws://h\"\n"},
		{Name: "long id: environment id `" + long + "` cannot be longer than 64 characters", Text: "[[environments]]\nid = \"" + long + "\"\nurl = \"ws://h\"\n"},
		{Name: "too deep: nested deeper than 16", Text: "a = " + strings.Repeat("{a = ", 17) + "1" + strings.Repeat("}", 17) + "\n"},
		{Name: "long key: nested deeper than 16", Text: strings.Repeat("a.", 17) + "a = 1\n"},
		{Name: "not UTF-8: not UTF-8", Text: "default = \"\xff\"\n"},
	}
	for _, c := range append(cases, rig.Sections(t, "testdata/refused.txt")...) {
		name, want, _ := strings.Cut(c.Name, ": ")
		want = strings.ReplaceAll(want, "KEYS", keys)
		_, err := readText(t, t.TempDir(), c.Text)
		_, afterPath, _ := strings.Cut(text(err), "environments.toml`: ")
		if got := text(err); got != protocolError+want && (afterPath != want || !strings.HasPrefix(got, protocolError+"failed to parse environment config `")) {
			t.Errorf("%s: ReadFile gives error\n%s, want\n%s", name, got, protocolError+want)
		}
	}
}

func TestReadFileOf(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rig.Is(t, rig.Err(environment.ReadFile(filepath.Join(dir, "none"))), fs.ErrNotExist, "a file that does not exist")
	want := protocolError + "failed to read environment config `" + dir + "`: not a file"
	rig.Is(t, text(rig.Err(environment.ReadFile(dir))), want, "a directory gives")
	large := filepath.Join(dir, "large")
	write(t, large, strings.Repeat("#\n", 33<<10))
	want = protocolError + "failed to read environment config `" + large + "`: too large"
	rig.Is(t, text(rig.Err(environment.ReadFile(large))), want, "a large file gives")
}

// readText reads a text as the file of environments in a directory, which it makes.
func readText(t testing.TB, dir, text string) (environment.Plan, error) {
	t.Helper()
	rig.Must(t, os.MkdirAll(dir, 0o700))
	path := filepath.Join(dir, "environments.toml")
	write(t, path, text)
	return environment.ReadFile(path)
}
