package execcheck

import (
	"strconv"
	"strings"
	"testing"
)

// BenchmarkExec measures vfork, execve, exit and wait of a static program that does
// nothing: without a filter, with one whose listener lets the kernel go on at once,
// with one that judges and does not look again, and checked.
func BenchmarkExec(b *testing.B) {
	program := programs(b)
	for _, mode := range []string{bare, notified, judged, checked} {
		b.Run(mode, func(b *testing.B) {
			r, out := supervise(b, setup{Mode: mode, Argv: []string{program, "loop", strconv.Itoa(b.N), program, "code", "0"}}, nil)
			ns, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
			if err != nil || r.Code != 0 {
				b.Fatalf("code %d: %s", r.Code, out)
			}
			b.ReportMetric(ns, "ns/op")
		})
	}
}
