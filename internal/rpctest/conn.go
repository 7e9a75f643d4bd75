// Package rpctest checks that an [rpc.Conn] keeps the promises of its
// interface, as testing/fstest does for file systems. Its proxy [Faulty] makes connections fail.
package rpctest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/rpc"
)

// patience is how long one step may take before a test gives up on it. It is
// generous because a machine under test is often a busy one.
const patience = 5 * time.Minute

// TestConn checks every promise of [rpc.Conn]. makePair returns the two ends
// of a fresh connection, open and idle; TestConn closes both. Messages are
// JSON objects without line feeds, from 2 bytes to 5 MiB.
//
// Among the promises: after a Close the other end reads what was written before, and
// then io.EOF; and neither end keeps a slice that it was lent.
func TestConn(t *testing.T, makePair func(t *testing.T) (a, b rpc.Conn)) {
	tests := []struct {
		name string
		test func(t *testing.T, a, b rpc.Conn)
	}{
		{"sizes", testSizes},
		{"concurrent writers", testConcurrentWriters},
		{"messages in parts", testParts},
		{"both ways at once", testBothWays},
		{"slices change hands", testSlices},
		{"orderly end", testOrderlyEnd},
		{"close unblocks read", testCloseUnblocksRead},
		{"close unblocks write", testCloseUnblocksWrite},
		{"peer's close fails write", testPeerCloseFailsWrite},
		{"close more than once", testCloseTwice},
		{"fails after close", testFailsAfterClose},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := makePair(t)
			defer closeAll(t, a, b)
			tt.test(t, a, b)
		})
		t.Run(tt.name+", other end", func(t *testing.T) {
			a, b := makePair(t)
			defer closeAll(t, a, b)
			tt.test(t, b, a)
		})
	}
}

func testSizes(t *testing.T, a, b rpc.Conn) {
	sizes := []int{2, 3, 125, 126, 127, 1 << 10, 4095, 4096, 4097, 4110, 65535, 65536, 65537, 1 << 20, 5 << 20}
	written := start(t, "writing", func() error {
		for i, n := range sizes {
			if err := a.Write(message(i, n)); err != nil {
				return fmt.Errorf("message %d of %d bytes: %w", i, n, err)
			}
		}
		return nil
	})
	for i, n := range sizes {
		if got := read(t, b); !bytes.Equal(got, message(i, n)) {
			t.Fatalf("message %d: got %s, want %d bytes that start %.20q", i, describe(got), n, message(i, n))
		}
	}
	await(t, "writing", written)
}

