package secretenv

import (
	"os"
	"testing"
)

// TestEnvironRegion: the region is as long as what /proc shows of it.
func TestEnvironRegion(t *testing.T) {
	t.Parallel()
	start, end, err := environRegion()
	if err != nil {
		t.Fatal(err)
	}
	environ, err := os.ReadFile("/proc/self/environ")
	if err != nil {
		t.Fatal(err)
	}
	if end-start != int64(len(environ)) {
		t.Errorf("the region has %d bytes, environ %d", end-start, len(environ))
	}
}
