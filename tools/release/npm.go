package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// npmFolder is the folder below dist of the packages for npm.
const npmFolder = "npm"

// platformWords are the words of Node for a system or an architecture, where these are not Go's.
var platformWords = map[string]string{"windows": "win32", "amd64": "x64"}

// A manifest is a package.json, in the order of its fields.
type manifest struct {
	Name                 string            `json:"name"`
	Version              string            `json:"version"`
	Description          string            `json:"description"`
	License              string            `json:"license"`
	Keywords             []string          `json:"keywords,omitempty"`
	Homepage             string            `json:"homepage"`
	Bugs                 string            `json:"bugs"`
	Repository           map[string]string `json:"repository"`
	Bin                  map[string]string `json:"bin,omitempty"`
	Engines              map[string]string `json:"engines,omitempty"`
	OS                   []string          `json:"os,omitempty"`
	CPU                  []string          `json:"cpu,omitempty"`
	PreferUnplugged      bool              `json:"preferUnplugged,omitempty"` // Yarn unpacks it, because a program in a zip cannot run
	OptionalDependencies map[string]string `json:"optionalDependencies,omitempty"`
	PublishConfig        map[string]string `json:"publishConfig"`
}

// writeNPM writes the package of the agent, one with the program for each platform, and the client for TypeScript.
// npm installs the one for its own platform, because the others name another one.
func writeNPM(ctx context.Context, r *release) error {
	if err := os.RemoveAll(r.Artefact(npmFolder)); err != nil {
		return err
	}
	text, err := os.ReadFile(r.Source("deploy/npm/package.json"))
	if err != nil {
		return err
	}
	var agent manifest
	fields := json.NewDecoder(bytes.NewReader(text))
	fields.DisallowUnknownFields() // a field that is not in the struct would be lost
	if err := fields.Decode(&agent); err != nil {
		return fmt.Errorf("deploy/npm/package.json: %w", err)
	}
	agent.Version = r.Version()
	agent.OptionalDependencies = map[string]string{}
	for _, t := range targets {
		if !programs[0].For(t) {
			continue
		}
		platform, err := writePlatform(ctx, r, t, agent)
		if err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		agent.OptionalDependencies[platform] = agent.Version
	}
	files := []entry{{Name: "LICENSE", Mode: 0o644}, {Name: "README.md", Mode: 0o644}, {Name: "agent.js", Mode: 0o755}}
	for i, from := range []string{"LICENSE", "deploy/npm/README.md", "deploy/npm/agent.js"} {
		if files[i].Data, err = os.ReadFile(r.Source(from)); err != nil {
			return err
		}
	}
	if err := packNPM(ctx, r, agent, files); err != nil {
		return err
	}
	return writeTypeScript(ctx, r)
}

// writePlatform writes the package with the agent's programs for a target, and returns its name.
func writePlatform(ctx context.Context, r *release, t target, agent manifest) (string, error) {
	system, architecture := cmp.Or(platformWords[t.System], t.System), cmp.Or(platformWords[t.Architecture], t.Architecture)
	platform := manifest{
		Name: fmt.Sprintf("%s-%s-%s", agent.Name, system, architecture), Version: agent.Version,
		Description: fmt.Sprintf("The programs of %s for %s on %s", agent.Name, system, architecture),
		License:     agent.License, Homepage: agent.Homepage, Bugs: agent.Bugs, Repository: agent.Repository,
		OS: []string{system}, CPU: []string{architecture}, PreferUnplugged: true, PublishConfig: agent.PublishConfig,
	}
	programs, licenses, err := agentFiles(r, t)
	if err != nil {
		return "", err
	}
	readme := fmt.Sprintf("# %s\n\n%s. Install %s, which depends on this package.\n", platform.Name, platform.Description, agent.Name)
	files := append(under("bin", programs), under("", licenses)...)
	return platform.Name, packNPM(ctx, r, platform, append(files, entry{Name: "README.md", Mode: 0o644, Data: []byte(readme)}))
}

// agentFiles are what a package of the agent has for a target: its programs, and the licences of what they are made of.
func agentFiles(r *release, t target) (executables, licenses []entry, err error) {
	license, err := os.ReadFile(r.Source("LICENSE"))
	licenses = []entry{{Name: "LICENSE", Mode: 0o644, Data: license}}
	for _, p := range programs {
		if err != nil {
			return nil, nil, err
		}
		if !p.For(t) || !slices.Contains(bundles[0].Programs, p.Name) {
			continue
		}
		var program, others []byte
		if program, err = os.ReadFile(r.Stage(t, p.Name, "bin", t.Executable(p.Name))); err == nil {
			others, err = os.ReadFile(r.Stage(t, p.Name, "share/doc", p.Product, thirdPartyLicenses))
		}
		executables = append(executables, entry{Name: t.Executable(p.Name), Mode: 0o755, Data: program})
		licenses = append(licenses, entry{Name: p.Name + "-" + thirdPartyLicenses, Mode: 0o644, Data: others})
	}
	return executables, licenses, err
}

