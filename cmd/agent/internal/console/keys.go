package console

import (
	"bytes"
	"fmt"
	"strings"
)

// keys finds the detach keys in the input. The zero value finds nothing.
type keys struct {
	wanted  []byte
	matched int // how many of the wanted keys the input so far ends with; they are held back
}

// filter returns the input for the command. Input after the keys is dropped.
func (k *keys) filter(typed []byte) (rest []byte, a asked) {
	if len(k.wanted) == 0 {
		return typed, nothing
	}
	rest = make([]byte, 0, len(typed)+len(k.wanted))
	for _, b := range typed {
		// matched becomes the length of the longest prefix of wanted that the input so far ends
		// with.
		seen := append(bytes.Clone(k.wanted[:k.matched]), b)
		for k.matched = len(seen); !bytes.Equal(seen[len(seen)-k.matched:], k.wanted[:k.matched]); {
			k.matched--
		}
		if k.matched == len(k.wanted) {
			return rest, leave
		}
		rest = append(rest, seen[:len(seen)-k.matched]...)
	}
	return rest, nothing
}

// release returns the keys that were held back.
func (k *keys) release() []byte {
	held := bytes.Clone(k.wanted[:k.matched])
	k.matched = 0
	return held
}

// maxKeys is the largest number of detach keys.
const maxKeys = 16

// ParseKeys reads keys as docker writes them, with commas between them. A key is a character, or
// ctrl- with one of a to z @ [ \ ] ^ _.
func ParseKeys(text string) ([]byte, error) {
	var all []byte
	for key := range strings.SplitSeq(text, ",") {
		control, isControl := strings.CutPrefix(key, "ctrl-")
		switch {
		case isControl && len(control) == 1 && (control[0] >= 'a' && control[0] <= 'z' || strings.Contains(`@[\]^_`, control)):
			all = append(all, control[0]&0x1f)
		case len(key) == 1 && key[0] > ' ' && key[0] <= '~':
			all = append(all, key[0])
		default:
			return nil, fmt.Errorf("%.32q is not a key such as ctrl-p or a", key)
		}
	}
	if len(all) > maxKeys {
		return nil, fmt.Errorf("%d keys are too many: use at most %d", len(all), maxKeys)
	}
	return all, nil
}
