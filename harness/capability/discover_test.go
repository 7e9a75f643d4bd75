package capability_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/harness/capability"
	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// inBubble runs a test in a bubble of synctest, where time passes when all wait.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// upsert puts an environment with a transport into the set.
func upsert(t *testing.T, set *environment.Set, id string, transport environment.Transport) {
	t.Helper()
	rig.Must(t, rig.Err(set.Upsert(environment.Entry{ID: id, Transport: transport})))
}

// TestResolve has the rows of client.md 5.3: roots of environments that are ready, in the order of
// the selection, and what becomes of the others.
func TestResolve(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFake(t)
		n, set := newNetwork(t, map[string]executor{"ready": f, "out": f})
		n.refuse("bad", errors.New("connection refused"))
		n.mu.Lock()
		n.executors["lazy"], n.executors["new"] = f, f
		n.mu.Unlock()
		upsert(t, set, "bad", url("bad"))
		upsert(t, set, "lazy", environment.Stdio{Program: "lazy"})
		upsert(t, set, "new", environment.Stdio{Program: "new"})
		synctest.Wait()
		thread := newThread(t, root("1", "lazy", "/l"), root("2", "bad", "/b"), root("3", "ready", "/r"), root("4", "gone", "/g"),
			root("5", "out", "/o"), root("6", "new", "/n"), root("7", "ready", "/r2"))
		rig.Same(t, "the environments", []string{"lazy", "bad", "ready", "gone", "out", "new"}, thread.Environments())

		// Read-only inspection starts nothing.
		ready, warnings := capability.Inspect(set, thread.Roots())
		want := []string{
			"selected capability root `2` references environment `bad`: exec-server connection attempt failed: connecting to exec-server: connection refused",
			"selected capability root `4` references unavailable environment `gone`",
		}
		rig.Same(t, "warnings of Inspect", want, warnings)
		rig.Is(t, len(ready), 3, "Inspect tells %v", ready)
		rig.Is(t, ready[0].ID, "3", "the first root")
		synctest.Wait()
		e, ok := set.Get("lazy")
		rig.Is(t, ok, true, "lazy is there")
		state, _ := e.State()
		rig.Is(t, state, environment.Starting, "Inspect has made lazy")

		step := set.Step("1", turn("ready", "lazy"), thread.Environments()...)
		defer step.Release()
		resolved := func(step *environment.Step) (all []string) {
			for _, r := range thread.Resolve(t.Context(), step) {
				all = append(all, r.ID)
				captured, _ := step.Get(r.EnvironmentID)
				rig.Is(t, captured.Client != r.Client || r.Client == nil, false, "%s has another client than the step", r.ID)
			}
			return all
		}
		rig.Same(t, "resolved", []string{"3", "5", "7"}, resolved(step))
		// What was not ready was started. The step does not change, a later one has it.
		synctest.Wait()
		rig.Same(t, "resolved later in the step", []string{"3", "5", "7"}, resolved(step))
		next := set.Step("2", turn("ready", "lazy"), thread.Environments()...)
		defer next.Release()
		rig.Same(t, "resolved in the next step", []string{"1", "3", "5", "6", "7"}, resolved(next))
		// A step that captures only the turn has only its roots.
		narrow := set.Step("3", turn("ready"))
		defer narrow.Release()
		rig.Same(t, "resolved in a step without others", []string{"3", "7"}, resolved(narrow))
		rig.Is(t, len(f.takeSeen(protocol.MethodDiscoverRoots)), 0, "files read")
	})
}

