package hostenv

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/BurntSushi/toml"
)

// maxConfigSize is how large a configuration file may be, in bytes; larger ones are refused.
const maxConfigSize = 1 << 20

// maxConfigDepth is how deep tables, arrays and dotted keys may nest. The decoder takes quadratic time, and
// nobody writes more.
const maxConfigDepth = 32

type tomlFile struct {
	path string
	tree map[string]any
}

// readTOML reads one file; nil without an error if there is none.
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
	return &tomlFile{path: path, tree: tree}, nil
}

func parseTOML(text []byte) (map[string]any, error) {
	if err := checkDepth(text); err != nil {
		return nil, err
	}
	tree := map[string]any{}
	if err := toml.Unmarshal(text, &tree); err != nil {
		return nil, err
	}
	return tree, nil
}

func readBounded(path string) ([]byte, error) {
	// Without O_NONBLOCK the open of a fifo would wait for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxConfigSize+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxConfigSize {
		return nil, fmt.Errorf("%s is over %d bytes", path, maxConfigSize)
	}
	return text, nil
}

// checkDepth refuses documents that nest too deep before the decoder sees them. It knows only what it must about TOML 1.0:
// comments, the four kinds of strings, brackets, and the dots of a key. What is no TOML anyway is left to the decoder.
func checkDepth(text []byte) error {
	depth, dots := 0, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '#':
			if n := bytes.IndexByte(text[i:], '\n'); n >= 0 {
				i += n - 1
			} else {
				i = len(text)
			}
		case '"', '\'':
			i = stringEnd(text, i)
		case '[', '{':
			depth++
			dots = 0
		case ']', '}':
			depth--
			dots = 0
		case '.':
			dots++
		case ',', '=':
			dots = 0
		case '\n':
			dots = 0
		}
		if depth > maxConfigDepth || dots > maxConfigDepth {
			return fmt.Errorf("nested deeper than %d", maxConfigDepth)
		}
	}
	return nil
}

// stringEnd returns the index of the last byte of the string that begins at i, or of the text if it does not end.
func stringEnd(text []byte, i int) int {
	quote := text[i : i+1]
	if triple := bytes.Repeat(quote, 3); bytes.HasPrefix(text[i:], triple) {
		quote = triple
	}
	for j := i + len(quote); j < len(text); j++ {
		switch {
		case text[j] == '\\' && quote[0] == '"':
			j++
		case text[j] == '\n' && len(quote) == 1:
			return j // no string at all; the decoder will say so
		case bytes.HasPrefix(text[j:], quote):
			j += len(quote) - 1
			for n := 0; n < 2 && len(quote) == 3 && j+1 < len(text) && text[j+1] == quote[0]; n++ {
				j++ // up to two quotes may stand before the closing three
			}
			return j
		}
	}
	return len(text)
}

// selectKeys copies into dst what path leads to in src. A value that ends the path early, because it is no table, is copied
// whole, and a table on the way is copied without contents when the path leads no further.
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
		// Where an earlier path took the whole table, inner is that of src itself and what follows changes nothing.
		inner, ok := dst[key].(map[string]any)
		if !ok {
			inner = map[string]any{}
			dst[key] = inner
		}
		dst, src = inner, table
	}
}

func renderTOML(tree map[string]any) (string, error) {
	var text bytes.Buffer
	enc := toml.NewEncoder(&text)
	enc.Indent = ""
	if err := enc.Encode(tree); err != nil {
		return "", err
	}
	return text.String(), nil
}
