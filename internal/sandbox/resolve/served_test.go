package resolve

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/test/rig"
)

func TestServed(t *testing.T) {
	t.Parallel()
	base := sandboxtest.Sow(t, "repo/pkg.old/", "repo/sub/", "home/", "out/secret/", "home/src -> $/out", "repo/pkg -> $/out", "repo/sub/deep -> ../../out/secret",
		"via -> $/repo", "out/back -> $/repo")
	served := &Served{}
	wide := rig.Value(resolve(t, asked(base, "read /", "write $/repo")))
	for _, row := range rig.Rows(t, "testdata/served.txt", "served", 3) {
		name, link := row[0], strings.ReplaceAll(row[2], "$", base)
		r := rig.Value(resolve(t, asked(base, strings.Split(row[1], ", ")...)))
		rig.Is(t, new(Served).Check(r), nil, "%s: nobody was served", name)
		served.Note(wide)
		if link != "" {
			link += " -> "
		}
		rig.Says(t, served.Check(r), link, "%s", name)
	}
	// A noted root is still known when it was renamed.
	rig.Must(t, os.Rename(base+"/repo", base+"/renamed"))
	r := rig.Value(resolve(t, asked(base, "read /", "write $/renamed/pkg")))
	rig.Is(t, served.Check(r) != nil, true, "a root that was renamed is known")
}

// TestServedIsBounded: at most maxServed roots are remembered, the newest.
func TestServedIsBounded(t *testing.T) {
	t.Parallel()
	var served Served
	for i := range maxServed + 10 {
		r := &Resolved{writable: []objectID{{ino: uint64(i)}}}
		served.Note(r)
		served.Note(r)
	}
	if len(served.roots) != maxServed || len(served.order) != maxServed || served.roots[objectID{ino: 9}] || !served.roots[objectID{ino: 10}] {
		t.Errorf("%d roots, %d in order", len(served.roots), len(served.order))
	}
}

// TestServedWarns: the log has one line for each link that a command of an
// earlier agent could have made.
func TestServedWarns(t *testing.T) {
	t.Parallel()
	base := sandboxtest.Sow(t, "out/", "link -> $/out", "other -> $/out")
	var log bytes.Buffer
	served := &Served{Log: slog.New(slog.NewTextHandler(&log, nil))}
	for _, name := range []string{"link", "link", "other"} {
		r := rig.Value(resolve(t, asked(base, "read /", "write $/"+name)))
		rig.Check(t, served.Check(r))
	}
	rig.Is(t, strings.Count(log.String(), "could have made it"), 2, "lines of %s", &log)
	for _, name := range []string{"link", "other"} {
		want := fmt.Sprintf("symlink=%s", filepath.Join(base, name))
		rig.Is(t, strings.Contains(log.String(), want), true, "%s is in %s", want, &log)
	}
}
