package confine

import (
	"os"
	"testing"

	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// BenchmarkManaged: a confined command without a network, and with a managed one.
func BenchmarkManaged(b *testing.B) {
	for _, e := range enforcements {
		door := &Door{Host: func() (sandbox.Host, error) { return e.host, nil }, Served: new(resolve.Served)}
		readOnly := sandbox.Profile{Entries: []sandbox.Entry{{Place: sandbox.PlaceRoot, Access: sandbox.Read}}}
		for name, enter := range map[string]func() (*Held, error){
			"none":  func() (*Held, error) { return door.Enter(readOnly) },
			e.layer: func() (*Held, error) { return door.EnterManaged(readOnly, Managed{SOCKS5: true}) },
		} {
			b.Run(e.layer+"/"+name, func(b *testing.B) {
				for b.Loop() {
					held := rig.Value(enter())
					p := rig.Value(procs.Start(procs.Spec{Argv: []string{"/bin/true"}, Dir: "/", Env: os.Environ(), Stage: held.Stage}))
					p.Begin()
					<-p.Done()
					p.Close()
					held.Release()
				}
			})
		}
	}
}
