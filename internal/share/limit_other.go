//go:build !unix

package share

// Limit is the number of descriptors that is counted on where the system has no such limit.
func Limit() int64 { return 1 << 14 }
