package main

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// go vet starts this program as it starts lint.
func TestMain(m *testing.M) {
	if os.Getenv("LINT") != "" {
		main()
	}
	os.Exit(m.Run())
}

func TestWrong(t *testing.T) {
	cmd := exec.Command("go", "vet", "-vettool="+os.Args[0], "./testdata/wrong")
	cmd.Env = append(os.Environ(), "LINT=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Error("go vet found nothing")
	}
	var got []string
	for _, m := range regexp.MustCompile(`wrong\.go:(\d+):\d+: .*\((\w+)\)`).FindAllStringSubmatch(string(out), -1) {
		got = append(got, m[1]+" "+m[2])
	}
	slices.Sort(got)
	want := "11 unused, 13 ST1005, 18 nolint, 20 misspell, 22 errorlint, 23 SA5009, 23 printf, 25 forbidden, 26 forbidden, 26 unconvert, 29 rangeint, 35 unparam"
	if strings.Join(slices.Compact(got), ", ") != want {
		t.Errorf("found %s, want %s:\n%s", strings.Join(got, ", "), want, out)
	}
}
