package program

import (
	"math"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Size{
		"0": 0, "1": 1, "1048576": 1 << 20, "1K": 1 << 10, "1k": 1 << 10, "64M": 64 << 20, "2G": 2 << 30, "3T": 3 << 40,
		"1KiB": 1 << 10, "1kb": 1 << 10, "2GB": 2 << 30, "-1": -1, "-1K": -1 << 10, "9223372036854775807": math.MaxInt64,
	} {
		var got Size
		rig.Check(t, got.UnmarshalText([]byte(text)))
		rig.Is(t, got, want, "%s", text)
	}
	for _, text := range []string{"", "K", "1B", "1i", "1iB", "1.5G", "1 G", "1KK", "1P", "x", "0x10", "9223372036854775808", "9007199254740993K", "8388608T"} {
		rig.Is(t, new(Size).UnmarshalText([]byte(text)) != nil, true, "%q is no size", text)
	}
}
