package program

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes. On a command line it may end in K, M, G or T, which stand for 1024
// bytes and its powers. iB or B may follow the letter.
type Size int64

// UnmarshalText reads a size as it is written on a command line.
func (s *Size) UnmarshalText(text []byte) error {
	number, shift := strings.ToUpper(string(text)), 0
	number = strings.TrimSuffix(strings.TrimSuffix(number, "B"), "I")
	if number != "" {
		if i := strings.IndexByte("KMGT", number[len(number)-1]); i >= 0 {
			number, shift = number[:len(number)-1], 10*(i+1)
		} else if len(number) < len(text) {
			number = "" // iB or B without a letter
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n > math.MaxInt64>>shift || n < math.MinInt64>>shift {
		return fmt.Errorf("%q is not a number of bytes such as 1048576, 64K or 2G", text)
	}
	*s = Size(n << shift)
	return nil
}
