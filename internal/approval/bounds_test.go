package approval

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quiet is a process that does nothing.
type quiet struct{}

func (quiet) Last() uint64  { return 0 }
func (quiet) Go()           {}
func (quiet) Refuse(string) {}
func (quiet) End()          {}

func (quiet) Refused(string, string) {}

// open has a desk begin with a process whose programs are all asked about, and returns its judge and
// the judge's end of the connection.
func open(t *testing.T, desk *Desk, id string) (p *ProcessQuestions, j *judge.Judge, theirs int, end func()) {
	t.Helper()
	policy := &execpolicy.Policy{Unmatched: rule.Prompt}
	ours, theirs, err := judge.Pair()
	rig.Must(t, err)
	j, err = judge.New(execpolicy.AppendPacked(nil, policy), nil, theirs)
	rig.Must(t, err)
	p = desk.Open(&Plan{timeout: defaultTimeout, Policy: policy}, id, quiet{}, ours)
	p.Begin()
	return p, j, theirs, func() {
		ours.Close()
		unix.Close(theirs)
	}
}

// TestBounds: 64 questions of a process and 256 of a session are open at once, and the others come
// when these are answered.
func TestBounds(t *testing.T) {
	t.Parallel()
	const processes, each = 5, 70
	asked := make(chan string, processes*each)
	answer := make(chan struct{})
	desk := &Desk{
		Ask: func(_ context.Context, method string, params, result any) error {
			if method == protocol.MethodExecApproval {
				asked <- params.(*protocol.ExecApprovalParams).ProcessID
				<-answer
				result.(*protocol.ExecApprovalAnswer).Decision = protocol.ApprovalAccept
			}
			return nil
		},
		Tell: func(string, any) {},
	}
	desk.init()
	desk.Attach(true)
	var programs sync.WaitGroup
	begin := func(id string) (end func()) {
		p, j, _, hangUp := open(t, desk, id)
		for i := range each {
			programs.Go(func() {
				path := fmt.Sprintf("/bin/%d", i)
				rig.Check(t, j.Decide(&judge.Exec{Called: path, Real: []string{path}, Argv: []string{path}, Thread: os.Getpid()}))
			})
		}
		return func() {
			p.Exited()
			hangUp()
		}
	}
	most := map[string]int{}
	next := func(n int) {
		t.Helper()
		for range n {
			most[<-asked]++
		}
		rig.Is(t, len(asked), 0, "more that are asked")
	}
	end := begin("0")
	defer end()
	next(maxAskedOfProcess)
	for i := 1; i < processes; i++ {
		defer begin(fmt.Sprint(i))()
	}
	next(maxAsked - maxAskedOfProcess)
	for id, n := range most {
		rig.Is(t, n <= maxAskedOfProcess, true, "%d questions of process %s are open", n, id)
	}
	close(answer)
	programs.Wait()
	next(processes*each - maxAsked)
}

// TestEnforceTree: a client that insists on judging programs starts nothing where that cannot be, and one that
// does not insist starts the command.
func TestEnforceTree(t *testing.T) {
	for enforce, refused := range map[string]bool{"tree": true, "start": false, "": false} {
		ask := Request{Argv: []string{"true"}, Dir: "/", Approval: &protocol.ExecApproval{ForcedRM: "forbidden", Enforce: enforce}}
		plan, err := new(Desk).Decide(ask, Host{CanJudge: func() bool { return false }})
		rig.Is(t, err != nil, refused, "%q: %v", enforce, err)
		rig.Is(t, plan != nil && plan.Policy != nil, false, "%q: programs are judged", enforce)
	}
}
