package pathname

import (
	"strings"
	"testing"
)

func TestClip(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "/short", "/" + strings.Repeat("x", 255), "/" + strings.Repeat("é", 4000)} {
		got := Clip(name)
		if len(name) <= maxShown && got != name || len(got) > maxShown || !strings.HasPrefix(name, got[:min(len(got), 10)]) {
			t.Errorf("%d bytes become %q", len(name), got)
		}
	}
}
