package cli

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/test/rig"
)

// testCommands have a flag or an argument of every kind that the programs have.
type testCommands struct {
	Serve serveFlags `cmd:"" default:"withargs" help:"Serve. This is the default command."`
	Keys  struct {
		Create createFlags `cmd:"" help:"Make a key."`
		List   struct{}    `cmd:"" aliases:"ls" help:"List keys."`
		Hidden struct{}    `cmd:"" hidden:""`
	} `cmd:"" help:"Keys."`
	Only struct {
		One struct{} `cmd:"" help:"One."`
	} `cmd:"" help:"Only one."`
	Shell struct {
		Shell string `arg:"" enum:"bash,zsh"`
	} `cmd:"" help:"A shell."`
	Run runFlags `cmd:"" help:"Run a program."`
}

type serveFlags struct {
	Mode  string  `default:"" enum:",none,full" env:"CLI_TEST_MODE" placeholder:"MODE" help:"Which mode: none or full."`
	Level *string `enum:"low,high" default:"low" placeholder:"LEVEL" group:"more" help:"Which level. Default: ${default}."`
	Size  int     `default:"3" env:"CLI_TEST_SIZE" placeholder:"N" help:"How much. Default: ${default}, in a text that is long enough to need more than one line of a narrow terminal."`
	Allow []int   `short:"a" placeholder:"USER" help:"Who may."`
}

// Check is what Read calls.
func (f *serveFlags) Check() error {
	if f.Size < 0 {
		return errors.New("--size is negative")
	}
	return nil
}

func (*serveFlags) Help() string {
	return "It serves until it ends.\n\nExamples:\n\n    program --mode full"
}

type createFlags struct {
	Role string   `required:"" enum:"reader,writer" env:"CLI_TEST_ROLE" placeholder:"ROLE"`
	Name string   `required:"" placeholder:"NAME"`
	ID   string   `arg:""`
	More []string `arg:"" optional:""`
}

type runFlags struct {
	Dir      string        `short:"C" type:"path"`
	TTY      bool          `short:"t" name:"tty"`
	Interact *bool         `short:"i"`
	Wait     time.Duration `default:"1s"`
	Bytes    *program.Size `env:"CLI_TEST_BYTES"`
	Rate     float64
	Env      []string `short:"e" sep:"none" env:"CLI_TEST_ENV"`
	Command  []string `arg:"" passthrough:""`
}

func testProgram() *App {
	return &App{
		Name: "program", Description: "Does things.\n\n  program serve  serves", Commands: testCommands{}, Own: struct {
			Version bool `help:"Print the version."`
		}{}, Sections: []Section{{"more", "More:"}}, Vars: map[string]string{"unused": "x"},
		Habits: Habits{Commands: map[string]string{"start": "serve", "keys get": "list"}, Flags: map[string][]string{"-v": {"--version"}}},
	}
}

// taken reads a line, with the variables before it, as text: the command, and what is not empty of its flags.
func taken(t *testing.T, text string) (string, error) {
	t.Helper()
	args := strings.Fields(text)
	for len(args) > 0 && strings.HasPrefix(args[0], "CLI_TEST_") {
		name, value, _ := strings.Cut(args[0], "=")
		t.Setenv(name, value)
		args = args[1:]
	}
	line, err := testProgram().Read(args, nil)
	if err != nil {
		return "", err
	}
	if line.AtOnce != "" {
		return line.AtOnce + " of " + line.Command.Name, nil
	}
	said := []string{line.Command.Path}
	for _, f := range Of(line.Flags) {
		if v := reflect.Indirect(f.value); v.IsValid() && !v.IsZero() {
			said = append(said, fmt.Sprintf("%s=%v", f.Name, v))
		}
	}
	return strings.Join(said, " "), nil
}

