package store

import (
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestMatchEnvironment(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern, id string
		want        bool
	}{
		{"env", "env", true},
		{"env", "env2", false},
		{"env", "Env", false},
		{"*", "anything", true},
		{"**", "anything", true},
		{"ci-*", "ci-", true},
		{"ci-*", "ci-1", true},
		{"ci-*", "ci1", false},
		{"ci-*", "my-ci-1", false},
		{"*-ci", "my-ci", true},
		{"*-ci", "my-ci-2", false},
		{"a*a", "a", false},
		{"a*a", "aa", true},
		{"a*b*c", "abc", true},
		{"a*b*c", "a-b-b-c", true},
		{"a*b*c", "acb", false},
		{"a*bc*bc", "abcbc", true},
		{"a*bc*bc", "abc", false},
		{"*a*", "bab", true},
		{"*a*", "bbb", false},
		{"a**b", "ab", true},
		{"", "a", false},
	} {
		rig.Is(t, Matches(tt.pattern, tt.id), tt.want, "%q matches %q", tt.pattern, tt.id)
	}
	for pattern, want := range map[string]bool{"ci-*": true, "*": true, "a_B-9": true, "": false, "a.b": false, "a b": false, "ä": false, strings.Repeat("a", 257): false} {
		if err := CheckPattern(pattern); (err == nil) != want {
			t.Errorf("pattern %q: %v", pattern, err)
		}
	}
}

// TestMatchEnvironmentPlainly compares with the plainest way to match, for all
// short patterns and ids of few letters.
func TestMatchEnvironmentPlainly(t *testing.T) {
	t.Parallel()
	var plain func(pattern, id string) bool
	plain = func(pattern, id string) bool {
		switch {
		case pattern == "":
			return id == ""
		case pattern[0] == '*':
			return plain(pattern[1:], id) || id != "" && plain(pattern, id[1:])
		default:
			return id != "" && pattern[0] == id[0] && plain(pattern[1:], id[1:])
		}
	}
	patterns, ids := texts("ab*", 6), texts("ab", 7)
	for _, pattern := range patterns {
		for _, id := range ids {
			rig.Is(t, Matches(pattern, id), plain(pattern, id), "%q matches %q", pattern, id)
		}
	}
}

// texts returns all texts of these letters up to a length.
func texts(letters string, length int) []string {
	all := []string{""}
	for from := 0; length > 0; length-- {
		for to := len(all); from < to; from++ {
			for _, letter := range letters {
				all = append(all, all[from]+string(letter))
			}
		}
	}
	return all
}
