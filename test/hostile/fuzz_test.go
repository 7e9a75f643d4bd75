package hostile

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/execagent/execagent/test/rig"
)

var (
	flagSeed      = flag.Uint64("seed", 0, "seed of the first sequence of TestSequences; 0 takes 1, and with -hunt one at random")
	flagSequences = flag.Int("sequences", 0, "how many sequences TestSequences makes in each mode; 0 takes what is usual")
)

// sequenceLength is how many calls a sequence has.
const sequenceLength = 50

// TestSequences makes random sequences of file calls in a sandbox of namespaces and in a supervised
// one, on equal trees: each call has the same result or the same error in both, and the trees are
// equal afterwards. What differs for a reason is in testdata/known.txt. The short form makes the same
// sequences each time: what nobody has met yet is looked for by a hunt, and fails no other work.
func TestSequences(t *testing.T) {
	t.Parallel()
	needNamespaces(t)
	p := install(t)
	for _, uid := range users() {
		for _, m := range []mode{workspace, denying, missing} {
			t.Run(fmt.Sprint(m, " uid ", uid), func(t *testing.T) {
				t.Parallel()
				f := newFuzz(t, p, uid, m)
				defer f.say(t)
				seed := *flagSeed
				if seed == 0 {
					seed = hunting(1, 1, rand.Uint64()>>1)
				}
				n := *flagSequences
				if n == 0 {
					n = hunting(8, 100, 10_000/len(users()))
				}
				for i := range uint64(n) {
					f.compare(t, seed+i)
					if len(f.found) >= maxFound {
						t.Fatal("there are more")
					}
				}
			})
		}
	}
}

// TestSequencesRepeat makes the same sequences twice in the same backend. If this fails, so does
// TestSequences, whatever the backends do.
func TestSequencesRepeat(t *testing.T) {
	t.Parallel()
	needNamespaces(t)
	p := install(t)
	f := newFuzz(t, p, os.Getuid(), denying)
	f.players[1] = play(t, p, namespaces, f.players[1].ground)
	f.strict = true
	defer f.say(t)
	for seed := range uint64(hunting(4, 20, 2000)) {
		f.compare(t, seed)
	}
}

// needNamespaces skips a test where there is nothing to compare with.
func needNamespaces(t *testing.T) {
	t.Helper()
	out, err := exec.Command(rig.Agent(t), "sandbox", "--sandbox-minimum=full", "--", "true").CombinedOutput()
	if err != nil && os.Getenv("CI") != "" {
		t.Fatalf("there are no namespaces here: %s", out)
	} else if err != nil {
		t.Skipf("there are no namespaces here to compare with: %s", out)
	}
}

// fuzz compares two players.
type fuzz struct {
	players     [2]*player
	strict      bool // no difference is known
	known       map[string]int
	differences []difference    // that have a reason
	calls       map[string]int  // that have succeeded
	found       map[string]bool // kinds of differences without a reason
	total       int
	cut         int // sequences that were compared to a part
}

// maxFound is how many kinds of differences are looked for before a test gives up.
const maxFound = 20

func newFuzz(t *testing.T, p programs, uid int, m mode) *fuzz {
	t.Helper()
	f := &fuzz{differences: knownDifferences(t), known: map[string]int{}, calls: map[string]int{}, found: map[string]bool{}}
	dir := openDir(t)
	for i, b := range []backend{namespaces, supervised} {
		g := ground{base: filepath.Join(dir, string(b.name[0])), uid: uid, mode: m}
		g.fill(t)
		f.players[i] = play(t, p, b, g)
	}
	return f
}

// say logs what was compared.
func (f *fuzz) say(t *testing.T) {
	var lines []string
	for reason, n := range f.known {
		lines = append(lines, fmt.Sprintf("%6d %s", n, reason))
	}
	slices.Sort(lines)
	maps.DeleteFunc(f.calls, func(_ string, n int) bool { return n > 0 })
	never := slices.Sorted(maps.Keys(f.calls))
	t.Logf("%d calls; %d sequences were cut short; never successful: %v; known differences:\n%s", f.total, f.cut, never, strings.Join(lines, "\n"))
}

// made is what the intruder tells of one step.
type made struct{ Call, Args, Result string }

func (m made) String() string { return fmt.Sprintf("%s(%s)", m.Call, m.Args) }

// compare makes one sequence at both and fails if they differ. Then it says with how few calls they
// still do.
func (f *fuzz) compare(t *testing.T, seed uint64) {
	t.Helper()
	steps := make([]int, sequenceLength)
	for i := range steps {
		steps[i] = i
	}
	kind, why := f.once(t, seed, steps, true)
	if kind == "" || f.found[kind] {
		return
	}
	f.found[kind] = true
	for length := len(steps) / 2; length > 0; length /= 2 {
		for i := 0; i+length <= len(steps); {
			fewer := slices.Concat(steps[:i], steps[i+length:])
			if same, shorter := f.once(t, seed, fewer, false); same == kind {
				steps, why = fewer, shorter
			} else {
				i += length
			}
		}
	}
	t.Errorf("seed %d, steps %v: in namespaces and supervised\n%s", seed, steps, why)
}

