package judge

import (
	"reflect"
	"testing"
)

// FuzzDecode: a question that is read is sent as it was.
func FuzzDecode(f *testing.F) {
	f.Add((&Question{ID: 1, PID: 2, Parent: 3, Argv: []string{"a", ""}, Exe: "/a", Dir: "/", Reason: "r", Matched: "[]", Proposed: []string{"a"}, Unasked: true, Decider: "/r:1:2"}).encode())
	f.Add((&Question{Told: true, Truncated: true}).encode())
	f.Add((&Question{ID: 7, Withdrawn: true}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		q, err := decode(b)
		if err != nil {
			return
		}
		if again, err := decode(q.encode()); err != nil || !reflect.DeepEqual(again, q) {
			t.Errorf("%+v, and again %+v: %v", q, again, err)
		}
	})
}
