package transport

import (
	"fmt"
	"io"
	"sync"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// Small messages in quick succession share system calls; none may be lost,
// torn or overtaken by one of the same writer.
func TestWebSocketBurst(t *testing.T) {
	t.Parallel()
	client, server := webSocketPair(t, Config{}, DialConfig{})
	const writers, each = 16, 500
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				rig.Must(t, server.Write(fmt.Appendf(nil, "%d %d", w, i)))
			}
		})
	}
	var next [writers]int
	for range writers * each {
		message, err := client.Read()
		rig.Must(t, err)
		var w, i int
		rig.Must(t, rig.Err(fmt.Sscanf(string(message), "%d %d", &w, &i)))
		if i != next[w] {
			t.Fatalf("message %d of writer %d, want %d", i, w, next[w])
		}
		next[w]++
	}
	wg.Wait()
}

// A message that Write has taken still arrives when the connection is closed, even
// if another writer was about to send it.
func TestWebSocketBurstThenClose(t *testing.T) {
	t.Parallel()
	for range 50 {
		client, server := webSocketPair(t, Config{}, DialConfig{})
		const writers, each = 8, 20
		var wg sync.WaitGroup
		for range writers {
			wg.Go(func() {
				for range each {
					rig.Check(t, server.Write([]byte("x")))
				}
			})
		}
		wg.Wait()
		rig.Must(t, server.Write([]byte("last")))
		server.Close()
		got := 0
		for {
			message, err := client.Read()
			if err == io.EOF {
				break
			}
			rig.Must(t, err)
			if got++; got == writers*each+1 && string(message) != "last" {
				t.Errorf("last message is %q", message)
			}
		}
		rig.Is(t, got, writers*each+1, "messages that arrived")
	}
}
