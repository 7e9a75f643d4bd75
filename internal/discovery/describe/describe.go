// Package describe interprets the contents of the files of skills and plugins: the front matter of
// a SKILL.md, the metadata beside it, the name in a manifest. It opens no file, so that both the
// agent and its clients can use it. The work is bounded by the bytes of a file, because aliases of
// YAML are refused. The rules are those of capabilities.md 3.2.
package describe

import (
	"fmt"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/execagent/execagent/internal/strictjson"
)

// A File is a file with its content.
type File struct{ Path, Contents string }

// A Skill is a SKILL.md and its openai.yaml, if there is one.
type Skill struct {
	Instructions File
	Metadata     *File
}

// manifest has the members of a plugin.json that describe the plugin.
type manifest struct {
	name        string
	displayName string // without surrounding white space
}

// UnmarshalObject reads the members that decide whether there is a plugin. If one of them has a
// wrong type, the reference does not know the plugin. Other members may have any value.
func (m *manifest) UnmarshalObject(o *strictjson.Object) {
	o.Once("name", "interface", "mcpServers", "apps")
	m.name = nameIn(o)
	o.OptIn("interface", func(o *strictjson.Object) {
		o.Once("displayName")
		if name := o.OptString("displayName"); name != nil {
			m.displayName = strings.TrimSpace(*name)
		}
	})
	o.OptString("apps")
}

// nameIn reads the name in a manifest. It may be absent, but not null.
func nameIn(o *strictjson.Object) string {
	if !o.Present("name") {
		return ""
	}
	return o.String("name")
}

// namespace is the name that a manifest gives the skills below its folder. The other members count
// nothing.
type namespace string

func (n *namespace) UnmarshalObject(o *strictjson.Object) {
	o.Once("name")
	*n = namespace(nameIn(o))
}

// maxQualifiedName bounds NAMESPACE:NAME, in characters.
const maxQualifiedName = 2*maxName + 1

// Described is the meaning of the files of a folder.
type Described struct {
	// DisplayName is the name that the plugin gives itself, or the name of its folder.
	DisplayName string
	// IsPlugin says that the root has a manifest that can be decoded.
	IsPlugin bool
	Skills   []DescribedSkill
	// Manifest says why the manifest of the root cannot be decoded; nil: it can, or there is none.
	Manifest error
	// Refused are the SKILL.md files that are no skills.
	Refused []Refused
}

// Refused is a SKILL.md that is no skill, and the reason.
type Refused struct {
	Path string
	Err  error
}

// A DescribedSkill is a skill with its qualified name. A missing text is empty.
type DescribedSkill struct {
	Name, Description, ShortDescription string
	Path                                string
	Metadata
}

// Root interprets the manifest, the front matter and the metadata of the files found in a folder.
// own is the manifest of the root, or nil if it has none. namespaces are the manifests that give
// skills their namespaces.
func Root(folder string, own *File, skills []Skill, namespaces []File) Described {
	var d Described
	var m manifest
	if own != nil {
		d.Manifest = strictjson.UnmarshalRepeats([]byte(own.Contents), &m)
	}
	if own != nil && d.Manifest == nil {
		d.IsPlugin = true
		d.DisplayName = firstText(m.displayName, m.name, path.Base(folder))
	}
	named := map[string]string{} // namespaces by folder
	for _, file := range namespaces {
		var name namespace
		if strictjson.UnmarshalRepeats([]byte(file.Contents), &name) != nil {
			continue
		}
		folder := path.Dir(path.Dir(file.Path))
		named[folder] = firstText(string(name), path.Base(folder))
	}
	for _, skill := range skills {
		described, err := describe(&skill, named)
		if err != nil {
			d.Refused = append(d.Refused, Refused{skill.Instructions.Path, err})
			continue
		}
		d.Skills = append(d.Skills, described)
	}
	return d
}

// firstText returns the first text that is not blank, unchanged.
func firstText(texts ...string) string {
	for _, text := range texts {
		if strings.TrimSpace(text) != "" {
			return text
		}
	}
	return ""
}

// describe interprets a skill. The error says why the skill is refused.
func describe(s *Skill, namespaces map[string]string) (DescribedSkill, error) {
	h, err := parseHeader(s.Instructions.Contents)
	if err != nil {
		return DescribedSkill{}, err
	}
	folder := path.Dir(s.Instructions.Path)
	name := h.name
	if name == "" {
		name = fold(path.Base(folder))
	}
	if name == "" || utf8.RuneCountInString(name) > maxName {
		return DescribedSkill{}, fmt.Errorf("no name, and the name of the folder does not have 1 to %d characters", maxName)
	}
	for above := folder; ; above = path.Dir(above) {
		if namespace, ok := namespaces[above]; ok {
			name = namespace + ":" + name
			break
		}
		if above == "/" {
			break
		}
	}
	if utf8.RuneCountInString(name) > maxQualifiedName {
		return DescribedSkill{}, fmt.Errorf("a name of more than %d characters with its namespace", maxQualifiedName)
	}
	d := DescribedSkill{
		Name: name, Description: h.description, ShortDescription: h.shortDescription, Path: s.Instructions.Path,
	}
	if s.Metadata != nil {
		d.Metadata = parseMetadata(s.Metadata.Contents)
	}
	return d, nil
}
