package rendezvous

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestNoticesAreDrawn: the head comment of the package has a row for every kind of
// notice, which says whom it is sent to.
func TestNoticesAreDrawn(t *testing.T) {
	t.Parallel()
	kinds := rig.Value(os.ReadFile("../notice/notice.go"))
	doc := rig.Value(os.ReadFile("doc.go"))
	found := regexp.MustCompile(`Kind = "([a-z]+)"`).FindAllStringSubmatch(string(kinds), -1)
	if len(found) < 11 {
		t.Errorf("there are %d kinds", len(found)) // that the expression no longer fits must not pass for success
	}
	for _, kind := range found {
		row := "\n//\t" + kind[1] + ", to "
		rig.Is(t, strings.Contains(string(doc), row), true, "doc.go does not say whom %s is sent to", kind[1])
	}
}
