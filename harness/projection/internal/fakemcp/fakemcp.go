// Package fakemcp is an MCP server for tests: a mode of the test binary, which counts its starts
// and misbehaves on request.
package fakemcp

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/linux"
)

// Variables that make a test binary a server.
const (
	Mode = "FAKE_MCP"
	PIDs = "FAKE_MCP_PIDS" // a file that gets the pid of each start
)

// Main serves if the binary was started as a server. TestMain calls it first.
func Main() (served bool) {
	mode := os.Getenv(Mode)
	if mode != "" {
		fake{mode, bufio.NewWriter(os.Stdout)}.serve()
	}
	return mode != ""
}

// Env returns the variables that start a server in a mode.
func Env(mode, pids string) map[string]string { return map[string]string{Mode: mode, PIDs: pids} }

// Started returns the pids of all servers that were started with this file, in order.
func Started(t testing.TB, file string) (pids []int) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for word := range strings.FieldsSeq(string(text)) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// Gone waits until none of the processes exists any more.
func Gone(t testing.TB, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		// An agent reports the end of a process group before the kernel has removed all of its
		// processes.
		for end := time.Now().Add(patience); !isGone(pid); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("process %d is left", pid)
			}
		}
	}
}

// patience is how long a process may take to end on a busy machine.
const patience = 5 * time.Minute

// isGone reports whether the process does not exist, or is dead and was not waited for. The latter
// happens to orphans if no process reaps them.
func isGone(pid int) bool {
	stat, err := linux.StatOf(pid)
	return err != nil || stat.Dead()
}

// flood is the text that a server repeats. It is large, so that even a slow machine prints it
// faster than the bound forgets printed bytes.
var flood = strings.Repeat("x", 256<<10)

// fake is a server that misbehaves as its mode says. If a mode has the name of a step, the server
// dies in that step.
type fake struct {
	mode string
	out  *bufio.Writer
}

func (f fake) serve() {
	note(os.Getpid())
	f.step("start")
	switch f.mode {
	case "greeting":
		fmt.Fprint(f.out, "Welcome!\n\n{\n[]\n{\"a\":1}\n")
	case "line":
		for {
			fmt.Fprint(f.out, "{\"jsonrpc\":\"2.0\"", strings.Repeat(" ", 4096))
		}
	case "requests":
		for i := 0; ; i++ {
			fmt.Fprintf(f.out, `{"jsonrpc":"2.0","id":%d,"method":"ping"}`+"\n", i)
		}
	case "answers":
		for answer := `{"jsonrpc":"2.0","id":4711,"result":{"x":"` + flood + `"}}`; ; {
			fmt.Fprintln(f.out, answer)
		}
	case "stderr":
		go func() {
			for {
				fmt.Fprint(os.Stderr, flood)
			}
		}()
	case "stubborn":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
		child := exec.Command("sleep", "100000")
		if err := child.Start(); err != nil {
			panic(err)
		}
		note(child.Process.Pid)
	}
	f.out.Flush()
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			break
		}
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params struct {
				ProtocolVersion string `json:"protocolVersion"`
				Cursor          string `json:"cursor"`
				Name            string `json:"name"`
				Arguments       struct {
					Text string `json:"text"`
				} `json:"arguments"`
				Meta struct {
					Plugin string `json:"plugin_id"`
				} `json:"_meta"`
			} `json:"params"`
		}
		if err := json.Unmarshal(line, &m); err != nil {
			panic(err)
		}
		f.step(m.Method)
		if m.ID == nil || f.mode == "silent" {
			continue
		}
		switch m.Method {
		case "initialize":
			version := m.Params.ProtocolVersion
			switch f.mode {
			case "version":
				version = "1999-01-01"
			case "refusal":
				f.say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"I do not know that version"}}`, m.ID)
				continue
			}
			f.say(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":%q,"capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"fake","version":"1"}}}`, m.ID, version)
			if f.mode == "notifications" {
				for {
					f.say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"%s"}}`, flood)
				}
			}
		case "tools/list":
			switch f.mode {
			case "pages":
				f.say(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"t%s","inputSchema":{"type":"object"}}],"nextCursor":"%sx"}}`, m.ID, m.Params.Cursor, m.Params.Cursor)
			case "empty pages":
				f.say(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[],"nextCursor":"%sx"}}`, m.ID, m.Params.Cursor)
			case "values":
				f.say(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"t","inputSchema":{"a":[%s0]}}]}}`, m.ID, strings.Repeat("{},", 200_000))
			case "many values":
				f.say(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"t","inputSchema":{"a":[%s0]}}]}}`, m.ID, strings.Repeat("{},", 600_000))
			case "large":
				f.say(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"t","description":%q,"inputSchema":{"type":"object"}}],"nextCursor":"x"}}`, m.ID, strings.Repeat("x", 1<<20))
			default:
				more := `,{"name":"a\nb","inputSchema":{}},{"name":"echo","inputSchema":{}},{"name":"","inputSchema":{}}`
				if m.Params.Cursor != "" || f.mode == "changed" {
					more += `,{"name":"more","inputSchema":{"type":"object"}}`
				}
				f.say(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"echo","description":"Says it again.","inputSchema":{"type":"object"}}%s]}}`, m.ID, more)
				f.step("idle")
			}
		case "tools/call":
			switch f.mode {
			case "mute":
				continue
			case "change":
				f.mode = "changed"
				f.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
			case "questions":
				f.say(`{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{}}`)
			}
			text := m.Params.Arguments.Text + " of " + m.Params.Meta.Plugin
			if extra := os.Getenv("EXTRA"); extra != "" {
				text += " with " + extra
			}
			f.say(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%q}]}}`, m.ID, text)
		default:
			f.say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, m.ID)
		}
	}
	for f.mode == "stubborn" { // a select without cases is a deadlock to a runtime without C, and exits
		time.Sleep(time.Hour)
	}
}

func (f fake) say(format string, args ...any) {
	fmt.Fprintf(f.out, format+"\n", args...)
	f.out.Flush()
}

func (f fake) step(name string) {
	if f.mode == name {
		fmt.Fprintf(os.Stderr, "dying in %s", name)
		os.Exit(3)
	}
}

func note(pid int) {
	f, err := os.OpenFile(os.Getenv(PIDs), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	fmt.Fprintln(f, pid)
	f.Close()
}