// TestRead: what lines say, and of a wrong one what is wrong.
func TestRead(t *testing.T) {
	for line, want := range map[string]string{
		"":                                     "serve level=low size=3",
		"--mode full --level high":             "serve mode=full level=high size=3",
		"--mode=":                              "serve level=low size=3",
		"serve --size 7 -a 1 -a2":              "serve level=low size=7 allow=[1 2]",
		"--size 0x10 -a 1,2,":                  "serve level=low size=16 allow=[1 2]",
		"--size 1 --size 2":                    "serve level=low size=2",
		"--size 1 serve -a 1":                  "serve level=low size=1 allow=[1]",
		"--size 1 -- serve":                    "serve level=low size=1",
		"keys ls":                              "keys list",
		"keys hidden":                          "keys hidden",
		"shell zsh":                            "shell shell=zsh",
		"--version":                            "version of program",
		"--version --help":                     "version of program",
		"--help keys create":                   "help of create",
		"keys -h create":                       "help of create",
		"keys create --help":                   "help of create",
		"run --help true":                      "help of run",
		"keys create --role reader --name n i": "keys create role=reader name=n id=i",
		"keys create i j k --role reader --name n":    "keys create role=reader name=n id=i more=[j k]",
		"keys create --role reader --name n -- -i":    "keys create role=reader name=n id=-i",
		"run -C / make --help -C":                     "run dir=/ wait=1s command=[make --help -C]",
		"run -tC/tmp/.. -- -x":                        "run dir=/tmp/.. tty=true wait=1s command=[-- -x]",
		"run -tieA=1,2 -e B - -t":                     "run tty=true interact=true wait=1s env=[A=1,2 B] command=[- -t]",
		"run --tty=no --interact=YES x":               "run interact=true wait=1s command=[x]",
		"run --nope=1 x":                              "run wait=1s command=[--nope=1 x]",
		"run -tx y":                                   "run tty=true wait=1s command=[-x y]",
		"run --rate 1.5 --bytes 2K x":                 "run wait=1s bytes=2048 rate=1.5 command=[x]",
		"CLI_TEST_SIZE=5":                             "serve level=low size=5",
		"CLI_TEST_SIZE=-5 --size 1":                   "serve level=low size=1",
		"CLI_TEST_MODE=half keys ls":                  "keys list",
		"CLI_TEST_ENV=A,B run x":                      "run wait=1s env=[A,B] command=[x]",
		"CLI_TEST_ENV=A run -e B x":                   "run wait=1s env=[B] command=[x]",
		"CLI_TEST_ROLE=writer keys create --name=n i": "keys create role=writer name=n id=i",
	} {
		t.Run(line, func(t *testing.T) {
			got, err := taken(t, line)
			rig.Must(t, err)
			rig.Is(t, got, want, "said")
		})
	}
}

// TestDashes: -- before a command is read as if it were behind it, once, and it is nowhere else moved.
func TestDashes(t *testing.T) {
	for line, want := range map[string]string{
		"-- run -t x":      "run -- -t x",
		"-- run -- -t":     "run -- -t",
		"-- run":           "run --",
		"-- keys ls x":     "keys ls -- x",
		"keys -- ls":       "keys ls --",
		"keys -- create i": "keys create -- i",
		"-- keys -- ls":    "keys -- ls",
		"-- serv":          "-- serv",
		"-- --help":        "-- --help",
		"--":               "--",
		"-t -- run":        "-t -- run",
		"run -- keys":      "run -- keys",
		"run x -- keys":    "run x -- keys",
	} {
		got, err := testProgram().Here(strings.Fields(line))
		rig.Must(t, err)
		rig.Is(t, strings.Join(got, " "), want, "%s", line)
	}
}

