package hostenv

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/BurntSushi/toml"

	"github.com/execagent/execagent/internal/paths"
	"github.com/execagent/execagent/internal/tomltext"
)

// maxConfigSize bounds a configuration file, in bytes.
const maxConfigSize = 1 << 20

// maxConfigDepth bounds the nesting of tables, arrays and dotted keys. The time of the decoder is
// quadratic in the depth, and real files are not deeper.
const maxConfigDepth = 32

// maxConfigKeySum bounds the keys of a file together, in bytes. Each key counts with the names of
// the tables around it, because the decoder and the encoder join those names for each key. A table
// with a long name and many short keys would need time, and rendered text, that is quadratic in the
// size of the file.
const maxConfigKeySum = 16 << 20

type tomlFile struct {
	path string
	size int // bytes of the text
	tree map[string]any
}

// readTOML reads one file. It returns nil without an error if there is none.
func readTOML(path string) (*tomlFile, error) {
	text, err := readBounded(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	tree, err := parseTOML(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &tomlFile{path: path, size: len(text), tree: tree}, nil
}

func parseTOML(text []byte) (map[string]any, error) {
	if err := checkShape(string(text)); err != nil {
		return nil, err
	}
	tree := map[string]any{}
	if err := toml.Unmarshal(text, &tree); err != nil {
		return nil, err
	}
	return tree, nil
}

// readBounded reads a file of at most maxConfigSize bytes. The texts of its errors are sent to the
// client.
func readBounded(path string) ([]byte, error) {
	text, err := paths.ReadRegular(path, maxConfigSize)
	if errors.Is(err, paths.ErrNotRegular) {
		return nil, fmt.Errorf("%s is not a file", path)
	}
	if _, ok := errors.AsType[paths.LimitError](err); ok {
		return nil, fmt.Errorf("%s is over %d bytes", path, maxConfigSize)
	}
	return text, err
}

// checkShape refuses documents with too deep nesting, or with keys that are too long together,
// before the decoder reads them. It recognizes only comments, the four kinds of strings, brackets,
// and keys with their dots. Text that is not TOML may pass; the decoder refuses it.
func checkShape(text string) error {
	if tomltext.Nesting(text) > maxConfigDepth {
		return fmt.Errorf("nested deeper than %d", maxConfigDepth)
	}
	var (
		keys                 keyCount
		depth                int
		start                int // index at which a key, or the name in a table's header, may begin
		isHeader, isAssigned bool
	)
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '#':
			if n := strings.IndexByte(text[i:], '\n'); n >= 0 {
				i += n - 1
			} else {
				i = len(text)
			}
		case '"', '\'':
			i = tomltext.StringEnd(text, i) - 1
		case '[', '{':
			if depth == 0 && !isAssigned {
				isHeader = true
			}
			depth++
			keys.open(depth, c == '{')
			start = i + 1
		case ']', '}':
			depth = max(depth-1, 0)
			if depth == 0 && isHeader {
				isHeader = false
				keys.header(i - start)
			}
		case '=':
			keys.assign(depth, i-start)
			isAssigned = true
		case ',':
			start = i + 1
		case '\n':
			start = i + 1
			isAssigned = isAssigned && depth > 0
		}
		if keys.total > maxConfigKeySum {
			return fmt.Errorf("the keys, each with those of the tables around it, are over %d bytes", maxConfigKeySum)
		}
	}
	return nil
}

// keyCount adds up the lengths of all keys of a document. Each key counts with the names of the
// tables around it, because the decoder and the encoder join them.
type keyCount struct {
	total int
	// Both are lengths for each depth of brackets. around is the length of the names of all tables
	// around this depth. assigned adds the length of the key whose value is being read at this depth;
	// it becomes around of the next depth.
	around, assigned [maxConfigDepth + 1]int
}

// open begins a table or an array at a depth.
func (k *keyCount) open(depth int, isTable bool) {
	k.around[depth] = k.assigned[depth-1]
	k.assigned[depth] = k.around[depth]
	if isTable {
		k.total += k.around[depth] // a table in an array has no key of its own
	}
}

func (k *keyCount) assign(depth, length int) {
	k.assigned[depth] = k.around[depth] + length
	k.total += k.assigned[depth]
}

// header begins a table at the top level.
func (k *keyCount) header(length int) {
	k.around[0], k.assigned[0] = length, length
	k.total += length
}

// selectKeys copies into dst the value in src to which path leads. If a value on the path is not a
// table, it ends the path early and is copied whole. If the path leads no further inside a table,
// the table is copied without its contents.
func selectKeys(dst, src map[string]any, path []string) {
	for i, key := range path {
		value, ok := src[key]
		if !ok {
			return
		}
		table, isTable := value.(map[string]any)
		if i == len(path)-1 || !isTable {
			dst[key] = value
			return
		}
		// If an earlier path copied this whole table, inner and table are the same
		// map: then the next steps set its keys to the values that they have.
		inner, ok := dst[key].(map[string]any)
		if !ok {
			inner = map[string]any{}
			dst[key] = inner
		}
		dst, src = inner, table
	}
}

// renderTOML writes a document of at most limit bytes.
func renderTOML(tree map[string]any, limit int) (string, error) {
	out := boundedBuffer{left: limit}
	enc := toml.NewEncoder(&out)
	enc.Indent = ""
	if err := enc.Encode(tree); err != nil {
		return "", err
	}
	return out.text.String(), nil
}

// boundedBuffer fails at a write beyond its bound.
type boundedBuffer struct {
	text bytes.Buffer
	left int
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	if len(p) > b.left {
		return 0, fmt.Errorf("the selected keys of all layers are over %d bytes", maxRendered)
	}
	b.left -= len(p)
	return b.text.Write(p)
}
