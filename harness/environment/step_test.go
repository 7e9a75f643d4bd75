package environment_test

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

func selection(ids ...string) (all []environment.Selection) {
	for _, id := range ids {
		all = append(all, environment.Selection{ID: id, Cwd: protocol.NewPathURI("/srv/w")})
	}
	return all
}

// states returns the states of a step, in order.
func states(s *environment.Step) (all []environment.State) {
	for _, c := range s.Environments {
		all = append(all, c.State)
	}
	return all
}

// TestStep: state and handle are captured together, once, and nothing is waited for.
func TestStep(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		plan := environment.Plan{
			Entries: []environment.Entry{{ID: "lazy", Transport: program}, {ID: "ready", Transport: server}}, IncludeLocal: true,
		}
		s := n.set(plan)
		synctest.Wait()
		n.refuse(errRefused)
		rig.Must(t, rig.Err(s.Upsert(environment.Entry{ID: "failed", Transport: server})))
		synctest.Wait()
		n.refuse(nil)
		n.dialled(2)

		ids := []string{"failed", "ready", "gone", "lazy", "local"}
		step := s.Step("1", selection(ids...))
		defer step.Release()
		want := []environment.State{environment.Failed, environment.Ready, environment.Missing, environment.Starting, environment.Ready}
		rig.Same(t, "states", want, states(step))
		for i, c := range step.Environments {
			if e, ok := s.Get(c.ID); c.ID != ids[i] || ok && c.Environment != e || !ok && c.Environment != nil {
				t.Errorf("%d is %+v", i, c)
			}
			rig.Is(t, text(c.Err), map[string]string{"failed": refused}[c.ID], "the error of %s", c.ID)
			rig.Is(t, rig.Value(c.Cwd.Native()), "/srv/w", "the cwd of %s", c.ID)
		}
		c, ok := step.Get("ready")
		rig.Is(t, ok && c.State == environment.Ready, true, "Get is %+v, %t", c, ok)
		c, ok = step.Get("other")
		rig.Is(t, ok, false, "Get of what was not selected is %+v", c)

		// What was not ready is started, for a later step.
		synctest.Wait()
		n.dialled(5)
		rig.Same(t, "the step has changed", want, states(step))
		later := s.Step("2", selection("failed", "lazy"))
		defer later.Release()
		rig.Same(t, "a later step", []environment.State{environment.Ready, environment.Ready}, states(later))
	})
}

// TestOthers: what is not selected is captured and started in the same way, once, and apart.
func TestOthers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		plan := environment.Plan{Entries: []environment.Entry{{ID: "lazy", Transport: program}, {ID: "ready", Transport: server}}, IncludeLocal: true}
		s := n.set(plan)
		synctest.Wait()
		step := s.Step("1", selection("local"), "ready", "local", "lazy", "gone", "ready")
		defer step.Release()
		others := func(s *environment.Step) (all []string) {
			for _, c := range s.Others {
				all = append(all, c.ID+" "+string(c.State))
				rig.Is(t, c.Client != nil, c.State == environment.Ready, "%s is %s, and has a client", c.ID, c.State)
			}
			return all
		}
		rig.Same(t, "others", []string{"ready ready", "lazy starting", "gone missing"}, others(step))
		rig.Is(t, len(step.Environments), 1, "environments")
		c := step.Environments[0]
		rig.Is(t, c.State == environment.Ready && c.Client == nil, true, "a local environment that nobody has used is %+v", c)
		ready, _ := step.Get("ready")
		rig.Is(t, connected(t, get(t, s, "ready")), ready.Client, "the captured client")
		rig.Must(t, rig.Err(s.Upsert(environment.Entry{ID: "ready", Transport: server})))
		synctest.Wait()
		rig.Check(t, ready.Client.Err())
		next := s.Step("2", nil, "lazy", "ready")
		defer next.Release()
		rig.Same(t, "others in the next step", []string{"lazy ready", "ready ready"}, others(next))
		rig.Is(t, next.Others[1].Client != ready.Client, true, "the client is another one")
		n.cut()
		synctest.Wait()
		state, held, err := get(t, s, "lazy").Peek()
		rig.Is(t, state == environment.Failed && held == nil && err != nil, true, "Peek gives %s, %p, %v", state, held, err)
	})
}

// TestReplaceDuringStep: the step goes on with what it has captured, the next one has the
// new environment.
func TestReplaceDuringStep(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		s := n.set(one(server))
		synctest.Wait()
		step := s.Step("1", selection("a"))
		old := step.Environments[0].Environment
		c := connected(t, old)
		e := rig.Value(s.Upsert(environment.Entry{ID: "a", Transport: server}))
		synctest.Wait()
		captured, _ := step.Get("a")
		rig.Is(t, captured.Environment == old && captured.State == environment.Ready, true, "the step has %+v", captured)
		rig.Is(t, connected(t, old), c, "the client in the step")
		rig.Is(t, rig.Value(c.Status(t.Context())), protocol.StatusReady, "Status in the step")

		next := s.Step("2", selection("a"))
		defer next.Release()
		captured = next.Environments[0]
		rig.Is(t, captured.Environment == e && captured.State == environment.Ready, true, "the next step has %+v", captured)
		step.Release()
		step.Release()
		<-c.Done()
		state(t, e, environment.Ready, "")
	})
}

// TestReplaceDuringStartup: a step that waits for a startup gets it, and the startup ends
// with the step.
func TestReplaceDuringStartup(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		n.hold()
		s := n.set(one(server))
		step := s.Step("1", selection("a"))
		rig.Must(t, rig.Err(s.Upsert(environment.Entry{ID: "a", Transport: program})))
		synctest.Wait()
		n.aborts(0)
		step.Release()
		synctest.Wait()
		n.aborts(1)
	})
}

// TestStepsAndReplacements: whatever a step has captured can be used until it is released,
// however often it is replaced meanwhile.
func TestStepsAndReplacements(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	s := n.set(environment.Plan{})
	both := selection("a", "b")
	skills := func(c environment.Captured) string { return c.Environment.Skills().Required[0] }
	var replacing sync.WaitGroup
	stop := make(chan struct{})
	replace := func(generation string) {
		for _, id := range []string{"a", "b"} {
			_, err := s.Upsert(environment.Entry{ID: id, Transport: program, Skills: environment.Skills{Required: []string{generation}}})
			rig.Check(t, err)
		}
	}
	replace("0")
	replacing.Go(func() {
		for generation := byte('1'); ; generation++ {
			select {
			case <-stop:
				return
			default:
				replace(string(generation))
			}
		}
	})
	for range 200 {
		step := s.Step("", both)
		for _, c := range step.Environments {
			_, err := c.Environment.Client(t.Context())
			rig.Is(t, err, nil, "a captured %s of generation %q", c.ID, skills(c))
		}
		step.Release()
	}
	close(stop)
	replacing.Wait()
}

func TestCheck(t *testing.T) {
	t.Parallel()
	s := newNetwork(t).set(one(program))
	for want, selected := range map[string][]environment.Selection{
		"":                                  selection("a"),
		"unknown turn environment id `b`":   selection("a", "b"),
		"duplicate turn environment id `a`": selection("a", "a"),
		"invalid cwd for environment `a`: path is empty": {{ID: "a"}},
	} {
		rig.Is(t, text(s.Check(selected)), want, "Check gives")
	}
	rig.Check(t, s.Check(nil))
}
