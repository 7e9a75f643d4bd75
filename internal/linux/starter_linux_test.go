package linux

import (
	"os"
	"strings"
	"testing"
)

// TestForkGivesUpScore: a child begins without the OOM score of this process, which keeps it. Here the score
// is a positive one, because a negative one needs a right.
func TestForkGivesUpScore(t *testing.T) {
	const path, ours = "/proc/self/oom_score_adj", "1000\n"
	before, err := os.ReadFile(path)
	if err != nil || before[0] == '-' || os.WriteFile(path, []byte(ours), 0) != nil {
		t.Skip(err)
	}
	defer os.WriteFile(path, before, 0)
	NoteScore()
	if spare.file != nil {
		t.Fatal("a positive score is not passed on")
	}
	if spare.file, err = os.OpenFile(path, os.O_WRONLY, 0); err != nil {
		t.Fatal(err)
	}
	defer spare.file.Close()
	spare.value = []byte(strings.TrimSpace(ours))
	forgets.Store(true)
	defer forgets.Store(false)
	score := func() string {
		value, _ := os.ReadFile(path) // "" is wrong, too
		return string(value)
	}
	for range 3 {
		outer, inner := "", ""
		_, err = Fork(func() (int, error) {
			outer = score()
			_, err := Fork(func() (int, error) { inner = score(); return 0, nil })
			return 0, err
		})
		if after := score(); err != nil || outer != "0\n" || inner != "0\n" || after != ours {
			t.Fatalf("children get %q and %q, %q is left, %v", outer, inner, after, err)
		}
	}
}
