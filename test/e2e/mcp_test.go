package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/execagent/execagent/test/rig"
)

// TestMCP plays the files of testdata/mcp: clients of agent mcp, of the protocol's own library. Prose on top says
// what is pinned. Then each line is a step:
//
//	agent ARG...                start an agent, whose URL is $URL
//	registry                    start a registry with an agent behind it, at $REGISTRY
//	http ARG...                 start agent mcp for many clients at once, at $HTTP
//	client NAME ANSWER ARG...   start agent mcp (a space in ARG is %20), with a client that answers questions with
//	                            ANSWER: once, session, deny, decline, or none if it cannot be asked. The client http ARG is one of $HTTP
//	NAME TOOL JSON              call a tool. The answer is a text, after "error: " if it says that it is an error
//	~ REGEXP                    the answer matches, or a line of it; !~ it does not
//	data JSON                   members that the answer has as data, which needs agent mcp --data. null: it has none
//	begin NAME TOOL JSON        call a tool, and go on meanwhile. until ~ REGEXP waits for progress with such a line
//	end, cancel                 wait for the call that was begun, or cancel it
//	close NAME, kill NAME       end a client, or kill it with its agent mcp
//	asked N                     so many questions were asked so far
//	sh COMMAND                  run a command, whose output is the answer. until sh COMMAND repeats it until it succeeds
//
// $MEGA is a text of 1 MiB. A file whose prose has the word "versions" is played for each version of the protocol,
// others with the newest. One whose prose has "tier merge" is only played there.
func TestMCP(t *testing.T) {
	t.Parallel()
	files := rig.Value(filepath.Glob("testdata/mcp/*.txt"))
	for _, file := range files {
		prose, script, ok := strings.Cut(textOf(os.ReadFile(file)), "\n\n")
		if !ok {
			t.Fatalf("%s has no prose", file)
		}
		versions := []string{"2026-07-28"}
		if strings.Contains(prose, "versions") {
			versions = []string{"2024-11-05", "2025-06-18", "2025-11-25", "2026-07-28"}
		}
		for _, version := range versions {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txt")+"/"+version, func(t *testing.T) {
				t.Parallel()
				if strings.Contains(prose, "tier merge") {
					rig.Tier(t, rig.Merge)
				}
				if strings.Contains(prose, "needs curl") {
					need(t, skip, "curl")
				}
				(&mcpStage{T: t, version: version, dir: t.TempDir(), clients: map[string]*mcpClient{}}).play(script)
			})
		}
	}
}

// mcpStage plays one file.
type mcpStage struct {
	*testing.T
	version, dir, url, http string
	token, registry, key    string
	clients                 map[string]*mcpClient
	asked                   atomic.Int64
	progress                rig.Transcript
	answer                  string
	data                    any
	cancel                  context.CancelFunc
	done                    chan func()
}

type mcpClient struct {
	*mcp.ClientSession
	kill func() error
}

// bearer adds a token to requests.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

func (s *mcpStage) play(script string) {
	mega := strings.Repeat("b", 1<<20)
	for n, line := range strings.Split(script, "\n") {
		line = strings.NewReplacer("$URL", s.url, "$HTTP", s.http, "$DIR", s.dir, "$TOKEN", s.token, "$REGISTRY", s.registry, "$MEGA", mega).Replace(line)
		word, rest, _ := strings.Cut(line, " ")
		if word == "" || word == "#" {
			continue
		}
		s.Logf("%v %d: %.500s", time.Now().Format("05.000"), n+1, line)
		s.step(word, rest)
		if s.Failed() {
			s.Fatalf("in line %d: the answer is\n%s", n+1, s.answer)
		}
	}
}

