package secretenv

import (
	"os"
	"testing"
)

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