func testConcurrentWriters(t *testing.T, a, b rpc.Conn) {
	const writers, each = 8, 50
	size := func(w, i int) int { return 16 + (w*7919+i*104729)%9000 }
	var written []<-chan error
	for w := range writers {
		written = append(written, start(t, fmt.Sprintf("writer %d", w), func() error {
			for i := range each {
				if err := a.Write(tagged(w, i, size(w, i))); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	next := make([]int, writers)
	for range writers * each {
		got := read(t, b)
		var w, i int
		if _, err := fmt.Sscanf(string(got), `{"w":%d,"i":%d`, &w, &i); err != nil || w < 0 || w >= writers {
			t.Fatalf("interleaved messages: got %s", describe(got))
		}
		if i != next[w] {
			t.Fatalf("writer %d: got message %d, want %d", w, i, next[w])
		}
		if !bytes.Equal(got, tagged(w, i, size(w, i))) {
			t.Fatalf("writer %d, message %d is damaged: got %s", w, i, describe(got))
		}
		next[w]++
		buffer.Recycle(got)
	}
	for _, done := range written {
		await(t, "writing", done)
	}
}

// testParts sends messages in parts beside whole ones, if an end can.
func testParts(t *testing.T, a, b rpc.Conn) {
	parts, ok := a.(rpc.PartsWriter)
	if !ok {
		return
	}
	sizes := []int{2, 125, 126, 65535, 65536, 200_000, 5 << 20}
	inParts := func(m []byte) iter.Seq[[]byte] {
		return func(yield func([]byte) bool) {
			buf := make([]byte, 0, 60_001)
			for piece := range slices.Chunk(m, cap(buf)) {
				if !yield(append(buf, piece...)) {
					return
				}
				clear(buf[:cap(buf)]) // WriteParts must not have kept the part
			}
		}
	}
	var written []<-chan error
	for w := range 2 {
		written = append(written, start(t, fmt.Sprintf("writer %d", w), func() error {
			for i, n := range sizes {
				m := tagged(w, i, max(n, 16))
				err := error(nil)
				if (w+i)%2 == 0 {
					err = parts.WriteParts(len(m), inParts(m))
				} else {
					err = a.Write(m)
				}
				if err != nil {
					return fmt.Errorf("message %d of %d bytes: %w", i, n, err)
				}
			}
			return nil
		}))
	}
	for range 2 * len(sizes) {
		got := read(t, b)
		var w, i int
		if _, err := fmt.Sscanf(string(got), `{"w":%d,"i":%d`, &w, &i); err != nil || i < 0 || i >= len(sizes) {
			t.Fatalf("interleaved messages: got %s", describe(got))
		}
		if !bytes.Equal(got, tagged(w, i, max(sizes[i], 16))) {
			t.Fatalf("writer %d, message %d is damaged: got %s", w, i, describe(got))
		}
		buffer.Recycle(got)
	}
	for _, done := range written {
		await(t, "writing", done)
	}
}

func testBothWays(t *testing.T, a, b rpc.Conn) {
	const rounds, size = 3, 1 << 20
	var steps []<-chan error
	for _, c := range []rpc.Conn{a, b} {
		steps = append(steps, start(t, "writing", func() error {
			for i := range rounds {
				if err := c.Write(message(i, size)); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	steps = append(steps, start(t, "reading", func() error {
		for i := range rounds {
			got, err := a.Read()
			if err != nil {
				return err
			}
			if !bytes.Equal(got, message(i, size)) {
				return fmt.Errorf("message %d: got %s", i, describe(got))
			}
		}
		return nil
	}))
	for i := range rounds {
		if got := read(t, b); !bytes.Equal(got, message(i, size)) {
			t.Fatalf("message %d: got %s", i, describe(got))
		}
	}
	for _, done := range steps {
		await(t, "both ways", done)
	}
}

// testSlices checks that Write is done with its slice when it returns, and
// that a slice from Read stays as it is while more messages are read.
func testSlices(t *testing.T, a, b rpc.Conn) {
	const n = 20
	written := start(t, "writing", func() error {
		buffer := make([]byte, 0, 2000)
		for i := range n {
			buffer = append(buffer[:0], message(i, 2000)...)
			if err := a.Write(buffer); err != nil {
				return err
			}
			clear(buffer)
		}
		return nil
	})
	var kept [][]byte
	for i := range n {
		got := read(t, b)
		if i%2 == 0 {
			kept = append(kept, got)
			continue
		}
		clear(got[:cap(got)])
		buffer.Recycle(got)
	}
	for i, got := range kept {
		if !bytes.Equal(got, message(2*i, 2000)) {
			t.Fatalf("message %d changed after Read: now %s", 2*i, describe(got))
		}
	}
	await(t, "writing", written)
}

func testOrderlyEnd(t *testing.T, a, b rpc.Conn) {
	const n = 10
	start(t, "writing", func() error {
		for i := range n {
			if err := a.Write(message(i, 5000)); err != nil {
				return err
			}
		}
		return a.Close()
	})
	for i := range n {
		if got := read(t, b); !bytes.Equal(got, message(i, 5000)) {
			t.Fatalf("message %d: got %s", i, describe(got))
		}
	}
	for i := range 3 {
		got, err := readWithin(t, b)
		if !errors.Is(err, io.EOF) {
			t.Fatalf("read %d after the end: got %s, %v; want io.EOF", i, describe(got), err)
		}
	}
}

func testCloseUnblocksRead(t *testing.T, a, _ rpc.Conn) {
	reading := make(chan struct{})
	done := start(t, "", func() error {
		close(reading)
		_, err := a.Read()
		return err
	})
	<-reading
	a.Close()
	if err := await(t, "Read after Close", done); err == nil {
		t.Error("Read returned a message that nobody sent")
	}
	if _, err := readWithin(t, a); err == nil {
		t.Error("the next Read succeeded")
	}
}

func testCloseUnblocksWrite(t *testing.T, a, _ rpc.Conn) {
	// Nothing but a connection without bound takes so much unread.
	big := message(0, 16<<20)
	writing := make(chan struct{})
	done := start(t, "", func() error {
		close(writing)
		for range 4 {
			if err := a.Write(big); err != nil {
				return err
			}
		}
		return nil
	})
	<-writing
	a.Close()
	if err := await(t, "Write after Close", done); err == nil {
		t.Error("Write of 64 MiB that nobody reads succeeded")
	}
}

func testPeerCloseFailsWrite(t *testing.T, a, b rpc.Conn) {
	b.Close()
	done := start(t, "", func() error {
		for i := range 1000 {
			if err := a.Write(message(i, 64<<10)); err != nil {
				return err
			}
		}
		return nil
	})
	if err := await(t, "Write to a closed peer", done); err == nil {
		t.Error("64 MB were written to a closed peer")
	}
}

func testCloseTwice(t *testing.T, a, b rpc.Conn) {
	var closers sync.WaitGroup
	for range 4 {
		closers.Go(func() { a.Close() })
	}
	closers.Wait()
	a.Close()
	if _, err := readWithin(t, b); err == nil {
		t.Error("the other end read a message that nobody sent")
	}
}

func testFailsAfterClose(t *testing.T, a, _ rpc.Conn) {
	a.Close()
	for range 2 {
		if err := a.Write(message(0, 100)); err == nil {
			t.Error("Write succeeded after Close")
		}
		if _, err := readWithin(t, a); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("Read after the own Close: %v, want an error other than io.EOF", err)
		}
	}
}

// start runs f in a goroutine that ends before the test does. With a step, a
// failure of f fails the test; without, the caller looks at the result.
func start(t *testing.T, step string, f func() error) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := f()
		if step != "" && err != nil {
			t.Errorf("%s: %v", step, err)
		}
		done <- err
	}()
	t.Cleanup(func() {
		select {
		case <-ended:
		case <-time.After(patience):
			t.Errorf("%s still runs after both ends were closed", cmp.Or(step, "a call"))
		}
	})
	return done
}

func await(t *testing.T, what string, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		t.Fatalf("%s: blocked for %v", what, patience)
		return nil
	}
}

func read(t *testing.T, c rpc.Conn) []byte {
	t.Helper()
	message, err := readWithin(t, c)
	if err != nil {
		t.Fatalf("Read: %v", err)
	}
	return message
}

// readWithin is Read that fails the test instead of hanging: the watchdog
// closes the connection.
func readWithin(t *testing.T, c rpc.Conn) ([]byte, error) {
	t.Helper()
	watchdog := time.AfterFunc(patience, func() {
		t.Errorf("Read: blocked for %v", patience)
		c.Close()
	})
	defer watchdog.Stop()
	return c.Read()
}

func closeAll(t *testing.T, conns ...rpc.Conn) {
	t.Helper()
	for _, c := range conns {
		done := start(t, "", c.Close)
		_ = await(t, "Close", done) // a second Close may say that it is closed already
	}
}

// message is a JSON object of exactly n bytes that differs for every i, with
// text beyond ASCII in it.
func message(i, n int) []byte {
	m := fmt.Appendf(nil, `{"i":%d,"é":"`, i)
	if n < len(m)+2 {
		return append(append([]byte{'{'}, bytes.Repeat([]byte{' '}, n-2)...), '}')
	}
	const letters = "abcdefghijklmnopqrstuvwxyz"
	fill := bytes.Repeat([]byte(letters), n/len(letters)+2)[i%len(letters):]
	m = append(m, fill[:n-2-len(m)]...)
	return append(m, `"}`...)
}

func tagged(w, i, n int) []byte {
	m := fmt.Appendf(nil, `{"w":%d,"i":%d,"fill":"`, w, i)
	return append(append(m, bytes.Repeat([]byte{byte('a' + w)}, n)...), `"}`...)
}

func describe(message []byte) string {
	return fmt.Sprintf("%d bytes that start %.40q", len(message), message)
}