// TestMistakes: what is wrong with a line, in the order of what is looked at.
func TestMistakes(t *testing.T) {
	for line, want := range map[string]string{
		"--mode half":                          `--mode must be one of "none","full" but got "half"`,
		"--mode":                               "--mode needs a value: none or full",
		"--level middle":                       `--level must be one of "low","high" but got "middle"`,
		"--size=-1":                            "--size is negative",
		"--size x":                             `--size: "x" is not a number`,
		"--size 99999999999999999999":          `--size: "99999999999999999999" is not a number`,
		"--size":                               "--size needs a value",
		"--size --":                            "--size needs a value",
		"--size -1":                            "--size needs a value; write a value that begins with - as --size=-1",
		"--siez 1":                             `unknown flag --siez, did you mean "--size"?`,
		"--verzion":                            `unknown flag --verzion, did you mean "--version"?`,
		"--nonsense":                           "unknown flag --nonsense",
		"--version --nonsense":                 "unknown flag --nonsense",
		"--help --size x":                      `--size: "x" is not a number`,
		"--size 1 keys ls":                     `flag --size applies to the default command "serve", not "keys"`,
		"-- keys ls":                           "unexpected argument keys",
		"keys -- ls":                           "unexpected argument ls",
		"serve x":                              "unexpected argument x",
		"serv":                                 "unknown command serv; did you mean serve?",
		"start":                                "unknown command start; did you mean serve?",
		"keys get":                             "unknown command keys get; did you mean keys list?",
		"keys hiden":                           "unknown command keys hiden",
		"keys":                                 `expected one of "create", "list"`,
		"only":                                 `expected "one"`,
		"keys create":                          "missing flags: --name=NAME, --role=ROLE",
		"keys create --role reader":            "missing flags: --name=NAME",
		"keys create --role reader --name n":   "<id> is missing",
		"keys create --role nobody --name n i": `--role must be one of "reader","writer" but got "nobody"`,
		"shell":                                "<shell> is missing",
		"shell fish":                           `<shell> must be one of "bash","zsh" but got "fish"`,
		"shell zsh bash":                       "unexpected argument bash",
		"run":                                  "<command> is missing",
		"run --wait 5 x":                       `--wait: "5" is not a duration such as 30s, 5m or 1h30m`,
		"run --bytes 1Q x":                     `--bytes: "1Q" is not a number of bytes such as 1048576, 64K or 2G`,
		"run --tty=maybe x":                    `--tty: bool value must be true, 1, yes, false, 0 or no but got "maybe"`,
		"CLI_TEST_SIZE=-5":                     "--size is negative",
		"CLI_TEST_SIZE=x --size 1":             `--size: "x" is not a number (from the variable CLI_TEST_SIZE="x")`,
		"CLI_TEST_MODE=half":                   `--mode must be one of "none","full" but got "half"`,
		"CLI_TEST_BYTES=1Q run x":              `--bytes: "1Q" is not a number of bytes such as 1048576, 64K or 2G (from the variable CLI_TEST_BYTES="1Q")`,
		"CLI_TEST_ROLE=nobody keys create --name=n i": `--role must be one of "reader","writer" but got "nobody"`,
		"CLI_TEST_ROLE=nobody keys create --role= ":   `--role must be one of "reader","writer" but got ""`,
	} {
		t.Run(line, func(t *testing.T) {
			got, err := taken(t, line)
			rig.Is(t, fmt.Sprint(err), want, "%q is taken", got)
		})
	}
}

// TestHelp: what a terminal of 60 columns shows.
func TestHelp(t *testing.T) {
	t.Setenv("COLUMNS", "60")
	for path, want := range map[string]string{
		"": `Usage: program <command> [flags]

Does things.

  program serve  serves

Commands:
  serve             Serve. This is the default command.
  keys create       Make a key.
  keys list (ls)    List keys.
  only one          One.
  shell             A shell.
  run               Run a program.

Flags:
  -h, --help       Print this help.
      --version    Print the version.

Run "program <command> --help" for more information on a command.
`,
		"serve": `Usage: program serve [flags]

Serve. This is the default command.

It serves until it ends.

Examples:

    program --mode full

Flags:
  -h, --help              Print this help.
      --version           Print the version.

      --mode=MODE         Which mode: none or full
                          ($CLI_TEST_MODE).
      --size=N            How much. Default: 3, in a text
                          that is long enough to need more
                          than one line of a narrow terminal
                          ($CLI_TEST_SIZE).
  -a, --allow=USER,...    Who may.

More:
  --level=LEVEL    Which level. Default: low.
`,
	} {
		c := testProgram().Root()
		if path != "" {
			c = testProgram().Find(path)
		}
		var got strings.Builder
		rig.Must(t, c.Help(&got))
		rig.Same(t, path, want, got.String())
	}
}

