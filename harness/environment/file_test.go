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
	const a = "[[environments]]\nid = \"a\"\n"
	const server, program = a + "url = \"ws://h\"\n", a + "program = \"p\"\n"
	id := func(id string) string { return "[[environments]]\nid = \"" + id + "\"\nurl = \"ws://h\"\n" }
	const keys = "`id`, `skills`, `url`, `auth_bearer_token`, `program`, `args`, `env`, `cwd`, `connect_timeout_sec`, `initialize_timeout_sec`"
	long := strings.Repeat("a", 65)
	for _, tt := range []struct{ name, text, want string }{
		{"empty id", id(""), "environment id cannot be empty"},
		{"blank id", id("  "), "environment id cannot be empty"},
		{"id with blanks", id(" a"), "environment id ` a` must not contain surrounding whitespace"},
		{"id with a no-break space", id("a\u00a0"), "environment id `a\u00a0` must not contain surrounding whitespace"},
		{"local", id("local"), "environment id `local` is reserved"},
		{"local in capitals", id("LOCAL"), "environment id `LOCAL` is reserved"},
		{"local where there is none", "include_local = false\n" + id("local"), "environment id `local` is reserved"},
		{"none", id("None"), "environment id `None` is reserved"},
		{"long id", id(long), "environment id `" + long + "` cannot be longer than 64 characters"},
		{"odd id", id("a.b"), "environment id `a.b` must contain only ASCII letters, numbers, '-' or '_'"},
		{"foreign letter", id("ä"), "environment id `ä` must contain only ASCII letters, numbers, '-' or '_'"},
		{"twice", server + server, "environment id `a` is duplicated"},
		{"neither", a, "environment `a` must set exactly one of url or program"},
		{"both", server + "program = \"p\"\nargs = []\n", "environment `a` must set exactly one of url or program"},
		{"args", server + "args = []\n", "environment `a` args, env, and cwd require program"},
		{"env", server + "env = {}\n", "environment `a` args, env, and cwd require program"},
		{"cwd", server + "cwd = \"\"\n", "environment `a` args, env, and cwd require program"},
		{"args alone", a + "args = []\n", "environment `a` args, env, and cwd require program"},
		{"connect timeout", program + "connect_timeout_sec = 1\n", "environment `a` connect_timeout_sec requires url"},
		{"token", program + "connect_timeout_sec = 1\nauth_bearer_token = \"t\"\n", "environment `a` auth_bearer_token requires url"},
		{"empty program", a + "program = \" \"\n", "environment `a` program cannot be empty"},
		{"empty url", a + "url = \" \"\n", "environment url cannot be empty"},
		{"other scheme", a + "url = \"http://h\"\n", "environment url `http://h` must use ws://, wss:// or unix://"},
		{"scheme in capitals", a + "url = \"WS://h\"\n", "environment url `WS://h` must use ws://, wss:// or unix://"},
		{"no host", a + "url = \"ws://\"\n", "environment url `ws://` is invalid: no host"},
		{"no URL", a + "url = \"ws://a b\"\n", "environment url `ws://a b` is invalid: invalid character \" \" in host name"},
		{"token in plain", a + "url = \"ws://h\"\nauth_bearer_token = \"t\"\n", "exec-server WebSocket headers require wss:// or a loopback destination"},
		{"token to another localhost", a + "url = \"ws://x.localhost\"\nauth_bearer_token = \"t\"\n", "exec-server WebSocket headers require wss:// or a loopback destination"},
		{"token to a mapped address", a + "url = \"ws://[::ffff:127.0.0.1]\"\nauth_bearer_token = \"t\"\n", "exec-server WebSocket headers require wss:// or a loopback destination"},
		{"token with a line break", a + "url = \"wss://h\"\nauth_bearer_token = \"a\\nb\"\n", "invalid value for exec-server WebSocket header `authorization`"},
		{"empty default", "default = \" \"\n", "default environment id cannot be empty"},
		{"unknown default", "default = \"zz\"\n", "default environment `zz` is not configured"},
		{"default in capitals", "default = \"LOCAL\"\n", "default environment `LOCAL` is not configured"},
		{"default without local", "default = \"local\"\ninclude_local = false\n", "default environment `local` is not configured"},

		{"key", "foo = 1\n", "unknown field `foo`, expected one of `default`, `include_local`, `environments`"},
		{"key of an entry", server + "foo = 1\n", "unknown field `foo`, expected one of " + keys + " in `environments`"},
		{"key in capitals", server + "ID = \"a\"\n", "unknown field `ID`, expected one of " + keys + " in `environments`"},
		{"key of skills", server + "skills.foo = 1\n", "unknown field `foo`, expected `required` in `environments.skills`"},
		{"no id", "[[environments]]\nurl = \"ws://h\"\n", "missing field `id` in `environments`"},
		{"type of default", "default = 1\n", "invalid value of `default`, expected a string"},
		{"type of include_local", "include_local = \"x\"\n", "invalid value of `include_local`, expected a boolean"},
		{"table for the array", "[environments]\n", "invalid value of `environments`, expected a sequence of tables"},
		{"numbers for tables", "environments = [1]\n", "invalid value of `environments`, expected a sequence of tables"},
		{"type of id", "[[environments]]\nid = 1979-05-27\nurl = \"ws://h\"\n", "invalid value of `id`, expected a string in `environments`"},
		{"type of args", program + "args = [1]\n", "invalid value of `args`, expected a sequence of strings in `environments`"},
		{"type of env", program + "env = {A = 1}\n", "invalid value of `env`, expected a table of strings in `environments`"},
		{"type of skills", server + "skills.required = [1]\n", "invalid value of `required`, expected a sequence of strings in `environments.skills`"},
		{"negative", server + "connect_timeout_sec = -1\n", "invalid value of `connect_timeout_sec`, expected seconds, not negative in `environments`"},
		{"not a number", server + "initialize_timeout_sec = nan\n", "invalid value of `initialize_timeout_sec`, expected seconds, not negative in `environments`"},
		{"infinite", server + "initialize_timeout_sec = inf\n", "invalid value of `initialize_timeout_sec`, expected seconds, not negative in `environments`"},
		{"too long", server + "initialize_timeout_sec = 1e10\n", "invalid value of `initialize_timeout_sec`, expected seconds, not negative in `environments`"},
		{"text for seconds", server + "initialize_timeout_sec = \"1\"\n", "invalid value of `initialize_timeout_sec`, expected seconds, not negative in `environments`"},
		{"token without quotes", a + "auth_bearer_token = secret\n", "line 3 is not TOML; the last key is `environments.auth_bearer_token`"},
		{"number for a token", a + "auth_bearer_token = 99999999999999999999\n", "line 3 is not TOML; the last key is `environments.auth_bearer_token`"},
		{"text behind a token", "auth_bearer_token = 'x'secret\n", "line 1 is not TOML"},
		{"key twice", "default = 'a'\ndefault = 'b'\n", "line 2 is not TOML; the last key is `default`"},
		{"too deep", "a = " + strings.Repeat("{a = ", 17) + "1" + strings.Repeat("}", 17) + "\n", "nested deeper than 16"},
		{"long key", strings.Repeat("a.", 17) + "a = 1\n", "nested deeper than 16"},
		{"not UTF-8", "default = \"\xff\"\n", "not UTF-8"},
	} {
		_, err := readText(t, t.TempDir(), tt.text)
		_, afterPath, _ := strings.Cut(text(err), "environments.toml`: ")
		if got := text(err); got != protocolError+tt.want && (afterPath != tt.want || !strings.HasPrefix(got, protocolError+"failed to parse environment config `")) {
			t.Errorf("%s: ReadFile gives error\n%s, want\n%s", tt.name, got, protocolError+tt.want)
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
