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

// An Identity is the static key pair of one process, one half of each kind. It
// is made at start, serves every registration and stream of the process, and is
// never written to disk (remote.md 6.6). Its methods may run at once.
type Identity struct {
	x25519 *ecdh.PrivateKey
	mlkem  *mlkem.DecapsulationKey768
	public *wire.PublicKey

	mu    sync.Mutex
	spare *ephemeral                 // for the next handshake, see Prepare
	peer  *mlkem.EncapsulationKey768 // the peer's key that was parsed last
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

// PublicKey returns what the peer and the registry may know. Callers must not
// change it.
func (i *Identity) PublicKey() *wire.PublicKey { return i.public }

// Prepare makes the ephemeral keys of the next handshake unless they are there
// already. It need not be called: a handshake without prepared keys makes them
// itself, while its peer waits.
func (i *Identity) Prepare() {
	i.mu.Lock()
	ready := i.spare != nil
	i.mu.Unlock()
	if ready {
		return
	}
	e, err := newEphemeral()
	if err != nil {
		return // the handshake tries again and reports it
	}
	i.mu.Lock()
	i.spare = e // if two calls made keys at once, those of one are never used
	i.mu.Unlock()
}

// ephemeral returns keys for one handshake, which nobody else gets.
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

// encapsulationKey parses and checks a static ML-KEM key of a peer. The last one
// is kept: a harness asks for the same executor each time and opens many streams
// to it, and parsing costs half as much as encapsulating.
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

// An ephemeral is a key pair for one handshake, one half of each kind. The
// standard library keeps the secret halves where nobody can overwrite them, so
// they live until the garbage collector reuses their memory.
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
