package cli

import (
	"fmt"
	"maps"
	"os"
	"slices"
)

// Layers are what each of the files says about the options of a command.
type Layers struct{ by [ranks]Values }

// Required are the values that are over flags and variables.
func (l *Layers) Required() Values { return l.by[required] }

// Group are options that mean one thing together, such as which agent a command is for.
type Group struct {
	Heads []string // each says it in another way
	Rest  []string // what belongs to one of them, such as the token
}

// Merge puts the files together. given tells what a flag or a variable says.
//
// Of a group the strongest layer counts that has one of its heads. What a weaker one says about
// the group, if it has a head that says something else, counts as a whole for nothing: a token
// must not be shown to another agent than the one it stands beside.
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

// yield notes which options of a group do not count, by layer.
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

// heads returns what v says about the heads of a group.
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

// Variable returns the first of some variables that is set. No path is empty.
func Variable(names []string, path bool) (name, text string, ok bool) {
	for _, name := range names {
		if text, ok := os.LookupEnv(name); ok && (text != "" || !path) {
			return name, text, true
		}
	}
	return "", "", false
}

// Override says that a file is over what a flag or a variable asks for; by is its name.
func (v Value) Override(by string) string {
	return fmt.Sprintf("%s has no effect: %s requires another value", by, v.place())
}
