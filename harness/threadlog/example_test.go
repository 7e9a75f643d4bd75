package threadlog_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/execagent/execagent/harness/threadlog"
)

// A harness works, ends, and resumes by name.
func Example() {
	home, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(home)
	s, err := threadlog.OpenStore(filepath.Join(home, "threads"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()

	t, err := s.Create(threadlog.Meta{Environments: json.RawMessage(`[{"environmentId":"worker","cwd":"file:///srv/w"}]`)})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := t.StartTurn(nil); err != nil {
		fmt.Println(err)
	}
	if err := t.AppendProcess(threadlog.ProcessRef{ProcessID: "1", EnvironmentID: "worker", Argv: []string{"make"}, Status: threadlog.Exited, Output: "ok\n"}); err != nil {
		fmt.Println(err)
	}
	if err := t.EndTurn(threadlog.TurnCompleted); err != nil {
		fmt.Println(err)
	}
	if err := s.SetName(t.ID(), "build it"); err != nil {
		fmt.Println(err)
	}
	if err := t.Close(); err != nil {
		fmt.Println(err)
	}

	id, err := s.Find("build it")
	if err != nil {
		fmt.Println(err)
		return
	}
	t, err = s.Open(id)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()
	fmt.Println(string(t.Environments()))
	for r, err := range s.History(id) {
		if err != nil {
			fmt.Println(err)
			return
		}
		switch r.Type {
		case threadlog.TypeProcess:
			var p threadlog.ProcessRef
			if err := json.Unmarshal(r.Payload, &p); err != nil {
				fmt.Println(err)
				return
			}
			fmt.Printf("%s: %q in %s, %s, %q\n", r.Type, p.Argv, p.EnvironmentID, p.Status, p.Output)
		default:
			fmt.Println(r.Type)
		}
	}
	// Output:
	// [{"environmentId":"worker","cwd":"file:///srv/w"}]
	// turn_started
	// process: ["make"] in worker, exited, "ok\n"
	// turn_ended
}

// Another attempt begins with the last turn of a thread, and leaves the thread alone.
func ExampleStore_Fork() {
	home, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(home)
	s, err := threadlog.OpenStore(home)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	t, err := s.Create(threadlog.Meta{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()
	for _, text := range []string{"first", "second"} {
		if _, err := t.StartTurn(nil); err != nil {
			fmt.Println(err)
		}
		if err := t.Append("message", text); err != nil {
			fmt.Println(err)
		}
		if err := t.EndTurn(threadlog.TurnCompleted); err != nil {
			fmt.Println(err)
		}
	}

	fork, err := s.Fork(t.ID(), 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer fork.Close()
	if err := fork.Append("message", "another"); err != nil {
		fmt.Println(err)
	}
	for r, err := range s.History(fork.ID()) {
		if err != nil {
			fmt.Println(err)
			return
		}
		if r.Type == "message" {
			fmt.Println(string(r.Payload), r.ThreadID == t.ID())
		}
	}
	// Output:
	// "second" true
	// "another" false
}
