package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// repositoryURL is where the sources are, and where the artefacts are published.
const repositoryURL = "https://github.com/execagent/execagent"

// A release is one commit under one version, and the folders in which its artefacts are made.
type release struct {
	Tag        string // the version with its v: v0.1.0
	Commit     string
	Time       time.Time // of the commit; every file of the release has it
	Repository string    // the folder of the commit
	Work       string
	Dist       string
	Signer     *signer   // nil if the release is not signed
	PublicKey  []byte    // PEM; that of Signer, or of the release that is made again
	Builder    string    // the URI of the builder, such as the page of a workflow's run (SLSA 1.0, "builder.id")
	Started    time.Time // when the making began

	environ []string // of the commands that the steps run
	fixed   []string // those variables of it that decide the bytes of the artefacts
}

// check looks at what is released: the version, that the tree has no changes, and that the tag, if there is
// one, names this commit. It sets what follows from the commit.
func (r *release) check(ctx context.Context) error {
	if r.Tag == "" {
		return errors.New("-version is missing: name the version, such as v0.1.0")
	}
	if semver.Canonical(r.Tag) != r.Tag {
		return fmt.Errorf("-version: %q is not a semantic version such as v0.1.0 or v0.1.0-rc.1", r.Tag)
	}
	changed, err := r.output(ctx, r.Repository, "git", "status", "--porcelain")
	if err != nil {
		return err
	}
	if changed != "" {
		return fmt.Errorf("the tree has changes that are in no commit; commit or remove them:\n%s", changed)
	}
	head, err := r.output(ctx, r.Repository, "git", "log", "-1", "--format=%H %ct")
	if err != nil {
		return err
	}
	commit, seconds, _ := strings.Cut(head, " ")
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("the time of the commit: %w", err)
	}
	r.Commit, r.Time = commit, time.Unix(unix, 0).UTC()
	const target = "--format=%(if)%(*objectname)%(then)%(*objectname)%(else)%(objectname)%(end)"
	tagged, err := r.output(ctx, r.Repository, "git", "for-each-ref", target, "refs/tags/"+r.Tag)
	if err != nil {
		return err
	}
	if tagged != "" && tagged != commit {
		return fmt.Errorf("the tag %s names the commit %s, and the tree is at %s: check the tag out, or choose another version", r.Tag, tagged, commit)
	}
	changes, err := os.ReadFile(filepath.Join(r.Repository, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	if heading := "\n## [" + r.Version() + "]"; semver.Prerelease(r.Tag) == "" && !bytes.Contains(changes, []byte(heading)) {
		return fmt.Errorf("CHANGELOG.md has no line that begins with %q: write what the version brings", heading[1:])
	}
	goVersion, err := r.goVersion()
	if err != nil {
		return err
	}
	// Nothing of the caller's replaces these. A variable that is empty would leave the word to go env -w, so
	// defaults are written out.
	r.fixed = []string{
		"SOURCE_DATE_EPOCH=" + seconds, "TZ=UTC", "LC_ALL=C.UTF-8", "XZ_OPT=", "XZ_DEFAULTS=",
		"GOTOOLCHAIN=go" + goVersion, "GOFLAGS=-trimpath -buildvcs=true -mod=readonly", "GOWORK=off", "CGO_ENABLED=0",
		"GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=none", "GOFIPS140=off",
	}
	r.environ = append(r.environ, r.fixed...)
	return nil
}

// goVersion is the version of Go that go.mod names. Another version would make other bytes.
func (r *release) goVersion() (string, error) {
	path := filepath.Join(r.Repository, "go.mod")
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	file, err := modfile.ParseLax(path, data, nil)
	if err != nil {
		return "", err
	}
	if file.Go == nil {
		return "", fmt.Errorf("%s names no version of Go", path)
	}
	return file.Go.Version, nil
}

// Version is the version without its v, as packages and names of files have it.
func (r *release) Version() string { return strings.TrimPrefix(r.Tag, "v") }

// Source is the folder of the clone, or a path in it.
func (r *release) Source(path ...string) string {
	return filepath.Join(append([]string{r.Work, "source"}, path...)...)
}

// Stage is the folder of what is installed of a program for a target, or a path in it.
func (r *release) Stage(t target, program string, path ...string) string {
	return filepath.Join(append([]string{r.Work, "stage", t.String(), program}, path...)...)
}

// Artefact is the path of a file of the release.
func (r *release) Artefact(name string) string { return filepath.Join(r.Dist, name) }

// run runs a command in a folder. environ is added to the environment of the release.
func (r *release) run(ctx context.Context, folder string, environ []string, argv ...string) error {
	_, err := r.command(ctx, folder, environ, nil, argv)
	return err
}

// output runs a command in a folder, and returns what it has printed, without the last newlines.
func (r *release) output(ctx context.Context, folder string, argv ...string) (string, error) {
	out, err := r.command(ctx, folder, nil, nil, argv)
	return strings.TrimRight(string(out), "\n"), err
}

// filter runs a command that reads data, and returns what it has written.
func (r *release) filter(ctx context.Context, data []byte, argv ...string) ([]byte, error) {
	return r.command(ctx, r.Work, nil, data, argv)
}

func (r *release) command(ctx context.Context, folder string, environ []string, input []byte, argv []string) ([]byte, error) {
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Dir = folder
	c.Env = append(append([]string{}, r.environ...), environ...)
	c.Stdin = bytes.NewReader(input)
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("%w: install its package; docs/dev/release.md lists what a release needs", err)
	}
	if err != nil {
		said := strings.TrimSpace(cmp.Or(stderr.String(), stdout.String()))
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, said)
	}
	return stdout.Bytes(), nil
}
