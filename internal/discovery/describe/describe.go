// Package describe reads the contents of the files of skills and plugins: the front matter of a
// SKILL.md, the metadata beside it, the name in a manifest. It opens no file, so both ends use it.
// The work is bounded by the bytes of a file, because aliases of YAML are refused. The rules are
// those of capabilities.md 3.2.
package describe

import (
	"path"
	"strings"
	"unicode/utf8"

	"github.com/execagent/execagent/internal/strictjson"
)

// File is a file as it was read.
type File struct{ Path, Contents string }

// Skill is a SKILL.md and, if there is one, its openai.yaml.
type Skill struct {
	Instructions File
	Metadata     *File
}

// manifest is what a plugin.json says of the plugin.
type manifest struct {
	name        string
	displayName string // without white space around it
}

// UnmarshalObject reads the members that count; the others may be anything.
func (m *manifest) UnmarshalObject(o *strictjson.Object) {
	if name := o.OptString("name"); name != nil {
		m.name = *name
	}
	o.OptIn("interface", func(o *strictjson.Object) {
		if name := o.OptString("displayName"); name != nil {
			m.displayName = strings.TrimSpace(*name)
		}
	})
}

// maxQualifiedName is how long NAMESPACE:NAME may be, in characters.
const maxQualifiedName = 2*maxName + 1

// Described is what the files of a folder say.
type Described struct {
	// DisplayName is how the plugin calls itself, or its folder.
	DisplayName string
	// IsPlugin: the root has a manifest that decodes.
	IsPlugin bool
	Skills   []DescribedSkill
	// Incomplete: a skill was refused.
	Incomplete bool
}

// DescribedSkill is a skill with its qualified name. A text that it does not have is empty.
type DescribedSkill struct {
	Name, Description, ShortDescription string
	Path                                string
	Metadata
}

// Root reads the manifest, the front matter and the metadata of what was found in a folder.
// Without own it has no manifest. Namespaces are the manifests that name skills.
func Root(folder string, own *File, skills []Skill, namespaces []File) Described {
	var d Described
	var m manifest
	if own != nil && strictjson.Unmarshal([]byte(own.Contents), &m) == nil {
		d.IsPlugin = true
		d.DisplayName = firstText(m.displayName, m.name, path.Base(folder))
	}
	named := map[string]string{} // namespaces by folders
	for _, file := range namespaces {
		var m manifest
		if strictjson.Unmarshal([]byte(file.Contents), &m) != nil {
			continue
		}
		folder := path.Dir(path.Dir(file.Path))
		named[folder] = firstText(m.name, path.Base(folder))
	}
	for _, skill := range skills {
		described, ok := describe(&skill, named)
		if !ok {
			d.Incomplete = true
			continue
		}
		d.Skills = append(d.Skills, described)
	}
	return d
}

// firstText returns the first text that is not blank, as it is.
func firstText(texts ...string) string {
	for _, text := range texts {
		if strings.TrimSpace(text) != "" {
			return text
		}
	}
	return ""
}

// describe returns false for a skill that is refused.
func describe(s *Skill, namespaces map[string]string) (DescribedSkill, bool) {
	h, err := parseHeader(s.Instructions.Contents)
	if err != nil {
		return DescribedSkill{}, false
	}
	folder := path.Dir(s.Instructions.Path)
	name := h.name
	if name == "" {
		name = fold(path.Base(folder))
	}
	if name == "" || utf8.RuneCountInString(name) > maxName {
		return DescribedSkill{}, false
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
		return DescribedSkill{}, false
	}
	d := DescribedSkill{
		Name: name, Description: h.description, ShortDescription: h.shortDescription, Path: s.Instructions.Path,
	}
	if s.Metadata != nil {
		d.Metadata = parseMetadata(s.Metadata.Contents)
	}
	return d, true
}
