package applypatch

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

func TestMain(m *testing.M) {
	unix.Umask(0o022) // the tests compare modes
	os.Exit(m.Run())
}

// testCase is a line of testdata/cases.jsonl: what the reference was seen to do.
type testCase struct {
	Name   string                     `json:"name"`
	Before map[string]json.RawMessage `json:"before"`
	Patch  json.RawMessage            `json:"patch"`
	How    string                     `json:"how"`
	Args   []string                   `json:"args"`
	Expect struct {
		Exit   int            `json:"exit"`
		Stdout string         `json:"stdout"`
		Stderr string         `json:"stderr"`
		After  map[string]any `json:"after"`
	} `json:"expect"`
}

// exceptions are the cases in which ours does something else, with the files that it leaves.
var exceptions = map[string]map[string]any{
	// The reference deletes a file that is moved onto itself.
	"move-onto-itself": {"a.txt": "one\n2\nthree\n"},
	// It writes through the link, and then removes what the link leads to.
	"x-move-hardlink-like-symlink-self": {"a": "one\n", "ln": map[string]any{"link": "a"}},
	// It takes a byte-order mark for a part of the first line.
	"bom-file-first-line": {"a.txt": "\ufeff1\ntwo\n"},
	// The file that it makes cannot be executed.
	"move-keeps-exec-bit": {"b.sh": map[string]any{"exec": true, "content": "one\n2\n"}},
}

// TestCases runs what the reference was seen to do, each case in an empty directory.
func TestCases(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/cases.jsonl")
	rig.Must(t, err)
	excepted, cases := 0, 0
	for line := range bytes.Lines(text) {
		var c testCase
		rig.Must(t, json.Unmarshal(line, &c))
		cases++
		after, ok := exceptions[c.Name]
		if ok {
			excepted++
			c.Expect.After = after
		}
		if c.Name == "bom-file-first-line" { // the reference cannot change that line
			c.Expect.Exit, c.Expect.Stdout, c.Expect.Stderr = 0, "Success. Updated the following files:\nM a.txt\n", ""
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			c.run(t)
		})
	}
	rig.Is(t, cases, 330, "cases")
	rig.Is(t, excepted, len(exceptions), "exceptions")
}

// box has the files of a case: those in w, where the program runs, and those beside it.
type box struct{ root, cwd string }

func (b *box) fill(s string) string {
	return strings.NewReplacer("{ROOT}", b.root, "{CWD}", b.cwd).Replace(s)
}

func (b *box) unfill(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, b.cwd, "{CWD}"), b.root, "{ROOT}")
}

func (c *testCase) run(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	rig.Must(t, err)
	b := &box{root, filepath.Join(root, "w")}
	rig.Must(t, os.Mkdir(b.cwd, 0o777))
	for path, value := range c.Before {
		b.make(t, filepath.Join(b.cwd, b.fill(path)), value)
	}

	args := []string{"/bin/" + toolName}
	var patch []string
	if string(c.Patch) != "null" {
		patch = []string{string(b.data(t, c.Patch))}
	}
	stdin := ""
	switch c.How {
	case "stdin":
		stdin = strings.Join(patch, "")
	case "arg":
		args = append([]string{"/bin/agent", toolArg}, patch...)
	default:
		args = append(args, patch...)
	}
	for _, arg := range c.Args {
		args = append(args, b.fill(arg))
	}
	rig.Is(t, IsTool(args), true, "%q is the tool", args)
	var stdout, stderr strings.Builder
	getwd := func() (string, error) { return b.cwd, nil }
	rig.Is(t, runTool(getwd, args, strings.NewReader(stdin), &stdout, &stderr), c.Expect.Exit, "exit code")
	rig.Is(t, b.unfill(stdout.String()), c.Expect.Stdout, "stdout")
	if got := b.unfill(stderr.String()); got != c.Expect.Stderr {
		// Ours tells the cause on a second line where the reference tells none, and the nearest lines.
		cause, ok := strings.CutPrefix(got, c.Expect.Stderr)
		near := strings.HasPrefix(c.Expect.Stderr, "Failed to find ") && strings.HasPrefix(cause, "The nearest line")
		if !ok || !near && (c.Expect.Stderr == "" || strings.Count(cause, "\n") != 1 || !strings.Contains(cause, " (os error ")) {
			t.Errorf("stderr %q, want %q", got, c.Expect.Stderr)
		}
	}
	rig.Same(t, "files", c.Expect.After, b.tree(t))
}

