package policy

import (
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/execagent/execagent/cmd/internal/tomlfile"
	"github.com/execagent/execagent/internal/paths"
)

//go:embed profiles
var builtin embed.FS

// The bounds of profiles.
const (
	maxProfile  = 64 << 10 // bytes of a file
	maxWords    = 256      // members of a list
	maxProfiles = 64       // with those that they include
)

// toolProfile lists the needs of a tool. Its members are the keys of a file in the folder profiles, or of a user.
type toolProfile struct {
	name string // as the user wrote it

	Include []string // other profiles: names, or files
	Write   []string // folders that can be written; they are made if missing
	Read    []string // files and folders that can be read, even if they are secret, and not written
	Deny    []string // paths and patterns of hidden files
	Socket  []string // UNIX sockets that can be reached
	Device  []string // devices that can be used, if they exist
	Allow   []string // hosts that can be reached
	Env     []string // variables that pass, even if they look like secrets; patterns of path.Match
}

func (p toolProfile) origin() string { return "profile " + p.name }

// names returns the names of the profiles of this program.
func names() []string {
	files, _ := fs.ReadDir(builtin, "profiles") // it is part of the program
	var all []string
	for _, file := range files {
		all = append(all, strings.TrimSuffix(file.Name(), ".toml"))
	}
	return all
}

// readProfiles reads profiles, and those that they include, each once.
func readProfiles(words []string) (all []toolProfile, err error) {
	seen := map[string]bool{}
	for queue := slices.Clone(words); len(queue) > 0; {
		word := queue[0]
		queue = queue[1:]
		if seen[word] {
			continue
		}
		if seen[word] = true; len(seen) > maxProfiles {
			return nil, fmt.Errorf("--profile: there are more than %d profiles", maxProfiles)
		}
		p, err := readProfile(word)
		if err != nil {
			return nil, fmt.Errorf("--profile: %w", err)
		}
		all, queue = append(all, p), append(queue, p.Include...)
	}
	return all, nil
}

// readProfile reads a profile of this program, or a file if the word has a slash or ends in .toml.
func readProfile(word string) (toolProfile, error) {
	if strings.Contains(word, "/") || strings.HasSuffix(word, ".toml") {
		text, err := paths.ReadRegular(word, maxProfile)
		if err != nil {
			return toolProfile{}, err
		}
		return parseProfile(word, string(text))
	}
	text, err := builtin.ReadFile("profiles/" + word + ".toml")
	if err != nil {
		return toolProfile{}, fmt.Errorf("%q is not one of %s; if it is a file, write it with a slash, such as ./%[1]s", word, strings.Join(names(), ", "))
	}
	return parseProfile(word, string(text))
}

// parseProfile reads the text of a profile. An error names the line.
func parseProfile(name, text string) (toolProfile, error) {
	p := toolProfile{name: name}
	document, values, err := tomlfile.Parse(name, text)
	if err != nil {
		return p, err
	}
	lists := map[string]*[]string{"include": &p.Include, "write": &p.Write, "read": &p.Read, "deny": &p.Deny, "socket": &p.Socket, "device": &p.Device, "allow": &p.Allow, "env": &p.Env}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		at, list := values[key], lists[key]
		if list == nil {
			document.Fail(at, "unknown key %s, expected one of %s", key, strings.Join(slices.Sorted(maps.Keys(lists)), ", "))
			continue
		}
		raw, _ := tomlfile.As[[]any](document, key, "a list of texts", at)
		if len(raw) > maxWords {
			document.Fail(at, "%s has %d members, but at most %d are allowed", key, len(raw), maxWords)
			continue
		}
		for _, member := range raw {
			word, ok := member.(string)
			if !ok {
				document.Fail(at, "%s has a member that is not a text", key)
				break
			}
			if err := checkWord(key, word); err != nil {
				document.Fail(at, "%s: %w", key, err)
				break
			}
			*list = append(*list, word)
		}
	}
	return p, document.Err()
}

// checkWord refuses a member of a list that means nothing, or whose meaning depends on the current directory.
func checkWord(key, word string) error {
	switch key {
	case "write", "read", "deny", "socket", "device":
		if !path.IsAbs(word) && word != "~" && !strings.HasPrefix(word, "~/") {
			return fmt.Errorf("%q does not begin with / or ~/", word)
		}
		if key != "deny" && strings.ContainsAny(word, wildcards) {
			return fmt.Errorf("%q is a pattern, but only deny takes patterns", word)
		}
	case "env":
		if _, err := path.Match(word, ""); err != nil || word == "" || strings.Contains(word, "=") {
			return fmt.Errorf("%q is not the name of a variable", word)
		}
	default:
		if word == "" || strings.ContainsAny(word, ", \t\n") {
			return fmt.Errorf("%q is empty, or has a comma or a space", word)
		}
	}
	return nil
}
