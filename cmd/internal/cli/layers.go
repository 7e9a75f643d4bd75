package cli

import (
	"fmt"
	"maps"
	"os"
	"slices"
)

// Layers holds the values of a command's options by file.
type Layers struct{ by [ranks]Values }

// Required returns the values that override flags and variables.
func (l *Layers) Required() Values { return l.by[required] }

// Group are options that have a meaning only together, such as the options that name the agent.
type Group struct {
	Heads []string // alternatives, such as the URL or the context
	Rest  []string // options that belong to one of them, such as the token
}

// Merge merges the files. given returns the value of a flag or a variable of the environment.
//
// In a group, the strongest layer with a head is used. If a weaker layer has another head, or
// another value of the head, Merge ignores all its values of the group, because a token must go
// only to the agent that is named beside it.
func (l *Layers) Merge(groups []Group, given func(option string) (text string, ok bool)) Values {
	merged := Values{}
	yields := [ranks]map[string]bool{}
	for _, group := range groups {
		l.yield(&yields, group, given)
	}
	for r := range ranks {
		for name, v := range l.by[r] {
			if _, ok := merged[name]; !ok && !yields[r][name] {
				merged[name] = v
			}
		}
	}
	return merged
}

// yield records the ignored options of a group, by layer.
func (l *Layers) yield(yields *[ranks]map[string]bool, group Group, given func(string) (string, bool)) {
	said := map[string]string{}
	for _, head := range group.Heads {
		if text, ok := given(head); ok {
			said[head] = text
		}
	}
	for r := range ranks {
		says := l.by[r].heads(group)
		switch {
		case len(says) == 0:
		case r == required:
			said = says
		case len(said) == 0:
			said = says
		case !maps.Equal(said, says):
			if yields[r] == nil {
				yields[r] = map[string]bool{}
			}
			for _, name := range slices.Concat(group.Heads, group.Rest) {
				yields[r][name] = true
			}
		}
	}
}

// heads returns the values that v has for the heads of a group.
func (v Values) heads(group Group) map[string]string {
	says := map[string]string{}
	for _, head := range group.Heads {
		if v, ok := v[head]; ok {
			says[head] = fmt.Sprint(v.Texts)
			if len(v.Texts) == 1 {
				says[head] = v.Texts[0]
			}
		}
	}
	return says
}

// Variable returns the first variable that is set. For a path, an empty value counts as not set.
func Variable(names []string, path bool) (name, text string, ok bool) {
	for _, name := range names {
		if text, ok := os.LookupEnv(name); ok && (text != "" || !path) {
			return name, text, true
		}
	}
	return "", "", false
}

// Override returns a remark that a file overrides the flag or variable named by.
func (v Value) Override(by string) string {
	return fmt.Sprintf("%s has no effect: %s requires another value", by, v.place())
}
