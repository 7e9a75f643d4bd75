//go:build cgo

package enforce

// cgo: this binary has cgo, which the race detector needs.
func init() { cgo = true }
