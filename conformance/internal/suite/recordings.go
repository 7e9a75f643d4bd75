package suite

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/execagent/execagent/internal/contracttest"
)

const (
	maxRecord = 64 << 20 // bytes of one line of a recording
	maxTold   = 20       // faults of one recording
)

// record is one line of a recording. Other lines tell of the connection itself.
type record struct {
	Conn int             `json:"conn"`
	From string          `json:"dir"` // "c2s" or "s2c"
	Msg  json.RawMessage `json:"msg"`
}

// CheckRecordings judges recorded messages of clients and executors by the contract. A recording is a file of
// JSON lines, such as test/interop/wsrecord.py writes: conn is the number of a connection, dir is "c2s" for
// what the client has sent and "s2c" for what the executor has, and msg is the message. Each file is one case.
func CheckRecordings(files []string) (*Report, error) {
	report := &Report{About: fmt.Sprint(len(files), " recordings")}
	for _, file := range files {
		faults, err := checkRecording(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		result := Result{Name: strings.TrimSuffix(filepath.Base(file), ".jsonl"), Area: "recordings", Section: "docs/contract", Outcome: Passed}
		if len(faults) != 0 {
			result.Outcome, result.Why = Failed, strings.Join(faults, "\n")
		}
		report.Results = append(report.Results, result)
	}
	return report, nil
}

// checkRecording returns what is wrong with the messages of a file.
func checkRecording(file string) (faults []string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	talks := map[int]*contracttest.Conversation{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxRecord)
	messages := 0
	for n := 1; lines.Scan(); n++ {
		var r record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if r.Msg == nil {
			continue
		}
		messages++
		talk := talks[r.Conn]
		if talk == nil {
			talk = &contracttest.Conversation{}
			talks[r.Conn] = talk
		}
		var wrong error
		switch r.From {
		case "c2s":
			talk.Sent(r.Msg)
			if !isAnswer(r.Msg) {
				_, wrong = contracttest.Asks(r.Msg)
			}
		case "s2c":
			wrong = talk.Received(r.Msg)
		default:
			return nil, fmt.Errorf("line %d: dir is %q, must be c2s or s2c", n, r.From)
		}
		if wrong != nil && len(faults) < maxTold {
			faults = append(faults, fmt.Sprintf("line %d: %v", n, wrong))
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if messages == 0 {
		return nil, errors.New("it has no messages")
	}
	return faults, nil
}

// isAnswer reports whether a message of a client is an answer to a question of the executor.
func isAnswer(message []byte) bool {
	var r request
	return json.Unmarshal(message, &r) == nil && r.Method == ""
}
