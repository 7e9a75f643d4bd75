package hostile

import (
	"strconv"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestFloods: a command that makes all the calls that it can, from many threads, keeps no other
// command of the same agent from its work, and goes when it is terminated. How much slower the
// other one gets is told, and judged with -hunt only: each then has a CPU of its own, if nothing
// else runs.
func TestFloods(t *testing.T) {
	if !*flagHunt {
		rig.Tier(t, rig.Nightly)
	}
	p := install(t)
	ms := strconv.Itoa(hunting(100, 100, 5000))
	for _, uid := range users() {
		for _, m := range []mode{workspace, denying} {
			for kind, threads := range map[string]int{"calls": 8, "opens of FIFOs": 1000, "long paths": 8, "links": 8} {
				t.Run(strings.Join([]string{kind, string(m), "uid", strconv.Itoa(uid)}, " "), func(t *testing.T) {
					a := startAgent(t, p, supervised, uid)
					flooded, quiet := ground{base: openDir(t), uid: uid, mode: m}, ground{base: openDir(t), uid: uid, mode: m}
					flooded.fill(t)
					quiet.fill(t)
					pace := func() float64 {
						t.Helper()
						end := a.start(t, quiet, "pace", quiet.base, ms).finish(t, nil)
						rate, err := strconv.ParseFloat(strings.TrimSpace(end.stdout), 64)
						if end.code != 0 || err != nil {
							t.Fatalf("%+v: %v", end, err)
						}
						return rate
					}
					alone := pace()
					flood := a.start(t, flooded, "flood", kind, flooded.base, strconv.Itoa(threads))
					var beside float64
					flood.finish(t, func() {
						beside = pace()
						rig.Check(t, flood.Terminate(t.Context()))
					})
					flood.gone(t)
					t.Logf("alone %.0f files a second, beside the flood %.0f: %.2f", alone, beside, beside/alone)
					if *flagHunt && beside < 0.8*alone {
						t.Errorf("the other command keeps less than 80 %% of its pace")
					}
				})
			}
		}
	}
}