// TestKept: what was found is asked for once, whatever becomes of the environment.
func TestKept(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := newFake(t), newFake(t)
		n, set := newNetwork(t, map[string]executor{"a": a, "b": b})
		thread := newThread(t, root("1", "a", "/1"), root("2", "b", "/2"), root("3", "a", "/3"))
		v := discover(t, set, thread, "a", "b")
		rig.Same(t, "found", []string{"1", "2", "3"}, ids(v))
		rig.Is(t, v.Recovered, false, "recovered")
		for i, r := range v.Roots {
			if r.Err != nil || len(r.Skills) != 1 || r.Skills[0].Instructions.Contents != r.ID {
				t.Errorf("root %d is %+v", i, r.Found)
			}
		}
		if seen := a.takeSeen(protocol.MethodDiscoverRoots); len(seen) != 1 || len(asked(t, seen[0])) != 2 || strings.Contains(string(seen[0]), "sandbox") {
			t.Errorf("asked for were %s", seen)
		}
		same := func(want ...int) {
			t.Helper()
			now := discover(t, set, thread, "a", "b")
			if len(now.Roots) != len(want) || now.Recovered {
				t.Fatalf("found are %v, recovered %t", ids(now), now.Recovered)
			}
			for i, at := range want {
				rig.Is(t, now.Roots[i].Found, v.Roots[at].Found, "root %s was found again", now.Roots[i].ID)
			}
		}
		rig.Is(t, discover(t, set, thread, "a", "b"), v, "nothing has changed, and the view is another")
		narrow := discover(t, set, thread, "a")
		rig.Is(t, narrow != v && len(narrow.Roots) == 3, true, "in another turn the view is %+v", narrow)
		same(0, 1, 2)
		// Another handle under the id, a lost session, an environment that goes and comes back.
		upsert(t, set, "a", url("a"))
		synctest.Wait()
		same(0, 1, 2)
		n.refuse("b", errors.New("down"))
		b.cut()
		time.Sleep(2 * client.DefaultRecoveryTimeout)
		synctest.Wait()
		same(0, 2)
		n.refuse("b", nil)
		discover(t, set, thread, "a", "b") // starts it
		synctest.Wait()
		same(0, 1, 2)
		for id, f := range map[string]*fake{"a": a, "b": b} {
			seen := f.takeSeen(protocol.MethodDiscoverRoots)
			rig.Is(t, len(seen) > 1 || id == "a" && len(seen) > 0, false, "%s was asked %d times more", id, len(seen))
		}
	})
}

// TestBatches: a request has no more roots than it may.
func TestBatches(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	_, set := newNetwork(t, map[string]executor{"a": f})
	var roots []capability.Root
	for i := range capability.MaxRoots {
		roots = append(roots, root(fmt.Sprint(i), "a", fmt.Sprintf("/%d", i)))
	}
	v := discover(t, set, newThread(t, roots...), "a")
	seen := f.takeSeen(protocol.MethodDiscoverRoots)
	if len(seen) != 2 || len(asked(t, seen[0])) != protocol.MaxCapabilityRoots || len(v.Roots) != len(roots) {
		t.Errorf("%d requests for %d roots", len(seen), len(v.Roots))
	}
	for i, r := range v.Roots {
		rig.Is(t, r.Root == roots[i] && r.Skills[0].Instructions.Contents == r.ID, true, "root %d is %+v", i, r)
	}
}

// TestErrorsKept: an error of a root stays if it will not pass; after others it is read again, and
// the first success is told once.
func TestErrorsKept(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFake(t)
		_, set := newNetwork(t, map[string]executor{"a": f})
		f.answer(protocol.MethodDiscoverRoots, func(params json.RawMessage) any {
			r := f.discover(params).(*protocol.DiscoverRootsResult)
			r.Roots[0].Error = new("no such file")
			return r
		})
		thread := newThread(t, root("1", "a", "/1"), root("2", "a", "/2"))
		v := discover(t, set, thread, "a")
		if text(v.Roots[0].Err) != "no such file" || v.Roots[0].Skills != nil || v.Roots[1].Err != nil {
			t.Errorf("found are %+v, %+v", v.Roots[0].Found, v.Roots[1].Found)
		}
		f.answer(protocol.MethodDiscoverRoots, f.discover)
		wantAgain(t, set, thread, v)

		// An agent that does not answer, as long as it may take by default.
		f.answer(protocol.MethodDiscoverRoots, func(json.RawMessage) any { return nil })
		thread = rig.Value(capability.New(capability.Config{Roots: []capability.Root{root("1", "a", "/1")}}))
		v = discover(t, set, thread, "a")
		const late = "timed out waiting for exec-server `capabilityRoots/discoverV1` response after 30s"
		rig.Is(t, text(v.Roots[0].Err), late, "the error")
		rig.Is(t, v.Recovered, false, "recovered")
		wantAgain(t, set, thread, v)
		f.answer(protocol.MethodDiscoverRoots, f.discover)
		wantFound(t, set, thread, true)
		rig.Is(t, discover(t, set, thread, "a").Recovered, false, "it is told twice")

		// Who gives up leaves nothing behind.
		f.answer(protocol.MethodDiscoverRoots, func(json.RawMessage) any { return nil })
		thread = newThread(t, root("1", "a", "/1"))
		step := set.Step("s", turn("a"))
		defer step.Release()
		enough := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, enough)
		defer cancel()
		rig.Is(t, rig.Err(thread.Discover(ctx, step)), enough, "the error")
		f.answer(protocol.MethodDiscoverRoots, f.discover)
		wantFound(t, set, thread, false)
	})
}

