package discovery

import (
	"path"
	"strings"
	"unicode/utf8"

	"github.com/execagent/execagent/protocol/strict"
)

// maxQualifiedName is how long NAMESPACE:NAME may be, in characters.
const maxQualifiedName = 2*maxName + 1

// Described is what the files of a root say.
type Described struct {
	// DisplayName is how the plugin calls itself, or its folder.
	DisplayName string
	// IsPlugin: the root has a manifest that decodes.
	IsPlugin bool
	Skills   []DescribedSkill
	// Incomplete: something was refused, or could not be read.
	Incomplete bool
}

// DescribedSkill is a skill with its qualified name. A text that it does not have is empty.
type DescribedSkill struct {
	Name, Description, ShortDescription string
	Path                                string
	Metadata
}

// Describe reads the manifest, the front matter and the metadata of what was found.
func (r *Root) Describe(root string) Described {
	d := Described{Incomplete: len(r.Warnings) > 0}
	var own manifest
	if r.Plugin != nil && strict.Unmarshal([]byte(r.Plugin.Manifest.Contents), &own) == nil {
		d.IsPlugin = true
		d.DisplayName = firstText(own.displayName, own.name, path.Base(root))
	}
	namespaces := map[string]string{} // of folders
	for _, file := range r.Namespaces {
		var m manifest
		if strict.Unmarshal([]byte(file.Contents), &m) != nil {
			continue
		}
		folder := path.Dir(path.Dir(file.Path))
		namespaces[folder] = firstText(m.name, path.Base(folder))
	}
	for _, skill := range r.Skills {
		described, ok := describe(&skill, namespaces)
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
