package noise

import (
	"bytes"
	"crypto/ecdh"
	"crypto/mlkem"
	"crypto/rand"
	"fmt"
	"sync"

	"github.com/execagent/execagent/internal/relay/wire"
)

// An Identity has the static keys of one process: an X25519 key pair and an ML-KEM-768 key
// pair. It is made at start, serves every registration and stream of the process, and is
// never written to disk (remote.md 6.6). Its methods may be called concurrently.
type Identity struct {
	x25519 *ecdh.PrivateKey
	mlkem  *mlkem.DecapsulationKey768
	public *wire.PublicKey

	mu    sync.Mutex
	spare *ephemeral                 // for the next handshake, see Prepare
	peer  *mlkem.EncapsulationKey768 // the key that was parsed last
	raw   []byte                     // the bytes of peer
}

// NewIdentity makes new keys.
func NewIdentity() (*Identity, error) {
	e, err := newEphemeral()
	if err != nil {
		return nil, fmt.Errorf("making an identity: %w", err)
	}
	return identityOf(e), nil
}

// identityOf returns the identity that has e's keys.
func identityOf(e *ephemeral) *Identity {
	return &Identity{
		x25519: e.x25519,
		mlkem:  e.mlkem,
		public: &wire.PublicKey{Suite: wire.KeySuite, X25519: e.x25519Public, MLKEM768: e.mlkemPublic},
	}
}

// PublicKey returns the public key, which the peer and the registry may know. Callers must
// not change it.
func (i *Identity) PublicKey() *wire.PublicKey { return i.public }

// Prepare makes the ephemeral keys of the next handshake, unless they are prepared
// already. A call is optional: a handshake without prepared keys makes them itself, while
// its peer waits.
func (i *Identity) Prepare() {
	i.mu.Lock()
	ready := i.spare != nil
	i.mu.Unlock()
	if ready {
		return
	}
	e, err := newEphemeral()
	if err != nil {
		return // the handshake tries again and reports an error
	}
	i.mu.Lock()
	i.spare = e // if two calls made keys at once, the keys of one call are never used
	i.mu.Unlock()
}

// ephemeral returns the keys for one handshake. No other handshake gets them.
func (i *Identity) ephemeral() (*ephemeral, error) {
	i.mu.Lock()
	e := i.spare
	i.spare = nil
	i.mu.Unlock()
	if e != nil {
		return e, nil
	}
	return newEphemeral()
}

// encapsulationKey parses and checks a static ML-KEM key of a peer. It keeps the last
// key, because a harness opens many streams to the same executor, and parsing costs half as
// much as encapsulating.
func (i *Identity) encapsulationKey(raw []byte) (*mlkem.EncapsulationKey768, error) {
	i.mu.Lock()
	last, known := i.peer, i.peer != nil && bytes.Equal(i.raw, raw)
	i.mu.Unlock()
	if known {
		return last, nil
	}
	key, err := mlkem.NewEncapsulationKey768(raw)
	if err != nil {
		return nil, err
	}
	i.mu.Lock()
	i.peer, i.raw = key, bytes.Clone(raw)
	i.mu.Unlock()
	return key, nil
}

// An ephemeral has the keys for one handshake: an X25519 key pair and an ML-KEM-768 key
// pair. The standard library gives no way to overwrite the secret keys, so they live until
// the garbage collector reuses their memory.
type ephemeral struct {
	x25519       *ecdh.PrivateKey
	x25519Public []byte
	mlkem        *mlkem.DecapsulationKey768
	mlkemPublic  []byte
}

func newEphemeral() (*ephemeral, error) {
	x, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making an X25519 key: %w", err)
	}
	m, err := mlkem.GenerateKey768()
	if err != nil {
		return nil, fmt.Errorf("making an ML-KEM key: %w", err)
	}
	return ephemeralOf(x, m), nil
}

func ephemeralOf(x *ecdh.PrivateKey, m *mlkem.DecapsulationKey768) *ephemeral {
	return &ephemeral{
		x25519: x, x25519Public: x.PublicKey().Bytes(),
		mlkem: m, mlkemPublic: m.EncapsulationKey().Bytes(),
	}
}
