// Command conformance-suite checks an executor, a client or recorded messages of the protocol, and writes a
// report. README.md explains it.
package main

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path"
	"strings"
	"syscall"

	"github.com/execagent/execagent/conformance/internal/suite"
)

//go:embed cases expected
var data embed.FS

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	code, err := run(ctx, os.Args[1:], os.Stdout)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "conformance-suite:", err)
	}
	os.Exit(code)
}

const usage = `Check an executor, a client or recorded messages of the protocol (docs/protocol), and write a report.

  conformance-suite --url ws://127.0.0.1:7000 [--command 'agent --listen stdio']
  conformance-suite --command 'agent --listen stdio'
  conformance-suite --client 'agent exec --url {url} --'
  conformance-suite --recordings FILE.jsonl...

The executor must run on this host, with the same files. The status is 0 if no case has failed, 1 if one has, and 2
if the suite could not run. If the executor wants a token, $TOKEN has it.

`

// run checks what the arguments say, and returns the status.
func run(ctx context.Context, args []string, out io.Writer) (status int, err error) {
	s := suite.Suite{Token: os.Getenv("TOKEN")}
	flags := flag.NewFlagSet("conformance-suite", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	flags.StringVar(&s.URL, "url", "", "the executor listens at this `URL` of ws, wss or unix")
	flags.StringVar(&s.Command, "command", "", "this `command` is an executor on its standard input and output; with --url it serves the cases that need one of their own")
	flags.StringVar(&s.Client, "client", "", "this `command` is a client: it runs the command line that follows it at the executor {url}, as ssh does")
	expected := flags.String("expected", "", "a `list` of expected differences: a file, or one of "+strings.Join(lists(), ", "))
	flags.StringVar(&s.Case, "case", "", "only cases whose names match this `pattern`, such as 'process-*'")
	flags.StringVar(&s.Area, "area", "", "only cases of this `area`")
	flags.BoolVar(&s.Slow, "slow", false, "also cases that take more than a second")
	flags.BoolVar(&s.Exact, "exact", false, "members of answers that only some executors send have to be there")
	flags.Float64Var(&s.Scale, "time-scale", 1, "multiply all time limits by this `factor`, for a slow machine")
	flags.IntVar(&s.Parallel, "parallel", 4, "run this `number` of cases at once")
	flags.StringVar(&s.Folder, "folder", "", "where the cases make their files; default: the temporary folder")
	junit := flags.String("junit", "", "write the report as JUnit XML to this `file`, too")
	markdown := flags.String("markdown", "", "write the report to this `file`, and not to the standard output")
	verbose := flags.Bool("verbose", false, "show what the checked program writes to its standard error")
	recordings := flags.Bool("recordings", false, "the arguments are files with recorded messages")
	list := flags.Bool("list", false, "list the cases and end")
	if err := flags.Parse(args); err != nil {
		return 2, err
	}
	if *verbose {
		s.Log = os.Stderr
	}
	cases, err := suite.LoadCases(sub("cases/executor"))
	if err != nil {
		return 2, err
	}
	clientCases, err := suite.LoadClientCases(sub("cases/client"))
	if err != nil {
		return 2, err
	}
	var names []string
	show := func(of, area, section, name string) {
		names = append(names, name)
		if *list {
			fmt.Fprintf(out, "%-9s %-18s %-20s %s\n", of, area, section, name)
		}
	}
	for _, c := range cases {
		show("executor", c.Area, c.Section, c.Name)
	}
	for _, c := range clientCases {
		show("client", c.Area, c.Section, c.Name)
	}
	if *list {
		return 0, nil
	}
	checked := 0 // how many kinds of things
	for _, asked := range []bool{s.URL != "" || s.Command != "", s.Client != "", *recordings} {
		if asked {
			checked++
		}
	}
	switch _, patternErr := path.Match(s.Case, ""); {
	case *recordings != (flags.NArg() != 0):
		return 2, fmt.Errorf("%q: files of recordings need --recordings, and --recordings needs files", flags.Args())
	case checked != 1:
		return 2, errors.New("one of --url or --command, --client and --recordings is needed: what is to be checked")
	case s.Client != "" && !strings.Contains(s.Client, "{url}"):
		return 2, errors.New("--client: {url} is missing, where the URL of the executor goes")
	case s.Parallel < 1 || s.Scale <= 0:
		return 2, errors.New("--parallel and --time-scale must be greater than 0")
	case patternErr != nil:
		return 2, fmt.Errorf("--case %q: %w", s.Case, patternErr)
	}
	if *expected != "" {
		text, err := data.ReadFile("expected/" + *expected + ".json")
		if err != nil {
			text, err = os.ReadFile(*expected)
		}
		if err == nil {
			s.Expected, err = suite.ReadExpected(text)
		}
		if unused := s.Expected.Unused(names); err == nil && len(unused) != 0 {
			err = fmt.Errorf("there are no cases %q", unused)
		}
		if err != nil {
			return 2, fmt.Errorf("--expected: %w", err)
		}
	}
	syscall.Umask(0o022) // the cases expect it of the files that they make
	var report *suite.Report
	switch {
	case *recordings:
		report, err = suite.CheckRecordings(flags.Args())
	case s.Client != "":
		report, err = s.CheckClient(ctx, clientCases)
	default:
		report, err = s.CheckExecutor(ctx, cases)
	}
	if err != nil {
		return 2, err
	}
	if err := errors.Join(write(*junit, nil, report.JUnit), write(*markdown, out, report.Markdown)); err != nil {
		return 2, err
	}
	if report.Count("", suite.Failed) != 0 {
		return 1, nil
	}
	return 0, nil
}

// sub is a folder of the data.
func sub(name string) fs.FS {
	folder, err := fs.Sub(data, name)
	if err != nil {
		panic(err) // the name is a constant
	}
	return folder
}

// lists are the names of the lists of expected differences that are built in.
func lists() (names []string) {
	files, _ := fs.Glob(data, "expected/*.json")
	for _, file := range files {
		names = append(names, strings.TrimSuffix(path.Base(file), ".json"))
	}
	return names
}

// write writes a report to a file, or to instead if there is no name of one; nil: nowhere.
func write(name string, instead io.Writer, report func(io.Writer) error) error {
	if name == "" {
		if instead == nil {
			return nil
		}
		return report(instead)
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644) // a report replaces an older one
	if err != nil {
		return err
	}
	return errors.Join(report(f), f.Close())
}