// under is files with their names below a folder.
func under(folder string, files []entry) []entry {
	var below []entry
	for _, file := range files {
		file.Name = path.Join(folder, file.Name)
		below = append(below, file)
	}
	return below
}

// packNPM writes a package of a manifest and files, under the name that npm pack gives it.
func packNPM(ctx context.Context, r *release, m manifest, files []entry) error {
	var text bytes.Buffer
	fields := json.NewEncoder(&text)
	fields.SetEscapeHTML(false)
	fields.SetIndent("", "  ")
	if err := fields.Encode(m); err != nil {
		return err
	}
	files = append([]entry{{Name: "package.json", Mode: 0o644, Data: text.Bytes()}}, files...)
	return writeNPMPackage(ctx, r, m.Name, files)
}

// writeNPMPackage compresses the files of a package as the archives are, so that the machine's npm and zlib decide
// about no byte.
func writeNPMPackage(ctx context.Context, r *release, name string, files []entry) error {
	var archive bytes.Buffer
	if err := packTar(&archive, r, under("package", files)); err != nil {
		return err
	}
	data, err := r.filter(ctx, archive.Bytes(), compressors["tar.gz"]...)
	if err != nil {
		return err
	}
	file := strings.NewReplacer("@", "", "/", "-").Replace(name) + "-" + r.Version() + ".tgz"
	return writeFile(r.Artefact(filepath.Join(npmFolder, file)), data)
}

// writeTypeScript packs the client for TypeScript: npm builds it, and decides which files are in it.
func writeTypeScript(ctx context.Context, r *release) error {
	work := filepath.Join(r.Work, npmFolder)
	folder := filepath.Join(work, "sdk/typescript")
	if err := copySDK(r, work, "typescript"); err != nil {
		return err
	}
	if err := rewrite(filepath.Join(folder, "package.json"), `"version": "0.0.0-dev"`, fmt.Sprintf(`"version": %q`, r.Version())); err != nil {
		return err
	}
	for _, argv := range [][]string{
		{"npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"},
		{"npm", "pack", "--pack-destination", work},
	} {
		if err := r.run(ctx, folder, nil, argv...); err != nil {
			return err
		}
	}
	packed, err := filepath.Glob(filepath.Join(work, "*.tgz"))
	if err != nil || len(packed) != 1 {
		return fmt.Errorf("npm pack has made %d packages in %s, want one: %w", len(packed), work, err)
	}
	files, err := readNPMPackage(packed[0])
	if err != nil {
		return fmt.Errorf("%s: %w", packed[0], err)
	}
	return writeNPMPackage(ctx, r, "@execagent/client", files)
}

// readNPMPackage reads the files of a package of npm. None of the client's is a program.
func readNPMPackage(file string) ([]entry, error) {
	data, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = data.Close() }() // it was only read
	unpacked, err := gzip.NewReader(data)
	if err != nil {
		return nil, err
	}
	var files []entry
	for archive := tar.NewReader(unpacked); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		name, inside := strings.CutPrefix(header.Name, "package/")
		if !inside || header.Typeflag != tar.TypeReg {
			return nil, fmt.Errorf("%q is no file of a package", header.Name)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			return nil, err
		}
		files = append(files, entry{Name: name, Mode: 0o644, Data: content})
	}
}

// copySDK copies a client and the licence to a folder, as they lie in the repository, because a build writes
// files beside its sources, and the clone has to stay as it is.
func copySDK(r *release, work, name string) error {
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	all := func(string) bool { return true }
	return errors.Join(
		copyTree(r.Source("sdk", name), filepath.Join(work, "sdk", name), all),
		copyFile(r.Source("LICENSE"), filepath.Join(work, "LICENSE")))
}

// rewrite replaces the only place of a text in a file.
func rewrite(file, old, text string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if n := strings.Count(string(data), old); n != 1 {
		return fmt.Errorf("%s has %q %d times, want once", file, old, n)
	}
	return writeFile(file, []byte(strings.Replace(string(data), old, text, 1)))
}
