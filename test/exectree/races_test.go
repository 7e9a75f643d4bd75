package exectree

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/test/rig"
)

// racesVariable is how long each race lasts (time.ParseDuration); make exec-races sets it.
const racesVariable = "EXEC_RACES"

// raceTime returns how long each race lasts.
func raceTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv(racesVariable)
	switch {
	case text != "":
		length, err := time.ParseDuration(text)
		rig.Must(t, err)
		return length
	case rig.Runs(rig.Nightly):
		return 10 * time.Second
	case rig.Runs(rig.Merge):
		return 250 * time.Millisecond
	}
	return 60 * time.Millisecond
}

// tally is what a race has counted.
type tally struct{ Tries, Right, Wrong, Killed, Refused, Gone, Failed, Stopped int64 }

// raceDir makes the programs of a race: p, and program in the folder right, mark their argument; q,
// and program in the folder wrong, mark a W.
func raceDir(t *testing.T) string {
	t.Helper()
	p, dir := smallPrograms(t), rig.Public(t)
	for _, name := range []string{"right", "wrong"} {
		rig.Must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	place(t, p+"/right", dir+"/p")
	place(t, p+"/right", dir+"/f")
	place(t, p+"/right", dir+"/right/program")
	place(t, p+"/wrong", dir+"/q")
	place(t, p+"/wrong", dir+"/wrong/program")
	return dir
}

// TestRaces: whatever a command changes between the decision about its execve and the execve, no
// program but the one that was decided about executes an instruction, and none runs with other
// arguments; nor with another content than the one that was there when somebody was asked.
func TestRaces(t *testing.T) {
	length := raceTime(t)
	program := programs(t)
	for i, w := range ways() {
		for j, kind := range []string{"memory", "threads", "vfork", "link", "cwd", "descriptor", "content", "signals"} {
			if (i+j)%2 != 0 && !rig.Runs(rig.Merge) {
				continue // each push runs every race in two of the four ways
			}
			t.Run(w.name+", "+kind, func(t *testing.T) {
				dir := raceDir(t)
				// The wrong program may not be executed, nor the right one with the wrong word.
				text := `prefix_rule(pattern=["` + dir + `/q"], decision="forbidden")
prefix_rule(pattern=["` + dir + `/wrong/program"], decision="forbidden")
prefix_rule(pattern=["` + dir + `/p", "w"], decision="forbidden")
prefix_rule(pattern=["` + dir + `/f"], decision="prompt")
`
				var mu sync.Mutex
				answers := 0
				answer := func(judge.Question) bool {
					mu.Lock()
					defer mu.Unlock()
					answers++
					content, err := os.ReadFile(dir + "/f")
					want, errWant := os.ReadFile(dir + "/right/program")
					return err == nil && errWant == nil && string(content) == string(want)
				}
				r := w.run(t, dir, rules(t, rule.Allow, text), answer, "bash", "-c", `exec "$@" 3>>`+dir+"/marks", "bash",
					program, "race", kind, strconv.FormatInt(length.Milliseconds(), 10), dir)
				var n tally
				if err := json.Unmarshal([]byte(r.out), &n); err != nil {
					t.Fatalf("code %d, %v: %s", r.code, err, r.out)
				}
				marks := rig.Value(os.ReadFile(dir + "/marks"))
				right, wrongArgument, wrongProgram := strings.Count(string(marks), "r"), strings.Count(string(marks), "w"), strings.Count(string(marks), "W")
				t.Logf("%d tries: %d right, %d killed, %d refused, %d asked; %d wrong programs, %d wrong arguments", n.Tries, n.Right, n.Killed, n.Refused, answers,
					wrongProgram, wrongArgument)
				if n.Wrong != 0 || wrongArgument+wrongProgram != 0 {
					t.Errorf("%d wrong programs and %d wrong arguments ran", wrongProgram, wrongArgument)
				}
				if n.Right+n.Killed+n.Refused != n.Tries || n.Tries == 0 || int64(right) < n.Right || kind == "content" && answers == 0 {
					t.Errorf("the sums are wrong: %+v, %d marks, %d questions", n, right, answers)
				}
			})
		}
	}
}
