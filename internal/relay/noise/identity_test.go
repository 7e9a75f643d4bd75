package noise

import (
	"bytes"
	"encoding/json"
	"sync"
	"testing"

	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/test/rig"
)

func TestIdentity(t *testing.T) {
	t.Parallel()
	a, b := newIdentity(t), newIdentity(t)
	rig.Is(t, a.PublicKey().Equal(b.PublicKey()), false, "two identities have one key")
	text := rig.Value(json.Marshal(a.PublicKey()))
	var key wire.PublicKey
	rig.Must(t, json.Unmarshal(text, &key))
	rig.Is(t, key.Equal(a.PublicKey()), true, "the key is the same after JSON")
}

// TestEphemeralOnce: however many handshakes begin at once, no two get the same
// ephemeral key.
func TestEphemeralOnce(t *testing.T) {
	t.Parallel()
	id := newIdentity(t)
	var mu sync.Mutex
	seen := map[*ephemeral]bool{}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10 {
				id.Prepare()
				e := rig.Value(id.ephemeral())
				mu.Lock()
				rig.Is(t, seen[e], false, "another one has the key")
				seen[e] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()

	id.Prepare()
	spare := id.spare
	id.Prepare()
	rig.Is(t, rig.Value(id.ephemeral()), spare, "the key that was made ahead")
	rig.Is(t, id.spare == nil, true, "a used key is dropped")
}

// TestEncapsulationKey: the key that was parsed last is kept, and is never given
// out for another.
func TestEncapsulationKey(t *testing.T) {
	t.Parallel()
	id, a, b := newIdentity(t), newIdentity(t).public.MLKEM768, newIdentity(t).public.MLKEM768
	raw := bytes.Clone(a)
	first := rig.Value(id.encapsulationKey(raw))
	clear(raw) // the caller's to reuse
	for _, want := range [][]byte{a, b, a, b, b} {
		equal(t, "key", rig.Value(id.encapsulationKey(want)).Bytes(), want)
	}
	rig.Is(t, rig.Err(id.encapsulationKey(bytes.Repeat([]byte{0xff}, kemSize))) == nil, false, "a key that is none is accepted")
	again := rig.Value(id.encapsulationKey(b))
	rig.Is(t, rig.Value(id.encapsulationKey(b)), again, "the key is parsed each time")
	rig.Is(t, first == again, false, "the key is confused with another")
}