// value is a file as a case describes it, if that is more than a text.
type value struct {
	B64  string            `json:"b64"`
	Gen  []any             `json:"gen"`
	Cat  []json.RawMessage `json:"cat"`
	Mode string            `json:"mode"`
	Dir  bool              `json:"dir"`
	Link *string           `json:"link"`
	Fifo bool              `json:"fifo"`
}

// make makes the file that raw describes.
func (b *box) make(t *testing.T, path string, raw json.RawMessage) {
	var v value
	if raw[0] == '{' {
		rig.Must(t, json.Unmarshal(raw, &v))
	}
	dir := filepath.Dir(path)
	if v.Dir {
		dir = path
	}
	rig.Must(t, os.MkdirAll(dir, 0o777))
	var err error
	switch {
	case v.Dir:
	case v.Link != nil:
		err = os.Symlink(b.fill(*v.Link), path)
	case v.Fifo:
		err = unix.Mkfifo(path, 0o666)
	default:
		if err = os.WriteFile(path, b.data(t, raw), 0o666); err == nil && v.Mode != "" {
			mode, _ := strconv.ParseUint(v.Mode, 8, 32)
			err = os.Chmod(path, os.FileMode(mode))
		}
	}
	rig.Must(t, err)
}

// data returns the content that raw describes.
func (b *box) data(t *testing.T, raw json.RawMessage) []byte {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return []byte(b.fill(text))
	}
	var v value
	rig.Must(t, json.Unmarshal(raw, &v))
	data, err := base64.StdEncoding.DecodeString(v.B64)
	rig.Must(t, err)
	for _, part := range v.Cat {
		data = append(data, b.data(t, part)...)
	}
	if len(v.Gen) == 2 {
		format, count := v.Gen[0].(string), v.Gen[1].(float64)
		for i := range int(count) {
			if strings.Contains(format, "%") {
				data = fmt.Appendf(data, format, i)
			} else {
				data = append(data, format...)
			}
		}
	}
	return data
}

// tree describes the files as a case does.
func (b *box) tree(t *testing.T) map[string]any {
	out := map[string]any{}
	walk(t, b.root, func(path string, mode fs.FileMode, data []byte) {
		name := rig.Value(filepath.Rel(b.cwd, path))
		switch {
		case path == b.cwd:
		case mode.IsDir():
			out[name] = map[string]any{"dir": true}
		case mode.Type() == fs.ModeSymlink:
			out[name] = map[string]any{"link": b.unfill(string(data))}
		case mode.IsRegular() && mode&0o111 != 0:
			out[name] = map[string]any{"exec": true, "content": b.show(data)}
		case mode.IsRegular():
			out[name] = b.show(data)
		default:
			out[name] = map[string]any{"special": true}
		}
	})
	return out
}

// walk tells of the files below dir what they have, and of links where they lead; of directories it
// tells only of those that are empty.
func walk(t *testing.T, dir string, tell func(path string, mode fs.FileMode, data []byte)) {
	t.Helper()
	rig.Must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		var data []byte
		switch d.Type() {
		case fs.ModeDir:
			if entries, err := os.ReadDir(path); err != nil || len(entries) > 0 {
				return err
			}
		case fs.ModeSymlink:
			data = []byte(rig.Value(os.Readlink(path)))
		case 0:
			data = rig.Value(os.ReadFile(path))
		}
		tell(path, rig.Value(d.Info()).Mode(), data)
		return nil
	}))
}

// show describes the content of a file: what is long by its sum.
func (b *box) show(data []byte) any {
	const long = 20000
	switch {
	case len(data) > long:
		sum := sha256.Sum256(data)
		return map[string]any{"sha256": hex.EncodeToString(sum[:]), "len": float64(len(data))}
	case !utf8.Valid(data):
		return map[string]any{"b64": base64.StdEncoding.EncodeToString(data)}
	}
	return b.unfill(string(data))
}
