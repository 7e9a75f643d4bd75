// Package layout says where skills and plugins are in a folder: names of files, the bounds of the
// search, and which other files a manifest declares. It opens no files. An agent searches its own
// files, and a client searches through an agent's file calls; both follow these rules
// (capabilities.md 2.1 and 2.2).
package layout

import (
	"iter"
	"path"
	"slices"
	"strings"

	"github.com/execagent/execagent/internal/strictjson"
	"github.com/execagent/execagent/protocol"
)

// Bounds of one root.
const (
	// MaxFile is the largest size of a file, in bytes. A larger file is not read.
	MaxFile = 1 << 20
	// MaxBundle bounds the files of a root together, in bytes.
	MaxBundle = 16 << 20

	// MaxDepth, MaxDirectories and MaxEntries bound the walk. The walk follows links to directories.
	MaxDepth       = 6
	MaxDirectories = 2000
	MaxEntries     = 20_000
)

// Names of files.
const (
	metadataFile = MetadataFolder + "/openai.yaml"
	mcpFile      = ".mcp.json"
	appsFile     = ".app.json"
	manifestFile = "plugin.json"
)

// SkillFile is the name of the file of a skill.
const SkillFile = "SKILL.md"

// MetadataFolder is the folder beside a SKILL.md that has its metadata.
const MetadataFolder = "agents"

// manifestFolders are the folders that may hold a manifest, best first.
var manifestFolders = [...]string{".codex-plugin", ".claude-plugin", ".cursor-plugin"}

// Manifests returns the paths at which the manifest of a folder may be, best first.
func Manifests(folder string) []string {
	var all []string
	for _, name := range manifestFolders {
		all = append(all, path.Join(folder, name, manifestFile))
	}
	return all
}

// Folder returns the folder whose manifest a path is.
func Folder(manifest string) string { return path.Dir(path.Dir(manifest)) }

// Metadata returns the path of the metadata of a SKILL.md.
func Metadata(skill string) string { return path.Join(path.Dir(skill), metadataFile) }

// Above returns the folders above a folder, the nearest first, up to the root of the file system.
func Above(folder string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for folder != "/" && folder != "." {
			if folder = path.Dir(folder); !yield(folder) {
				return
			}
		}
	}
}

// A Tree has the skills and manifests among the files of a walk.
type Tree struct {
	// Skills are the SKILL.md files.
	Skills []string
	// Manifests has the best manifest of each folder except the root. If the best manifest cannot be
	// read, the others of its folder are not used instead.
	Manifests []string
}

// Sort finds the skills and manifests among the files below root. Skills are sorted by their URIs,
// and manifests by the URIs of their folders, in the form of the protocol (there é is %C3%A9, and
// comes before A).
func Sort(root string, files iter.Seq[string]) Tree {
	var t Tree
	best := map[string]int{} // by folder: index in manifestFolders
	var folders []string
	for file := range files {
		dir, name := path.Split(file)
		switch name {
		case SkillFile:
			t.Skills = append(t.Skills, file)
		case manifestFile:
			at := slices.Index(manifestFolders[:], path.Base(dir))
			folder := path.Dir(path.Clean(dir))
			if at < 0 || folder == root {
				continue
			}
			known, ok := best[folder]
			if !ok {
				folders = append(folders, folder)
			}
			if !ok || at < known {
				best[folder] = at
			}
		}
	}
	sortURIs(t.Skills)
	sortURIs(folders)
	for _, folder := range folders {
		t.Manifests = append(t.Manifests, path.Join(folder, manifestFolders[best[folder]], manifestFile))
	}
	return t
}

func sortURIs(paths []string) {
	uris := make(map[string]string, len(paths))
	for _, p := range paths {
		uris[p] = protocol.NewPathURI(p).String()
	}
	slices.SortFunc(paths, func(a, b string) int { return strings.Compare(uris[a], uris[b]) })
}

// Declared has the paths of the files that a manifest declares. "" means no file.
type Declared struct {
	MCP, Apps string
	// NamesMCP and NamesApps say that the manifest names the file. Otherwise it is the usual file,
	// which need not exist.
	NamesMCP, NamesApps bool
	Ignored             []Ignored
}

// An Ignored is a member of a manifest that names a file in a way that is not allowed.
type Ignored struct {
	Member string
	// Outside says that the path leads out of the root, or is the root itself. Otherwise the path does
	// not begin with "./".
	Outside bool
}

// Declare returns the files that the manifest of a root declares. If a member names no file, the
// usual name is used. If the manifest cannot be decoded, all usual names are used.
func Declare(root, manifest string) Declared {
	var members declarations
	if strictjson.UnmarshalRepeats([]byte(manifest), &members) != nil {
		members = declarations{}
	}
	var d Declared
	if members.inline == nil {
		d.MCP, d.NamesMCP = d.below(root, serversMember, members.mcp, mcpFile)
	}
	d.Apps, d.NamesApps = d.below(root, appsMember, members.apps, appsFile)
	return d
}

// Inline returns the MCP servers that a manifest has itself, as compact JSON. It returns false if
// the manifest has none.
func Inline(manifest string) (servers string, ok bool) {
	var members declarations
	if strictjson.UnmarshalRepeats([]byte(manifest), &members) != nil || members.inline == nil {
		return "", false
	}
	return string(strictjson.AppendCompact(nil, members.inline)), true
}

// below returns the path of the file that a member of a manifest declares, and whether the member
// names it. In the text, only the names . and .. have a special meaning.
func (d *Declared) below(root, member string, declared *string, usual string) (file string, named bool) {
	usual = path.Join(root, usual)
	if declared == nil {
		return usual, false
	}
	rest, ok := strings.CutPrefix(*declared, "./")
	if !ok {
		d.Ignored = append(d.Ignored, Ignored{Member: member})
		return usual, false
	}
	names := strings.FieldsFunc(rest, func(c rune) bool { return c == '/' || c == '\\' })
	if file := path.Join(root, rest); !slices.Contains(names, "..") && file != root {
		return file, true
	}
	d.Ignored = append(d.Ignored, Ignored{Member: member, Outside: true})
	return usual, false
}

// Members of a manifest that declare files.
const (
	serversMember = "mcpServers"
	appsMember    = "apps"
)

// declarations are the members of a plugin.json that name other files. A member that is not a
// string is nil. inline are the MCP servers that the manifest itself has; nil: it has none.
type declarations struct {
	mcp, apps *string
	inline    []byte
}

func (d *declarations) UnmarshalObject(o *strictjson.Object) {
	o.Once("name", serversMember, appsMember)
	text := func(name string) *string {
		if o.Has(name) && strictjson.TypeOf(o.Require(name)) == "string" {
			return o.OptString(name)
		}
		return nil
	}
	d.mcp, d.apps = text(serversMember), text(appsMember)
	if d.mcp == nil && o.Has(serversMember) && strictjson.TypeOf(o.Require(serversMember)) == "map" {
		d.inline = o.Require(serversMember)
	}
}
