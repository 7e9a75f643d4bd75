package sigv4

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/execagent/execagent/internal/paths"
)

// maxFile bounds a shared file, in bytes.
const maxFile = 1 << 20

// sections are the settings of a shared file, by section and then by name in lower case.
type sections map[string]map[string]string

// readSections reads a shared file. A missing file has no sections.
func readSections(path string) (sections, error) {
	text, err := paths.ReadRegular(path, maxFile)
	defer clear(text)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s, err := parseSections(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// parseSections parses the format of AWS's shared files: sections in brackets, lines NAME = VALUE,
// comments after # or ; at the start of a line or after a blank. An indented line continues the
// setting before it. Indented lines are skipped, because no setting that is used here has them. If
// a section or a setting is repeated, the later value counts. Errors name the line, but do not
// quote it.
func parseSections(text string) (sections, error) {
	all := make(sections)
	var section map[string]string
	for number, line := range strings.Split(text, "\n") {
		indented := strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t")
		line = strings.TrimSpace(strings.TrimPrefix(line, paths.Mark))
		if line == "" || line[0] == '#' || line[0] == ';' || indented && section != nil {
			continue
		}
		if rest, ok := strings.CutPrefix(line, "["); ok {
			name, _, ok := strings.Cut(rest, "]")
			if name = strings.Join(strings.Fields(name), " "); !ok || name == "" {
				return nil, fmt.Errorf("line %d is no section", number+1)
			}
			if section = all[name]; section == nil {
				section = make(map[string]string)
				all[name] = section
			}
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		name = strings.ToLower(strings.TrimSpace(name))
		if !ok || name == "" || section == nil {
			return nil, fmt.Errorf("line %d is neither a section nor NAME = VALUE in one", number+1)
		}
		section[name] = strings.TrimSpace(uncommented(value))
	}
	return all, nil
}

// uncommented removes a comment, which begins with a blank and # or ;.
func uncommented(value string) string {
	for i := 1; i < len(value); i++ {
		if (value[i] == '#' || value[i] == ';') && (value[i-1] == ' ' || value[i-1] == '\t') {
			return value[:i]
		}
	}
	return value
}

// profile returns the settings of a profile in a file. In the file of credentials, the section has
// only the name. In the file of settings (prefixed), "profile " stands before the name; the section
// of the profile default may have either form.
func (s sections) profile(name string, prefixed bool) map[string]string {
	if !prefixed {
		return s[name]
	}
	if settings, ok := s["profile "+name]; ok || name != defaultProfile {
		return settings
	}
	return s[name]
}
