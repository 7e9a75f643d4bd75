package contract

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

var update = flag.Bool("update", false, "write the generated files")

// TestGenerated: the files that are made of the contract are current.
func TestGenerated(t *testing.T) {
	t.Parallel()
	_, err := parse(text)
	rig.Must(t, err)
	for _, f := range Formats {
		path := filepath.Join("../..", f.File)
		if *update {
			rig.Must(t, os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, f.Make(), 0o666))
		}
		have, _ := os.ReadFile(path)
		rig.Is(t, bytes.Equal(have, f.Make()), true, "%s is current: go generate ./protocol/contract writes it", f.File)
	}
}
