package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// pypiFolder is the folder below dist of the packages for PyPI.
const pypiFolder = "pypi"

// backend lists what builds the client for Python.
//
//go:embed backend.txt
var backend string

// machines are the words of a wheel for an architecture, by system.
var machines = map[string]map[string]string{
	"linux":   {"amd64": "x86_64", "arm64": "aarch64"},
	"darwin":  {"amd64": "x86_64", "arm64": "arm64"},
	"windows": {"amd64": "amd64", "arm64": "arm64"},
}

// platformTags are what a wheel says of the systems that it is for. A static program needs no C library, so it is for
// the oldest ones that pip knows, of GNU and of musl. macOS 12 is the oldest that Go 1.26 knows.
var platformTags = map[string][]string{
	"linux":   {"manylinux_2_17_%s", "manylinux2014_%s", "musllinux_1_1_%s"},
	"darwin":  {"macosx_12_0_%s"},
	"windows": {"win_%s"},
}

// writePyPI writes a wheel with the agent's programs for each target, and the client for Python.
func writePyPI(ctx context.Context, r *release) error {
	if err := os.RemoveAll(r.Artefact(pypiFolder)); err != nil {
		return err
	}
	version := pythonVersion(r.Version())
	for _, t := range targets {
		if !programs[0].For(t) {
			continue
		}
		if err := writeWheel(r, t, version); err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
	}
	return writePython(ctx, r, version)
}

// writeWheel writes the wheel of a target. Its scripts are the programs themselves.
func writeWheel(r *release, t target, version string) error {
	var tags []string
	for _, tag := range platformTags[t.System] {
		tags = append(tags, fmt.Sprintf(tag, machines[t.System][t.Architecture]))
	}
	scripts, licenses, err := agentFiles(r, t)
	if err != nil {
		return err
	}
	if t.System != "windows" {
		alias, err := os.ReadFile(r.Source("deploy/pypi/execagent-agent"))
		if err != nil {
			return err
		}
		scripts = append(scripts, entry{Name: "execagent-agent", Mode: 0o755, Data: alias})
	}
	metadata, err := wheelMetadata(r, version, licenses)
	if err != nil {
		return err
	}
	wheel := "Wheel-Version: 1.0\nGenerator: execagent-release\nRoot-Is-Purelib: false\n"
	for _, tag := range tags {
		wheel += "Tag: py3-none-" + tag + "\n"
	}
	name := "execagent_agent-" + version
	files := under(name+".data/scripts", scripts)
	files = append(files, under(name+".dist-info", []entry{
		{Name: "METADATA", Mode: 0o644, Data: metadata},
		{Name: "WHEEL", Mode: 0o644, Data: []byte(wheel)},
	})...)
	files = append(files, under(name+".dist-info/licenses", licenses)...)
	files = append(files, record(name+".dist-info/RECORD", files))
	var archive bytes.Buffer
	if err := packZip(&archive, r, files); err != nil {
		return err
	}
	file := fmt.Sprintf("%s-py3-none-%s.whl", name, strings.Join(tags, "."))
	return writeFile(r.Artefact(filepath.Join(pypiFolder, file)), archive.Bytes())
}

// wheelMetadata is the description of the wheel: the fields of the repository's with the version and the licences of
// this wheel, and the text of its page.
func wheelMetadata(r *release, version string, licenses []entry) ([]byte, error) {
	fields, err := os.ReadFile(r.Source("deploy/pypi/METADATA"))
	if err != nil {
		return nil, err
	}
	readme, err := os.ReadFile(r.Source("deploy/pypi/README.md"))
	if err != nil {
		return nil, err
	}
	metadata := fmt.Sprintf("Metadata-Version: 2.4\nName: execagent-agent\nVersion: %s\n%s", version, fields)
	for _, license := range licenses {
		metadata += "License-File: " + license.Name + "\n"
	}
	return append([]byte(metadata+"\n"), readme...), nil
}

// record lists the files of a wheel with their sums. It cannot list its own.
func record(name string, files []entry) entry {
	var lines strings.Builder
	for _, file := range files {
		sum := sha256.Sum256(file.Data)
		fmt.Fprintf(&lines, "%s,sha256=%s,%d\n", file.Name, base64.RawURLEncoding.EncodeToString(sum[:]), len(file.Data))
	}
	fmt.Fprintf(&lines, "%s,,\n", name)
	return entry{Name: name, Mode: 0o644, Data: []byte(lines.String())}
}

// writePython builds the client for Python, as its sources and as a wheel, by its own backend.
func writePython(ctx context.Context, r *release, version string) error {
	work := filepath.Join(r.Work, pypiFolder)
	folder := filepath.Join(work, "sdk/python")
	if err := copySDK(r, work, "python"); err != nil {
		return err
	}
	// A backend looks for the licence beside pyproject.toml.
	if err := os.Rename(filepath.Join(work, "LICENSE"), filepath.Join(folder, "LICENSE")); err != nil {
		return err
	}
	if err := rewrite(filepath.Join(folder, "src/execagent/_version.py"), `"0.0.0.dev0"`, fmt.Sprintf("%q", version)); err != nil {
		return err
	}
	list := filepath.Join(work, "backend.txt")
	if err := writeFile(list, []byte(backend)); err != nil {
		return err
	}
	venv := filepath.Join(work, "venv")
	python := filepath.Join(venv, "bin/python")
	for _, argv := range [][]string{
		{"python3", "-m", "venv", venv},
		{python, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--requirement", list},
		{python, "-m", "hatchling", "build", "--directory", r.Artefact(pypiFolder)},
	} {
		if err := r.run(ctx, folder, nil, argv...); err != nil {
			return err
		}
	}
	return nil
}

var prerelease = regexp.MustCompile(`^(alpha|beta|rc|dev)\.?([0-9]+)$`)

// pythonVersion is a semantic version as PyPI writes it: 0.1.0-rc.1 is 0.1.0rc1. A pre-release that PyPI has no word for
// becomes a local version, which nobody can upload.
func pythonVersion(version string) string {
	number, pre, found := strings.Cut(version, "-")
	if !found {
		return number
	}
	if known := prerelease.FindStringSubmatch(pre); known != nil {
		return number + map[string]string{"alpha": "a", "beta": "b", "rc": "rc", "dev": ".dev"}[known[1]] + known[2]
	}
	return number + ".dev0+" + strings.ToLower(strings.ReplaceAll(pre, "-", "."))
}
