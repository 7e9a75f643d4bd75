package agent

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/execagent/execagent/agent/internal/answers"
	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
	"github.com/execagent/execagent/transport"
)

// TestStartBounds: starts whose cost would be out of proportion to their length
// are refused.
func TestStartBounds(t *testing.T) {
	t.Parallel()
	c := newHarness(t, Config{}).attach("")
	many := make([]string, 5000)
	for i := range many {
		many[i] = "x"
	}
	policy := func(set map[string]string, only ...string) object {
		return object{
			"inherit": "none", "ignoreDefaultExcludes": true, "exclude": []string{},
			"set": set, "includeOnly": append([]string{}, only...),
		}
	}
	for _, tt := range []struct {
		name   string
		change object
		code   protocol.Code
		text   string
	}{
		{"long id", object{"processId": strings.Repeat("p", protocol.MaxProcessID+1)}, protocol.CodeInvalidParams, "processId"},
		{"long pattern", object{"envPolicy": policy(map[string]string{}, "*"+strings.Repeat("a", 25000)+"b")}, protocol.CodeInvalidParams, "includeOnly"},
		{"many patterns", object{"envPolicy": policy(map[string]string{}, many...)}, protocol.CodeInvalidParams, "includeOnly"},
		{"long name", object{"envPolicy": policy(map[string]string{strings.Repeat("a", 50000): ""}, "b*")}, protocol.CodeInvalidParams, "set"},
		{"long PATH", object{"argv": []string{"nope"}, "env": object{"PATH": strings.Repeat(":", 1<<20)}}, protocol.CodeInternal, "os error 7"},
		{"long argument", sh("p", strings.Repeat("x", 3<<20)), protocol.CodeInternal, "Argument list too long (os error 7)"},
	} {
		params := sh("p", "exit 0")
		maps.Copy(params, tt.change)
		err := c.call("process/start", params, nil)
		wantCode(t, tt.name, err, tt.code)
		rig.Says(t, err, tt.text, "%s", tt.name)
	}
	c.must("process/start", sh("p", "exit 0"), nil)
}

// TestListedArgv cuts what process/list shows of a long command.
func TestListedArgv(t *testing.T) {
	t.Parallel()
	c := newHarness(t, Config{}).attach("")
	params := sh("p", "exit 0")
	params["argv"] = []string{"/bin/true", strings.Repeat("x", 100_000)}
	c.must("process/start", params, nil)
	var list protocol.ListResult
	c.must("process/list", object{}, &list)
	total := 0
	for _, arg := range list.Processes[0].Argv {
		total += len(arg)
	}
	if total > 4096 || list.Processes[0].Argv[0] != "/bin/true" {
		t.Errorf("%d bytes of argv are listed, at most 4096", total)
	}
}

// TestManyWatches: the watches of a connection are bounded, and ended ones do not count.
func TestManyWatches(t *testing.T) {
	t.Parallel()
	c := newHarness(t, Config{}).attach("")
	dir := t.TempDir()
	for i := range protocol.MaxWatches {
		c.must("fs/watch", object{"watchId": fmt.Sprint(i), "path": uri(dir)}, nil)
	}
	one := object{"watchId": "one", "path": uri(dir)}
	wantCode(t, "one more", c.call("fs/watch", one, nil), protocol.CodeInvalidRequest)
	c.must("fs/unwatch", object{"watchId": "0"}, nil)
	c.must("fs/watch", one, nil)
}

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
	rig.Is(t, own.TryAcquire(answers.MaxAnswers) && total.Used() == 0, true, "all memory was given back")
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
		all := total.Used() == 0 && own.TryAcquire(answers.MaxAnswers) && other.Own.TryAcquire(answers.MaxAnswers)
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

// TestRequestBeforeInitialized: a request that was sent before initialized is
// refused, however late its handler runs.
func TestRequestBeforeInitialized(t *testing.T) {
	t.Parallel()
	r := newHarness(t, Config{})
	for range 200 {
		conn, _ := r.dial()
		sent := make(chan error, 1)
		go func() {
			var err error
			for _, message := range []string{
				`{"id":1,"method":"initialize","params":{"clientName":"t"}}`,
				`{"id":2,"method":"environment/status"}`,
				`{"method":"initialized"}`,
				`{"id":3,"method":"environment/status"}`,
			} {
				if err == nil {
					err = conn.Write([]byte(message))
				}
			}
			sent <- err
		}()
		for range 3 {
			answer := rig.Value(conn.Read())
			m := rig.Value(protocol.Decode(answer))
			rig.Is(t, m.Kind == protocol.KindError, m.ID == protocol.NumberID(2), "%s is refused", answer)
		}
		rig.Must(t, <-sent)
		_ = conn.Close()
	}
}

