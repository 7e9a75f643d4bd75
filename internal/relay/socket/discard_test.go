package socket

import "testing"

// TestLaneListRemove: a lane leaves its list from wherever it is.
func TestLaneListRemove(t *testing.T) {
	t.Parallel()
	for out := range 3 {
		var q laneList
		lanes := []*Lane{{limit: 0}, {limit: 1}, {limit: 2}}
		for _, l := range lanes {
			q.push(l)
		}
		q.remove(lanes[out])
		q.remove(lanes[out]) // nothing is left of it
		q.push(lanes[out])
		var got []int
		for q.first != nil {
			got = append(got, q.pop().limit)
		}
		if len(got) != 3 || got[2] != out {
			t.Errorf("without and then with lane %d: %v", out, got)
		}
	}
}
