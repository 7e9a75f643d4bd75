package script

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// cases reads a table of recorded cases.
func cases[T any](t testing.TB, name string) (list []T) {
	t.Helper()
	f, err := os.Open("../testdata/" + name)
	rig.Must(t, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var c T
		rig.Must(t, json.Unmarshal(lines.Bytes(), &c))
		list = append(list, c)
	}
	return list
}

type splitCase struct {
	Script         string
	Opaque         bool
	FirstUnmatched []string
}

// opaqueHere are the scripts that are plain to the reference and opaque here.
var opaqueHere = map[string]string{
	"time foo a":   "time is a word of the shell, not a program",
	"time ok":      "time is a word of the shell, not a program",
	"coproc foo a": "coproc is a word of the shell, not a program",
	"let x=1":      "let computes",
	"foo a\rb":     "a carriage return separates no words in Bash",
}

// TestSplitTable: scripts are split as the reference was seen to split them, or are opaque. The
// recorded runs allowed the program ok alone.
func TestSplitTable(t *testing.T) {
	t.Parallel()
	all := cases[splitCase](t, "scripts.jsonl")
	rig.Is(t, len(all), 225, "cases")
	seen := 0
	for _, c := range all {
		commands, plain := Split(c.Script)
		if why, ok := opaqueHere[c.Script]; ok {
			seen++
			rig.Is(t, plain, false, "%q is opaque, because %s: plain", c.Script, why)
			continue
		}
		rig.Is(t, plain, !c.Opaque, "%q: plain", c.Script)
		i := slices.IndexFunc(commands, func(command []string) bool { return command[0] != "ok" })
		if c.FirstUnmatched != nil && (i < 0 || !slices.Equal(commands[i], c.FirstUnmatched)) {
			t.Errorf("%q: got %q, want %q first", c.Script, commands, c.FirstUnmatched)
		}
	}
	rig.Is(t, seen, len(opaqueHere), "exceptions that are in the table")
}

// TestForcedRmTable: a forced rm is found where the reference finds it, and nowhere else.
func TestForcedRmTable(t *testing.T) {
	t.Parallel()
	all := cases[struct {
		Script   string
		ForcedRm bool
	}](t, "forced-rm.jsonl")
	rig.Is(t, len(all), 115, "cases")
	for _, c := range all {
		want := c.ForcedRm || c.Script == "rm -rf 'unterminated" // see TestUnparsed
		rig.Is(t, ForcedRm([]string{"/bin/bash", "-lc", c.Script}), want, "%q: forced rm", c.Script)
	}
}

// TestOf: only a shell with a flag and a script has a script.
func TestOf(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		"bash -c x": true, "sh -lc x": true, "/bin/bash -lc x": true, "/usr/bin/zsh -c x": true, "/usr/local/bin/sh -c x": true,
		"./bash -c x": false, "bash -ec x": false, "bash -c x y": false, "bash -c": false, "dash -c x": false, "/opt/bash -c x": false, "bash x": false,
		"/bin//bash -c x": false, "BASH -c x": false,
	} {
		script, ok := Of(strings.Fields(line))
		rig.Is(t, ok, want, "%q: it has a script", line)
		rig.Is(t, !ok || script == "x", true, "%q: %q is the script", line, script)
	}
}

// TestTooLarge: what is too large to be looked into is opaque, and may remove files by force.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"bytes":       strings.Repeat("x", maxBytes+1),
		"parentheses": strings.Repeat("( ", 1_001) + "x" + strings.Repeat(")", 1_001),
		"arithmetic":  strings.Repeat("(", maxBytes),
		"if":          strings.Repeat("if x; then ", 1_001) + "x" + strings.Repeat("; fi", 1_001),
		"braces":      strings.Repeat("{ ", 1_001) + "x" + strings.Repeat("; }", 1_001),
		"documents":   strings.Repeat("cat <<E\n$(", maxBytes/11),
	} {
		_, plain := Split(text)
		rig.Is(t, plain, false, "%s: it is plain", name)
		_, read := Literal(text)
		rig.Is(t, read, false, "%s: it can be read", name)
		rig.Is(t, ForcedRm([]string{"sh", "-c", text}), true, "%s: it may force", name)
	}
	// Repairs give this text a further try at each length; without a bound they would take minutes.
	_, again := Split(strings.Repeat("x", 110_000) + "\ncat" + strings.Repeat(` <<'#\'`, 9) + "\n")
	rig.Is(t, again, false, "a script that repairs make longer is plain")
	commands, plain := Split(strings.Repeat("x;", MaxCommands))
	rig.Is(t, plain, true, "a long script is plain")
	rig.Is(t, len(commands), MaxCommands, "commands of a long script")
	_, plain = Split(strings.Repeat("x;", MaxCommands+1))
	rig.Is(t, plain, false, "a script of too many commands is plain")
}

