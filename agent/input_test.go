package agent

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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
	rig.Is(t, own.TryAcquire(answers.MaxAnswers) && total.TryAcquire(8<<20), true, "all memory was given back")
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
			rig.Must(t, <-done)
			held = append(held, s)
		}
		first, firstDone := take(12 << 20)
		second, secondDone := take(12 << 20)
		rig.Is(t, len(firstDone), 0, "large answers that are held beside small ones")
		for _, s := range held {
			s.Release()
		}
		synctest.Wait()
		rig.Must(t, <-firstDone)
		rig.Is(t, len(secondDone), 0, "large answers that are held beside another one")
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
		all := total.TryAcquire(20<<20) && own.TryAcquire(answers.MaxAnswers) && other.Own.TryAcquire(answers.MaxAnswers)
		rig.Is(t, all, true, "all memory was given back")
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
		rig.Must(t, c.beginStream(fmt.Sprint(i)))
	}
	wantCode(t, "one stream too many", c.beginStream("more"), protocol.CodeInvalidRequest)
	c.endStream("0")
	rig.Check(t, c.beginStream("more"))
}
