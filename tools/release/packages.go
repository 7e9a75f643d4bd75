package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/apk" // a format of nfpm
	_ "github.com/goreleaser/nfpm/v2/deb" // the same
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // the same
)

// A bundle is a package of a distribution, with one or more programs.
type bundle struct {
	Name     string
	Summary  string
	Text     string // for people who search for a package, in lines
	Programs []string
}

var bundles = []bundle{
	{
		Name: "execagent", Programs: []string{"agent", "agent-mcp"},
		Summary: "executor for coding agents that confines each command",
		Text: "The agent runs processes, file operations and HTTP requests for clients that\n" +
			"speak the protocol of codex exec-server. It confines each command as its\n" +
			"client asks, also in containers that forbid user namespaces.",
	},
	{
		Name: "execagent-registry", Programs: []string{"registry"},
		Summary: "registry and rendezvous for agents behind firewalls",
		Text: "Agents register at the registry, and clients reach them through it, encrypted\n" +
			"from end to end. It keeps its state in a folder or on a cluster of NATS.",
	},
}

// A format is a kind of package.
type format struct {
	Name    string
	File    string // the pattern of its files' names, of the name, version and architecture of a package
	Systemd bool   // its systems have systemd
	Zsh     string // the folder of zsh's completions
}

var formats = []format{
	{"deb", "%s_%s_%s.deb", true, "share/zsh/vendor-completions"},
	{"rpm", "%s-%s-1.%s.rpm", true, "share/zsh/site-functions"},
	{"apk", "%s_%s_%s.apk", false, "share/zsh/site-functions"},
}

// architectures are the names of an architecture in packages that are not Debian's.
var architectures = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// maintainer is whom a package names as the one to ask.
const maintainer = "The execagent maintainers <maintainers@execagent.dev>"

