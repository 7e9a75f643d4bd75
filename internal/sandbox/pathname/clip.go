package pathname

import "strings"

// maxShown is how much of a path an error or a line of the log shows, in bytes.
const maxShown = 256

// Clip shortens a path of more than 256 bytes in its middle, for an error or a
// line of the log. The result is for people: it is no path.
func Clip(name string) string {
	if len(name) <= maxShown {
		return name
	}
	const half = maxShown/2 - 2
	return strings.ToValidUTF8(name[:half], "") + "..." + strings.ToValidUTF8(name[len(name)-half:], "")
}