// TestLoss: a call that the loss of the connection has ended is made again, if the connection is
// back within 8 s.
func TestLoss(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFake(t)
		n, set := newNetwork(t, map[string]executor{"a": f})
		cuts := 0
		f.answer(protocol.MethodDiscoverRoots, func(params json.RawMessage) any {
			if cuts--; cuts >= 0 {
				f.cut()
				return nil
			}
			return f.discover(params)
		})
		cuts = 1
		v := discover(t, set, newThread(t, root("1", "a", "/1")), "a")
		if v.Roots[0].Err != nil || v.Recovered || len(f.takeSeen(protocol.MethodDiscoverRoots)) != 2 {
			t.Errorf("after a cut: %+v", v.Roots[0].Found)
		}
		// Two of them are too much for one Discover.
		cuts = 2
		thread := newThread(t, root("1", "a", "/1"))
		if v = discover(t, set, thread, "a"); v.Roots[0].Err == nil || len(f.takeSeen(protocol.MethodDiscoverRoots)) != 2 {
			t.Errorf("after two cuts: %+v", v.Roots[0].Found)
		}
		synctest.Wait()
		wantFound(t, set, thread, true)
		// A connection that does not come back.
		synctest.Wait()
		n.refuse("a", errors.New("down"))
		begun := time.Now()
		cuts = 1
		thread = newThread(t, root("1", "a", "/1"))
		v = discover(t, set, thread, "a")
		_, lost := errors.AsType[*client.DisconnectedError](v.Roots[0].Err)
		rig.Is(t, lost && time.Since(begun) == 8*time.Second, true, "after %v: %v", time.Since(begun), v.Roots[0].Err)
		// A client that is still recovering is ready, and worth the same wait.
		v = discover(t, set, newThread(t, root("1", "a", "/1")), "a")
		if !errors.Is(v.Roots[0].Err, client.ErrRecovering) || time.Since(begun) != 16*time.Second {
			t.Errorf("after %v: %v", time.Since(begun), v.Roots[0].Err)
		}
		ready, warnings := capability.Inspect(set, thread.Roots())
		rig.Is(t, ready == nil && warnings == nil, true, "Inspect tells %v, %q", ready, warnings)
		n.refuse("a", nil)
		synctest.Wait()
		wantFound(t, set, thread, true)
	})
}

// TestFatal: a root whose answer ends the connection each time, as one does that is too large for a
// message, does so a few times, and does not keep the others away.
func TestFatal(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFake(t)
		_, set := newNetwork(t, map[string]executor{"a": f})
		f.answer(protocol.MethodDiscoverRoots, func(params json.RawMessage) any {
			if strings.Contains(string(params), "/poison") {
				f.cut()
				return nil
			}
			return f.discover(params)
		})
		var roots []capability.Root
		for i := range 9 {
			roots = append(roots, root(fmt.Sprint(i), "a", fmt.Sprintf("/%d", i)))
		}
		roots[4] = root("4", "a", "/poison")
		thread := newThread(t, roots...)
		cuts := 0
		var v *capability.View
		for range 10 {
			v = discover(t, set, thread, "a")
			synctest.Wait()
			for _, params := range f.takeSeen(protocol.MethodDiscoverRoots) {
				if strings.Contains(string(params), "/poison") {
					cuts++
				}
			}
		}
		for i, r := range v.Roots {
			rig.Is(t, r.Err != nil, i == 4, "root %d has error %v", i, r.Err)
		}
		// Nine, halved to 5, 3, 2, 1, asked for twice each; then the one twice more each time.
		_, lost := errors.AsType[*client.DisconnectedError](v.Roots[4].Err)
		rig.Is(t, lost && cuts <= 2*5+2*2, true, "after %d cuts: %v", cuts, v.Roots[4].Err)
	})
}