// FuzzRead: of a line that is taken, Given finds the flags that Read has set: what is done because
// of one has to be about the other. A line that spells each of them out says the same. In the
// fuzzer's input each argument stands on a line of its own.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		"serve\n--mode\nfull", "run\n-e\nA=1\n-e\nB=2\n--\ntrue\n--x", "run\n-C/tmp/..\n-- x", "--size\n0x10", "--level=high\n-a1\n-a\n2,3",
		"run\n-C\n/a//b\ntrue", "run\n-ti\n-\nx", "\n--mode", "run\n--env=\ntrue", "--mode=\n--", "run\n-C\n/\xff\n\xff", "run\n--tty=no\n-te=\n--\n--",
		"keys\ncreate\n--role\nreader\ni\n--name=n", "keys\nls", "keys\ncreate\n--role=writer\n--name\nn\n--\n-i\n-", "run\n--dir=/\n--dir=/tmp\ntrue", "shell\nzsh", "run\n--rate=1e3\n--bytes\n2K\nx", "run\n-\n--tty", "run\n--=\n-t",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		args := strings.Split(text, "\n")
		p := testProgram()
		c, rest, err := p.command(args)
		if err != nil {
			return
		}
		r := reader{own: p.own()}
		r.enter(c)
		if r.words(rest) != nil || r.atOnce != "" || r.fields.Settle() != nil || r.check() != nil {
			return
		}
		given, _ := p.Given(args)
		plain := args[:len(args)-len(rest)]
		for i := range r.fields {
			f := &r.fields[i]
			if _, found := given[f.Name]; !f.Arguments && found != f.given && !slices.ContainsFunc(r.fields, begun) {
				t.Errorf("%q: Given has --%s %v, Read %v", args, f.Name, found, f.given)
			}
			if f.given && !f.Arguments {
				plain = append(plain[:len(plain):len(plain)], spelled(f)...)
			}
		}
		if len(r.fields) > 0 && !slices.ContainsFunc(r.fields, func(f Field) bool { return f.Passthrough }) {
			plain = append(plain[:len(plain):len(plain)], "--")
		}
		for i := range r.fields {
			if f := &r.fields[i]; f.given && f.Arguments {
				plain = append(plain[:len(plain):len(plain)], texts(f)...)
			}
		}
		again, err := p.Read(plain, nil)
		if err != nil {
			t.Fatalf("%q is taken, and %q not: %v", args, plain, err)
		}
		rig.Same(t, fmt.Sprintf("%q and %q", args, plain), r.flags, again.Flags, cmp.Comparer(func(a, b float64) bool { return a == b || a != a && b != b }))
	})
}

// begun reports whether the command line of another program begins with what looks like a flag of
// ours: a program refuses that.
func begun(f Field) bool {
	return f.Passthrough && f.value.Len() > 0 && looksLikeFlag(f.value.Index(0).String()) && f.value.Index(0).String() != "--"
}

// texts are the values of a field as on a command line.
func texts(f *Field) (all []string) {
	if !f.list() {
		return []string{fmt.Sprint(reflect.Indirect(f.value))}
	}
	for i := range f.value.Len() {
		all = append(all, fmt.Sprint(f.value.Index(i)))
	}
	return all
}

// spelled is a flag with each of its values in full.
func spelled(f *Field) (words []string) {
	for _, text := range texts(f) {
		words = append(words, "--"+f.Name+"="+text)
	}
	return words
}