// TestBodyMemory: responses that are read whole share the memory of their
// connection, and a refused one gives its share back.
func TestBodyMemory(t *testing.T) {
	t.Parallel()
	own, total := semaphore.NewWeighted(3<<20), answers.NewMemory(8<<20)
	read := func(n int) (*bufferedResponse, error) {
		r := &bufferedResponse{share: answers.Share{Own: own, Total: total}}
		for _, size := range []int{1 << 10, n / 2, n} { // it turns out to be longer
			if _, err := r.alloc(size); err != nil {
				return r, err
			}
		}
		return r, nil
	}
	small := rig.Value(read(2 << 20))
	large, err := read(2<<20 + 1)
	wantCode(t, "a body without room", err, protocol.CodeInternal)
	large.Sent()
	small.Sent()
	rig.Is(t, own.TryAcquire(3<<20) && total.Used() == 0, true, "all memory was given back")
}

// TestListingMemory runs out of the memory for what clients have not read yet:
// large listings and walks count there, small ones do not, and what they took
// is given back.
func TestListingMemory(t *testing.T) {
	t.Parallel()
	r := newHarness(t, Config{})
	r.agent.content.Patience = time.Millisecond
	c := r.attach("")
	b := newBox(t)
	large := b.repo + "/large"
	rig.Must(t, os.Mkdir(large, 0o755))
	const entries = 2000
	for i := range entries {
		rig.Must(t, os.WriteFile(fmt.Sprintf("%s/%d%s", large, i, strings.Repeat("n", 240)), nil, 0o644))
	}
	list := func(path string) object { return object{"path": uri(path)} }
	walk := func(path string) object {
		return object{"path": uri(path), "options": object{
			"maxDepth": 1, "maxDirectories": 10, "maxEntries": 50000, "followDirectorySymlinks": false, "pruneHiddenDirectories": false,
		}}
	}
	requests := []struct {
		name, method  string
		params, small object
	}{
		{"list", "fs/readDirectory", list(large), list(b.repo + "/d")},
		{"walk", "fs/walk", walk(large), walk(b.repo + "/d")},
	}
	take := func() { // waits until it is free
		rig.Must(t, r.agent.content.Wait(t.Context(), "others", answers.DefaultBytes))
	}
	for _, q := range requests {
		for name, sandbox := range map[string]object{"host": nil, "full read": b.readOnly(), "confined": b.view()} {
			what := q.name + " " + name
			params, small := maps.Clone(q.params), maps.Clone(q.small)
			params["sandbox"], small["sandbox"] = sandbox, sandbox
			take()
			wantCode(t, what, c.call(q.method, params, nil), protocol.CodeInternal)
			c.must(q.method, small, nil)
			r.agent.content.Give("others", answers.DefaultBytes)
			var got struct{ Entries []struct{} }
			c.must(q.method, params, &got)
			rig.Is(t, len(got.Entries), entries, "%s: entries", what)
		}
	}
	take()
}

// TestRetainTotal ends many processes of 1 MiB: what all of them keep stays
// within RetainTotalBytes, the longest-ended have lost theirs, and the memory
// is bounded too (rpc.md 4.8).
func TestRetainTotal(t *testing.T) {
	processes := 64
	if rig.Runs(rig.Nightly) {
		processes = 1000 // a gigabyte
	}
	const (
		total  = 16 << 20
		atOnce = 8
		slack  = 96 << 20 // of heap, for the race detector and for buffers in use
		// Each stream may be one chunk over while the oldest output goes.
		over = atOnce * (64<<10 + 64)
	)
	// No process is forgotten, however long the test takes.
	r := newHarness(t, Config{RetainTotalBytes: total, SessionTTL: time.Hour})
	a := r.attach("")
	a.drop()
	// Messages are not decoded: with the race detector that would take minutes.
	conn, _ := r.dial()
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)

	slots := make(chan struct{}, atOnce)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for closed := 0; closed < processes; {
			message, err := conn.Read()
			if err != nil {
				t.Error(err)
				return
			}
			switch {
			case bytes.HasPrefix(message, []byte(`{"method":"process/closed"`)):
				closed++
				<-slots
				used := r.agent.budget.Used()
				rig.Is(t, used <= total+over, true, "%d bytes are kept after %d processes, the limit is %d", used, closed, total)
			case bytes.HasPrefix(message, []byte(`{"error"`)):
				t.Errorf("%s", message)
				closed++
				<-slots
			}
			buffer.Recycle(message)
		}
	}()
	send := func(format string, args ...any) {
		rig.Check(t, conn.Write(fmt.Appendf(nil, format, args...)))
	}
	send(`{"id":"","method":"initialize","params":{"clientName":"t","resumeSessionId":%q}}`, a.session)
	send(`{"method":"initialized"}`)
	for i := range processes {
		slots <- struct{}{}
		send(`{"id":%d,"method":"process/start","params":{"processId":"%[1]d","argv":["/usr/bin/head","-c","1048576","/dev/zero"],"cwd":"file:///","env":{},"tty":false}}`, i)
	}
	waitFor(t, ended, "the end of all processes")

	var after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&after)
	if after.HeapInuse > before.HeapInuse+total+slack {
		t.Errorf("the heap grew from %d to %d MiB, want at most %d more", before.HeapInuse>>20, after.HeapInuse>>20, (total+slack)>>20)
	}
	got := r.process(a.session, "0").Read(0, nil)
	rig.Is(t, len(got.Chunks) == 0 && got.Closed, true, "the longest-ended process still has %d chunks", len(got.Chunks))
	rig.Is(t, len(r.process(a.session, fmt.Sprint(processes-1)).Read(0, nil).Chunks) > 0, true, "the last process has its output")
}

