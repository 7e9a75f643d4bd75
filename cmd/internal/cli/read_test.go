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
	for _, row := range rig.Rows(t, "testdata/lines.txt", "read", 2) {
		t.Run(row[0], func(t *testing.T) {
			got, err := taken(t, row[0])
			rig.Must(t, err)
			rig.Is(t, got, row[1], "said")
		})
	}
}

// TestDashes: -- before a command is read as if it were behind it, once, and it is nowhere else moved.
func TestDashes(t *testing.T) {
	for _, row := range rig.Rows(t, "testdata/lines.txt", "dashes", 2) {
		got, err := testProgram().Here(strings.Fields(row[0]))
		rig.Must(t, err)
		rig.Is(t, strings.Join(got, " "), row[1], "%s", row[0])
	}
}

// TestMistakes: what is wrong with a line, in the order of what is looked at.
func TestMistakes(t *testing.T) {
	for _, row := range rig.Rows(t, "testdata/lines.txt", "mistakes", 2) {
		t.Run(row[0], func(t *testing.T) {
			got, err := taken(t, row[0])
			rig.Is(t, fmt.Sprint(err), row[1], "%q is taken", got)
		})
	}
}

// TestHelp: what a terminal shows of the program and of a command.
func TestHelp(t *testing.T) {
	t.Setenv("COLUMNS", "60")
	for _, s := range rig.Sections(t, "testdata/help.txt") {
		c := testProgram().Root()
		if s.Name != c.Name {
			c = testProgram().Find(s.Name)
		}
		var got strings.Builder
		rig.Must(t, c.Help(&got))
		rig.Same(t, s.Name, s.Text, got.String())
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
				plain = append(slices.Clip(plain), spelled(f)...)
			}
		}
		if len(r.fields) > 0 && !slices.ContainsFunc(r.fields, func(f Field) bool { return f.Passthrough }) {
			plain = append(slices.Clip(plain), "--")
		}
		for i := range r.fields {
			if f := &r.fields[i]; f.given && f.Arguments {
				plain = append(slices.Clip(plain), texts(f)...)
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
