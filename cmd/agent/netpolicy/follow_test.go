package netpolicy

import (
	"context"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestOperator: what a policy says of proxies on the way out.
func TestOperator(t *testing.T) {
	t.Parallel()
	environ := []string{"HTTPS_PROXY=http://proxy.example.org:3128", "NO_PROXY=*"}
	for _, tt := range []struct {
		name     string
		policy   *Policy
		environ  []string
		upstream bool
		through  bool
	}{
		{"no policy", nil, environ, true, false},
		{"no policy, no proxy", nil, []string{"PATH=/bin"}, false, false},
		{"environment", &Policy{Upstream: upstreamEnvironment}, environ, true, false},
		{"none", &Policy{Upstream: upstreamNone}, environ, false, false},
		{"a proxy", &Policy{Upstream: "http://other.example.org:1"}, nil, true, true},
	} {
		o := tt.policy.Operator(tt.environ)
		if (o.Upstream != nil) != tt.upstream || o.Through != tt.through {
			t.Errorf("%s: upstream %v, through %v", tt.name, o.Upstream, o.Through)
		}
	}
}

// TestFollow: each signal has the file read again; what is wrong with it changes nothing.
func TestFollow(t *testing.T) {
	t.Parallel()
	path := write(t, `allow = ["a.org"]`)
	p, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
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
	ctx, cancel := context.WithCancel(t.Context())
	signals := make(chan os.Signal)
	var following sync.WaitGroup
	var got []*Policy
	following.Go(func() {
		p.Follow(ctx, path, signals, func(p *Policy) { got = append(got, p) }, slog.New(slog.NewTextHandler(log, nil)))
	})
	for _, tt := range []struct {
		text, says string
		sets       int
	}{
		{`allow = ["a.org"]`, "nothing has changed", 0},
		{`allow = ["b.org"]`, `changes="allow +b.org -a.org"`, 1},
		{`allow = 5`, "the one before it stays", 1},
		{`allow = ["b.org"]`, "nothing has changed", 1},
	} {
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		signals <- syscall.SIGHUP
		if line := <-lines; !strings.Contains(line, tt.says) || len(got) != tt.sets {
			t.Errorf("%s: %s and %d policies, want %s and %d", tt.text, line, len(got), tt.says, tt.sets)
		}
	}
	cancel()
	following.Wait()
	_ = log.Close()
	<-lines
}
