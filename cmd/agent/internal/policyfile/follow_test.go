package policyfile

import (
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/test/rig"
)

// TestFollowNetwork: each signal reads the file again; a file with a mistake changes nothing.
func TestFollowNetwork(t *testing.T) {
	t.Parallel()
	path := write(t, `allow = ["a.org"]`)
	p := rig.Value(ReadNetwork(path))
	said, log := io.Pipe()
	lines := make(chan string)
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := said.Read(buf)
			if err != nil {
				close(lines)
				return
			}
			lines <- string(buf[:n])
		}
	}()
	signals := make(chan os.Signal)
	var got []*agent.NetworkPolicy
	set := func(p *agent.NetworkPolicy) error {
		got = append(got, p)
		return nil
	}
	stop := FollowNetwork(p, path, signals, set, slog.New(slog.NewTextHandler(log, nil)))
	for _, tt := range []struct {
		text, says string
		sets       int
	}{
		{`allow = ["a.org"]`, "nothing has changed", 0},
		{`allow = ["b.org"]`, `changes="allow +b.org -a.org"`, 1},
		{`allow = 5`, "the old one stays in force", 1},
		{`allow = ["b.org"]`, "nothing has changed", 1},
	} {
		rig.Must(t, os.WriteFile(path, []byte(tt.text), 0o600))
		signals <- syscall.SIGHUP
		if line := <-lines; !strings.Contains(line, tt.says) || len(got) != tt.sets {
			t.Errorf("%s: %s and %d policies, want %s and %d", tt.text, line, len(got), tt.says, tt.sets)
		}
	}
	stop()
	_ = log.Close()
	<-lines
}
