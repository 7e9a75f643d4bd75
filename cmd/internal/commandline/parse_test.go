package commandline

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
)

// grammar has a flag or an argument of every kind that the programs have.
type grammar struct {
	Serve serveFlags `cmd:"" default:"withargs"`
	Keys  struct {
		Create createFlags `cmd:""`
		List   struct{}    `cmd:"" aliases:"ls"`
		Hidden struct{}    `cmd:"" hidden:""`
	} `cmd:""`
	Only struct {
		One struct{} `cmd:""`
	} `cmd:""`
	Shell struct {
		Shell string `arg:"" enum:"bash,zsh"`
	} `cmd:""`
	Run struct {
		Dir     string   `short:"C"`
		Command []string `arg:"" passthrough:""`
	} `cmd:""`

	Now nowFlag
}

type serveFlags struct {
	Mode  string  `default:"" enum:",none,full" env:"COMMANDLINE_MODE"`
	Level *string `enum:"low,high" default:"low"`
	Size  int     `default:"3" env:"COMMANDLINE_SIZE"`
	Allow []int   `short:"a"`
}

// Check is what Parse calls, Validate what kong does.
func (f *serveFlags) Check() error {
	if f.Size < 0 {
		return errors.New("--size is negative")
	}
	return nil
}

func (f *serveFlags) Validate() error { return f.Check() }

type createFlags struct {
	Role string   `required:"" enum:"reader,writer" env:"COMMANDLINE_ROLE"`
	Name string   `required:""`
	ID   string   `arg:"" name:"id"`
	More []string `arg:"" optional:""`
}

// nowFlag takes effect at once.
type nowFlag bool

func (nowFlag) BeforeReset(line *kong.Context) error {
	_, err := io.WriteString(line.Stdout, "now")
	line.Exit(9)
	return err
}

// asKong are lines with what Parse says of them; "" for nothing.
var asKong = map[string]string{
	"":                                     "",
	"--mode full --level high":             "",
	"--mode=":                              "",
	"--mode half":                          `--mode must be one of "none","full" but got "half"`,
	"--level middle":                       `--level must be one of "low","high" but got "middle"`,
	"serve --size 7 -a 1 -a2":              "",
	"--size=-1":                            "--size is negative",
	"--size x":                             `--size: expected a valid 64 bit int but got "x"`,
	"--size":                               `--size: expected int value but got "EOL" (<EOL>)`,
	"--nonsense":                           "unknown flag --nonsense",
	"serve x":                              "unexpected argument x",
	"keys":                                 `expected one of "create", "list"`,
	"keys ls":                              "",
	"keys hidden":                          "",
	"only":                                 `expected "one"`,
	"keys create":                          "missing flags: --name=STRING, --role=STRING",
	"keys create --role reader":            "missing flags: --name=STRING",
	"keys create --role reader --name n":   "<id> is missing",
	"keys create --role reader --name n i": "",
	"keys create --role reader --name n i j k": "",
	"keys create --role nobody --name n i":     `--role must be one of "reader","writer" but got "nobody"`,
	"shell":                                    "<shell> is missing",
	"shell zsh":                                "",
	"shell fish":                               `<shell> must be one of "bash","zsh" but got "fish"`,
	"run":                                      "<command> is missing",
	"run -C / make --help -C":                  "",
	"--now":                                    "",
	"--now --help":                             "",
	"--help --size x":                          `--size: expected a valid 64 bit int but got "x"`,
	"--help":                                   "",
	"keys create --help":                       "",
	"COMMANDLINE_SIZE=5":                       "",
	"COMMANDLINE_SIZE=-5":                      "--size is negative",
	"COMMANDLINE_SIZE=-5 --size 1":             "",
	"COMMANDLINE_MODE=half":                    `--mode must be one of "none","full" but got "half"`,
	"COMMANDLINE_MODE=half keys ls":            "",
	"COMMANDLINE_ROLE=writer keys create --name=n i":          "",
	"COMMANDLINE_ROLE=nobody keys create --name=n i":          `--role must be one of "reader","writer" but got "nobody"`,
	"COMMANDLINE_ROLE=nobody keys create --role= ":            `--role must be one of "reader","writer" but got ""`,
	"COMMANDLINE_ROLE=reader keys create --name=n --nonsense": "unknown flag --nonsense",
}

// exited is what the parser of a test panics with where that of a program exits.
type exited int

// outcome is what a parser makes of a line.
type outcome struct {
	Flags   grammar
	Command string
	Printed string
	Exit    exited // -1: it goes on
	Refused bool
}

// parseWith parses a line, with the variables before it.
func parseWith(t *testing.T, text string, parse func(*kong.Kong, []string) (*kong.Context, error)) (o outcome, err error) {
	t.Helper()
	args := strings.Fields(text)
	for len(args) > 0 && strings.HasPrefix(args[0], "COMMANDLINE_") {
		name, value, _ := strings.Cut(args[0], "=")
		t.Setenv(name, value)
		args = args[1:]
	}
	var printed strings.Builder
	parser, err := kong.New(&o.Flags, kong.Name("program"), kong.Writers(&printed, &printed), kong.Exit(func(code int) { panic(exited(code)) }))
	if err != nil {
		t.Fatal(err)
	}
	o.Exit = -1
	defer func() {
		switch r := recover().(type) {
		case nil:
		case exited:
			o.Exit = r
		default:
			panic(r)
		}
		o.Printed = printed.String()
	}()
	line, err := parse(parser, args)
	if err != nil {
		return outcome{Exit: -1, Refused: true}, err
	}
	o.Command = line.Command()
	return o, nil
}

// TestParse: Parse takes the lines that kong's own Parse takes, and fills in the same, prints the
// same and exits the same. Of a wrong one it says why.
func TestParse(t *testing.T) {
	for line, want := range asKong {
		t.Run(line, func(t *testing.T) {
			got, err := parseWith(t, line, Parse)
			said := ""
			if err != nil {
				said = err.Error()
			}
			if said != want {
				t.Errorf("it says %q, want %q", said, want)
			}
			theirs, _ := parseWith(t, line, (*kong.Kong).Parse)
			if diff := cmp.Diff(theirs, got); diff != "" {
				t.Errorf("(-kong +Parse):\n%s", diff)
			}
		})
	}
}

// TestParseGroups: flags that kong would check together are refused, where they would not be.
func TestParseGroups(t *testing.T) {
	t.Parallel()
	for _, flags := range []any{&struct {
		A bool `xor:"one"`
	}{}, &struct {
		A bool `and:"both"`
	}{}} {
		parser, err := kong.New(flags)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(parser, nil); err == nil {
			t.Errorf("%T is taken", flags)
		}
	}
}
