package capability_test

import (
	"fmt"
	"testing"

	"github.com/execagent/execagent/harness/capability"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// BenchmarkDiscover is a step in which nothing has changed: the step, its resolution, and what is
// known of its roots and environments.
func BenchmarkDiscover(b *testing.B) {
	for _, n := range []int{1, 16, capability.MaxRoots} {
		b.Run(fmt.Sprintf("roots=%d", n), func(b *testing.B) {
			f := newFake(b)
			f.capabilities.CapabilityDiscoveryV2 = true
			f.answer(protocol.MethodDiscoverInstalled, raw(`{}`))
			_, set := newNetwork(b, map[string]executor{"a": f, "b": f})
			var roots []capability.Root
			for i := range n {
				roots = append(roots, root(fmt.Sprint(i), []string{"a", "b"}[i%2], fmt.Sprintf("/plugins/%d", i)))
			}
			thread := newThread(b, roots...)
			discover(b, set, thread, "a", "b")
			for b.Loop() {
				rig.Is(b, len(discover(b, set, thread, "a", "b").Roots), n, "roots")
			}
		})
	}
}

// BenchmarkFirst is the first step of a thread with one root of 200 skills, with and without
// discovery at the agent.
func BenchmarkFirst(b *testing.B) {
	for name, without := range map[string][]string{"discovery": nil, "files": {protocol.MethodDiscoverRoots}} {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			for i := range 200 {
				write(b, dir, map[string]string{fmt.Sprintf("s%d/SKILL.md", i): skill, fmt.Sprintf("s%d/agents/openai.yaml", i): "policy: {}"})
			}
			_, set := newNetwork(b, map[string]executor{"a": newAgent(b, b.TempDir(), without...)})
			for b.Loop() {
				rig.Is(b, len(discover(b, set, newThread(b, root("1", "a", dir)), "a").Roots[0].Skills), 200, "skills")
			}
		})
	}
}
