package execcheck

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/test/rig"
)

// racesVariable is how long each race lasts (time.ParseDuration), also the ones that
// show what happens without a check; make exec-races sets it.
const racesVariable = "EXEC_RACES"

// raceTime returns how long each race lasts, and whether that is long.
func raceTime(t *testing.T) (length time.Duration, long bool) {
	t.Helper()
	text := os.Getenv(racesVariable)
	switch {
	case text != "":
		length := rig.Value(time.ParseDuration(text))
		return length, true
	case rig.Runs(rig.Nightly):
		return 20 * time.Second, true
	case rig.Runs(rig.Merge):
		return 600 * time.Millisecond, false
	}
	return 100 * time.Millisecond, false
}

// tally is what a race has counted.
type tally struct{ Tries, Right, Wrong, Killed, Refused, Gone, Failed, Stopped int64 }

// race is a race that is set up.
type race struct {
	setup
	marks *os.File
}

// newRace makes the programs for a race of that kind: p is the right one, and marks
// its argument, q the wrong one.
func newRace(t *testing.T, kind, mode string, length time.Duration) race {
	t.Helper()
	program, dir := programs(t), rig.Public(t)
	write(t, filepath.Join(dir, "p"), smallest(t, 0, 10))
	write(t, filepath.Join(dir, "q"), smallest(t, 'W', 11))
	for _, name := range []string{"right", "wrong"} {
		rig.Must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	denied := filepath.Join(dir, "q")
	write(t, filepath.Join(dir, "right", "program"), smallest(t, 0, 10))
	write(t, filepath.Join(dir, "wrong", "program"), smallest(t, 'W', 11))
	if kind == "cwd" {
		denied = filepath.Join(dir, "wrong", "program")
	}
	marks := rig.Value(os.OpenFile(filepath.Join(dir, "marks"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600))
	t.Cleanup(func() { marks.Close() })
	return race{marks: marks, setup: setup{
		Mode: mode, Denied: denied, DeniedWord: "w", nobody: true,
		Argv: []string{program, "race", kind, strconv.FormatInt(length.Milliseconds(), 10), dir},
	}}
}

// marked counts the marks of the programs that have run: those of the right program
// with the right argument, of that with the wrong one, and of the wrong program.
func (r *race) marked(t *testing.T) (right, wrongArgument, wrongProgram int64) {
	t.Helper()
	marks := rig.Value(os.ReadFile(r.marks.Name()))
	text := string(marks)
	return int64(strings.Count(text, "r")), int64(strings.Count(text, "w")), int64(strings.Count(text, "W"))
}

// TestRaces: whatever a command changes between the check of its execve and the
// execve, no program but the one that was checked executes an instruction, and none
// runs with other arguments.
func TestRaces(t *testing.T) {
	length, long := raceTime(t)
	for _, kind := range []string{"memory", "threads", "vfork", "link", "cwd", "descriptor", "signals"} {
		t.Run(kind, func(t *testing.T) {
			r := newRace(t, kind, checked, length)
			got, out := supervise(t, r.setup, r.marks)
			var n tally
			if err := json.Unmarshal([]byte(out), &n); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			right, wrongArgument, wrongProgram := r.marked(t)
			t.Logf("%d tries: %d right, %d wrong, %d killed, %d refused; %d files and %d arguments replaced; %d stops", n.Tries, n.Right, n.Wrong, n.Killed, n.Refused,
				got.ReplacedFile, got.ReplacedArgv, n.Stopped)
			rig.Is(t, [2]int64{wrongProgram, n.Wrong + wrongArgument}, [2]int64{}, "wrong programs and arguments that ran")
			rig.Is(t, n.Right+n.Killed+n.Refused, max(n.Tries, 1), "the sums of %+v", n)
			// What is not right is killed at the stop, and the policy is not asked about it
			// if it has other arguments.
			replaced := got.ReplacedFile + got.ReplacedArgv
			if replaced > n.Killed || right < n.Right || right != n.Right && kind != "signals" {
				t.Errorf("%d replaced, %d killed; %d marks, %d right", replaced, n.Killed, right, n.Right)
			}
			// Several threads may be refused in one try, and who was refused may be killed. A relative path
			// is looked up again, and that may meet what is denied, too.
			if got.Refused < n.Refused || got.Refused != n.Refused && kind != "threads" && kind != "signals" && kind != "cwd" {
				t.Errorf("%d were refused, %d have seen that", got.Refused, n.Refused)
			}
		})
		if !long {
			continue
		}
		t.Run(kind+" without a check", func(t *testing.T) {
			r := newRace(t, kind, judged, length/10)
			_, out := supervise(t, r.setup, r.marks)
			right, wrongArgument, wrongProgram := r.marked(t)
			t.Logf("%d right, %d wrong arguments, %d wrong programs: %s", right, wrongArgument, wrongProgram, strings.TrimSpace(out))
		})
	}
}

// TestRacesWithoutCheck: who only looks before the kernel goes on is deceived. So
// the races above can be lost.
func TestRacesWithoutCheck(t *testing.T) {
	rig.Tier(t, rig.Merge)
	for range 100 {
		r := newRace(t, "memory", judged, 600*time.Millisecond)
		_, _ = supervise(t, r.setup, r.marks)
		if _, wrongArgument, wrongProgram := r.marked(t); wrongArgument > 0 && wrongProgram > 0 {
			return
		}
	}
	t.Error("no wrong program has run")
}

// TestSupervisorKilled: a supervisor that is killed at any moment takes the programs
// with it that it was about to check, and no program is executed after it.
func TestSupervisorKilled(t *testing.T) {
	length, _ := raceTime(t)
	kinds := []string{"memory", "threads", "vfork"}
	rounds, allRight := 0, int64(0)
	for begun := time.Now(); time.Since(begun) < length || rounds < len(kinds); rounds++ {
		// The race ends when 200 calls have failed because there is no supervisor.
		r := newRace(t, kinds[rounds%len(kinds)], checked, time.Hour)
		cmd, _ := supervisorCommand(t, r.setup, r.marks)
		read, write, err := os.Pipe()
		rig.Must(t, err)
		cmd.Stdout, cmd.Stderr = write, write
		rig.Must(t, cmd.Start())
		write.Close()
		// Until its first execve the new process holds the listener itself. If the
		// supervisor is killed before that it waits for good.
		sandboxtest.Eventually(t, "the command runs", func() bool { return hasCommand(cmd.Process.Pid) })
		time.Sleep(time.Duration(rounds%50) * time.Millisecond) // any moment will do
		rig.Must(t, unix.Kill(cmd.Process.Pid, unix.SIGKILL))
		_ = cmd.Wait()
		// All descendants hold the pipe.
		var n tally
		decodeErr := json.NewDecoder(read).Decode(&n)
		for buf := make([]byte, 512); ; {
			if _, err := read.Read(buf); err != nil {
				break
			}
		}
		read.Close()
		right, wrongArgument, wrongProgram := r.marked(t)
		rig.Is(t, [2]int64{wrongProgram, wrongArgument}, [2]int64{}, "wrong programs and arguments that ran")
		// The command may be killed itself, while its own image is checked.
		if decodeErr == nil && n.Gone <= 200 {
			t.Errorf("the command has found another supervisor: %+v", n)
		}
		allRight += right
	}
	t.Logf("killed %d times; %d right programs had run", rounds, allRight)
}

// hasCommand reports whether a child of the process pid runs another program.
func hasCommand(pid int) bool {
	own, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return slices.ContainsFunc(rig.Children(pid), func(child int) bool {
		program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", child))
		return err == nil && own != "" && program != own
	})
}
