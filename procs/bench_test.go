package procs

import (
	"io"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func BenchmarkTrue(b *testing.B) {
	b.Run("pipes", func(b *testing.B) { benchTrue(b, Spec{}) })
	b.Run("pty", func(b *testing.B) { benchTrue(b, Spec{TTY: true}) })
	b.Run("os_exec", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			cmd := exec.Command("/bin/true")
			// These are pipes, not files: goroutines copy the output, as a
			// caller would.
			cmd.Stdout, cmd.Stderr = struct{ io.Writer }{io.Discard}, struct{ io.Writer }{io.Discard}
			rig.Must(b, cmd.Run())
		}
	})
}

func benchTrue(b *testing.B, spec Spec) {
	b.ReportAllocs()
	spec.Argv, spec.Dir = []string{"/bin/true"}, "/"
	for b.Loop() {
		p, err := Start(spec)
		rig.Must(b, err)
		p.Begin()
		<-p.Done()
		p.Close()
	}
}

func BenchmarkFlood(b *testing.B) {
	for _, tt := range []struct {
		name string
		tty  bool
		mb   int
	}{{"pipe", false, 256}, {"pty", true, 32}} {
		b.Run(tt.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(tt.mb) << 20)
			chunks, total := 0, 0
			for b.Loop() {
				p, err := Start(Spec{
					Argv: []string{"dd", "if=/dev/zero", "bs=64k", "status=none", "count=" + strconv.Itoa(tt.mb*16)},
					Dir:  "/", TTY: tt.tty,
					Sink: func(ev Event) {
						if ev.Kind == Output {
							chunks++
							total += len(ev.Data)
						}
					},
				})
				rig.Must(b, err)
				p.Begin()
				<-p.Done()
				p.Close()
			}
			rig.Is(b, total, tt.mb<<20*b.N, "bytes of output")
			b.ReportMetric(float64(total)/float64(chunks), "B/chunk")
		})
	}
}

func BenchmarkEcho(b *testing.B) {
	for _, tt := range []struct {
		name string
		spec Spec
	}{
		{"pipe", Spec{Argv: []string{"cat"}, Stdin: true}},
		{"pty", Spec{Argv: []string{"sh", "-c", "stty raw -echo; echo; exec cat"}, TTY: true}},
	} {
		b.Run(tt.name, func(b *testing.B) {
			b.ReportAllocs()
			echo := make(chan struct{}, 1) // so that the pump need not wait for this goroutine
			spec := tt.spec
			spec.Dir = "/"
			spec.Sink = func(ev Event) {
				if ev.Kind == Output && strings.Contains(string(ev.Data), "\n") {
					echo <- struct{}{}
				}
			}
			p, err := Start(spec)
			rig.Must(b, err)
			defer p.Close()
			p.Begin()
			if tt.spec.TTY {
				<-echo
			}
			for n := 0; b.Loop(); n++ {
				rig.Must(b, rig.Err(p.TryWrite(strconv.Itoa(n), []byte("x\n"))))
				<-echo
			}
		})
	}
}
