package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A step makes one kind of artefact.
type step struct {
	name string
	what string
	run  func(context.Context, *release) error
}

// steps are in the order in which they run. A step may read what the steps above it have made.
var steps = []step{
	{"source", "clones the commit, and tags the clone", cloneSource},
	{"programs", "builds the programs, and stages them with man pages, completions and units", buildPrograms},
	{"licenses", "writes the licence texts of what is linked into each program", stageLicenses},
	{"archives", "packs the staged folders", packArchives},
	{"packages", "packs the staged folders for Debian, Fedora and Alpine", writePackages},
	{"npm", "packs the agent and the client for TypeScript for npm", writeNPM},
	{"pypi", "packs the agent and the client for Python for PyPI", writePyPI},
	{"installer", "writes the version and the public key into install.sh", writeInstaller},
	{"sboms", "writes what each program is made of, as SPDX and as CycloneDX", writeSBOMs},
	{"images", "writes the images of the agent and of the registry, with their SBOMs", writeImages},
	{"chart", "writes the Helm chart, alone and for a registry of images", writeChart},
	{"formula", "writes the formula of Homebrew", writeFormula},
	{"sums", "writes SHA256SUMS", writeSums},
	{"sign", "signs the sums, if there is a key", signSums},
	{"attest", "writes and signs the provenance, if there is a key", attest},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// run makes what the command line asks for.
func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	repository := flags.String("repository", ".", "the `folder` of the repository whose commit is released")
	version := flags.String("version", "", "the `version` that is released, such as v0.1.0")
	dist := flags.String("dist", "dist", "the `folder` of the artefacts; it has to be empty unless -steps is given")
	work := flags.String("work", "", "the `folder` of the clone and of the staged files, which is kept; a temporary folder if it is empty")
	key := flags.String("key", "", "the `file` of cosign's private key; its password is in "+passwordVariable+". Nothing is signed without a key")
	public := flags.String("public-key", "", "the `file` of the public key of a release that is made again, for its installer; with -key it is that key's")
	builder := flags.String("builder", repositoryURL+"/blob/main/docs/dev/release.md", "the `URI` of the builder, which the provenance of the release names")
	only := flags.String("steps", "", "the `names` of the steps to run, separated by commas, on what earlier steps left in -work; all if it is empty")
	licenses := flags.Bool("check-licenses", false, "compare "+licenseList+" with what the programs link, and make nothing")
	list := flags.Bool("list", false, "print the steps, and make nothing")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	case flags.NArg() > 0:
		return fmt.Errorf("%q is not an option", flags.Arg(0))
	case *key != "" && *public != "":
		return errors.New("-public-key is for those who have no -key: name one of them")
	case *only != "" && *work == "":
		return errors.New("-steps needs -work, the folder in which earlier steps left their files")
	}
	chosen, err := choose(*only)
	if err != nil {
		return err
	}
	r := &release{Tag: *version, Builder: *builder, Started: time.Now(), environ: os.Environ()}
	for absolute, path := range map[*string]string{&r.Repository: *repository, &r.Dist: *dist, &r.Work: *work} {
		if *absolute, err = filepath.Abs(path); err != nil {
			return err
		}
	}
	switch {
	case *list:
		for _, s := range steps {
			fmt.Printf("%-10s %s\n", s.name, s.what)
		}
		return nil
	case *licenses:
		_, _, err := checkLicenses(ctx, r, r.Repository)
		return err
	}
	if err := r.check(ctx); err != nil {
		return err
	}
	if *key != "" {
		if r.Signer, err = readSigner(*key); err != nil {
			return fmt.Errorf("-key: %w", err)
		}
		r.PublicKey = r.Signer.public
	}
	if *public != "" {
		if r.PublicKey, err = readPublicKey(*public); err != nil {
			return fmt.Errorf("-public-key: %w", err)
		}
	}
	if *only == "" {
		if err := mustBeEmpty(r.Dist); err != nil {
			return err
		}
	}
	if *work == "" {
		if r.Work, err = os.MkdirTemp("", "execagent-release-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(r.Work)) }()
	}
	for _, s := range chosen {
		start := time.Now()
		if err := s.run(ctx, r); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Fprintf(os.Stderr, "release: %-10s %6.1f s\n", s.name, time.Since(start).Seconds())
	}
	return nil
}

// choose returns the steps of a list of names, in the order in which they run.
func choose(names string) ([]step, error) {
	if names == "" {
		return steps, nil
	}
	wanted := strings.Split(names, ",")
	for _, name := range wanted {
		if !slices.ContainsFunc(steps, func(s step) bool { return s.name == name }) {
			return nil, fmt.Errorf("-steps: there is no step %q; -list prints the steps", name)
		}
	}
	var chosen []step
	for _, s := range steps {
		if slices.Contains(wanted, s.name) {
			chosen = append(chosen, s)
		}
	}
	return chosen, nil
}

// mustBeEmpty reports a folder that holds files, because files of another release would be signed with this one.
func mustBeEmpty(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("-dist: %s is not empty, it holds %s: remove the folder, or name another one", folder, entries[0].Name())
	}
	return nil
}
