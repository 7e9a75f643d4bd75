package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// jobTime is how long one job may take, cuts included.
const jobTime = 60 * time.Second

// A soakWorker does one job after the other in its session.
type soakWorker struct {
	session *soakSession
	random  *rand.Rand
	dir     string // of its own, under which it makes its files
	mark    string // value of SOAK_MARK in the environment of every process
	jobs    int
}

// work does jobs until done is closed; the job that runs then is finished.
func (w *soakWorker) work(ctx context.Context, done <-chan struct{}) error {
	jobs := []func(context.Context) error{w.output, w.output, w.terminal, w.echo, w.terminate, w.files, w.handle}
	for {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		default:
		}
		one, cancel := context.WithTimeoutCause(ctx, jobTime, errors.New("the job takes too long"))
		n := w.random.IntN(len(jobs))
		err := jobs[n](one)
		cancel()
		if err != nil {
			return fmt.Errorf("job %d: %w", n, err)
		}
		w.jobs++
	}
}

// start starts argv; the process is watched from before on.
func (w *soakWorker) start(ctx context.Context, argv []string, more map[string]any) (*soakProcess, error) {
	p := w.session.watch(w.session.name("p"), argv)
	params := map[string]any{
		"processId": p.id, "argv": argv, "cwd": "file://" + w.dir, "tty": false,
		"env": map[string]string{"PATH": "/usr/bin:/bin", "SOAK_MARK": w.mark},
	}
	maps.Copy(params, more)
	for attempt := 0; ; attempt++ {
		err := w.session.call(ctx, "process/start", params, nil)
		remote, refused := errors.AsType[*remoteError](err)
		switch {
		case errors.Is(err, errCut):
			continue
		case refused && remote.Code == codeInvalid && attempt > 0:
			// An attempt whose answer was lost took the id. It stands when the process can be
			// read; else that start was given up with its connection and this one is made again.
			err := w.session.call(ctx, "process/read", map[string]any{"processId": p.id}, nil)
			if _, refused := errors.AsType[*remoteError](err); refused || errors.Is(err, errCut) {
				continue
			}
			return p, err
		}
		return p, err
	}
}

func (w *soakWorker) finish(ctx context.Context, p *soakProcess, want map[string][]byte, wantCode int) error {
	got, code, err := p.wait(ctx)
	if err != nil {
		return err
	}
	p.forget()
	if code != wantCode {
		return fmt.Errorf("process %s: exit code %d, want %d", p.id, code, wantCode)
	}
	for stream, data := range got {
		if !bytes.Equal(data, want[stream]) {
			return fmt.Errorf("process %s: %s is %d bytes, want %d; first difference at %d",
				p.id, stream, len(data), len(want[stream]), firstDifference(data, want[stream]))
		}
	}
	for stream, data := range want {
		if len(data) > 0 && len(got[stream]) == 0 {
			return fmt.Errorf("process %s: nothing came on %s", p.id, stream)
		}
	}
	return nil
}