func (s *mcpStage) step(word, rest string) {
	args := strings.Fields(rest)
	for i, arg := range args {
		args[i] = strings.ReplaceAll(arg, "%20", " ")
	}
	switch word {
	case "agent":
		s.url = s.start(append([]string{"--listen", "ws://127.0.0.1:0"}, args...)...).Line(s)
	case "registry":
		site := rig.NewSite(s)
		site.Serve(s, "ci-1")
		s.registry, s.key = site.URL(), site.Harness
	case "http":
		p := s.start(append([]string{"mcp", "--listen", "http://127.0.0.1:0"}, args...)...)
		s.http = p.Line(s)
		var said []string
		p.Until(s, "it names the token", func() bool {
			said = regexp.MustCompile(`token in the file (\S+)\n`).FindStringSubmatch(p.Printed.String())
			return said != nil
		})
		s.token = strings.TrimSpace(textOf(os.ReadFile(said[1])))
	case "client":
		s.connect(args[0], args[1], args[2:])
	case "~", "!~":
		rig.Is(s, regexp.MustCompile("(?m)"+rest).MatchString(s.answer), word == "~", "%s", rest)
	case "data":
		var want, got map[string]any
		rig.Must(s, json.Unmarshal([]byte(rest), &want), json.Unmarshal(rig.Value(json.Marshal(s.data)), &got))
		rig.Is(s, got == nil, want == nil, "without data")
		for name := range want {
			rig.Same(s, name, want[name], got[name])
		}
	case "begin":
		var ctx context.Context
		ctx, s.cancel = context.WithCancel(s.Context())
		s.done = make(chan func(), 1)
		go func() { s.done <- s.call(ctx, rest) }()
	case "until":
		if command, ok := strings.CutPrefix(rest, "sh "); ok {
			rig.Until(s, command, func() bool { return s.shell(command) == nil })
			return
		}
		wanted := regexp.MustCompile("(?m)" + strings.TrimPrefix(rest, "~ "))
		rig.Until(s, rest, func() bool { return wanted.MatchString(s.progress.String()) })
	case "end":
		rig.Within(s, rig.Patience, "the answer", s.done)()
	case "cancel":
		s.cancel()
		rig.Within(s, rig.Patience, "the answer", s.done)()
	case "close":
		_ = s.clients[rest].Close() // the exit code of a server that was killed
	case "kill":
		rig.Must(s, s.clients[rest].kill())
	case "asked":
		rig.Is(s, fmt.Sprint(s.asked.Load()), rest, "the questions")
	case "sh":
		rig.Must(s, s.shell(rest))
	default:
		s.call(s.Context(), word+" "+rest)()
	}
}

// start starts the agent with a command line.
func (s *mcpStage) start(args ...string) *rig.Program {
	cmd := exec.Command(rig.Agent(s), args...)
	cmd.Dir = s.dir
	return rig.Start(s, cmd)
}

func (s *mcpStage) shell(command string) error {
	cmd := rig.Command(s, "sh", "-c", command)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), "PATH="+filepath.Dir(rig.Agent(s))+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	s.answer = string(out)
	return err
}

// connect makes a client.
func (s *mcpStage) connect(name, answer string, args []string) {
	options := &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
		fmt.Fprintln(&s.progress, r.Params.Message)
	}}
	if answer != "none" {
		options.ElicitationHandler = func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			s.asked.Add(1)
			if answer == "decline" {
				return &mcp.ElicitResult{Action: answer}, nil
			}
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"decision": answer}}, nil
		}
	}
	var transport mcp.Transport
	c := &mcpClient{}
	if len(args) > 0 && args[0] == "http" {
		transport = &mcp.StreamableClientTransport{Endpoint: s.http, HTTPClient: &http.Client{Transport: bearer(s.token)}}
	} else {
		cmd := rig.Command(s, rig.Agent(s), append([]string{"mcp"}, args...)...)
		cmd.Dir, cmd.Stderr, cmd.Env = s.dir, s.Output(), append(os.Environ(), "AGENT_REGISTRY_TOKEN="+s.key)
		transport = &mcp.CommandTransport{Command: cmd, TerminateDuration: time.Minute}
		c.kill = func() error { return cmd.Process.Kill() }
	}
	var err error
	c.ClientSession, err = mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, options).
		Connect(s.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: s.version})
	rig.Must(s, err)
	rig.Is(s, c.InitializeResult().ProtocolVersion, s.version, "the version")
	s.clients[name] = c
	s.Cleanup(func() { _ = c.Close() })
}

// call calls a tool, and returns what takes the answer.
func (s *mcpStage) call(ctx context.Context, line string) func() {
	words := strings.SplitN(line, " ", 3)
	params := &mcp.CallToolParams{Name: words[1], Arguments: json.RawMessage(words[2])}
	params.SetProgressToken(line)
	r, err := s.clients[words[0]].CallTool(ctx, params)
	return func() {
		if s.answer, s.data = "", nil; err != nil {
			s.answer = "failed: " + err.Error()
			return
		}
		if r.IsError {
			s.answer = "error: "
		}
		for _, content := range r.Content {
			switch c := content.(type) {
			case *mcp.TextContent:
				s.answer += c.Text
			case *mcp.ImageContent:
				s.answer += fmt.Sprintf("%s of %d bytes", c.MIMEType, len(c.Data))
			}
		}
		s.data = r.StructuredContent
	}
}