// once makes a sequence at both, and returns the kind of what differs, "" if nothing does, and what
// happened.
func (f *fuzz) once(t *testing.T, seed uint64, steps []int, count bool) (kind, why string) {
	t.Helper()
	var results [2][]made
	var trees [2]map[string]string
	var both sync.WaitGroup
	var errs [2]error
	for i, p := range f.players {
		both.Go(func() { results[i], trees[i], errs[i] = p.sequence(seed, steps) })
	}
	both.Wait()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("seed %d, steps %v, %s: %v\n%s", seed, steps, f.players[i].name, err, f.players[i].program.Printed)
		}
	}
	var told strings.Builder
	for i, a := range results[0] {
		b := results[1][i]
		if count {
			f.count(a, b)
		}
		if a == b {
			fmt.Fprintf(&told, "%s = %s\n", a, a.Result)
			continue
		}
		d := f.explain(a, b)
		if d == nil || f.strict {
			fmt.Fprintf(&told, "%s\n\t%s\n\t%s\n", a, a.Result, b.Result)
			if a.Args != b.Args {
				fmt.Fprintf(&told, "\t%s\n", b)
			}
			return fmt.Sprint(a.Call, " ", kindOf(a), " ", kindOf(b)), told.String()
		}
		if count {
			f.known[d.why]++
		}
		fmt.Fprintf(&told, "%s = %s, %s: %s\n", a, a.Result, b.Result, d.why)
		if (kindOf(a) == "ok") != (kindOf(b) == "ok") { // from here on the trees may differ
			if count {
				f.cut++
			}
			return "", ""
		}
	}
	if diff := cmp.Diff(trees[0], trees[1]); diff != "" {
		return "trees", told.String() + "the trees differ:\n" + diff
	}
	return "", ""
}

// kindOf is a result without what is accidental: "ok" or the error. Of a step of several calls it
// is the last one's.
func kindOf(m made) string {
	result := m.Result
	if i := strings.LastIndexByte(result, ' '); several[m.Call] && i >= 0 {
		result = result[i+1:]
	}
	if failed(result) {
		return result
	}
	return "ok"
}

// several are the steps that are of several calls.
var several = map[string]bool{"temporary": true, "whole": true}

func (f *fuzz) count(a, b made) {
	f.total++
	n := 0
	if !failed(a.Result) && !failed(b.Result) {
		n = 1
	}
	f.calls[a.Call] += n
}

// failed reports whether a result is an error alone.
func failed(result string) bool {
	return strings.HasPrefix(result, "E") && !strings.Contains(result, " ")
}

// A player is the intruder in a sandbox, making the sequences that it is told.
type player struct {
	backend
	ground
	program *rig.Program
	in      io.Writer
	out     *bufio.Scanner
	before  map[string]string // what nothing may change
}

// play starts the intruder.
func play(t *testing.T, p programs, b backend, g ground) *player {
	t.Helper()
	tree, err := g.tree()
	rig.Must(t, err)
	cmd := g.command(t, p, b, "calls", g.base)
	in, err := cmd.StdinPipe()
	rig.Must(t, err)
	read, write, err := os.Pipe()
	rig.Must(t, err)
	cmd.Stdout = write
	player := &player{backend: b, ground: g, in: in, out: bufio.NewScanner(read), before: g.keptOf(tree)}
	player.out.Buffer(nil, 1<<24)
	player.program = rig.Start(t, cmd)
	_ = write.Close() // the program has its own
	t.Cleanup(func() { _ = read.Close() })
	if !player.out.Scan() {
		t.Fatalf("%s: it does not begin\n%s", b.name, player.program.Printed)
	}
	return player
}

// command returns the command that lets the intruder loose.
func (g ground) command(t *testing.T, p programs, b backend, args ...string) *exec.Cmd {
	t.Helper()
	policy := rig.Value(json.Marshal(g.policy()))
	path := filepath.Join(openDir(t), "policy.json")
	rig.Must(t, os.WriteFile(path, policy, 0o644))
	argv := slices.Concat(b.through(p), []string{p.agent, "sandbox", "--policy", path, "--", p.intruder}, args)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = g.base + "/repo"
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/"}
	return as(cmd, g.uid)
}

// sequence makes one sequence on the ground as it is at first, and returns what became of each step
// and of the ground.
func (p *player) sequence(seed uint64, steps []int) (results []made, tree map[string]string, err error) {
	if err := p.reset(); err != nil {
		return nil, nil, fmt.Errorf("making the ground as it was: %w", err)
	}
	line, err := json.Marshal(map[string]any{"Seed": seed, "Steps": steps})
	if err != nil {
		return nil, nil, err
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		return nil, nil, err
	}
	if !p.out.Scan() {
		return nil, nil, fmt.Errorf("it has ended: %w", p.out.Err())
	}
	if err := json.Unmarshal(p.out.Bytes(), &results); err != nil {
		return nil, nil, err
	}
	if tree, err = p.tree(); err != nil {
		return nil, nil, err
	}
	if diff := cmp.Diff(p.before, p.keptOf(tree)); diff != "" {
		return nil, nil, fmt.Errorf("it has changed what nothing may change:\n%s\n%v", diff, results)
	}
	return results, tree, nil
}
