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
	for _, tt := range []struct {
		name  string
		asked []string
		after string // the symlink that makes it refused once repo was served; "" none
	}{
		{"a root that is a link", []string{"read /", "write $/repo/pkg"}, "$/repo/pkg"},
		{"below a link", []string{"read /", "write $/repo/pkg/secret"}, "$/repo/pkg"},
		{"deeper", []string{"read /", "write $/repo/sub/deep"}, "$/repo/sub/deep"},
		{"by a link from outside", []string{"read /", "write $/via/pkg"}, "$/repo/pkg"},
		{"to read what else could not be", []string{"read $/repo/pkg"}, "$/repo/pkg"},
		{"to read what can be anyway", []string{"read /", "read $/repo/pkg"}, ""},
		{"denied", []string{"read /", "denied $/repo/pkg"}, ""},
		{"the user's own link", []string{"read /", "write $/home/src"}, ""},
		{"the user's link to the root", []string{"read /", "write $/via"}, ""},
		{"a link behind a root that nobody could write", []string{"read /", "write $/out/back/sub"}, ""},
		{"no link", []string{"read /", "write $/repo/sub"}, ""},
		{"the same root", []string{"read /", "write $/repo"}, ""},
	} {
		r, err := resolve(t, asked(base, tt.asked...))
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		rig.Is(t, new(Served).Check(r), nil, "%s: nobody was served", tt.name)
		served.Note(wide)
		err = served.Check(r)
		if link := strings.ReplaceAll(tt.after, "$", base); (err != nil) != (link != "") || err != nil && !strings.Contains(err.Error(), link+" -> ") {
			t.Errorf("%s: %v, want one about %q", tt.name, err, link)
		}
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
