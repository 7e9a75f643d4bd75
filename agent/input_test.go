package agent

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/execagent/execagent/agent/internal/answers"
	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestTooManyHandles opens as many files as a connection may: one more is
// refused, whatever its path, and one closed makes room (rpc.md 5.5).
func TestTooManyHandles(t *testing.T) {
	t.Parallel()
	c := newHarness(t, Config{}).attach("")
	path := filepath.Join(t.TempDir(), "f")
	rig.Must(t, os.WriteFile(path, []byte("x"), 0o666))
	for i := range fsops.MaxHandles {
		mode := []string{"read", "replace"}[i%2]
		c.must("fs/open", object{"handleId": fmt.Sprint(i), "path": uri(path), "mode": mode}, nil)
	}
	for _, p := range []string{path, "/no/such/file"} {
		err := c.call("fs/open", object{"handleId": "more", "path": uri(p)}, nil)
		wantCode(t, "handle 129", err, protocol.CodeInvalidRequest)
	}
	c.must("fs/close", object{"handleId": "0"}, nil)
	c.must("fs/open", object{"handleId": "more", "path": uri(path)}, nil)
}

// TestLongArguments starts what execve(2) refuses.
func TestLongArguments(t *testing.T) {
	t.Parallel()
	c := newHarness(t, Config{}).attach("")
	err := c.call("process/start", sh("p", strings.Repeat("x", 3<<20)), nil)
	wantCode(t, "an argument of 3 MiB", err, protocol.CodeInternal)
	if want := "Argument list too long (os error 7)"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("an argument of 3 MiB: %v, want %s", err, want)
	}
}

// TestGrowingFile: a file that grows while it is read waits neither for the
// memory that it holds itself, nor for another file that does the same.
func TestGrowingFile(t *testing.T) {
	t.Parallel()
	own, total := semaphore.NewWeighted(answers.MaxAnswers), answers.NewMemory(8<<20)
	done := make(chan struct{}, 2)
	for range 2 {
		go func() {
			r := &fileResult{share: answers.Share{Own: own, Total: total}}
			for _, n := range []int{1 << 20, 3 << 20, 5 << 20, 7 << 20} {
				var err error
				if r.Data, err = r.alloc(t.Context(), n); err != nil {
					t.Error(err)
				}
			}
			r.Sent()
			done <- struct{}{}
		}()
	}
	for range 2 {
		waitFor(t, done, "memory for a file that grows")
	}
	if !own.TryAcquire(answers.MaxAnswers) || !total.TryAcquire(8<<20) {
		t.Error("memory was not given back")
	}
}

// TestAnswersOfAConnection: a connection holds several small answers at once, but
// one large answer alone, and the next waits until that has been sent. An answer is
// refused where other connections hold all the memory for long.
func TestAnswersOfAConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		own, total := semaphore.NewWeighted(answers.MaxAnswers), answers.NewMemory(20<<20)
		take := func(n int64) (*answers.Share, <-chan error) {
			s, done := &answers.Share{Own: own, Total: total}, make(chan error, 1)
			go func() { done <- s.Answer(t.Context(), n) }()
			synctest.Wait()
			return s, done
		}
		var held []*answers.Share
		for _, n := range []int64{1, answers.Least, answers.Large - 1, answers.Least - 1} {
			s, done := take(n)
			if err := <-done; err != nil {
				t.Fatalf("%d bytes: %v", n, err)
			}
			held = append(held, s)
		}
		first, firstDone := take(12 << 20)
		second, secondDone := take(12 << 20)
		if len(firstDone) > 0 {
			t.Error("a large answer is held beside small ones")
		}
		for _, s := range held {
			s.Release()
		}
		synctest.Wait()
		rig.Must(t, <-firstDone)
		if len(secondDone) > 0 {
			t.Error("two large answers are held at once")
		}
		first.Release()
		rig.Must(t, <-secondDone)

		other := &answers.Share{Own: semaphore.NewWeighted(answers.MaxAnswers), Total: total}
		began := time.Now()
		wantCode(t, "no memory", other.Answer(t.Context(), 12<<20), protocol.CodeInternal)
		rig.Is(t, time.Since(began), answers.Patience, "refused after")
		began = time.Now()
		wantCode(t, "more than there is", other.Answer(t.Context(), 21<<20), protocol.CodeInternal)
		rig.Is(t, time.Since(began), 0, "refused after")
		second.Release()
		if !total.TryAcquire(20<<20) || !own.TryAcquire(answers.MaxAnswers) || !other.Own.TryAcquire(answers.MaxAnswers) {
			t.Error("memory was not given back")
		}
	})
}

// TestProxy sends http/request through the proxy of the agent's environment.
func TestProxy(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 1)
	proxy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.URL.String() }))
	t.Cleanup(proxy.Close)
	c := newHarness(t, Config{Environ: []string{"http_proxy=" + proxy.URL}}).attach("")
	const url = "http://target.invalid/x"
	c.must("http/request", object{"method": "GET", "url": url, "requestId": "r"}, nil)
	rig.Is(t, <-asked, url, "the proxy was asked for")
}

// TestTooManyStreams streams as many bodies as a connection may.
func TestTooManyStreams(t *testing.T) {
	t.Parallel()
	var c connection
	c.streams = map[string]bool{}
	for i := range maxStreams {
		if err := c.beginStream(fmt.Sprint(i)); err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
	}
	wantCode(t, "one stream too many", c.beginStream("more"), protocol.CodeInvalidRequest)
	c.endStream("0")
	rig.Check(t, c.beginStream("more"))
}
