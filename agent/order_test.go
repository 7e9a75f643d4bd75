package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestWritesKeepOrder sends a start and many writes, all at once: the writes
// wait for the start, and none overtakes another (rpc.md 2.6).
func TestWritesKeepOrder(t *testing.T) {
	t.Parallel()
	const writes = 300
	c := newHarness(t, Config{}).raw(t)
	c.call("start", "process/start", sh("p", fmt.Sprintf("exec head -n %d", writes)))
	var want bytes.Buffer
	for i := range writes {
		line := fmt.Sprintf("%d %s\n", i, strings.Repeat("x", i%50*20))
		want.WriteString(line)
		c.call(i, "process/write", object{"processId": "p", "writeId": fmt.Sprint(i), "chunk": []byte(line)})
	}
	var got bytes.Buffer
	answers := 0
	for closed := false; !closed || answers < writes+1; {
		switch m := c.next(); m.Method {
		case "process/output":
			got.Write(m.Params.Chunk)
		case "process/closed":
			closed = true
		case "":
			answers++
			if m.Error != nil || m.ID != "start" && string(m.Result) != `{"status":"accepted"}` {
				t.Errorf("answer %v: %v %s", m.ID, m.Error, m.Result)
			}
		}
	}
	rig.Is(t, got.String() == want.String(), true, "the child read its lines in the order in which they were written")
}

// TestReadBehindStart sends a request of every kind right after a start: all
// find the process.
func TestReadBehindStart(t *testing.T) {
	t.Parallel()
	c := newHarness(t, Config{}).raw(t)
	for i := range 20 {
		id := fmt.Sprint(i)
		c.call("start", "process/start", sh(id, "read x; sleep 60"))
		c.call("read", "process/read", object{"processId": id})
		c.call("close", "process/closeStdin", object{"processId": id})
		c.call("signal", "process/signal", object{"processId": id, "signal": "user1"})
		c.call("terminate", "process/terminate", object{"processId": id})
	}
	want := map[any]int{"start": 20, "read": 20, "close": 20, "signal": 20, "terminate": 20}
	for len(want) > 0 {
		m := c.next()
		if m.Method != "" {
			continue
		}
		if m.Error != nil || m.ID == "close" && string(m.Result) != `{"status":"accepted"}` {
			t.Errorf("%v behind its start: %v %s", m.ID, m.Error, m.Result)
		}
		if want[m.ID]--; want[m.ID] == 0 {
			delete(want, m.ID)
		}
	}
}

// TestTerminatePassesBlockedWrite fills the stdin of a process that does not
// read. Further writes wait, requests for other processes do not, and terminate
// is answered at once. Then the write that waited is accepted (rpc.md 4.9).
func TestTerminatePassesBlockedWrite(t *testing.T) {
	t.Parallel()
	const writes = 40
	r := newHarness(t, Config{})
	c := r.raw(t)
	c.call("start", "process/start", sh("p", "exec sleep 600"))
	chunk := make([]byte, 64<<10)
	for i := range writes {
		c.call(i, "process/write", object{"processId": "p", "writeId": fmt.Sprint(i), "chunk": chunk})
	}
	c.call("other", "process/start", sh("q", "read x"))
	c.call("meta", "fs/getMetadata", object{"path": "file:///"})
	statuses := map[int]string{}
	answered := map[any]bool{}
	take := func() message {
		m := c.next()
		if i, ok := m.ID.(float64); ok {
			statuses[int(i)] = string(m.Result)
			if m.Error != nil {
				statuses[int(i)] = m.Error.Message
			}
		} else if m.ID != nil {
			answered[m.ID] = true
			rig.Is(t, m.Error, nil, "%v", m.ID)
		}
		return m
	}
	for !answered["meta"] || !answered["other"] {
		take()
	}
	c.call("list", "process/list", object{})
	for !answered["list"] {
		take()
	}
	if len(statuses) == writes {
		t.Fatalf("all %d writes of %d bytes were answered although nobody reads", writes, len(chunk))
	}
	before := len(statuses)
	c.call("terminate", "process/terminate", object{"processId": "p"})
	for m := take(); m.ID != "terminate"; m = take() {
	}
	for len(statuses) < writes {
		take()
	}
	const accepted = `{"status":"accepted"}`
	for i := range before + 1 {
		rig.Is(t, statuses[i], accepted, "write %d of %d before terminate", i, before+1)
	}
}