// TestLiteral: commands are found in whatever they are in.
func TestLiteral(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"(a b)":                      "a b",
		"a > f":                      "a",
		"X=1 a":                      "a",
		`a "$HOME" b`:                "a",
		"if true; then a; fi":        "true|a",
		"a $(b c) | d":               "a|b c|d",
		"time a b":                   "time a b|a b",
		"f() { a; }; f":              "a|f",
		"$X a":                       "",
		"cat <<E\n$(a)\nE\n":         "cat|a",
		`"a"'b' c`:                   "ab c",
		"while read x; do a; done<f": "read x|a",
	} {
		commands, ok := Literal(text)
		var got []string
		for _, c := range commands {
			got = append(got, strings.Join(c.Prefix(), " "))
		}
		rig.Is(t, ok, true, "%q can be read", text)
		rig.Is(t, strings.Join(got, "|"), want, "%q", text)
	}
}

// TestText: what only a reader sees of a script, a comment or the text of a document, neither hides a
// command nor counts as one, whatever its length. Nor does an error that a shell has not come to.
func TestText(t *testing.T) {
	t.Parallel()
	long := "a:" + strings.Repeat("-", 1_001) + strings.Repeat("if ((", 1_001)
	for text, want := range map[string]bool{
		"# " + long + "\n true > x; rm -f y":                     true,
		strings.Repeat("# a\n", 20_000) + "rm -f y":              true,
		"true # " + strings.Repeat("x", 100<<10) + "\n(rm -f y)": true,
		"true # C:\\\nrm -f y":                                   true,
		"true # C:\\\n{ rm -f y; }\nb '":                         true,
		"echo '# C:\\\nrm -f y'":                                 false,
		"# a\r\n(rm -f y)":                                       true,
		"# \xff\n(rm -f y)":                                      true,
		"cat <<'E\r'\nE\r\n rm -f y":                             true,
		"rm -f y <<E\ntext":                                      true,
		"cat <<E\nrm -f y":                                       false,
		"rm -f y\n)":                                             true,
		"true; rm -f y; )":                                       true,
		"cat > t.md <<'E'\n" + long + "\nE\n":                    false,
		"cat > t.c <<E\n" + strings.Repeat("if (a[1]) { f(); }\n", 5_000) + "E\n": false,
		"cat <<E\n" + long + "$(rm -f y)\nE\n":                                    true,
		"echo '" + long + "' && (rm -f y)":                                        true,
		strings.Repeat("{ ", 400) + "rm -f y" + strings.Repeat("; }", 400):        true,
		strings.Repeat("$(", 400) + "rm -r y" + strings.Repeat(")", 400):          false,
		strings.Repeat("if a; then ", 400) + "b" + strings.Repeat("; fi", 400):    false,
		strings.Repeat("if (a[1]); then f; fi\n", 4_000) + "rm -r y":              false,
	} {
		rig.Is(t, ForcedRm([]string{"sh", "-c", text}), want, "%.60q (%d bytes): forced rm", text, len(text))
	}
	_, plain := Split("true # C:\\\nrm -f y")
	rig.Is(t, plain, false, "a script with a comment is plain")
}

// TestUnparsed: what the parser takes for an error, or for a pattern, a shell may run.
func TestUnparsed(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"echo $((true); (true)); %s", "((true); (true)); %s", "let a=1+; %s", "declare -A m=([a b]=1); %s", "print ${(f)x}; %s", "ls d(/)\n%s", "!(%s)", "true && !(%s)", "@(a|$(%s))",
		"cat <<E; %s\n${y!}\nE", "cat <<E; let a=1+; %s\nE", "if [ a ] { %s }", "for x (a) %s", "foreach x (a b); %s; end", "{ %s } always { true }", "let a=1+; \\%s", "let a=1+; sh -c '%s'",
	} {
		for command, want := range map[string]bool{"rm -rf y": true, "rm \\\n -r $(z; z) >f -f y": true, "echo x": false} {
			script := strings.Replace(text, "%s", command, 1)
			rig.Is(t, ForcedRm([]string{"zsh", "-c", script}), want, "%q: forced rm", script)
		}
	}
}

// FuzzScript: no script makes the package panic or grow without bound, and what Split finds Literal
// finds, too.
func FuzzScript(f *testing.F) {
	for _, c := range cases[splitCase](f, "scripts.jsonl") {
		f.Add(c.Script)
	}
	for _, opener := range []string{"(", "{ ", "[", "`", "if ", "while ", "for i in a; do ", "case a in b) ", "f() { ", "time ", "coproc ", "$(", "- ", "! ", "<<E\n$("} {
		f.Add(strings.Repeat(opener, 300))
		f.Add("((" + strings.Repeat(opener, 300))
	}
	f.Fuzz(func(t *testing.T, text string) {
		ForcedRm([]string{"sh", "-c", text})
		commands, plain := Split(text)
		if !plain {
			return
		}
		found, ok := Literal(text)
		if !ok || len(found) != len(commands) {
			t.Fatalf("%d commands, of which %d are literal", len(commands), len(found))
		}
		for i, command := range commands {
			if prefix := found[i].Prefix(); len(prefix) > 0 && !slices.Equal(prefix, command[:len(prefix)]) {
				t.Fatalf("command %d is %q, and %q literally", i, command, found[i].Words)
			}
		}
	})
}