func firstDifference(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// script makes up a shell script that writes numbered lines in bursts, and what it writes. All of
// it is below 1 MiB, what the agent retains by default, so nothing may be missing however long
// the connection was away.
func (w *soakWorker) script() (text string, stdout, stderr []byte, code int) {
	var b strings.Builder
	line := 0
	lines := func(dst []byte, n int) []byte {
		for range n {
			line++
			dst = fmt.Appendf(dst, "%d\n", line)
		}
		return dst
	}
	for range 1 + w.random.IntN(5) {
		n := 1 + w.random.IntN([]int{3, 300, 20_000}[w.random.IntN(3)])
		fmt.Fprintf(&b, "seq %d %d", line+1, line+n)
		if w.random.IntN(4) == 0 {
			b.WriteString(" >&2")
			stderr = lines(stderr, n)
		} else {
			stdout = lines(stdout, n)
		}
		fmt.Fprintf(&b, "; sleep 0.%02d; ", w.random.IntN(20))
	}
	code = w.random.IntN(100)
	fmt.Fprintf(&b, "exit %d", code)
	return b.String(), stdout, stderr, code
}

func (w *soakWorker) output(ctx context.Context) error {
	text, stdout, stderr, code := w.script()
	p, err := w.start(ctx, []string{"sh", "-c", text}, nil)
	if err != nil {
		return err
	}
	return w.finish(ctx, p, map[string][]byte{"stdout": stdout, "stderr": stderr}, code)
}

func (w *soakWorker) terminal(ctx context.Context) error {
	text, stdout, stderr, code := w.script()
	if len(stderr) > 0 { // both go to the terminal; the order of the script is kept only within one
		return w.output(ctx)
	}
	p, err := w.start(ctx, []string{"sh", "-c", text}, map[string]any{"tty": true})
	if err != nil {
		return err
	}
	return w.finish(ctx, p, map[string][]byte{"pty": bytes.ReplaceAll(stdout, []byte("\n"), []byte("\r\n"))}, code)
}

// echo sends random bytes through a process that ends when it has them all.
func (w *soakWorker) echo(ctx context.Context) error {
	writes := make([][]byte, 1+w.random.IntN(20))
	var all []byte
	for i := range writes {
		writes[i] = w.bytes(1 + w.random.IntN(20_000))
		all = append(all, writes[i]...)
	}
	p, err := w.start(ctx, []string{"head", "-c", fmt.Sprint(len(all))}, map[string]any{"pipeStdin": true})
	if err != nil {
		return err
	}
	for i, chunk := range writes {
		if err := w.write(ctx, p, i, chunk); err != nil {
			return err
		}
	}
	return w.finish(ctx, p, map[string][]byte{"stdout": all}, 0)
}

func (w *soakWorker) write(ctx context.Context, p *soakProcess, i int, chunk []byte) error {
	var r struct {
		Status string `json:"status"`
	}
	params := map[string]any{"processId": p.id, "chunk": chunk, "writeId": fmt.Sprint(i)}
	if err := w.session.persist(ctx, "process/write", params, &r, 0); err != nil {
		return fmt.Errorf("process %s: write %d: %w", p.id, i, err)
	}
	if r.Status != "accepted" {
		return fmt.Errorf("process %s: write %d: status %q", p.id, i, r.Status)
	}
	return nil
}

// terminate kills a process that has a child in its group.
func (w *soakWorker) terminate(ctx context.Context) error {
	p, err := w.start(ctx, []string{"sh", "-c", "sleep 1000 & echo up; exec sleep 1000"}, nil)
	if err != nil {
		return err
	}
	select { // a start that a lost connection began may still be under way, and then there is nothing to terminate
	case <-p.spoken:
	case <-ctx.Done():
		return fmt.Errorf("process %s: waiting for its output: %w", p.id, context.Cause(ctx))
	}
	if err := w.session.persist(ctx, "process/terminate", map[string]any{"processId": p.id}, nil, 0); err != nil {
		return err
	}
	return w.finish(ctx, p, map[string][]byte{"stdout": []byte("up\n")}, 128+9)
}

// files writes, reads, renames and removes whole files.
func (w *soakWorker) files(ctx context.Context) error {
	s, data := w.session, w.bytes(w.random.IntN(200_000))
	// A request of a lost connection may still be carried out after it is repeated, so each
	// attempt has its own name.
	var path string
	for {
		path = filepath.Join(w.dir, s.name("f"))
		err := s.call(ctx, "fs/writeFile", map[string]any{"path": "file://" + path, "dataBase64": data}, nil)
		if err == nil {
			break
		}
		if !errors.Is(err, errCut) {
			return err
		}
	}
	var r struct {
		Data []byte `json:"dataBase64"`
	}
	if err := s.persist(ctx, "fs/readFile", map[string]any{"path": "file://" + path}, &r, 0); err != nil {
		return err
	}
	if !bytes.Equal(r.Data, data) {
		return fmt.Errorf("fs/readFile of %s: %d bytes that differ from the %d written", path, len(r.Data), len(data))
	}
	moved := path + "-moved"
	err := s.persist(ctx, "fs/rename", map[string]any{"sourcePath": "file://" + path, "destinationPath": "file://" + moved}, nil, codeNotFound)
	if remote, ok := errors.AsType[*remoteError](err); ok && remote.Code == codeNoMethod {
		moved = path // another executor than ours
	} else if err != nil {
		return err
	}
	if err := sameFile(moved, data); err != nil {
		return err
	}
	if err := s.persist(ctx, "fs/remove", map[string]any{"path": "file://" + moved}, nil, 0); err != nil {
		return err
	}
	if _, err := os.Lstat(moved); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s after fs/remove: %w", moved, err)
	}
	return nil
}

// handle writes a file in blocks. Handles end with their connection, so a cut means to start over
// with another file.
func (w *soakWorker) handle(ctx context.Context) error {
	blocks := make([][]byte, 1+w.random.IntN(8))
	var all []byte
	for i := range blocks {
		blocks[i] = w.bytes(1 + w.random.IntN(60_000))
		all = append(all, blocks[i]...)
	}
	for {
		name := w.session.name("h")
		path := filepath.Join(w.dir, name)
		err := w.writeBlocks(ctx, name, path, blocks)
		if remote, ok := errors.AsType[*remoteError](err); errors.Is(err, errCut) || ok && remote.Code == codeNotFound {
			continue
		}
		if err != nil {
			return err
		}
		if err := sameFile(path, all); err != nil {
			return err
		}
		return os.Remove(path)
	}
}

func (w *soakWorker) writeBlocks(ctx context.Context, handle, path string, blocks [][]byte) error {
	s := w.session
	if err := s.call(ctx, "fs/open", map[string]any{"handleId": handle, "path": "file://" + path, "mode": "replace"}, nil); err != nil {
		return err
	}
	offset := 0
	for _, block := range blocks {
		params := map[string]any{"handleId": handle, "offset": offset, "chunk": block}
		if err := s.call(ctx, "fs/writeBlock", params, nil); err != nil {
			return err
		}
		offset += len(block)
	}
	return s.call(ctx, "fs/close", map[string]any{"handleId": handle}, nil)
}

func sameFile(path string, want []byte) error {
	got, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%s: %d bytes that differ from the %d written", path, len(got), len(want))
	}
	return nil
}

func (w *soakWorker) bytes(n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(w.random.Uint32())
	}
	return data
}
