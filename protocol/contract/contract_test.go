package contract_test

import (
	"bytes"
	"compress/gzip"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/execagent/execagent/internal/contracttest"
	"github.com/execagent/execagent/protocol/contract"
	"github.com/execagent/execagent/test/rig"
)

var update = flag.Bool("update", false, "write the generated files")

// TestGenerated: the files that are made of the contract are current.
func TestGenerated(t *testing.T) {
	t.Parallel()
	text := rig.Value(io.ReadAll(rig.Value(gzip.NewReader(rig.Value(os.Open("contract.txt.gz"))))))
	rig.Is(t, bytes.Equal(text, rig.Value(os.ReadFile("contract.txt"))), true, "contract.txt.gz is current: go generate ./protocol/contract writes it")
	for _, f := range contract.Formats {
		path := filepath.Join("../..", f.File)
		if *update {
			rig.Must(t, os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, f.Make(), 0o666))
		}
		have, _ := os.ReadFile(path)
		rig.Is(t, bytes.Equal(have, f.Make()), true, "%s is current: go generate ./protocol/contract writes it", f.File)
	}
}

// TestContract: the contract has all that it names, and the examples of its methods are valid.
func TestContract(t *testing.T) {
	t.Parallel()
	rig.Check(t, contract.Load().Check())
	for _, m := range contract.Load().Methods {
		if m.Params.Kind != contract.Any {
			rig.Check(t, contracttest.Valid(m.Params.Name, m.ParamsExample))
		}
		if m.Result != nil {
			rig.Check(t, contracttest.Valid(m.Result.Name, m.ResultExample))
		}
	}
}
