package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/test/rig"
)

// checkCase is a recorded run of the reference's execpolicy check.
type checkCase struct {
	Name   string
	Rules  []json.RawMessage // a text, or {"b64": ...}
	Argv   []string
	Flags  []string
	Nosep  bool
	Before map[string]string
	Expect struct {
		Exit  int
		JSON  any
		Error string
	}
}

// TestExecpolicyCheck: agent execpolicy check answers as the reference was seen to, with the same
// exit code, and what is wrong with a file is said in the same words.
func TestExecpolicyCheck(t *testing.T) {
	f := rig.Value(os.Open("../../internal/execpolicy/testdata/rules.jsonl"))
	defer f.Close()
	n := 0
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for ; lines.Scan(); n++ {
		var c checkCase
		rig.Must(t, json.Unmarshal(lines.Bytes(), &c))
		t.Run(c.Name, func(t *testing.T) { c.run(t) })
	}
	rig.Check(t, lines.Err())
	rig.Is(t, n, 259, "cases")
}

func (c *checkCase) run(t *testing.T) {
	root := t.TempDir()
	dir, home := filepath.Join(root, "w"), filepath.Join(root, "home")
	for _, d := range []string{dir, home} {
		rig.Must(t, os.Mkdir(d, 0o755))
	}
	place := strings.NewReplacer("{ROOT}", root, "{CWD}", dir, "{HOME}", home)
	places := func(words []string) (list []string) {
		for _, word := range words {
			list = append(list, place.Replace(word))
		}
		return list
	}
	args := append([]string{"execpolicy", "check"}, places(c.Flags)...)
	for i, raw := range c.Rules {
		var text string
		var b64 struct{ B64 string }
		if json.Unmarshal(raw, &text) == nil {
			text = place.Replace(text)
		} else {
			rig.Must(t, json.Unmarshal(raw, &b64))
			text = string(rig.Value(base64.StdEncoding.DecodeString(b64.B64)))
		}
		file := filepath.Join(root, strconv.Itoa(i)+".rules")
		rig.Must(t, os.WriteFile(file, []byte(text), 0o644))
		args = append(args, "--rules", file)
	}
	for name, text := range c.Before {
		rig.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	if !c.Nosep {
		args = append(args, "--")
	}
	args = append(args, places(c.Argv)...)

	t.Chdir(dir)
	t.Setenv("HOME", home)
	code, stdout, stderr := runHere(t, args)
	if code != c.Expect.Exit {
		t.Fatalf("exit code %d, want %d: %s", code, c.Expect.Exit, stderr)
	}
	rig.Is(t, strings.Contains(stderr, c.Expect.Error), true, "%s is in %s", c.Expect.Error, stderr)
	if code != 0 {
		rig.Is(t, stdout, "", "standard output has")
		return
	}
	var got any
	back := strings.NewReplacer(dir, "{CWD}", home, "{HOME}", root, "{ROOT}")
	err := json.Unmarshal([]byte(back.Replace(stdout)), &got)
	rig.Is(t, err == nil && reflect.DeepEqual(got, c.Expect.JSON), true, "got %s, %v; want %v", stdout, err, c.Expect.JSON)
	one := strings.Count(strings.TrimSpace(stdout), "\n") == 0
	rig.Is(t, one == (len(c.Flags) > 0 && c.Flags[0] == "--pretty"), false, "the form is wrong: %s", stdout)
}

// runHere runs a command line in this process.
func runHere(t *testing.T, args []string) (code int, stdout, stderr string) {
	t.Helper()
	dir := t.TempDir()
	out, said := rig.Value(os.Create(dir+"/out")), rig.Value(os.Create(dir+"/said"))
	defer out.Close()
	defer said.Close()
	code = run(program.System{Args: args, Stdout: out, Stderr: said})
	return code, string(rig.Value(os.ReadFile(out.Name()))), string(rig.Value(os.ReadFile(said.Name())))
}
