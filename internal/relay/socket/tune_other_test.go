//go:build !linux

package socket

import "testing"

// limitUnsent is for Linux.
func limitUnsent(testing.TB, int, ...*Socket) {}