// TestWaitingReadDelaysNothing: while a process/read waits, all else goes on,
// also for the same process (rpc.md 2.6).
func TestWaitingReadDelaysNothing(t *testing.T) {
	t.Parallel()
	c := newHarness(t, Config{}).raw(t)
	c.call("start", "process/start", sh("p", "read x; exec sleep 600"))
	c.call("wait", "process/read", object{"processId": "p", "waitMs": uint64(1) << 62})
	others := []string{"read", "write", "signal", "list", "status", "meta"}
	c.call("read", "process/read", object{"processId": "p"})
	c.call("write", "process/write", object{"processId": "p", "writeId": "1", "chunk": []byte("\n")})
	c.call("list", "process/list", object{})
	c.call("status", "environment/status", object{})
	c.call("meta", "fs/getMetadata", object{"path": "file:///"})
	c.call("signal", "process/signal", object{"processId": "unknown", "signal": "interrupt"})
	for len(others) > 0 {
		m := c.next()
		if m.ID == "wait" {
			t.Fatalf("the read was answered although nothing happened: %v %s", m.Error, m.Result)
		}
		others = slices.DeleteFunc(others, func(id string) bool { return m.ID == id })
	}
	c.call("terminate", "process/terminate", object{"processId": "p"})
	for m := c.next(); m.ID != "wait"; m = c.next() {
	}
}

// TestFilesKeepOrder mutates and reads one file, all sent at once: every read
// sees the mutations sent before it and none sent after it (rpc.md 2.6).
func TestFilesKeepOrder(t *testing.T) {
	t.Parallel()
	c := newHarness(t, Config{}).raw(t)
	file := uri(filepath.Join(t.TempDir(), "f"))
	const rounds = 100
	for i := range rounds {
		c.call("write", "fs/writeFile", object{"path": file, "dataBase64": fmt.Append(nil, i)})
		for range 3 {
			c.call(i, "fs/readFile", object{"path": file})
		}
	}
	for range 4 * rounds {
		m := c.next()
		var result struct{ DataBase64 []byte }
		if m.Error != nil || json.Unmarshal(m.Result, &result) != nil {
			t.Fatalf("answer %v: %v %s", m.ID, m.Error, m.Result)
		}
		i, ok := m.ID.(float64)
		rig.Is(t, ok && string(result.DataBase64) != fmt.Sprint(i), false, "read behind write %v got %s", i, result.DataBase64)
	}
}

// TestWatchBehindChange makes a change right after the watch is asked for: it
// is always announced, and after the answer.
func TestWatchBehindChange(t *testing.T) {
	t.Parallel()
	c := newHarness(t, Config{}).raw(t)
	dir := t.TempDir()
	for i := range 60 {
		path := uri(filepath.Join(dir, fmt.Sprint(i)))
		announced := "fs/missingChanged"
		if i%10 == 0 {
			announced = "fs/changed"
			c.call("watch", "fs/watch", object{"watchId": "w", "path": uri(dir)})
		} else {
			c.call("watch", "fs/watchMissing", object{"watchId": i + 1, "missing": []string{path}})
		}
		c.call("write", "fs/writeFile", object{"path": path, "dataBase64": ""})
		watching, changed, written := false, false, false
		for !watching || !changed || !written {
			m := c.next()
			watching = watching || m.ID == "watch"
			changed = changed || m.Method == announced
			written = written || m.ID == "write"
			if changed && !watching {
				t.Fatal("the change was announced before the watch was answered")
			}
		}
		if i%10 == 0 {
			c.call("unwatch", "fs/unwatch", object{"watchId": "w"})
			for m := c.next(); m.ID != "unwatch"; m = c.next() {
			}
		}
	}
}