// writePackages writes the packages of every format for each Linux target.
func writePackages(_ context.Context, r *release) error {
	for _, t := range targetsOf("linux") {
		for _, b := range bundles {
			for _, f := range formats {
				architecture := architectures[t.Architecture]
				if f.Name == "deb" {
					architecture = t.Architecture
				}
				// Not with the package's own spelling of a pre-release: forges write other names in place of a ~.
				name := fmt.Sprintf(f.File, b.Name, r.Version(), architecture)
				data, err := packBundle(r, t, b, f)
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				if err := writeFile(r.Artefact(name), data); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func packBundle(r *release, t target, b bundle, f format) ([]byte, error) {
	// nfpm reads files, and installs others than the stages have. So they are written to a folder of their own.
	folder := filepath.Join(r.Work, "packages", f.Name, t.String(), b.Name)
	if err := os.RemoveAll(folder); err != nil {
		return nil, err
	}
	units, err := placePrograms(r, t, b, f, folder)
	if err != nil {
		return nil, err
	}
	info := &nfpm.Info{
		Name: b.Name, Arch: t.Architecture, Platform: "linux", Version: r.Version(), Section: "admin", Priority: "optional",
		Maintainer: maintainer, Description: b.Summary + "\n" + b.Text,
		Homepage: repositoryURL, License: "Apache-2.0", Vendor: "execagent", MTime: r.Time,
	}
	info.RPM.Summary, info.RPM.BuildHost, info.RPM.Group, info.RPM.Compression = b.Summary, "localhost", "Development/Tools", "zstd"
	info.Deb.Compression = "gzip" // lintian does not know zstd, and xz in Go takes 20 s for each package
	switch f.Name {
	case "deb":
		if err := addDebianDocuments(r, b, folder); err != nil {
			return nil, err
		}
	case "apk":
		if info.Version, err = alpineVersion(r.Version()); err != nil {
			return nil, err
		}
		info.VersionSchema = "none"
	}
	if f.Systemd {
		if err := addService(r, b, folder, units, &info.Scripts); err != nil {
			return nil, err
		}
	}
	entries, err := readStage(folder, "/")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Mode.IsDir() {
			continue
		}
		info.Contents = append(info.Contents, &files.Content{
			Source: filepath.Join(folder, e.Name), Destination: e.Name, Type: files.TypeFile,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: e.Mode, MTime: r.Time},
		})
	}
	packager, err := nfpm.Get(f.Name)
	if err != nil {
		return nil, err
	}
	info = nfpm.WithDefaults(info)
	if err := nfpm.PrepareForPackager(info, f.Name); err != nil {
		return nil, err
	}
	var data bytes.Buffer
	err = packager.Package(info, &data)
	return data.Bytes(), err
}

// placePrograms writes the files of the programs of a package to a folder. It returns the names of their units.
func placePrograms(r *release, t target, b bundle, f format, folder string) (units []string, err error) {
	for _, name := range b.Programs {
		entries, err := readStage(r.Stage(t, name), "")
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.Mode.IsDir() {
				continue
			}
			to, data := place(b, f, name, e)
			if to == "" {
				continue
			}
			if strings.HasSuffix(to, ".service") {
				units = append(units, path.Base(to))
			}
			if err := errors.Join(writeFile(filepath.Join(folder, to), data), os.Chmod(filepath.Join(folder, to), e.Mode)); err != nil {
				return nil, err
			}
		}
	}
	return units, nil
}

// addDebianDocuments adds the documents that every package of Debian has (Debian Policy Manual, 12.5 and 12.7), and
// the tags of lintian that do not hold.
func addDebianDocuments(r *release, b bundle, folder string) error {
	changes := fmt.Sprintf("%s (%s) stable; urgency=medium\n\n  * The changes are listed at\n    %s/releases/tag/%s\n\n -- %s  %s\n",
		b.Name, strings.Replace(r.Version(), "-", "~", 1), repositoryURL, r.Tag, maintainer, r.Time.Format("Mon, 02 Jan 2006 15:04:05 -0700"))
	documents := filepath.Join(folder, "usr/share/doc", b.Name)
	return errors.Join(
		writeFile(filepath.Join(documents, "changelog.gz"), compressed([]byte(changes))),
		copyFile(r.Source("deploy/packages/copyright"), filepath.Join(documents, "copyright")),
		writeFile(filepath.Join(folder, "usr/share/lintian/overrides", b.Name), []byte(lintian(b.Name))))
}

// addService adds the user and the folders of the services of a package, and the scripts that make and end them.
func addService(r *release, b bundle, folder string, units []string, scripts *nfpm.Scripts) error {
	for from, to := range map[string]string{".sysusers": "usr/lib/sysusers.d", ".tmpfiles": "usr/lib/tmpfiles.d"} {
		if err := copyFile(r.Source("deploy/packages", b.Name+from), filepath.Join(folder, to, b.Name+".conf")); err != nil {
			return err
		}
	}
	words := strings.NewReplacer("@NAME@", b.Name, "@UNITS@", strings.Join(units, " "))
	for name, script := range map[string]*string{"postinstall": &scripts.PostInstall, "preremove": &scripts.PreRemove, "postremove": &scripts.PostRemove} {
		text, err := os.ReadFile(r.Source("deploy/packages", name))
		if err != nil {
			return err
		}
		*script = folder + "." + name
		if err := writeFile(*script, []byte(words.Replace(string(text)))); err != nil {
			return err
		}
	}
	return nil
}

// alpineVersion is a semantic version as Alpine writes it: 0.1.0-rc.1 is 0.1.0_rc1. apk knows four words for
// pre-releases, and refuses others. Its word pre stands for those.
func alpineVersion(version string) (string, error) {
	version, word, pre := strings.Cut(version, "-")
	if !pre {
		return version, nil
	}
	word, number, _ := strings.Cut(word, ".")
	if !slices.Contains([]string{"alpha", "beta", "pre", "rc"}, word) {
		word = "pre"
	}
	if strings.Trim(number, "0123456789") != "" {
		return "", fmt.Errorf("%q is no number, and apk knows no other pre-releases than those such as rc.1", number)
	}
	return version + "_" + word + number, nil
}

// lintian are the tags that do not hold for a package of Debian's, each below its reason.
func lintian(name string) string {
	return "# Static programs run in every container, also in an empty one.\n" + name + ": statically-linked-binary\n" +
		"# The scripts are those of the package for rpm, too.\n" + name + ": maintainer-script-calls-systemctl [*]\n"
}

// place is where a file of a program's stage is installed, and with which content; "" if a package does
// without the file.
func place(b bundle, f format, program string, e entry) (to string, data []byte) {
	name, data := strings.TrimPrefix(e.Name, "/"), e.Data
	switch {
	case strings.HasPrefix(name, "lib/systemd/"):
		if !f.Systemd {
			return "", nil
		}
		data = packagedUnit(data)
	case strings.HasPrefix(name, "share/man/"):
		name, data = name+".gz", compressed(data)
	case strings.HasPrefix(name, "share/zsh/"):
		name = path.Join(f.Zsh, path.Base(name))
	case strings.HasPrefix(name, "share/doc/"):
		switch base := path.Base(name); base {
		case "LICENSE": // Debian has it, and its file copyright says where
			if f.Name == "deb" || program != b.Programs[0] {
				return "", nil
			}
		case "README.md", "CHANGELOG.md": // once in a package
			if program != b.Programs[0] {
				return "", nil
			}
		case thirdPartyLicenses:
			name = path.Join("share/doc", b.Name, strings.TrimSuffix(base, path.Ext(base))+"-"+program+path.Ext(base))
		}
	}
	return path.Join("usr", name), data
}

// packagedUnit is a unit for the programs of a package, without the commands that install it by hand. These are
// the first lines that begin with "#   ".
func packagedUnit(unit []byte) []byte {
	lines := strings.SplitAfter(strings.ReplaceAll(string(unit), "/usr/local/bin/", "/usr/bin/"), "\n")
	command := func(line string) bool { return strings.HasPrefix(line, "#   ") }
	if first := slices.IndexFunc(lines, command); first >= 0 {
		count := slices.IndexFunc(lines[first:], func(line string) bool { return !command(line) })
		lines = slices.Delete(lines, first, first+max(count, 0))
	}
	return []byte(strings.Join(lines, ""))
}
