package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// cloneSource makes the clone that everything is built from. The tag of a release may be made after its
// artefacts: so the clone has it, and the repository may not.
func cloneSource(ctx context.Context, r *release) error {
	if err := os.MkdirAll(r.Work, 0o755); err != nil {
		return err
	}
	if err := os.RemoveAll(r.Source()); err != nil {
		return err
	}
	for _, argv := range [][]string{
		{"git", "clone", "-q", "--no-tags", "--no-checkout", "--", r.Repository, r.Source()},
		{"git", "-C", r.Source(), "-c", "advice.detachedHead=false", "checkout", "-q", r.Commit},
		{"git", "-C", r.Source(), "-c", "tag.gpgSign=false", "tag", r.Tag, r.Commit},
	} {
		if err := r.run(ctx, r.Work, nil, argv...); err != nil {
			return err
		}
	}
	return nil
}

// buildPrograms builds every program for every target, and stages what is installed with it.
func buildPrograms(ctx context.Context, r *release) error {
	if err := os.RemoveAll(filepath.Join(r.Work, "stage")); err != nil {
		return err
	}
	for t, p := range builds() {
		if err := buildProgram(ctx, r, t, p); err != nil {
			return err
		}
	}
	// These texts are printed by programs that this machine can run, and are the same for every architecture.
	texts := filepath.Join(r.Work, "texts")
	if err := writeTexts(ctx, r, texts); err != nil {
		return err
	}
	for t, p := range builds() {
		if err := stageTexts(r, t, p, texts); err != nil {
			return fmt.Errorf("%s for %s: %w", p.Name, t, err)
		}
	}
	return nil
}

// buildProgram builds a program as make build does, and checks that Go has stamped the release into it.
func buildProgram(ctx context.Context, r *release, t target, p program) error {
	file := r.Stage(t, p.Name, "bin", t.Executable(p.Name))
	err := r.run(ctx, r.Source(), []string{"GOOS=" + t.System, "GOARCH=" + t.Architecture},
		"go", "build", "-ldflags", "-s -w", "-o", file, p.Package)
	if err != nil {
		return err
	}
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return err
	}
	stamp := map[string]string{"version": info.Main.Version}
	for _, s := range info.Settings {
		stamp[s.Key] = s.Value
	}
	for key, want := range map[string]string{"version": r.Tag, "vcs.revision": r.Commit, "vcs.modified": "false"} {
		if stamp[key] != want {
			return fmt.Errorf("%s for %s: its %s is %q, want %q: has a build changed files of the clone?", p.Name, t, key, stamp[key], want)
		}
	}
	return nil
}

// completions are the files of the completion scripts below the folder of a program, by shell.
var completions = map[string]string{
	"bash": "share/bash-completion/completions/%s",
	"zsh":  "share/zsh/site-functions/_%s",
	"fish": "share/fish/vendor_completions.d/%s.fish",
}

// writeTexts writes the man pages and the completion scripts of each program to a folder of its name.
func writeTexts(ctx context.Context, r *release, texts string) error {
	here := target{"linux", runtime.GOARCH}
	if err := os.RemoveAll(texts); err != nil {
		return err
	}
	for _, p := range programs {
		if !p.Shells {
			continue
		}
		binary := r.Stage(here, p.Name, "bin", p.Name)
		if _, err := os.Stat(binary); err != nil {
			return fmt.Errorf("the man pages are made by running the programs, so a release is made on Linux, on amd64 or arm64: %w", err)
		}
		pages := filepath.Join(texts, p.Name, "share/man/man1")
		if err := os.MkdirAll(pages, 0o755); err != nil {
			return err
		}
		if err := r.run(ctx, r.Source(), nil, "sh", "tools/man.sh", pages, binary); err != nil {
			return err
		}
		for shell, name := range completions {
			script, err := r.output(ctx, r.Source(), binary, "completion", shell)
			if err != nil {
				return err
			}
			if err := writeFile(filepath.Join(texts, p.Name, fmt.Sprintf(name, p.Name)), []byte(script+"\n")); err != nil {
				return err
			}
		}
	}
	return nil
}

// stageTexts copies what belongs to a program beside its binary: the texts that it has printed, units and
// documents. Man pages and units are for Linux alone, because they describe what the program does there.
func stageTexts(r *release, t target, p program, texts string) error {
	stage := r.Stage(t, p.Name)
	if p.Shells {
		text := filepath.Join(texts, p.Name, "share")
		err := copyTree(text, filepath.Join(stage, "share"), func(path string) bool {
			return t.System == "linux" || filepath.Dir(path) != "man/man1"
		})
		if err != nil {
			return err
		}
	}
	if t.System == "linux" {
		for _, unit := range p.Units {
			if err := copyFile(r.Source("deploy/systemd", unit), filepath.Join(stage, "lib/systemd/system", unit)); err != nil {
				return err
			}
		}
		for _, extra := range p.Extra {
			if err := copyFile(r.Source(extra), filepath.Join(stage, "share/doc", p.Product, filepath.Base(extra))); err != nil {
				return err
			}
		}
	}
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
		if err := copyFile(r.Source(name), filepath.Join(stage, "share/doc", p.Product, name)); err != nil {
			return err
		}
	}
	return nil
}

// writeFile writes a file, and makes the folder that it lies in.
func writeFile(path string, data []byte) error {
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o644))
}

// copyFile copies a file, and makes the folder that it lies in.
func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return writeFile(to, data)
}

// copyTree copies the files of a folder whose paths below it are wanted.
func copyTree(from, to string, wanted func(path string) bool) error {
	return filepath.WalkDir(from, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		below, err := filepath.Rel(from, path)
		if err != nil || !wanted(below) {
			return err
		}
		return copyFile(path, filepath.Join(to, below))
	})
}
