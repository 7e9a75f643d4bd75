package program

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
)

// PrintJSON writes v, indented. It escapes control characters, because strings may come from a server.
func PrintJSON(w io.Writer, v any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	var safe strings.Builder
	for _, r := range text.String() {
		if r == '\n' || unicode.IsPrint(r) {
			safe.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&safe, `\u%04x`, unit) // r is in a string, because the rest of JSON is printable
		}
	}
	_, err := io.WriteString(w, safe.String())
	return err
}
