package linux

import "testing"

func TestMapped(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"         0          0 4294967295\n": true,
		"0 1000 1\n":                         false,
		"0 0 1\n1000 1000 1\n":               false,
		"0 0 1\n65534 65534 1\n":             true,
		"0 1000 1\n1 100000 65536\n":         true,
		"0 200000 65534\n":                   false,
		"0 200000 65535\n":                   true,
		"65535 65535 1\n":                    false,
		"":                                   false,
		"nonsense\n":                         false,
	} {
		if got := mapped(65534, text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