// TestOthersOfUnreadAnswers: clients ask for large files and do not read the
// answers, but send more requests, long ones or many. Other clients are served
// meanwhile, and the first ones get all answers once they read.
func TestOthersOfUnreadAnswers(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	big := filepath.Join(t.TempDir(), "big")
	rig.Must(t, os.WriteFile(big, nil, 0o600))
	rig.Must(t, os.Truncate(big, size))
	request := func(method string, length int) []byte {
		return fmt.Appendf(nil, `{"id":7,"method":%q,"params":{"path":"file://%s"}%s}`, method, big, strings.Repeat(" ", length))
	}
	for name, more := range map[string]struct {
		method           string
		requests, length int
	}{
		"long requests": {"fs/readFile", 2, 4 << 20},
		"many requests": {"fs/getMetadata", 40, 60 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The clients answer no ping before they read, and see none, which on a busy machine
			// is late.
			const peerTimeout = time.Hour
			l := rig.Value(transport.Listen(transport.Config{URL: "ws://127.0.0.1:0", Budget: rpc.NewBudget(8 << 20), PeerTimeout: peerTimeout}))
			r := newHarness(t, Config{})
			served := make(chan error, 1)
			go func() { served <- r.agent.Serve(t.Context(), l) }()
			dial := func() rpc.Conn {
				c := rig.Value(transport.Dial(t.Context(), l.URL(), transport.DialConfig{PeerTimeout: peerTimeout}))
				t.Cleanup(func() { c.Close() })
				ask(t, c, []byte(`{"id":7,"method":"initialize","params":{"clientName":"x"}}`))
				rig.Must(t, c.Write([]byte(`{"method":"initialized"}`)))
				return c
			}
			var clients []rpc.Conn
			written := make(chan error)
			const unread = 6
			for range unread {
				c := dial()
				clients = append(clients, c)
				go func() {
					err := c.Write(request("fs/readFile", 0))
					for range more.requests {
						if err == nil { // the server stops where nobody reads on
							err = c.Write(request(more.method, more.length))
						}
					}
					written <- err
				}()
			}
			for range 20 {
				other := dial()
				data := base64.StdEncoding.EncodeToString(make([]byte, 100<<10))
				ask(t, other, fmt.Appendf(nil, `{"id":7,"method":"fs/writeFile","params":{"path":"file://%s","dataBase64":%q}}`,
					filepath.Join(filepath.Dir(big), name), data))
			}
			for _, c := range clients {
				for i := range 1 + more.requests {
					answer, err := c.Read()
					if err != nil || bytes.Contains(answer[:min(100, len(answer))], []byte("error")) {
						t.Fatalf("answer %d of a client that reads late is %.100s, %v", i, answer, err)
					}
					buffer.Recycle(answer)
				}
				rig.Must(t, <-written)
			}
			for _, c := range clients {
				c.Close()
			}
			l.Close()
			<-served
		})
	}
}

// ask sends a request and waits for its answer, which must not be an error.
func ask(t *testing.T, c rpc.Conn, request []byte) {
	t.Helper()
	rig.Must(t, c.Write(request))
	answer, err := c.Read()
	rig.Must(t, err)
	if m, err := protocol.Decode(answer); err != nil || m.Kind != protocol.KindResult {
		t.Fatalf("%.200s, %v", answer, err)
	}
}
