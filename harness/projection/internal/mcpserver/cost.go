package mcpserver

import "fmt"

const (
	// maxMessage is how large one message may be, in bytes.
	maxMessage = 8 << 20
	// maxCost bounds the memory of a decoded message, or of the values in an answer over HTTP, in
	// bytes. Each value counts as valueBytes, in addition to its text, because a few bytes of text
	// can be a value.
	maxCost    = 32 << 20
	valueBytes = 64
)

var errCost = fmt.Errorf("a message of the server has more than %d values", maxCost/valueBytes)

// counter counts the values in JSON texts, roughly. The zero value has counted none.
type counter struct {
	values          int
	quoted, escaped bool
}

// add counts the values in the next piece of text.
func (c *counter) add(text []byte) {
	for _, b := range text {
		switch {
		case b == '\n': // no string continues on the next line, whatever came before
			c.quoted, c.escaped = false, false
		case c.escaped:
			c.escaped = false
		case c.quoted && b == '\\':
			c.escaped = true
		case b == '"':
			c.quoted = !c.quoted
		case !c.quoted && (b == ',' || b == '[' || b == '{'):
			c.values++
		}
	}
}

// costOf estimates the memory of a JSON text after it is decoded, in bytes.
func costOf(text []byte) int {
	var c counter
	c.add(text)
	return len(text) + (c.values+1)*valueBytes
}
