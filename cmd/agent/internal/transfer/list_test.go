package transfer

import (
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestSize: sizes are those of ls -h.
func TestSize(t *testing.T) {
	t.Parallel()
	for n, want := range map[uint64]string{
		0: "0", 1023: "1023", 1024: "1.0K", 1025: "1.1K", 10 << 10: "10K", 10<<10 + 1: "11K", 1<<20 - 1: "1.0M", 1500000: "1.5M", 1 << 40: "1.0T", 1<<64 - 1: "16E",
	} {
		rig.Is(t, (Listing{Human: true}).size(n), want, "%d", n)
	}
	rig.Is(t, (Listing{}).size(1<<20), "1048576", "1 MiB")
}
