package ticket

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestPseudonym: a pseudonym is the same at all processes of a registry, another one for
// each principal and environment, says nothing of the principal, and only the registry can
// tell whose it is.
func TestPseudonym(t *testing.T) {
	t.Parallel()
	const name = "key:0123456789abcdef"
	g, other := NewSigner(make([]byte, 32)), NewSigner([]byte(strings.Repeat("k", 32)))
	text := g.Pseudonym("env-1", name)
	rig.Is(t, NewSigner(make([]byte, 32)).Pseudonym("env-1", name), text, "the pseudonym at another process")
	b := rig.Value(base64.RawURLEncoding.DecodeString(text))
	for _, part := range []string{"key:", "0123456789abcdef", "0123"} {
		rig.Is(t, strings.Contains(text+"\n"+string(b), part), false, "%q tells %q", text, part)
	}
	for what, different := range map[string]string{
		"principal":   g.Pseudonym("env-1", "key:0123456789abcdee"),
		"environment": g.Pseudonym("env-2", name),
		"registry":    other.Pseudonym("env-1", name),
	} {
		rig.Is(t, different[:8] == text[:8], false, "another %s has %q, too", what, different)
	}
	rig.Is(t, fmt.Sprint(g.OpenPseudonym("env-1", text)), fmt.Sprint(name, true), "opened")
	changed := []string{"", "x", text[:20], text + "AAAA", text + "=", text[:5] + "\n" + text[5:]}
	for i := range b {
		b[i] ^= 1
		changed = append(changed, base64.RawURLEncoding.EncodeToString(b))
		b[i] ^= 1
	}
	for _, text := range changed {
		rig.Is(t, second(g.OpenPseudonym("env-1", text)), false, "%q is opened", text)
	}
	rig.Is(t, second(g.OpenPseudonym("env-2", text)), false, "it is good in another environment")
	rig.Is(t, second(other.OpenPseudonym("env-1", text)), false, "it is good at another registry")
}
