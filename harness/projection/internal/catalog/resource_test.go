package catalog

import (
	"path"
	"strings"
	"testing"
)

// FuzzResource: a resource is in its package, whatever its name is.
func FuzzResource(f *testing.F) {
	for _, name := range []string{"", "SKILL.md", "../s/SKILL.md", "e0/s/%2e%2e/x", "skill://demo@1/plug/s/a/../..", "/x", "a/./b", "..", "\x00"} {
		f.Add(name)
	}
	s := &Skill{Package: "skill://demo@1/plug/s", short: "e0/s"}
	f.Fuzz(func(t *testing.T, name string) {
		got, err := s.resource(name)
		if err == nil && (!strings.HasPrefix(path.Join("/plug/s", got), "/plug/s/") || strings.ContainsRune(got, 0)) {
			t.Errorf("%q is %q", name, got)
		}
	})
}
